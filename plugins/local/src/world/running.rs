//! One load balancer with its sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Measured, Seen};
use crate::balancer::{Balancer, Listen};
use crate::cidr::Family;
use crate::forward::{BindError, Listener, Losses, Machine, Others, Shared};
use crate::health::{Board, CHECKS_AT_ONCE};

/// One socket's address, protocol and port.
type Place = (IpAddr, Listen);

#[derive(Debug)]
enum Slot {
    Open(Listener),
    Closed(BindError),
}

#[derive(Debug)]
pub(super) struct Running {
    balancer: Balancer,
    slots: BTreeMap<Place, Slot>,
    board: Arc<Board>,
    shared: Arc<Shared>,
    reported: Losses,
    /// Ends the checks when dropped.
    _checks: JoinSet<()>,
}

impl Running {
    /// Listens on every port of every address, or on none.
    pub(super) fn start(balancer: Balancer, machine: &Machine) -> Result<Self, BindError> {
        let mut running = Self::closed(balancer, machine);
        for (place, listener) in running.open_missing(&running.balancer)? {
            running.slots.insert(place, Slot::Open(listener));
        }
        running.retarget();
        Ok(running)
    }

    /// Listens on what can be had; what is missing comes with [`Running::retry`].
    pub(super) fn resume(balancer: Balancer, machine: &Machine) -> Self {
        let mut running = Self::closed(balancer, machine);
        let places: Vec<Place> = places(&running.balancer).collect();
        for place in places {
            let slot = match running.open(&running.balancer, place) {
                Ok(listener) => Slot::Open(listener),
                Err(error) => {
                    tracing::error!(%error, service = %running.balancer.service, "a port is not served");
                    Slot::Closed(error)
                }
            };
            running.slots.insert(place, slot);
        }
        running.retarget();
        running
    }

    fn closed(balancer: Balancer, machine: &Machine) -> Self {
        let board = Arc::new(Board::default());
        let shared = Arc::new(Shared::new(machine.clone(), Arc::clone(&board)));
        shared.turn_into(&balancer);
        let mut checks = JoinSet::new();
        let checked = Arc::clone(&board);
        checks.spawn(async move { checked.run(&CHECKS_AT_ONCE).await });
        let (slots, reported) = (BTreeMap::new(), Losses::default());
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
        Seen {
            balancer: self.balancer.clone(),
            unbound: self
                .unbound()
                .map(|(place, error)| (*place, error.clone()))
                .collect(),
        }
    }

    /// The listeners that are not open, and why.
    pub(super) fn unbound(&self) -> impl Iterator<Item = (&Place, &BindError)> {
        self.slots.iter().filter_map(|(place, slot)| match slot {
            Slot::Open(_) => None,
            Slot::Closed(error) => Some((place, error)),
        })
    }

    pub(super) fn measured(&self) -> Measured {
        let counters = self.shared.counters();
        let (targets, up) = Family::ALL
            .map(|family| self.shared.rotation(family).count())
            .into_iter()
            .fold((0, 0), |(all, up), (more, more_up)| (all + more, up + more_up));
        Measured {
            service: self.balancer.service.clone(),
            traffic: counters.traffic(),
            losses: counters.losses(),
            targets,
            up,
            unbound: self.unbound().count(),
        }
    }

    /// Opens the listeners of `desired` that are not open, all or none.
    pub(super) fn open_missing(&self, desired: &Balancer) -> Result<Vec<(Place, Listener)>, BindError> {
        let missing = places(desired).filter(|place| !self.is_open(*place));
        missing
            .map(|place| Ok((place, self.open(desired, place)?)))
            .collect()
    }

    /// Becomes `desired`, whose missing listeners are `opened`: the others go on as they are.
    pub(super) async fn turn_into(&mut self, desired: Balancer, opened: Vec<(Place, Listener)>) -> Seen {
        let stays = |(address, listen): &Place| {
            desired.addresses.contains(address) && desired.ports.contains_key(listen)
        };
        let gone: Vec<Place> = self.slots.keys().filter(|place| !stays(place)).copied().collect();
        for place in gone {
            if let Some(Slot::Open(listener)) = self.slots.remove(&place) {
                listener.close().await;
            }
        }
        let opened = opened
            .into_iter()
            .map(|(place, listener)| (place, Slot::Open(listener)));
        self.slots.extend(opened);
        if self.balancer != desired {
            self.shared.turn_into(&desired);
            self.balancer = desired;
            self.retarget();
        }
        self.seen()
    }

    /// Tries again to open what could not be opened.
    pub(super) fn retry(&mut self) {
        let closed = self
            .slots
            .iter()
            .filter(|(_, slot)| matches!(slot, Slot::Closed(_)));
        let closed: Vec<Place> = closed.map(|(place, _)| *place).collect();
        for place in closed {
            let slot = match self.open(&self.balancer, place) {
                Ok(listener) => {
                    tracing::info!(at = %listener.at(), "a port is served again");
                    Slot::Open(listener)
                }
                Err(error) => Slot::Closed(error),
            };
            self.slots.insert(place, slot);
        }
    }

    /// Logs what was refused or lost since the last report, if anything was.
    pub(super) fn report(&mut self) {
        let losses = self.shared.counters().losses();
        if losses != self.reported {
            tracing::warn!(service = %self.balancer.service, ?losses, "connections or datagrams were not forwarded");
            self.reported = losses;
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

    fn is_open(&self, place: Place) -> bool {
        matches!(self.slots.get(&place), Some(Slot::Open(_)))
    }

    fn open(&self, balancer: &Balancer, (address, listen): Place) -> Result<Listener, BindError> {
        let at = SocketAddr::new(address, listen.port.get());
        // Every place is made of a port.
        let node_port = balancer.ports.get(&listen).copied().unwrap_or(listen.port);
        Listener::open(listen.protocol, at, node_port, Arc::clone(&self.shared))
    }

    /// Tells every listener, and those who check, the present targets.
    fn retarget(&self) {
        // A node that says itself whether it serves is believed; a failed connection proves less.
        let others = if self.balancer.health_check.is_some() {
            Others::Unknown
        } else {
            Others::AtWorst
        };
        let served = |family: &Family| {
            let mut addresses = self.balancer.addresses.iter();
            addresses.any(|address| Family::of(*address) == *family)
        };
        let endpoints = Family::ALL.map(|family| {
            let endpoints = Some(family)
                .filter(served)
                .map(|one| self.balancer.endpoints(one));
            (family, endpoints.unwrap_or_default())
        });
        let all = endpoints.iter().flat_map(|(_, endpoints)| endpoints).copied();
        self.board.watch(&all.collect(), self.balancer.probe().as_ref());
        for (family, endpoints) in endpoints {
            let endpoints = endpoints
                .into_iter()
                .map(|address| (address, self.board.pulse(address)));
            self.shared.rotation(family).replace(endpoints.collect(), others);
        }
        for ((_, listen), slot) in &self.slots {
            if let (Slot::Open(listener), Some(node_port)) = (slot, self.balancer.ports.get(listen)) {
                listener.forward_to(*node_port);
            }
        }
    }
}

/// Every place that a load balancer listens on.
fn places(of: &Balancer) -> impl Iterator<Item = Place> {
    let listens = || of.ports.keys().copied();
    of.addresses
        .iter()
        .flat_map(move |address| listens().map(|listen| (*address, listen)))
}
