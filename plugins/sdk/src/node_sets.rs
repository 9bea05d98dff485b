//! Node sets that a host has put, by digest. Bounded: what does not fit is forgotten, and the host sends it again.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::v1;

/// The protocol promises hosts that these stay known, however large they are.
const KEPT_SETS: usize = 16;
/// Most sets of one session.
const MAX_SETS: usize = 64;
/// Most nodes over all sets of one session: some tens of megabytes.
const MAX_NODES: usize = 100_000;

/// Sets in the order of their last use.
#[derive(Debug, Default)]
pub(crate) struct NodeSets {
    sets: VecDeque<Arc<v1::NodeSet>>,
    nodes: usize,
}

impl NodeSets {
    pub(crate) fn put(&mut self, set: v1::NodeSet) {
        self.remove(&set.digest);
        self.nodes += set.nodes.len();
        self.sets.push_back(Arc::new(set));
        while self.sets.len() > KEPT_SETS && (self.sets.len() > MAX_SETS || self.nodes > MAX_NODES) {
            if let Some(oldest) = self.sets.pop_front() {
                self.nodes -= oldest.nodes.len();
            }
        }
    }

    pub(crate) fn get(&mut self, digest: &str) -> Option<Arc<v1::NodeSet>> {
        let set = self.remove(digest)?;
        self.nodes += set.nodes.len();
        self.sets.push_back(Arc::clone(&set));
        Some(set)
    }

    fn remove(&mut self, digest: &str) -> Option<Arc<v1::NodeSet>> {
        let at = self.sets.iter().position(|set| set.digest == digest)?;
        let set = self.sets.remove(at)?;
        self.nodes -= set.nodes.len();
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(digest: &str, nodes: usize) -> v1::NodeSet {
        v1::NodeSet {
            nodes: vec![v1::Node::default(); nodes],
            digest: digest.to_owned(),
        }
    }

    #[test]
    fn the_set_used_longest_ago_is_forgotten_first() {
        let mut sets = NodeSets::default();
        (0..MAX_SETS).for_each(|number| sets.put(set(&number.to_string(), 1)));
        assert!(sets.get("0").is_some());
        sets.put(set("new", 1));
        assert!(sets.get("0").is_some());
        assert!(sets.get("1").is_none());
    }

    #[test]
    fn many_nodes_push_others_out_but_never_the_last_sixteen() {
        let mut sets = NodeSets::default();
        sets.put(set("small", 10));
        (0..KEPT_SETS).for_each(|number| sets.put(set(&number.to_string(), MAX_NODES / 8)));
        assert!(sets.get("small").is_none());
        assert!((0..KEPT_SETS).all(|number| sets.get(&number.to_string()).is_some()));
    }

    #[test]
    fn putting_a_set_again_counts_it_once() {
        let mut sets = NodeSets::default();
        (0..KEPT_SETS).for_each(|number| sets.put(set(&number.to_string(), 1)));
        (0..9).for_each(|_| sets.put(set("large", MAX_NODES / 8)));
        assert!(sets.get("0").is_some());
        assert_eq!(sets.nodes, MAX_NODES / 8 + KEPT_SETS);
    }
}
