//! Tells people when a plugin freezes and when it works again: one Event each, where leader election is told too.

use bulkhead_core::bulletin::Bulletin;
use tokio::time::sleep;

use crate::clock;
use crate::kube::events::{EventRecorder, EventSpec, Regarding};
use crate::plugin::PluginHandle;

/// Tells of the gates of `plugin`, at the object that `regarding` names at that time, until nobody keeps them any more.
pub async fn announce(plugin: PluginHandle, events: EventRecorder, regarding: impl Fn() -> Regarding + Send) {
    let mut gates = plugin.gates();
    let mut bulletin = Bulletin::default();
    loop {
        let now = clock::now();
        let issue = bulletin.step(plugin.name(), &gates.borrow_and_update(), now);
        if let Some(notice) = issue.notice {
            events.emit(EventSpec::from_notice(regarding(), "CallPlugin", notice));
        }
        let due = async {
            match issue.next {
                Some(at) => sleep(at.saturating_since(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            changed = gates.changed() => if changed.is_err() { return },
        }
    }
}
