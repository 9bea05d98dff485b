//! What is asked for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::balancer::{Balancer, HealthCheck, Ports, ProxyProtocol, ServiceKey, Targets};
use crate::cidr::Cidr;
use crate::pool::Wish;

/// A load balancer as it should be; a [`Balancer`] once it has addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The owner's name on it.
    pub mark: String,
    /// UID of the cluster.
    pub cluster: String,
    /// The Service.
    pub service: ServiceKey,
    /// Digest of the specification this was made from.
    pub spec_digest: String,
    /// The addresses it should have.
    pub wish: Wish,
    /// What to listen on, and the node port behind each.
    pub ports: Ports,
    /// The nodes behind it.
    pub targets: Targets,
    /// Networks that clients may come from; everybody if empty.
    pub sources: BTreeSet<Cidr>,
    /// Where nodes say whether they serve.
    pub health_check: Option<HealthCheck>,
    /// How long a client stays with its node.
    pub affinity: Option<Duration>,
    /// What targets are told of clients.
    pub proxy_protocol: ProxyProtocol,
}

impl Wanted {
    /// As it is at these addresses, with targets that may be shared with others.
    pub fn at(self, addresses: Vec<IpAddr>, targets: Arc<Targets>) -> Balancer {
        Balancer {
            mark: self.mark,
            cluster: self.cluster,
            service: self.service,
            spec_digest: self.spec_digest,
            addresses,
            ports: self.ports,
            targets,
            sources: self.sources,
            health_check: self.health_check,
            affinity: self.affinity,
            proxy_protocol: self.proxy_protocol,
        }
    }
}
