//! One load balancer with its sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::Seen;
use crate::balancer::{Balancer, Listen};
use crate::forward::{BindError, Counts, Limits, Listener, Others, Rotation, Shared};
use crate::health::{Board, CHECKS_AT_ONCE, Probe};

#[derive(Debug)]
enum Slot {
    Open(Listener),
    Closed(BindError),
}

#[derive(Debug)]
pub(super) struct Running {
    balancer: Balancer,
    slots: BTreeMap<Listen, Slot>,
    board: Arc<Board>,
    shared: Arc<Shared>,
    reported: Counts,
    /// Ends the checks when dropped.
    _checks: JoinSet<()>,
}

impl Running {
    /// Listens on every port, or on none.
    pub(super) fn start(balancer: Balancer, limits: Limits) -> Result<Self, BindError> {
        let mut running = Self::closed(balancer, limits);
        for (listen, listener) in running.open_missing(&running.balancer)? {
            running.slots.insert(listen, Slot::Open(listener));
        }
        running.retarget();
        Ok(running)
    }

    /// Listens on what can be had; what is missing comes with [`Running::retry`].
    pub(super) fn resume(balancer: Balancer, limits: Limits) -> Self {
        let mut running = Self::closed(balancer, limits);
        let listens: Vec<Listen> = running.balancer.ports.keys().copied().collect();
        for listen in listens {
            let slot = match running.open(&running.balancer, listen) {
                Ok(listener) => Slot::Open(listener),
                Err(error) => {
                    tracing::error!(%error, service = %running.balancer.service, "a port is not served");
                    Slot::Closed(error)
                }
            };
            running.slots.insert(listen, slot);
        }
        running.retarget();
        running
    }

    fn closed(balancer: Balancer, limits: Limits) -> Self {
        let board = Arc::new(Board::default());
        let shared = Arc::new(Shared::new(limits, balancer.sources.clone()));
        let mut checks = JoinSet::new();
        let checked = Arc::clone(&board);
        checks.spawn(async move { checked.run(&CHECKS_AT_ONCE).await });
        let (slots, reported) = (BTreeMap::new(), Counts::default());
        Self {
            balancer,
            slots,
            board,
            shared,
            reported,
            _checks: checks,
        }
    }

    pub(super) fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    pub(super) fn seen(&self) -> Seen {
        let unbound = self.slots.iter().filter_map(|(listen, slot)| match slot {
            Slot::Open(_) => None,
            Slot::Closed(error) => Some((*listen, error.clone())),
        });
        Seen {
            balancer: self.balancer.clone(),
            unbound: unbound.collect(),
            counts: self.shared.counters().read(),
        }
    }

    /// Opens the listeners of `desired` (at this address) that are not open, all or none.
    pub(super) fn open_missing(&self, desired: &Balancer) -> Result<Vec<(Listen, Listener)>, BindError> {
        let missing = desired.ports.keys().filter(|listen| !self.is_open(**listen));
        missing
            .map(|listen| Ok((*listen, self.open(desired, *listen)?)))
            .collect()
    }

    /// Becomes `desired`, whose missing listeners are `opened`: the others go on as they are.
    pub(super) async fn turn_into(&mut self, desired: Balancer, opened: Vec<(Listen, Listener)>) -> Seen {
        let gone: Vec<Listen> = self
            .slots
            .keys()
            .filter(|listen| !desired.ports.contains_key(*listen))
            .copied()
            .collect();
        for listen in gone {
            if let Some(Slot::Open(listener)) = self.slots.remove(&listen) {
                listener.close().await;
            }
        }
        self.slots.extend(
            opened
                .into_iter()
                .map(|(listen, listener)| (listen, Slot::Open(listener))),
        );
        if self.balancer != desired {
            self.shared.allow(desired.sources.clone());
            self.balancer = desired;
        }
        self.retarget();
        self.seen()
    }

    /// Tries again to open what could not be opened.
    pub(super) fn retry(&mut self) {
        let closed = self
            .slots
            .iter()
            .filter(|(_, slot)| matches!(slot, Slot::Closed(_)));
        let closed: Vec<Listen> = closed.map(|(listen, _)| *listen).collect();
        for listen in closed {
            match self.open(&self.balancer, listen) {
                Ok(listener) => {
                    tracing::info!(at = %listener.at(), "a port is served again");
                    self.slots.insert(listen, Slot::Open(listener));
                    self.retarget();
                }
                Err(error) => {
                    self.slots.insert(listen, Slot::Closed(error));
                }
            }
        }
    }

    /// Logs what was refused or lost since the last report, if anything was.
    pub(super) fn report(&mut self) {
        let counts = self.shared.counters().read();
        if counts != self.reported {
            tracing::warn!(service = %self.balancer.service, ?counts, "connections or datagrams were not forwarded");
            self.reported = counts;
        }
    }

    /// Closes everything; the ports are free when this returns.
    pub(super) async fn close(self) {
        for slot in self.slots.into_values() {
            if let Slot::Open(listener) = slot {
                listener.close().await;
            }
        }
    }

    fn is_open(&self, listen: Listen) -> bool {
        matches!(self.slots.get(&listen), Some(Slot::Open(_)))
    }

    fn open(&self, balancer: &Balancer, listen: Listen) -> Result<Listener, BindError> {
        let at = SocketAddr::new(balancer.address, listen.port.get());
        Listener::open(
            listen.protocol,
            at,
            Arc::<Rotation>::default(),
            Arc::clone(&self.shared),
        )
    }

    /// Tells every listener, and those who check, the present targets.
    fn retarget(&self) {
        let check = self.balancer.health_check.as_ref();
        let probe = check.map_or(Probe::Connect, |check| Probe::Http {
            path: check.path.clone(),
        });
        // A node that says itself whether it serves is believed; a failed connection proves less.
        let others = if check.is_some() {
            Others::Never
        } else {
            Others::AtWorst
        };
        self.board.watch(&self.balancer.checked(), &probe);
        for (listen, slot) in &self.slots {
            let (Slot::Open(listener), Some(node_port)) = (slot, self.balancer.ports.get(listen)) else {
                continue;
            };
            let health_port = self.balancer.health_port(*listen);
            let endpoints = self.balancer.endpoints(*node_port).into_iter().map(|endpoint| {
                let pulse =
                    health_port.and_then(|port| self.board.pulse(SocketAddr::new(endpoint.ip(), port.get())));
                (endpoint, pulse)
            });
            listener.rotation().replace(endpoints.collect(), others);
        }
    }
}
