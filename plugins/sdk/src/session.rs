//! One session: what belongs to a single connection of a host.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::node_sets::NodeSets;
use crate::v1;

/// How many clock stamps a session remembers: a lost answer to `Lead` costs nothing, since the host then echoes an
/// earlier stamp, which grants less.
const STAMPS: usize = 8;

/// State of one connection. It ends with the connection: what lay in a stopped plugin's socket cannot count later.
#[derive(Debug, Default)]
pub(crate) struct Session {
    stamps: Mutex<VecDeque<u64>>,
    node_sets: Mutex<NodeSets>,
}

impl Session {
    /// Remembers a stamp that is about to be answered.
    pub(crate) fn stamp(&self, stamp: u64) {
        let mut stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if stamps.len() == STAMPS {
            stamps.pop_front();
        }
        stamps.push_back(stamp);
    }

    /// Whether `echo` was answered in this session.
    pub(crate) fn knows(&self, echo: u64) -> bool {
        self.stamps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&echo)
    }

    pub(crate) fn put(&self, set: v1::NodeSet) {
        self.node_sets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .put(set);
    }

    pub(crate) fn node_set(&self, digest: &str) -> Option<Arc<v1::NodeSet>> {
        self.node_sets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_another_session_is_not_known() {
        let (one, other) = (Session::default(), Session::default());
        one.stamp(7);
        assert!(one.knows(7));
        assert!(!other.knows(7));
    }

    #[test]
    fn old_stamps_are_forgotten() {
        let session = Session::default();
        (0..=STAMPS as u64).for_each(|stamp| session.stamp(stamp));
        assert!(!session.knows(0));
        assert!(session.knows(1));
    }
}
