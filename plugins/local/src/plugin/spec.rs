//! From a Spec and a node set to what is [`Wanted`]: everything that can be wrong is said here, with the
//! field's path, before anything is done.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::{Call, Result, v1};

use crate::balancer::{HealthCheck, Listen, Ports, Protocol, ServiceKey, Targets};
use crate::cidr::Cidr;
use crate::world::Wanted;

#[cfg(test)]
mod tests;

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
    families(spec)?;
    affinity(spec)?;
    Ok(Wanted {
        mark: of.mark,
        cluster: cluster.to_owned(),
        service: of.service,
        spec_digest: digest.to_owned(),
        request: request(spec)?,
        preferred: preferred(spec),
        ports: ports(spec)?,
        targets: Targets::new(),
        sources: sources(spec)?,
        health_check: health_check(spec)?,
    })
}

fn families(spec: &v1::Spec) -> Result<()> {
    let mut families = spec.ip_families().peekable();
    if families.peek().is_some() && !families.any(|family| family == v1::IpFamily::Ipv4) {
        return Err(PluginError::invalid_spec(
            "spec.ip_families",
            "only IPv4 is served",
        ));
    }
    if spec.ip_family_policy() == v1::IpFamilyPolicy::RequireDualStack {
        return Err(PluginError::invalid_spec(
            "spec.ip_family_policy",
            "only IPv4 is served, not two families",
        ));
    }
    Ok(())
}

fn affinity(spec: &v1::Spec) -> Result<()> {
    match spec.session_affinity() {
        v1::SessionAffinity::ClientIp => Err(PluginError::invalid_spec(
            "spec.session_affinity",
            "ClientIP is not served: use None",
        )),
        v1::SessionAffinity::Unspecified | v1::SessionAffinity::None => Ok(()),
    }
}

fn request(spec: &v1::Spec) -> Result<Option<IpAddr>> {
    let [text] = spec.requested_addresses.as_slice() else {
        return match spec.requested_addresses.len() {
            0 => Ok(None),
            _ => Err(PluginError::invalid_spec(
                "spec.requested_addresses[1]",
                "one IPv4 address is served",
            )),
        };
    };
    let address: Ipv4Addr = text.trim().parse().map_err(|_| {
        PluginError::invalid_spec(
            "spec.requested_addresses[0]",
            format!("{text:?} is not an IPv4 address"),
        )
    })?;
    Ok(Some(address.into()))
}

/// The address that users see now: kept if this plugin has lost its state and the address is free.
fn preferred(spec: &v1::Spec) -> Option<IpAddr> {
    let status = spec.current_status.as_ref()?;
    status.ingress.iter().find_map(|ingress| match &ingress.address {
        Some(v1::ingress::Address::Ip(ip)) => ip.parse::<Ipv4Addr>().ok().map(IpAddr::from),
        Some(v1::ingress::Address::Hostname(_)) | None => None,
    })
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
            v1::Protocol::Sctp => return Err(wrong("protocol", "SCTP is not served")),
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

/// The targets among the nodes, and what keeps the others from being some.
pub(super) fn targets(nodes: &v1::NodeSet, limit: usize) -> (Targets, Vec<v1::TargetProblem>) {
    let (mut targets, mut problems) = (Targets::new(), Vec::new());
    for node in &nodes.nodes {
        let problem = |reason: &str, message: String| v1::TargetProblem {
            node_name: node.name.clone(),
            node_uid: node.uid.clone(),
            reason: reason.to_owned(),
            message,
        };
        match internal_ip(node) {
            None => problems.push(problem(
                "NoAddress",
                "the node has no InternalIP of IPv4".to_owned(),
            )),
            Some(_) if targets.len() >= limit => {
                problems.push(problem(
                    "LimitReached",
                    format!("a load balancer has at most {limit} targets"),
                ));
            }
            Some(address) => _ = targets.insert(node.name.clone(), address),
        }
    }
    (targets, problems)
}

fn internal_ip(node: &v1::Node) -> Option<IpAddr> {
    let internal = node
        .addresses
        .iter()
        .filter(|address| address.r#type() == v1::AddressType::InternalIp);
    internal
        .filter_map(|address| address.address.parse::<Ipv4Addr>().ok())
        .map(IpAddr::from)
        .next()
}
