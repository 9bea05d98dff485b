//! Tells people when a plugin freezes or cannot be used, and when it works again: one Event each, where leader election
//! is told too. Only the leader tells: nobody else uses its plugins.

use bulkhead_core::bulletin::{Bulletin, Condition, Issue};
use bulkhead_core::ids::Uid;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::clock;
use crate::kube::events::{EventRecorder, EventSpec, Regarding};
use crate::leader::Standing;
use crate::plugin::{PluginHandle, SessionState, SessionView};

/// Tells of `plugin` at `place`, until nobody keeps them any more. The Lease's UID is filled in.
pub async fn announce(
    plugin: PluginHandle,
    events: EventRecorder,
    mut standing: watch::Receiver<Standing>,
    place: Regarding,
) {
    let (mut gates, mut session) = (plugin.gates(), plugin.subscribe());
    let mut bulletin = Bulletin::default();
    loop {
        let now = clock::now();
        let lease = lease_led(&standing.borrow_and_update());
        let view = gates.borrow_and_update().clone();
        let refusal = refusal(&session.borrow_and_update());
        let issue = if lease.is_some() {
            let condition = Condition {
                gates: &view,
                refusal: refusal.as_deref(),
            };
            bulletin.step(plugin.name(), condition, now)
        } else {
            bulletin = Bulletin::default();
            Issue::default()
        };
        if let Some(notice) = issue.notice {
            let mut regarding = place.clone();
            if regarding.kind == Regarding::LEASE {
                regarding.uid = lease;
            }
            events.emit(EventSpec::from_notice(regarding, "CallPlugin", notice));
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
            changed = session.changed() => if changed.is_err() { return },
            changed = standing.changed() => if changed.is_err() { return },
        }
    }
}

/// Why the plugin cannot be used, if it answers.
fn refusal(session: &SessionView) -> Option<String> {
    (session.state == SessionState::Incompatible).then(|| session.reason.clone())
}

/// The Lease under which this process leads; without election one that does not exist.
fn lease_led(standing: &Standing) -> Option<Uid> {
    let term = standing.leading()?;
    Some(Uid(term.epoch.lease_uid.clone()))
}
