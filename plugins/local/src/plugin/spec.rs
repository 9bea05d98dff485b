//! From a Spec and a node set to what is [`Wanted`]: everything that can be wrong is said here, with the
//! field's path, before anything is done.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::{Call, Result, v1};

use crate::balancer::{
    HealthCheck, Listen, NodeAddresses, Ports, Protocol, ProxyProtocol, ServiceKey, Targets,
};
use crate::cidr::{Cidr, Family};
use crate::pool::{Need, Wish};
use crate::world::Wanted;

#[cfg(test)]
mod tests;

/// The annotation of a Service whose targets are to be told their clients' addresses: `v2`, or empty.
pub(super) const PROXY_PROTOCOL: &str = "local.bulkhead.dev/proxy-protocol";

/// Kubernetes' own default for clients that are to stay with their node.
const AFFINITY: Duration = Duration::from_hours(3);

/// The Service and mark of a reference, checked.
pub(super) struct Reference {
    pub(super) service: ServiceKey,
    pub(super) mark: String,
}

/// Reads a reference. The mark must be the Service's own: whoever may name marks freely could take over
/// or delete another Service's load balancer.
pub(super) fn reference(call: &Call, reference: Option<&v1::LoadBalancerRef>) -> Result<Reference> {
    let reference = reference.ok_or_else(|| PluginError::invalid_spec("ref", "is missing"))?;
    let service = reference.service.as_ref();
    let service = service.filter(|service| !service.uid.is_empty());
    let service = service.ok_or_else(|| PluginError::invalid_spec("ref.service.uid", "is missing"))?;
    if reference.mark != call.mark(&service.uid, "") {
        return Err(PluginError::invalid_spec(
            "ref.mark",
            "is not the mark of this cluster and Service",
        ));
    }
    let service = ServiceKey {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
    };
    Ok(Reference {
        service,
        mark: reference.mark.clone(),
    })
}

/// What a Spec asks for; targets are left empty.
pub(super) fn wanted(cluster: &str, of: Reference, spec: &v1::Spec, digest: &str) -> Result<Wanted> {
    Ok(Wanted {
        mark: of.mark,
        cluster: cluster.to_owned(),
        service: of.service,
        spec_digest: digest.to_owned(),
        wish: wish(spec)?,
        ports: ports(spec)?,
        targets: Targets::new(),
        sources: sources(spec)?,
        health_check: health_check(spec)?,
        affinity: affinity(spec)?,
        proxy_protocol: proxy_protocol(spec)?,
    })
}

fn wish(spec: &v1::Spec) -> Result<Wish> {
    let mut families = Vec::new();
    for (number, family) in spec.ip_families().enumerate() {
        let family = match family {
            v1::IpFamily::Ipv4 => Family::V4,
            v1::IpFamily::Ipv6 => Family::V6,
            v1::IpFamily::Unspecified => {
                return Err(PluginError::invalid_spec(
                    format!("spec.ip_families[{number}]"),
                    "is missing",
                ));
            }
        };
        if !families.contains(&family) {
            families.push(family);
        }
    }
    if families.is_empty() {
        families.push(Family::V4);
    }
    let need = match spec.ip_family_policy() {
        v1::IpFamilyPolicy::PreferDualStack => Need::Any,
        v1::IpFamilyPolicy::RequireDualStack if families.len() < Family::ALL.len() => {
            return Err(PluginError::invalid_spec(
                "spec.ip_families",
                "has one family, and spec.ip_family_policy requires two",
            ));
        }
        v1::IpFamilyPolicy::RequireDualStack
        | v1::IpFamilyPolicy::SingleStack
        | v1::IpFamilyPolicy::Unspecified => Need::Every,
    };
    Ok(Wish {
        requested: requested(spec, &families)?,
        preferred: preferred(spec),
        families,
        need,
    })
}

/// The field by which a Service asks for addresses.
pub(super) const REQUESTED: &str = "spec.requested_addresses";

/// The addresses asked for, each of a family that is served.
fn requested(spec: &v1::Spec, families: &[Family]) -> Result<Vec<IpAddr>> {
    let mut requested: Vec<IpAddr> = Vec::new();
    for (number, text) in spec.requested_addresses.iter().enumerate() {
        let wrong = |text: String| PluginError::invalid_spec(format!("{REQUESTED}[{number}]"), text);
        let address: IpAddr = text.trim().parse().map_err(|_| {
            wrong(format!(
                "{text:?} is not an IP address: ask for one, or for none to be given a free one"
            ))
        })?;
        let family = Family::of(address);
        if !families.contains(&family) {
            return Err(wrong(format!("{address} is {family}, which the Service is not")));
        }
        if requested.iter().any(|other| Family::of(*other) == family) {
            return Err(wrong(format!(
                "{address} is a second {family} address: one is served"
            )));
        }
        requested.push(address);
    }
    Ok(requested)
}

/// The addresses that users see now: kept if this plugin has lost its state and they are free.
fn preferred(spec: &v1::Spec) -> Vec<IpAddr> {
    let ingress = spec.current_status.iter().flat_map(|status| &status.ingress);
    let addresses = ingress.filter_map(|ingress| match &ingress.address {
        Some(v1::ingress::Address::Ip(ip)) => ip.parse().ok(),
        Some(v1::ingress::Address::Hostname(_)) | None => None,
    });
    addresses.collect()
}

