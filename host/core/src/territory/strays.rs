//! New nodes that nobody initialises: the configuration of no plugin selects them, and nothing else would say so.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Claims;
use crate::clock::Instant;
use crate::ids::Uid;
use crate::node::plan::CLOUD_PROVIDER_ERROR;
use crate::node::view::{NodeView, UNINITIALIZED_TAINT};
use crate::outcome::Notice;

/// How long such a node may wait before people are told: its labels may still come, and another host's plugin may be
/// about to initialise it.
pub const PATIENCE: Duration = Duration::from_secs(120);

fn notice() -> Notice {
    let note = format!(
        "No plugin of this host is configured to initialise this node, so it keeps the taint {UNINITIALIZED_TAINT}. Give \
         it labels that the nodes of a plugin in the host's configuration select, or change those"
    );
    Notice::warning(CLOUD_PROVIDER_ERROR, note)
}

/// The nodes that nobody selects, since when, and whether people know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strays(BTreeMap<Uid, Waits>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waits {
    since: Instant,
    is_told: bool,
}

impl Strays {
    /// Of which of these nodes people are to be told at `now`, and what; of each once, as long as nobody selects it.
    pub fn step<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a NodeView>,
        claims: &[Claims],
        now: Instant,
    ) -> Vec<(&'a NodeView, Notice)> {
        let mut still = BTreeMap::new();
        let mut news = Vec::new();
        for node in nodes.into_iter().filter(|node| is_stray(node, claims)) {
            let fresh = Waits {
                since: now,
                is_told: false,
            };
            let mut waits = self.0.remove(&node.uid).unwrap_or(fresh);
            if !waits.is_told && now.saturating_since(waits.since) >= PATIENCE {
                waits.is_told = true;
                news.push((node, notice()));
            }
            still.insert(node.uid.clone(), waits);
        }
        self.0 = still;
        news
    }
}

fn is_stray(node: &NodeView, claims: &[Claims]) -> bool {
    let is_new = node.is_uninitialized() && node.provider_id.is_none() && !node.deleting;
    is_new && !claims.iter().any(|it| it.initialises(node))
}
