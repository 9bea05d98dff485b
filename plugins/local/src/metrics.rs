//! What Prometheus reads: the counts of every load balancer, by Service, and of the process.
//!
//! The series are made from a snapshot each time they are read: those of a load balancer go with it, and
//! there are never more than there are load balancers.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE as TEXT, encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use crate::balancer::ServiceKey;
use crate::inventory::View;
use crate::plugin::{Local, Measured};
use crate::world::{self, Measures};

/// Before every name.
const PREFIX: &str = "bulkhead_local";

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address cannot be listened on.
    #[error("cannot serve metrics on {at}: {source}")]
    Bind {
        /// The address.
        at: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Serving ended.
    #[error("metrics are no longer served: {0}")]
    Serve(#[source] io::Error),
}

/// A socket for metrics.
#[derive(Debug)]
pub struct Metrics(TcpListener);

impl Metrics {
    /// Listens; nothing is answered before [`Metrics::serve`].
    pub async fn bind(at: SocketAddr) -> Result<Self, MetricsError> {
        let listener = TcpListener::bind(at).await;
        listener
            .map(Self)
            .map_err(|source| MetricsError::Bind { at, source })
    }

    /// Answers `GET /metrics`, for ever.
    pub async fn serve(self, plugin: Local) -> Result<(), MetricsError> {
        tracing::info!(at = ?self.0.local_addr().ok(), "metrics are served");
        let router = Router::new().route("/metrics", get(read)).with_state(plugin);
        axum::serve(self.0, router).await.map_err(MetricsError::Serve)
    }
}

async fn read(State(plugin): State<Local>) -> Response {
    match text(&plugin.measures().await) {
        Ok(text) => ([(CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// All series of a snapshot.
fn text(measured: &Measured) -> Result<String, fmt::Error> {
    let mut series = Series(Registry::with_prefix(PREFIX));
    series.gauge(
        "serving",
        "Whether load balancers are served: 0 while the state is locked or unreadable.",
        [(Vec::new(), usize::from(measured.world.is_some()))],
    );
    if let Some(world) = &measured.world {
        series.add_balancers(&world.balancers);
        series.add_addresses(world);
    }
    if let Some(inventory) = &measured.inventory {
        series.add_inventory(inventory);
    }
    let mut text = String::new();
    encode(&mut text, &series.0)?;
    Ok(text)
}

type Labels = Vec<(&'static str, String)>;

fn of(service: &ServiceKey) -> Labels {
    vec![
        ("namespace", service.namespace.clone()),
        ("service", service.name.clone()),
    ]
}

fn with(service: &ServiceKey, key: &'static str, value: &str) -> Labels {
    let mut labels = of(service);
    labels.push((key, value.to_owned()));
    labels
}

struct Series(Registry);

impl Series {
    fn gauge(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, usize)>) {
        let family = Family::<Labels, Gauge>::default();
        for (labels, value) in rows {
            let gauge = family.get_or_create(&labels);
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        self.0.register(name, help, family);
    }

    fn counter(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in rows {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    fn bytes(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in rows {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register_with_unit(name, help, Unit::Bytes, family);
    }

    fn add_balancers(&mut self, all: &[world::Measured]) {
        let each =
            |read: fn(&world::Measured) -> u64| all.iter().map(move |one| (of(&one.service), read(one)));
        let now = |read: fn(&world::Measured) -> u64| {
            each(read).map(|(labels, value)| (labels, usize::try_from(value).unwrap_or(usize::MAX)))
        };
        self.gauge("load_balancers", "Load balancers.", [(Vec::new(), all.len())]);
        self.gauge(
            "open_connections",
            "TCP connections that are open.",
            now(|one| one.traffic.open_connections),
        );
        self.gauge(
            "open_flows",
            "UDP flows that are open.",
            now(|one| one.traffic.open_flows),
        );
        self.gauge(
            "backends",
            "Addresses of nodes behind the load balancer.",
            all.iter().map(|one| (of(&one.service), one.targets)),
        );
        self.gauge(
            "backends_up",
            "Those that answered their last check, or are not checked.",
            all.iter().map(|one| (of(&one.service), one.up)),
        );
        self.gauge(
            "unserved_ports",
            "Listeners that could not be opened; tried again every second.",
            all.iter().map(|one| (of(&one.service), one.unbound)),
        );
        self.counter(
            "connections",
            "TCP connections that were let in.",
            each(|one| one.traffic.connections),
        );
        self.counter(
            "flows",
            "UDP flows that were begun.",
            each(|one| one.traffic.flows),
        );
        self.bytes(
            "forwarded",
            "Bytes by direction, of both protocols.",
            all.iter().flat_map(|one| {
                [("in", one.traffic.from_clients), ("out", one.traffic.to_clients)]
                    .map(|(direction, bytes)| (with(&one.service, "direction", direction), bytes))
            }),
        );
        self.counter(
            "losses",
            "Connections, flows and datagrams that were not forwarded, or forgotten early, by reason.",
            all.iter().flat_map(|one| {
                losses(one).map(|(reason, count)| (with(&one.service, "reason", reason), count))
            }),
        );
    }

    fn add_addresses(&mut self, world: &Measures) {
        let label = |family: &crate::cidr::Family| vec![("family", family.to_string())];
        let size = world
            .addresses
            .iter()
            .map(|(family, size, _)| (label(family), usize::try_from(*size).unwrap_or(usize::MAX)));
        self.gauge("pool_addresses", "Addresses that the pool holds.", size);
        let taken = world
            .addresses
            .iter()
            .map(|(family, _, taken)| (label(family), *taken));
        self.gauge(
            "pool_addresses_taken",
            "Addresses that load balancers have.",
            taken,
        );
    }

    fn add_inventory(&mut self, inventory: &View) {
        let known = inventory.good.as_ref().map_or(0, |read| read.inventory.len());
        self.gauge(
            "inventory_instances",
            "Instances of the last good inventory.",
            [(Vec::new(), known)],
        );
        self.gauge(
            "inventory_broken",
            "Whether the inventory file is broken now, so that the last good one is used.",
            [(Vec::new(), usize::from(inventory.broken.is_some()))],
        );
    }
}

fn losses(one: &world::Measured) -> [(&'static str, u64); 7] {
    let losses = &one.losses;
    [
        ("full", losses.refused_full),
        ("open-files", losses.refused_process),
        ("source", losses.refused_source),
        ("no-target", losses.no_target),
        ("flow-evicted", losses.evicted_flows),
        ("affinity-evicted", losses.evicted_clients),
        ("datagram-lost", losses.lost_datagrams),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{Losses, Traffic};

    #[test]
    fn a_snapshot_is_told_by_service_and_reason() {
        let service = ServiceKey {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "u".to_owned(),
        };
        let one = world::Measured {
            service,
            traffic: Traffic {
                connections: 7,
                open_connections: 2,
                from_clients: 10,
                ..Traffic::default()
            },
            losses: Losses {
                refused_full: 3,
                ..Losses::default()
            },
            targets: 3,
            up: 1,
            unbound: 0,
        };
        let measured = Measured {
            world: Some(Measures {
                balancers: vec![one],
                addresses: vec![(crate::cidr::Family::V4, 254, 1)],
            }),
            inventory: None,
        };
        let text = text(&measured).unwrap();
        for line in [
            "bulkhead_local_serving 1",
            "bulkhead_local_load_balancers 1",
            "bulkhead_local_connections_total{namespace=\"shop\",service=\"web\"} 7",
            "bulkhead_local_open_connections{namespace=\"shop\",service=\"web\"} 2",
            "bulkhead_local_backends_up{namespace=\"shop\",service=\"web\"} 1",
            "bulkhead_local_forwarded_bytes_total{namespace=\"shop\",service=\"web\",direction=\"in\"} 10",
            "bulkhead_local_losses_total{namespace=\"shop\",service=\"web\",reason=\"full\"} 3",
            "bulkhead_local_pool_addresses{family=\"IPv4\"} 254",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
        }
    }
}
