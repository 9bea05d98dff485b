//! Which target is next.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use tokio_util::sync::CancellationToken;

use crate::health::{Pulse, Standing};

/// One target of a listener.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: SocketAddr,
    pulse: Option<Pulse>,
    leaving: CancellationToken,
}

impl Endpoint {
    /// Where it is.
    pub fn address(&self) -> SocketAddr {
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

    /// A connection to it could not be made.
    pub fn hint_failure(&self) {
        if let Some(pulse) = &self.pulse {
            pulse.hint_failure();
        }
    }
}

/// Whether targets that are not known to be up may be used when no other is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Others {
    /// Those of which nothing is known, then those that seem down: the checks may be what is wrong.
    #[default]
    AtWorst,
    /// None: only targets that are up ever get traffic.
    Never,
}

#[derive(Debug, Default)]
struct Targets {
    endpoints: Vec<Endpoint>,
    others: Others,
}

/// The targets of one listener, taken in turn.
#[derive(Debug, Default)]
pub struct Rotation {
    targets: RwLock<Targets>,
    turn: AtomicUsize,
}

impl Rotation {
    /// Forwards to exactly these from now on, each with what tells its health. Those that are no
    /// longer among them are told that they leave.
    pub fn replace(&self, mut wanted: BTreeMap<SocketAddr, Option<Pulse>>, others: Others) {
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

    /// A new turn, for one connection or flow.
    pub fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The target whose turn it is among the best that have not been tried: those that are up, else
    /// what [`Others`] allows.
    pub fn pick(&self, turn: usize, tried: &[SocketAddr]) -> Option<Endpoint> {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let fresh = targets
            .endpoints
            .iter()
            .filter(|endpoint| !tried.contains(&endpoint.address));
        let mut best: Vec<&Endpoint> = Vec::with_capacity(targets.endpoints.len());
        let mut standing = match targets.others {
            Others::AtWorst => Standing::Down,
            Others::Never => Standing::Up,
        };
        for endpoint in fresh {
            let its = endpoint.standing();
            if its < standing {
                best.clear();
                standing = its;
            }
            if its == standing {
                best.push(endpoint);
            }
        }
        best.get(turn.checked_rem(best.len())?).copied().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::health::{Board, Probe};

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    /// A rotation over `+` (up), `?` (unknown) and `-` (down) targets, numbered from 1.
    fn rotation(standings: &str) -> (Rotation, Arc<Board>) {
        let board = Arc::new(Board::default());
        let all: Vec<(SocketAddr, char)> = (1..).map(address).zip(standings.chars()).collect();
        board.watch(
            &all.iter()
                .filter(|(_, kind)| *kind != '+')
                .map(|(at, _)| *at)
                .collect(),
            &Probe::Connect,
        );
        for (at, _) in all.iter().filter(|(_, kind)| *kind == '-') {
            let pulse = board.pulse(*at).unwrap();
            (0..3).for_each(|_| pulse.hint_failure());
        }
        let rotation = Rotation::default();
        rotation.replace(
            all.iter().map(|(at, _)| (*at, board.pulse(*at))).collect(),
            Others::AtWorst,
        );
        (rotation, board)
    }

    #[rstest]
    #[case::in_turn("+++", &[], &[1, 2, 3, 1])]
    #[case::only_those_that_are_up("+-+?", &[], &[1, 3, 1, 3])]
    #[case::unknown_if_none_is_up("-?-?", &[], &[2, 4, 2, 4])]
    #[case::any_if_all_seem_down("--", &[], &[1, 2, 1, 2])]
    #[case::never_one_that_was_tried("++", &[1], &[2, 2, 2, 2])]
    #[case::a_worse_one_after_the_good_ones("+?", &[1], &[2, 2, 2, 2])]
    #[case::none_left("+", &[1], &[])]
    #[case::none_at_all("", &[], &[])]
    #[tokio::test]
    async fn picks(#[case] standings: &str, #[case] tried: &[u8], #[case] want: &[u8]) {
        let (rotation, _board) = rotation(standings);
        let tried: Vec<SocketAddr> = tried.iter().map(|last| address(*last)).collect();
        let got: Vec<SocketAddr> = (0..4)
            .filter_map(|_| rotation.pick(rotation.turn(), &tried))
            .map(|endpoint| endpoint.address())
            .collect();
        assert_eq!(got, want.iter().map(|last| address(*last)).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn never_means_never() {
        let (rotation, board) = rotation("?-");
        let all = (1..3).map(|last| (address(last), board.pulse(address(last))));
        rotation.replace(all.collect(), Others::Never);
        assert!(rotation.pick(0, &[]).is_none());
    }

    #[tokio::test]
    async fn only_a_removed_target_is_told_to_leave() {
        let rotation = Rotation::default();
        rotation.replace(
            BTreeMap::from([(address(1), None), (address(2), None)]),
            Others::AtWorst,
        );
        let (stays, goes) = (rotation.pick(0, &[]).unwrap(), rotation.pick(1, &[]).unwrap());
        rotation.replace(
            BTreeMap::from([(address(1), None), (address(3), None)]),
            Others::AtWorst,
        );
        assert!(!stays.leaving().is_cancelled());
        assert!(goes.leaving().is_cancelled());
    }
}