fn affinity(spec: &v1::Spec) -> Result<Option<Duration>> {
    match spec.session_affinity() {
        v1::SessionAffinity::Unspecified | v1::SessionAffinity::None => Ok(None),
        v1::SessionAffinity::ClientIp => {
            let Some(timeout) = spec.session_affinity_timeout else {
                return Ok(Some(AFFINITY));
            };
            let seconds = Duration::try_from(timeout).ok().map(|timeout| timeout.as_secs());
            match seconds.filter(|seconds| *seconds > 0) {
                Some(seconds) => Ok(Some(Duration::from_secs(seconds))),
                None => Err(PluginError::invalid_spec(
                    "spec.session_affinity_timeout",
                    "is less than a second",
                )),
            }
        }
    }
}

fn proxy_protocol(spec: &v1::Spec) -> Result<ProxyProtocol> {
    match spec.annotations.get(PROXY_PROTOCOL).map(|value| value.trim()) {
        None | Some("") => Ok(ProxyProtocol::Off),
        Some("v2") => Ok(ProxyProtocol::V2),
        Some(other) => Err(PluginError::invalid_spec(
            format!("spec.annotations[{PROXY_PROTOCOL}]"),
            format!("{other:?} is not served: use \"v2\", or remove the annotation"),
        )),
    }
}

fn ports(spec: &v1::Spec) -> Result<Ports> {
    if spec.ports.is_empty() {
        return Err(PluginError::invalid_spec("spec.ports", "is empty"));
    }
    let mut ports = Ports::new();
    for (number, port) in spec.ports.iter().enumerate() {
        let wrong =
            |name: &str, text: &str| PluginError::invalid_spec(format!("spec.ports[{number}].{name}"), text);
        let protocol = match port.protocol() {
            v1::Protocol::Tcp => Protocol::Tcp,
            v1::Protocol::Udp => Protocol::Udp,
            v1::Protocol::Sctp => {
                return Err(wrong(
                    "protocol",
                    "SCTP is not served: use TCP or UDP, or make the Service anew with another .spec.loadBalancerClass",
                ));
            }
            v1::Protocol::Unspecified => return Err(wrong("protocol", "is missing")),
        };
        let listen = Listen {
            protocol,
            port: port_number(port.port).ok_or_else(|| wrong("port", "is not between 1 and 65535"))?,
        };
        let node_port = port_number(port.node_port.unwrap_or_default())
            .ok_or_else(|| wrong("node_port", "is missing: this plugin forwards to node ports"))?;
        if ports.insert(listen, node_port).is_some() {
            return Err(wrong("port", "is listed twice with this protocol"));
        }
    }
    Ok(ports)
}

fn port_number(number: u32) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

fn sources(spec: &v1::Spec) -> Result<BTreeSet<Cidr>> {
    let read = |(number, text): (usize, &String)| {
        Cidr::covering(text.trim()).map_err(|error| {
            PluginError::invalid_spec(format!("spec.source_ranges[{number}]"), error.to_string())
        })
    };
    spec.source_ranges.iter().enumerate().map(read).collect()
}

fn health_check(spec: &v1::Spec) -> Result<Option<HealthCheck>> {
    let Some(check) = &spec.health_check else {
        return Ok(None);
    };
    let wrong = |name: &str, text: &str| PluginError::invalid_spec(format!("spec.health_check.{name}"), text);
    let node_port =
        port_number(check.node_port).ok_or_else(|| wrong("node_port", "is not between 1 and 65535"))?;
    // It goes into a request as it is.
    if !check.path.starts_with('/') || !check.path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("path", "is not a path such as /healthz"));
    }
    Ok(Some(HealthCheck {
        node_port,
        path: check.path.clone(),
    }))
}

/// The targets among the nodes for these families, and what keeps the others from being some.
pub(super) fn targets(
    nodes: &v1::NodeSet,
    families: &[Family],
    limit: usize,
) -> (Targets, Vec<v1::TargetProblem>) {
    let (mut targets, mut problems) = (Targets::new(), Vec::new());
    for node in &nodes.nodes {
        let mut problem = |reason: &str, message: String| {
            problems.push(v1::TargetProblem {
                node_name: node.name.clone(),
                node_uid: node.uid.clone(),
                reason: reason.to_owned(),
                message,
            });
        };
        let addresses = internal_ips(node);
        let missing = families.iter().find(|family| addresses.of(**family).is_none());
        if let Some(family) = missing {
            problem("NoAddress", format!("the node has no InternalIP of {family}"));
        }
        if families.iter().all(|family| addresses.of(*family).is_none()) {
            continue;
        }
        if targets.len() >= limit {
            problem(
                "LimitReached",
                format!("a load balancer has at most {limit} targets"),
            );
            continue;
        }
        targets.insert(node.name.clone(), addresses);
    }
    (targets, problems)
}

/// The first `InternalIP` of each family.
fn internal_ips(node: &v1::Node) -> NodeAddresses {
    let internal = node
        .addresses
        .iter()
        .filter(|address| address.r#type() == v1::AddressType::InternalIp);
    let mut first = NodeAddresses::default();
    for address in internal.filter_map(|address| address.address.parse().ok()) {
        match address {
            IpAddr::V4(v4) => _ = first.v4.get_or_insert(v4),
            IpAddr::V6(v6) => _ = first.v6.get_or_insert(v6),
        }
    }
    first
}
