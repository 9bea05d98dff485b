//! The flags of `bulkhead run`, as the user wrote them. [`crate::config`] makes sense of them.

#![expect(
    clippy::doc_markdown,
    reason = "the comments on flags are their help, which shows no markdown"
)]

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_core::endpoint::Endpoint;
use clap::Args;
use http::Uri;

use super::values::{self, AllowedPath, Cidr, Hertz};
use crate::status::Output;
use crate::telemetry::LogFormat;

/// Every flag of `bulkhead run`.
#[derive(Args, Debug)]
pub struct RunFlags {
    /// Configuration file (YAML, kind HostConfiguration): plugins, and all that flags say. Flags that are given win over
    /// it. It is read again when it changes and on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The plugin.
    #[command(flatten, next_help_heading = "Plugin")]
    pub plugin: PluginFlags,
    /// The cluster.
    #[command(flatten, next_help_heading = "Cluster")]
    pub cluster: ClusterFlags,
    /// Which controllers run, and how.
    #[command(flatten, next_help_heading = "Controllers")]
    pub controllers: ControllerFlags,
    /// Leader election.
    #[command(flatten, next_help_heading = "Leader election")]
    pub election: ElectionFlags,
    /// The admin server.
    #[command(flatten, next_help_heading = "Health and metrics server")]
    pub serving: ServingFlags,
    /// Who may read from the admin server.
    #[command(flatten, next_help_heading = "Access to metrics")]
    pub access: AccessFlags,
    /// The process.
    #[command(flatten, next_help_heading = "Process")]
    pub process: ProcessFlags,
}

/// Flags about the plugin.
#[derive(Args, Debug)]
pub struct PluginFlags {
    /// Where the one plugin listens: unix:///path/to/plugin.sock, or spawn:COMMAND LINE to start it as a child
    /// process (quotes as in a shell, nothing is expanded). Several plugins: see --config
    #[arg(long, value_name = "ENDPOINT", required_unless_present_any = ["config", "plugins_directory"])]
    pub plugin: Option<Endpoint>,

    /// A user id, beside the host's own and 0, under which the plugin may run (repeatable)
    #[arg(long, value_name = "UID", action = clap::ArgAction::Append, requires = "plugin")]
    pub plugin_allowed_uid: Vec<u32>,

    /// The provider name that the plugin must report; unset: any
    #[arg(long, value_name = "NAME", value_parser = values::plugin_name, requires = "plugin")]
    pub cloud_provider: Option<String>,

    /// Folder in which each socket that appears, as NAME/any.sock, is a plugin
    #[arg(long, value_name = "DIR")]
    pub plugins_directory: Option<PathBuf>,
}

/// Flags about the cluster and its API server.
#[derive(Args, Debug)]
pub struct ClusterFlags {
    /// File with the way to the API server and the host's credentials; unset: those of the Pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL", value_parser = values::server_url)]
    pub master: Option<Uri>,

    /// Requests a second to the API server; 0: no rate of our own. Upstream's 20 makes a thousand joining nodes
    /// wait for minutes; the API server's own flow control and --max-writes-in-flight bound us instead
    #[arg(long, value_name = "RATE", default_value = "0", allow_negative_numbers = true)]
    pub kube_api_qps: Hertz,

    /// Requests that may exceed --kube-api-qps for a moment
    #[arg(long, value_name = "COUNT", default_value = "30")]
    pub kube_api_burst: NonZeroUsize,

    /// Writes to the API server in flight at once
    #[arg(long, value_name = "COUNT", default_value = "32")]
    pub max_writes_in_flight: NonZeroUsize,

    /// The cluster's name, for the names of cloud resources
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub cluster_name: String,

    /// The cluster's unique id, the owner in marks of cloud resources; unset: the uid of namespace kube-system
    #[arg(long, value_name = "ID", value_parser = values::nonempty)]
    pub cluster_id: Option<String>,

    /// The pods' address ranges, at most one of each family
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub cluster_cidr: Vec<Cidr>,
}

/// Flags about controllers.
#[derive(Args, Debug)]
pub struct ControllerFlags {
    /// Controllers to run: `*` for all, `name` to add, `-name` to leave out; the first entry that names a
    /// controller wins. Known: cloud-node-controller (cloud-node), service-lb-controller (service)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Vec<String>,

    /// Nodes worked on at once. Upstream's 1 initialises a thousand nodes one after another; batching keeps the
    /// cloud calls few
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub concurrent_node_syncs: NonZeroUsize,

    /// Services worked on at once. Upstream's 1 lets one slow load balancer block all others
    #[arg(long, value_name = "COUNT", default_value = "8")]
    pub concurrent_service_syncs: NonZeroUsize,

