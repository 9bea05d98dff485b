//! Which target is next.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use tokio_util::sync::CancellationToken;

use crate::health::{Pulse, Standing};

#[cfg(test)]
mod tests;

/// One target of a load balancer.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: IpAddr,
    pulse: Option<Pulse>,
    leaving: CancellationToken,
}

impl Endpoint {
    /// The node's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Up if nothing tells its health.
    pub fn standing(&self) -> Standing {
        self.pulse.as_ref().map_or(Standing::Up, Pulse::standing)
    }

    /// Cancelled when the target is removed.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// A connection to it was made.
    pub fn hint_success(&self) {
        if let Some(pulse) = &self.pulse {
            pulse.hint_success();
        }
    }

    /// A connection to this port of it could not be made.
    pub fn hint_failure(&self, port: u16) {
        if let Some(pulse) = &self.pulse {
            pulse.hint_failure(port);
        }
    }
}

/// Whether targets that are not known to be up may be used when no other is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Others {
    /// Those of which nothing is known, then those that seem down: the checks may be what is wrong.
    #[default]
    AtWorst,
    /// Only those of which nothing is known: one that says that it does not serve is believed.
    Unknown,
}

#[derive(Debug, Default)]
struct Targets {
    endpoints: Vec<Endpoint>,
    others: Others,
}

/// The targets of one family of a load balancer, taken in turn.
#[derive(Debug, Default)]
pub struct Rotation {
    targets: RwLock<Targets>,
}

impl Rotation {
    /// Forwards to exactly these from now on, each with what tells its health. Those that are no
    /// longer among them are told that they leave.
    pub fn replace(&self, mut wanted: BTreeMap<IpAddr, Option<Pulse>>, others: Others) {
        let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        targets.others = others;
        let endpoints = &mut targets.endpoints;
        endpoints.retain_mut(|endpoint| {
            let Some(pulse) = wanted.remove(&endpoint.address) else {
                endpoint.leaving.cancel();
                return false;
            };
            endpoint.pulse = pulse;
            true
        });
        endpoints.extend(wanted.into_iter().map(|(address, pulse)| Endpoint {
            address,
            pulse,
            leaving: CancellationToken::new(),
        }));
        endpoints.sort_by_key(|endpoint| endpoint.address);
    }

    /// The target among the best that have not been tried: the favourite if it is one of them, else the
    /// one whose turn it is. The best are those that are up, else what [`Others`] allows.
    pub fn pick(&self, turn: usize, tried: &[IpAddr], favourite: Option<IpAddr>) -> Option<Endpoint> {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let fresh = || {
            let endpoints = targets.endpoints.iter();
            endpoints.filter(|endpoint| !tried.contains(&endpoint.address))
        };
        let worst = match targets.others {
            Others::AtWorst => Standing::Down,
            Others::Unknown => Standing::Unknown,
        };
        let mut best = worst;
        let mut count = 0_usize;
        for standing in fresh().map(Endpoint::standing) {
            if standing < best {
                best = standing;
                count = 0;
            }
            count += usize::from(standing == best);
        }
        // Standings may change meanwhile, so that there may be fewer of the best than were counted.
        let among = || fresh().filter(|endpoint| endpoint.standing() <= best);
        let wished = favourite.and_then(|wished| among().find(|endpoint| endpoint.address == wished));
        let next = || among().nth(turn.checked_rem(count)?);
        wished.or_else(next).or_else(|| among().next()).cloned()
    }

    /// Whether nothing better is known than that some targets' first checks have not ended, where those
    /// may turn out not to serve.
    pub fn is_undecided(&self) -> bool {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let best = targets.endpoints.iter().map(Endpoint::standing).min();
        targets.others == Others::Unknown && best == Some(Standing::Unknown)
    }

    /// How many targets there are, and how many of them are up.
    pub fn count(&self) -> (usize, usize) {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let up = targets
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.standing() == Standing::Up);
        (targets.endpoints.len(), up.count())
    }
}
