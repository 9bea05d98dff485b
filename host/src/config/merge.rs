//! Flags and configuration file made one: what is given on the command line wins, then the file, then the defaults.

use super::file::{
    AccessSection, ClientSection, ClusterSection, ControllerSection, ElectionSection, HostConfiguration,
    LoggingSection, ServingSection,
};
use crate::cli::flags::{
    AccessFlags, ClusterFlags, ControllerFlags, ElectionFlags, ProcessFlags, RunFlags, ServingFlags,
};
use crate::cli::values::Hertz;

/// Puts into `flags` what `file` says, except where `is_given` says that the user gave the flag (by its field's name).
/// Plugins are not part of this.
pub(super) fn merge(flags: &mut RunFlags, file: &HostConfiguration, is_given: &dyn Fn(&str) -> bool) {
    let file = file.clone();
    cluster(&mut flags.cluster, file.client_connection, file.cluster, is_given);
    controllers(&mut flags.controllers, file.controllers, is_given);
    election(&mut flags.election, file.leader_election, is_given);
    serving(&mut flags.serving, file.serving, is_given);
    access(&mut flags.access, file.access, is_given);
    let grace = file.shutdown_grace.map(|it| it.0.0);
    process(&mut flags.process, file.logging, grace, is_given);
}

/// `flags.field <- value`, unless there is none or the flag of that name is given.
macro_rules! take {
    ($flags:ident, $is_given:ident: $($field:ident = $value:expr;)*) => {$(
        if !$is_given(stringify!($field)) && let Some(value) = $value {
            $flags.$field = value;
        }
    )*};
}

type IsGiven<'a> = &'a dyn Fn(&str) -> bool;

fn cluster(flags: &mut ClusterFlags, client: ClientSection, cluster: ClusterSection, is_given: IsGiven<'_>) {
    take! { flags, is_given:
        kubeconfig = client.kubeconfig.map(Some);
        master = client.master.map(|it| Some(it.0.0));
        kube_api_qps = client.qps.map(Hertz);
        kube_api_burst = client.burst;
        max_writes_in_flight = client.max_writes_in_flight;
        cluster_name = cluster.name;
        cluster_id = cluster.id.map(|it| Some(it.0.0));
        cluster_cidr = cluster.cidrs.map(|all| all.into_iter().map(|it| it.0).collect());
    }
}

fn controllers(flags: &mut ControllerFlags, section: ControllerSection, is_given: IsGiven<'_>) {
    take! { flags, is_given:
        controllers = section.enabled;
        concurrent_node_syncs = section.concurrent_node_syncs;
        concurrent_service_syncs = section.concurrent_service_syncs;
        node_status_update_frequency = section.node_status_update_frequency.map(|it| it.0.0);
        configure_cloud_routes = section.configure_cloud_routes;
    }
}

fn election(flags: &mut ElectionFlags, section: ElectionSection, is_given: IsGiven<'_>) {
    take! { flags, is_given:
        leader_elect = section.leader_elect;
        leader_elect_lease_duration = section.lease_duration.map(|it| it.0.0);
        leader_elect_renew_deadline = section.renew_deadline.map(|it| it.0.0);
        leader_elect_retry_period = section.retry_period.map(|it| it.0.0);
        leader_elect_resource_name = section.resource_name.map(|it| it.0.0);
        leader_elect_resource_namespace = section.resource_namespace.map(|it| it.0.0);
    }
}

fn serving(flags: &mut ServingFlags, section: ServingSection, is_given: IsGiven<'_>) {
    take! { flags, is_given:
        bind_address = section.bind_address;
        secure_port = section.port.map(Some);
        secure_port_file = section.port_file.map(Some);
        admin_socket = section.admin_socket.map(Some);
    }
    // One decision, where the certificate comes from: taken from one place.
    if !["cert_dir", "tls_cert_file", "tls_private_key_file"]
        .into_iter()
        .any(is_given)
    {
        flags.cert_dir = section.cert_dir;
        flags.tls_cert_file = section.tls_cert_file;
        flags.tls_private_key_file = section.tls_private_key_file;
    }
}

fn access(flags: &mut AccessFlags, section: AccessSection, is_given: IsGiven<'_>) {
    let paths = section.always_allow_paths;
    take! { flags, is_given:
        authentication_kubeconfig = section.authentication_kubeconfig.map(Some);
        authorization_kubeconfig = section.authorization_kubeconfig.map(Some);
        authentication_token_webhook_cache_ttl = section.token_ttl.map(|it| it.0.0);
        authorization_webhook_cache_authorized_ttl = section.authorized_ttl.map(|it| it.0.0);
        authorization_webhook_cache_unauthorized_ttl = section.unauthorized_ttl.map(|it| it.0.0);
        authorization_always_allow_paths = paths.map(|all| all.into_iter().map(|it| it.0).collect());
    }
}

fn process(
    flags: &mut ProcessFlags,
    logging: LoggingSection,
    grace: Option<std::time::Duration>,
    is_given: IsGiven<'_>,
) {
    take! { flags, is_given:
        shutdown_grace = grace;
        v = logging.verbosity;
        logging_format = logging.format;
    }
}
