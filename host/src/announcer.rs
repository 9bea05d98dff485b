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

/// Tells of `plugin` at `place`, until nobody keeps it any more.
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
        let regarding = led(&place, &standing.borrow_and_update());
        let view = gates.borrow_and_update().clone();
        let refusal = refusal(&session.borrow_and_update());
        let issue = if regarding.is_some() {
            let condition = Condition {
                gates: &view,
                refusal: refusal.as_deref(),
            };
            bulletin.step(plugin.name(), condition, now)
        } else {
            bulletin = Bulletin::default();
            Issue::default()
        };
        if let (Some(notice), Some(regarding)) = (issue.notice, regarding) {
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

/// `place` as the object that Events of the present term regard; a Lease with the UID that it has in that term, or
/// `kubectl describe` does not show them. `None`: this process does not lead.
pub fn led(place: &Regarding, standing: &Standing) -> Option<Regarding> {
    let term = standing.leading()?;
    let mut regarding = place.clone();
    if regarding.kind == Regarding::LEASE {
        regarding.uid = Some(Uid(term.epoch.lease_uid.clone()));
    }
    Some(regarding)
}
