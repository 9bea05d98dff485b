//! What the tests of both protocols start from.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::{Limits, Machine, Shared};
use crate::balancer::{Balancer, Ports, ProxyProtocol, ServiceKey};
use crate::health::Board;

/// A load balancer that treats everybody alike.
pub(super) fn balancer() -> Balancer {
    Balancer {
        mark: String::new(),
        cluster: String::new(),
        service: ServiceKey {
            namespace: String::new(),
            name: String::new(),
            uid: String::new(),
        },
        spec_digest: String::new(),
        addresses: Vec::new(),
        ports: Ports::new(),
        targets: Arc::default(),
        sources: std::collections::BTreeSet::new(),
        health_check: None,
        affinity: None,
        proxy_protocol: ProxyProtocol::Off,
    }
}

/// What the listeners of one share.
pub(super) fn shared(limits: Limits) -> Arc<Shared> {
    let board = Arc::new(Board::default());
    Arc::new(Shared::new(Machine::new(limits, 10_000, &[]), board))
}

/// The port that all these targets have; any if there are none.
pub(super) fn node_port(targets: &[SocketAddr]) -> NonZeroU16 {
    let port = targets.first().map_or(9, SocketAddr::port);
    assert!(targets.iter().all(|target| target.port() == port));
    NonZeroU16::new(port).unwrap()
}
