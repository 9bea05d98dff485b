//! Tells people of new nodes that the configuration of no plugin selects.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::territory::{Claims, Strays};
use tokio::sync::watch;

use super::room::House;
use crate::clock;
use crate::kube::events::{EventSpec, Regarding, component};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// Tells of each such node once, while this host leads, until the host ends. `claims` are those of all plugins.
pub(super) async fn tell(house: Arc<House>, claims: watch::Receiver<Vec<Claims>>) {
    let events = house.events.with_component(component::NODE);
    let stop = house.base.stop_token().clone();
    let mut strays = Strays::default();
    let mut tick = tokio::time::interval(LOOK);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        if !house.leadership.is_leader() {
            strays = Strays::default();
            continue;
        }
        let nodes = house.nodes.snapshot();
        let nodes = nodes.iter().map(AsRef::as_ref);
        let news = strays.step(nodes, &claims.borrow(), clock::now());
        for (node, notice) in news {
            tracing::warn!(node = %node.name, "{}", notice.note);
            let regarding = Regarding::node(&node.name, &node.uid);
            events.emit(EventSpec::from_notice(regarding, "Initialise", notice));
        }
    }
}
