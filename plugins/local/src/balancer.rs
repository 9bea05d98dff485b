//! What one load balancer is, and which changes turn one into another.
//!
//! Everything here is a value; [`plan`] is the whole policy of "changing one port touches only that
//! listener", readable without any socket.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::cidr::Cidr;

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

/// What a listener listens on, within its load balancer's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Node ports by what is listened on.
pub type Ports = BTreeMap<Listen, NonZeroU16>;

/// Target addresses by node name.
pub type Targets = BTreeMap<String, IpAddr>;

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
    /// Where it listens.
    pub address: IpAddr,
    /// What it listens on, and the node port behind each.
    pub ports: Ports,
    /// The nodes behind it.
    pub targets: Targets,
    /// Networks that clients may come from; everybody if empty.
    pub sources: BTreeSet<Cidr>,
    /// Who serves, if nodes say so themselves. None: a node serves that accepts connections.
    pub health_check: Option<HealthCheck>,
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
    /// The addresses behind one listener, each once.
    pub fn endpoints(&self, node_port: NonZeroU16) -> BTreeSet<SocketAddr> {
        self.targets
            .values()
            .map(|address| SocketAddr::new(*address, node_port.get()))
            .collect()
    }

    /// The node port whose answers tell the health of `listen`'s targets: that of the health check if
    /// there is one, else its own for TCP, and that of the lowest TCP port for UDP (datagrams cannot be
    /// asked). None: taken as healthy.
    pub fn health_port(&self, listen: Listen) -> Option<NonZeroU16> {
        if let Some(check) = &self.health_check {
            return Some(check.node_port);
        }
        match listen.protocol {
            Protocol::Tcp => self.ports.get(&listen).copied(),
            Protocol::Udp => {
                let tcp = self
                    .ports
                    .iter()
                    .find(|(other, _)| other.protocol == Protocol::Tcp);
                tcp.map(|(_, node_port)| *node_port)
            }
        }
    }

    /// Every address whose health must be known.
    pub fn checked(&self) -> BTreeSet<SocketAddr> {
        if let Some(check) = &self.health_check {
            return self.endpoints(check.node_port);
        }
        let tcp = self
            .ports
            .iter()
            .filter(|(listen, _)| listen.protocol == Protocol::Tcp);
        tcp.flat_map(|(_, node_port)| self.endpoints(*node_port))
            .collect()
    }
}

/// The changes that turn one load balancer into another at the same address, least first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Listeners to open, with their node ports.
    pub open: Ports,
    /// Listeners to close.
    pub close: BTreeSet<Listen>,
    /// Listeners that stay open and forward to another node port.
    pub retarget: Ports,
    /// Nodes to add, or whose address is another one now.
    pub add: Targets,
    /// Nodes to remove.
    pub remove: BTreeSet<String>,
    /// The networks that clients may come from, if they change.
    pub sources: Option<BTreeSet<Cidr>>,
    /// The health check to use from now on, or none, if that changes.
    pub health_check: Option<Option<HealthCheck>>,
    /// The digest to store, if it changes.
    pub spec_digest: Option<String>,
}

impl Plan {
    /// Whether nothing is to do, and so nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Compares what is with what should be. The address, mark and Service are not compared: they name
/// the load balancer, and another address is another set of listeners.
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
    for (node, address) in &desired.targets {
        if current.targets.get(node) != Some(address) {
            plan.add.insert(node.clone(), *address);
        }
    }
    let gone = current
        .targets
        .keys()
        .filter(|node| !desired.targets.contains_key(*node));
    plan.remove.extend(gone.cloned());
    plan.sources = (current.sources != desired.sources).then(|| desired.sources.clone());
    plan.health_check = (current.health_check != desired.health_check).then(|| desired.health_check.clone());
    plan.spec_digest = (current.spec_digest != desired.spec_digest).then(|| desired.spec_digest.clone());
    plan
}