    /// How often the addresses of initialised nodes are refreshed
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = values::positive_duration)]
    pub node_status_update_frequency: Duration,

    /// Whether to keep the cloud's routes to pods; only a log line until node-route-controller is built
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "true", value_parser = values::boolean, action = clap::ArgAction::Set)]
    pub configure_cloud_routes: bool,
}

/// Flags about leader election.
#[derive(Args, Debug)]
pub struct ElectionFlags {
    /// Whether to write only while holding the Lease; false: only ever one host may run
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "true", value_parser = values::boolean, action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// How long others wait after the leader's last renewal; whole seconds
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = values::duration)]
    pub leader_elect_lease_duration: Duration,

    /// How long a leader that cannot renew goes on before it stops; less than the lease duration
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    pub leader_elect_renew_deadline: Duration,

    /// Time between attempts to acquire or renew; the renew deadline must be more than 1.2 of it
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = values::positive_duration)]
    pub leader_elect_retry_period: Duration,

    /// The kind of lock; only leases
    #[arg(long, value_name = "KIND", default_value = "leases", value_parser = ["leases"])]
    pub leader_elect_resource_lock: String,

    /// Name of the Lease; upstream's, so that an old cloud-controller-manager and this host exclude each other
    #[arg(long, value_name = "NAME", default_value = "cloud-controller-manager", value_parser = values::nonempty)]
    pub leader_elect_resource_name: String,

    /// Namespace of the Lease
    #[arg(long, value_name = "NAME", default_value = "kube-system", value_parser = values::nonempty)]
    pub leader_elect_resource_namespace: String,
}

/// Flags about the admin server.
#[derive(Args, Debug)]
pub struct ServingFlags {
    /// Address that the HTTPS server listens on
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// Port of the HTTPS server with /livez, /readyz, /readyz/plugins, /healthz and /metrics; 0: no server
    /// [default: 10258; with --secure-port-file a free port]
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,

    /// File to write the number of the bound port to
    #[arg(long, value_name = "FILE")]
    pub secure_port_file: Option<PathBuf>,

    /// Folder with cloud-controller-manager.crt and .key; made there, self-signed, if missing. Without any of
    /// these flags the certificate is self-signed and lives in memory
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,

    /// Certificate chain in PEM, read again when it changes; goes before --cert-dir
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// Private key in PEM, read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Socket for `bulkhead status`, open to the host's user and root; its folder is made if it is missing
    /// [default: $XDG_RUNTIME_DIR/bulkhead/admin.sock, else /run/bulkhead/admin.sock, else none]
    #[arg(long, value_name = "FILE")]
    pub admin_socket: Option<PathBuf>,
}

/// Flags of `bulkhead status`.
#[derive(Args, Debug)]
pub struct StatusFlags {
    /// The host's --admin-socket [default: as of bulkhead run]
    #[arg(long, value_name = "FILE")]
    pub admin_socket: Option<PathBuf>,

    /// Form of what is printed
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub output: Output,
}

/// Flags about who may read metrics.
#[derive(Args, Debug)]
pub struct AccessFlags {
    /// File with the way to the API server that reviews tokens; unset: the host's own
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// File with the way to the API server that reviews access; unset: the host's own
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// Accepted for upstream's command lines: callers prove themselves by bearer token only, so that there is
    /// no lookup of client certificate authorities to skip
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = values::boolean, action = clap::ArgAction::Set)]
    pub authentication_skip_lookup: bool,

    /// Accepted for upstream's command lines, as --authentication-skip-lookup
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = values::boolean, action = clap::ArgAction::Set)]
    pub authentication_tolerate_lookup_failure: bool,

    /// How long the review of a token is remembered
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// How long a granted access is remembered
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// How long a refused access is remembered
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = values::duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,

    /// Paths that anybody may read; one that ends with * stands for all that begin like it
    #[arg(
        long,
        value_name = "PATHS",
        value_delimiter = ',',
        default_value = "/healthz,/readyz,/livez,/readyz/plugins"
    )]
    pub authorization_always_allow_paths: Vec<AllowedPath>,
}

/// Flags about the process.
#[derive(Args, Debug)]
pub struct ProcessFlags {
    /// How long the end may take after SIGTERM, running calls and the plugin's right to write included; what takes
    /// longer ends without releasing the Lease
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = values::duration)]
    pub shutdown_grace: Duration,

    /// Detail of the log: 0 info, 1 debug, 6 libraries too; RUST_LOG, if set, decides alone
    #[arg(short, long, value_name = "LEVEL", default_value = "0")]
    pub v: u8,

    /// Form of the log's lines
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub logging_format: LogFormat,
}
