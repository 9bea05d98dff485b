//! What is asked for.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::balancer::{Balancer, HealthCheck, Ports, ServiceKey, Targets};
use crate::cidr::Cidr;

/// A load balancer as it should be; a [`Balancer`] once it has an address.
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
    /// The address it must have; any, or the one it has, if none.
    pub request: Option<IpAddr>,
    /// The address a new one should have if that is free: what its Service was told before.
    pub preferred: Option<IpAddr>,
    /// What to listen on, and the node port behind each.
    pub ports: Ports,
    /// The nodes behind it.
    pub targets: Targets,
    /// Networks that clients may come from; everybody if empty.
    pub sources: BTreeSet<Cidr>,
    /// Where nodes say whether they serve.
    pub health_check: Option<HealthCheck>,
}

impl Wanted {
    /// As it is at an address.
    pub fn at(self, address: IpAddr) -> Balancer {
        Balancer {
            mark: self.mark,
            cluster: self.cluster,
            service: self.service,
            spec_digest: self.spec_digest,
            address,
            ports: self.ports,
            targets: self.targets,
            sources: self.sources,
            health_check: self.health_check,
        }
    }
}
