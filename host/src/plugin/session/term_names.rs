//! Under which name a plugin is told of a term.
//!
//! A plugin takes no epoch again that it was told to end. So when the lead goes from one process of a plugin to another
//! and perhaps back within one term, each round tells of the same term under another lease uid. That is no loss:
//! epochs are compared within one uid only, and another uid is taken once the earlier one has ended or run out.

use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_core::election::Epoch;

/// The round that a process leads in.
#[derive(Debug, Default)]
pub(crate) struct TermNames(AtomicU64);

impl TermNames {
    /// From now on it leads in `round`.
    pub(crate) fn set_round(&self, round: u64) {
        self.0.store(round, Ordering::Relaxed);
    }

    /// The name of a term in the present round.
    pub(crate) fn of(&self, epoch: &Epoch) -> Epoch {
        name(epoch, self.0.load(Ordering::Relaxed))
    }
}

/// The name of a term in a round.
pub(crate) fn name(epoch: &Epoch, round: u64) -> Epoch {
    Epoch {
        lease_uid: match round {
            0 => epoch.lease_uid.clone(),
            _ => format!("{}/{round}", epoch.lease_uid),
        },
        transitions: epoch.transitions,
    }
}
