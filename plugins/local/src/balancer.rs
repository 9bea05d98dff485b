//! What one load balancer is, and which changes turn one into another.
//!
//! Everything here is a value; [`plan`] is the whole policy of "changing one port touches only that
//! listener", readable without any socket.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cidr::{Cidr, Family};
use crate::health::Probe;

#[cfg(test)]
mod tests;

/// The Service a load balancer belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceKey {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// UID of the Service: a Service created anew under the same name is another one.
    pub uid: String,
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A protocol that this plugin forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// What a listener listens on, within its load balancer's addresses. As text: `tcp/80`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Listen {
    /// TCP and UDP have port spaces of their own.
    pub protocol: Protocol,
    /// The Service's port.
    pub port: NonZeroU16,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{protocol}/{}", self.port)
    }
}

/// A text is no [`Listen`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a protocol and a port such as tcp/80")]
pub struct ListenError(String);

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let wrong = || ListenError(text.to_owned());
        let (protocol, port) = text.split_once('/').ok_or_else(wrong)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(wrong()),
        };
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Self { protocol, port })
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> Self {
        listen.to_string()
    }
}

impl TryFrom<String> for Listen {
    type Error = ListenError;

    fn try_from(text: String) -> Result<Self, ListenError> {
        text.parse()
    }
}

/// Node ports by what is listened on.
pub type Ports = BTreeMap<Listen, NonZeroU16>;

/// Where a node is reached: at most one address of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeAddresses {
    /// Over IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v4: Option<Ipv4Addr>,
    /// Over IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Addr>,
}

impl NodeAddresses {
    /// The address of one family.
    pub fn of(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }

    /// Whether there is none at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<IpAddr> for NodeAddresses {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self {
                v4: Some(v4),
                v6: None,
            },
            IpAddr::V6(v6) => Self {
                v4: None,
                v6: Some(v6),
            },
        }
    }
}

/// Target addresses by node name.
pub type Targets = BTreeMap<String, NodeAddresses>;

/// What targets are told of their clients before the clients' own bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ProxyProtocol {
    /// Nothing: they see this machine.
    #[default]
    Off,
    /// The client's address, by version 2 of the PROXY protocol, on TCP connections.
    V2,
}

/// One load balancer, as it is stored and served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balancer {
    /// The owner's name on it; unique.
    pub mark: String,
    /// UID of the cluster it belongs to.
    pub cluster: String,
    /// The Service it belongs to.
    pub service: ServiceKey,
    /// Digest of the specification it was last made for, as the host gave it.
    pub spec_digest: String,
    /// Where it listens: one address of a family, in the order of the Service's families.
    pub addresses: Vec<IpAddr>,
    /// What it listens on, and the node port behind each.
    pub ports: Ports,
    /// The nodes behind it. Shared: most load balancers have the same.
    pub targets: Arc<Targets>,
    /// Networks that clients may come from; everybody if empty.
    pub sources: BTreeSet<Cidr>,
    /// Who serves, if nodes say so themselves. None: a node serves that accepts connections.
    pub health_check: Option<HealthCheck>,
    /// How long after its last connection a client is sent to the same node. None: not at all.
    pub affinity: Option<Duration>,
    /// What targets are told of clients.
    pub proxy_protocol: ProxyProtocol,
}

/// Where nodes say over HTTP whether they serve: kube-proxy's answer for Services whose traffic stays
/// on the node that it came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HealthCheck {
    /// The node port to ask.
    pub node_port: NonZeroU16,
    /// The path, from the slash on.
    pub path: String,
}

impl Balancer {
    /// The target addresses of one family, each once.
    pub fn endpoints(&self, family: Family) -> BTreeSet<IpAddr> {
        let addresses = self.targets.values().filter_map(|node| node.of(family));
        addresses.collect()
    }

    /// How a node is asked whether it serves: by the health check if there is one, else by the lowest
    /// TCP port (one question a node, however many ports: they lead to the same Pods). None where only
    /// datagrams are served, which cannot be asked: then every node is taken as healthy.
    pub fn probe(&self) -> Option<Probe> {
        if let Some(check) = &self.health_check {
            return Some(Probe::Http {
                port: check.node_port.get(),
                path: check.path.clone(),
            });
        }
        let tcp = self
            .ports
            .iter()
            .find(|(listen, _)| listen.protocol == Protocol::Tcp);
        tcp.map(|(_, node_port)| Probe::Connect {
            port: node_port.get(),
        })
    }
}

/// The changes that turn one load balancer into another, least first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The addresses to listen on from now on, if they change.
    pub addresses: Option<Vec<IpAddr>>,
    /// Listeners to open, with their node ports.
    pub open: Ports,
    /// Listeners to close.
    pub close: BTreeSet<Listen>,
    /// Listeners that stay open and forward to another node port.
    pub retarget: Ports,
    /// Nodes to add, or whose addresses are others now.
    pub add: Targets,
    /// Nodes to remove.
    pub remove: BTreeSet<String>,
    /// The networks that clients may come from, if they change.
    pub sources: Option<BTreeSet<Cidr>>,
    /// The health check to use from now on, or none, if that changes.
    pub health_check: Option<Option<HealthCheck>>,
    /// The affinity to keep from now on, or none, if that changes.
    pub affinity: Option<Option<Duration>>,
    /// What to tell targets from now on, if that changes.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The digest to store, if it changes.
    pub spec_digest: Option<String>,
}

impl Plan {
    /// Whether nothing is to do, and so nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares what is with what should be. Mark and Service are not compared: they name the load balancer.
pub fn plan(current: &Balancer, desired: &Balancer) -> Plan {
    let mut plan = Plan::default();
    for (listen, node_port) in &desired.ports {
        match current.ports.get(listen) {
            None => _ = plan.open.insert(*listen, *node_port),
            Some(old) if old != node_port => _ = plan.retarget.insert(*listen, *node_port),
            Some(_) => {}
        }
    }
    plan.close.extend(
        current
            .ports
            .keys()
            .filter(|listen| !desired.ports.contains_key(listen)),
    );
    if !Arc::ptr_eq(&current.targets, &desired.targets) {
        let moved = desired
            .targets
            .iter()
            .filter(|(node, addresses)| current.targets.get(*node) != Some(addresses));
        plan.add
            .extend(moved.map(|(node, addresses)| (node.clone(), *addresses)));
        let gone = current
            .targets
            .keys()
            .filter(|node| !desired.targets.contains_key(*node));
        plan.remove.extend(gone.cloned());
    }
    plan.addresses = differing(&current.addresses, &desired.addresses);
    plan.sources = differing(&current.sources, &desired.sources);
    plan.health_check = differing(&current.health_check, &desired.health_check);
    plan.affinity = differing(&current.affinity, &desired.affinity);
    plan.proxy_protocol = differing(&current.proxy_protocol, &desired.proxy_protocol);
    plan.spec_digest = differing(&current.spec_digest, &desired.spec_digest);
    plan
}

fn differing<T: PartialEq + Clone>(current: &T, desired: &T) -> Option<T> {
    (current != desired).then(|| desired.clone())
}
