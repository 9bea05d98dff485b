//! What a Service's load balancer should consist of: from its spec, and from what it has already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::{Result, v1};

use super::observed::Observed;
use super::{Family, PluginConfig};
use crate::cloud::Kind;

/// Where the client's address decides.
const CLIENT_IP: &str = "client_ip";

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A text; empty: none.
    Text(String),
    /// The id of the part with this role.
    IdOf(String),
}

/// A part with a mark of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its stable slot; empty for the load balancer itself.
    pub(super) role: String,
    pub(super) kind: Kind,
    /// The role of what it is part of.
    pub(super) parent: Option<String>,
    pub(super) attributes: BTreeMap<&'static str, Value>,
}

/// Everything that a load balancer consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// In the order in which they are to be made: traffic begins with the last.
    pub(super) parts: Vec<Part>,
    /// Who may reach which port: the names of the firewall's rules.
    pub(super) rules: BTreeSet<String>,
    /// The instances in the pool; none: targets are not to be looked at.
    pub(super) targets: Option<BTreeSet<String>>,
}

pub(super) const FIREWALL: &str = "firewall";
pub(super) const POOL: &str = "pool";
const HEALTH_CHECK: &str = "health-check";

fn text(value: impl Into<String>) -> Value {
    Value::Text(value.into())
}

fn id_of(role: &str) -> Value {
    Value::IdOf(role.to_owned())
}

/// The parts for a spec. What exists decides only where the spec leaves a choice: an address is kept.
pub(super) fn wanted(config: &PluginConfig, spec: &v1::Spec, observed: &Observed) -> Result<Wanted> {
    let families = families(config, spec)?;
    let mut parts = vec![Part {
        role: FIREWALL.to_owned(),
        kind: Kind::Firewall,
        parent: None,
        attributes: BTreeMap::new(),
    }];
    let mut balancer = BTreeMap::from([("firewall", id_of(FIREWALL))]);
    for (family, key) in [(Family::Ipv4, "address_ipv4"), (Family::Ipv6, "address_ipv6")] {
        if !families.contains(&family) {
            balancer.insert(key, text(""));
            continue;
        }
        let address = address(family, spec, observed)?;
        balancer.insert(key, id_of(&address.role));
        parts.push(address);
    }
    parts.push(Part {
        role: HEALTH_CHECK.to_owned(),
        kind: Kind::HealthCheck,
        parent: None,
        attributes: health_check(spec)?,
    });
    parts.push(Part {
        role: POOL.to_owned(),
        kind: Kind::Pool,
        parent: None,
        attributes: BTreeMap::from([
            ("health_check", id_of(HEALTH_CHECK)),
            ("affinity", text(affinity(spec))),
        ]),
    });
    parts.push(Part {
        role: String::new(),
        kind: Kind::LoadBalancer,
        parent: None,
        attributes: balancer,
    });
    let mut rules = BTreeSet::new();
    for (index, port) in spec.ports.iter().enumerate() {
        let listener = listener(index, port)?;
        for source in sources(spec, &families)? {
            rules.insert(format!(
                "{}/{source}",
                listener.role.trim_start_matches("listener/")
            ));
        }
        if parts.iter().any(|part| part.role == listener.role) {
            let field = format!("spec.ports[{index}]");
            return Err(PluginError::invalid_spec(field, "is there twice"));
        }
        parts.push(listener);
    }
    if spec.ports.is_empty() {
        return Err(PluginError::invalid_spec("spec.ports", "is empty"));
    }
    Ok(Wanted {
        parts,
        rules,
        targets: None,
    })
}

/// The families that the load balancer has addresses of, in the Service's order.
pub(super) fn families(config: &PluginConfig, spec: &v1::Spec) -> Result<Vec<Family>> {
    let asked: Vec<Family> = spec
        .ip_families()
        .filter_map(|family| match family {
            v1::IpFamily::Ipv4 => Some(Family::Ipv4),
            v1::IpFamily::Ipv6 => Some(Family::Ipv6),
            v1::IpFamily::Unspecified => None,
        })
        .collect();
    if asked.is_empty() {
        return Ok(config.ip_families.iter().copied().take(1).collect());
    }
    let served: Vec<Family> = asked
        .iter()
        .copied()
        .filter(|it| config.ip_families.contains(it))
        .collect();
    let all = spec.ip_family_policy() == v1::IpFamilyPolicy::RequireDualStack;
    if served.is_empty() || (all && served.len() < asked.len()) {
        let text = "asks for a family that this provider does not serve";
        return Err(PluginError::invalid_spec("spec.ip_families", text));
    }
    Ok(served)
}

/// The address that is asked for, else the one that is there, else any.
fn address(family: Family, spec: &v1::Spec, observed: &Observed) -> Result<Part> {
    let mut requested = None;
    for (index, asked) in spec.requested_addresses.iter().enumerate() {
        let field = || format!("spec.requested_addresses[{index}]");
        let ip: IpAddr = asked
            .parse()
            .map_err(|_| PluginError::invalid_spec(field(), format!("{asked:?} is no IP address")))?;
        if ip.is_ipv6() == (family == Family::Ipv6) {
            requested = Some(ip.to_string());
        }
    }
    let present = observed.parts.values().find(|object| {
        object.kind == Kind::Address
            && object.attribute("family") == family.name()
            && observed.uses(&object.id)
    });
    let role = match (&requested, present) {
        (Some(ip), Some(present)) if present.attribute("ip") == ip => {
            present.tag(super::observed::ROLE).to_owned()
        }
        (Some(ip), _) => format!("address/{ip}"),
        (None, Some(present)) => present.tag(super::observed::ROLE).to_owned(),
        (None, None) => format!("address/{}", family.name()),
    };
    let mut attributes = BTreeMap::from([("family", text(family.name()))]);
    if let Some(ip) = requested {
        attributes.insert("ip", text(ip));
    }
    Ok(Part {
        role,
        kind: Kind::Address,
        parent: None,
        attributes,
    })
}

fn health_check(spec: &v1::Spec) -> Result<BTreeMap<&'static str, Value>> {
    let (protocol, port, path) = match &spec.health_check {
        Some(check) if check.node_port == 0 => {
            return Err(PluginError::invalid_spec(
                "spec.health_check.node_port",
                "is missing",
            ));
        }
        Some(check) => ("http", check.node_port, check.path.as_str()),
        None => {
            let first = spec
                .ports
                .iter()
                .find(|port| port.protocol() == v1::Protocol::Tcp);
            (
                "tcp",
                first
                    .or_else(|| spec.ports.first())
                    .and_then(|port| port.node_port)
                    .unwrap_or_default(),
                "",
            )
        }
    };
    Ok(BTreeMap::from([
        ("protocol", text(protocol)),
        ("port", text(port.to_string())),
        ("path", text(path)),
    ]))
}

fn affinity(spec: &v1::Spec) -> &'static str {
    if spec.session_affinity() == v1::SessionAffinity::ClientIp {
        CLIENT_IP
    } else {
        ""
    }
}

fn listener(index: usize, port: &v1::Port) -> Result<Part> {
    let field = |name: &str| format!("spec.ports[{index}].{name}");
    let protocol = match port.protocol() {
        v1::Protocol::Tcp => "tcp",
        v1::Protocol::Udp => "udp",
        v1::Protocol::Sctp | v1::Protocol::Unspecified => {
            return Err(PluginError::invalid_spec(
                field("protocol"),
                "is neither TCP nor UDP",
            ));
        }
    };
    if u16::try_from(port.port).unwrap_or_default() == 0 {
        return Err(PluginError::invalid_spec(field("port"), "is no port"));
    }
    let node_port = port
        .node_port
        .filter(|it| u16::try_from(*it).is_ok_and(|it| it > 0));
    let node_port = node_port.ok_or_else(|| {
        PluginError::invalid_spec(field("node_port"), "is missing: this provider needs one")
    })?;
    Ok(Part {
        role: format!("listener/{protocol}/{}", port.port),
        kind: Kind::Listener,
        parent: Some(String::new()),
        attributes: BTreeMap::from([
            ("protocol", text(protocol)),
            ("port", text(port.port.to_string())),
            ("target_port", text(node_port.to_string())),
            ("pool", id_of(POOL)),
        ]),
    })
}

/// Who may connect; with no ranges given, everybody.
fn sources(spec: &v1::Spec, families: &[Family]) -> Result<Vec<String>> {
    if spec.source_ranges.is_empty() {
        let everybody = |family: &Family| match family {
            Family::Ipv4 => "0.0.0.0/0".to_owned(),
            Family::Ipv6 => "::/0".to_owned(),
        };
        return Ok(families.iter().map(everybody).collect());
    }
    for (index, range) in spec.source_ranges.iter().enumerate() {
        if super::routes::Cidr::read(range).is_none() {
            let field = format!("spec.source_ranges[{index}]");
            return Err(PluginError::invalid_spec(field, format!("{range:?} is no CIDR")));
        }
    }
    Ok(spec.source_ranges.clone())
}

/// The instances behind nodes, and the nodes that are no targets.
pub(super) fn targets(
    config: &PluginConfig,
    nodes: &v1::NodeSet,
) -> (BTreeSet<String>, Vec<v1::TargetProblem>) {
    let most = usize::try_from(config.max_targets).unwrap_or(usize::MAX);
    let mut targets = BTreeSet::new();
    let mut problems = Vec::new();
    let mut ordered: Vec<&v1::Node> = nodes.nodes.iter().collect();
    ordered.sort_by(|one, other| (&one.name, &one.uid).cmp(&(&other.name, &other.uid)));
    for node in ordered {
        let problem = match config.instance_id(&node.provider_id) {
            None if node.provider_id.is_empty() => {
                ("NoProviderID", "the node has no provider ID yet".to_owned())
            }
            None => (
                "ForeignProvider",
                format!("{} is another provider's", node.provider_id),
            ),
            Some(id) if targets.contains(id) => continue,
            Some(_) if targets.len() >= most => (
                "LimitReached",
                format!("a load balancer has at most {most} targets"),
            ),
            Some(id) => {
                targets.insert(id.to_owned());
                continue;
            }
        };
        problems.push(v1::TargetProblem {
            node_name: node.name.clone(),
            node_uid: node.uid.clone(),
            reason: problem.0.to_owned(),
            message: problem.1,
        });
    }
    (targets, problems)
}
