//! Shows to the outside how the host is: readiness, liveness, plugins' states, who leads.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::gate::GateView;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::assemble::{REFRESH, Watching};
use crate::clock;
use crate::kube::stores::all_ready;
use crate::leader::{Leadership, Standing};
use crate::metrics::PluginMetrics;
use crate::plugin::{PluginHandle, SessionView};
use crate::readiness::{Health, PluginState};
use crate::status::{self, GateStatus};

/// What is shown, and where it comes from.
pub(super) struct Shown {
    pub(super) leadership: Leadership,
    pub(super) stores: Vec<watch::Receiver<bool>>,
    pub(super) watching: Watching,
    pub(super) stop: CancellationToken,
}

/// Longest time between two signs of life of a working election.
const ELECTION_HEARTBEAT: Duration = Duration::from_secs(30);

/// Keeps what is shown true, until the host ends.
pub(super) async fn run(shown: Shown) {
    let mut standing = shown.leadership.subscribe();
    let heartbeat = shown
        .watching
        .health
        .heartbeat("leader-election", ELECTION_HEARTBEAT);
    let master = shown
        .watching
        .metrics
        .leadership
        .master(shown.leadership.lease_name());
    let mut tick = tokio::time::interval(REFRESH);
    shown.watching.synced.not_met("the first lists are not complete");
    let mut complete = pin!(all_ready(shown.stores));
    let mut is_complete = false;
    loop {
        if shown.leadership.is_healthy() {
            heartbeat.beat();
            shown.watching.elected.met();
        } else {
            shown
                .watching
                .elected
                .not_met("the last renewal of the lease is too long ago");
        }
        master.set(i64::from(shown.leadership.is_leader()));
        tokio::select! {
            () = shown.stop.cancelled() => return,
            _ = tick.tick() => {}
            _ = standing.changed() => {}
            () = &mut complete, if !is_complete => {
                is_complete = true;
                shown.watching.synced.met();
            }
        }
    }
}

/// Keeps what is shown of one plugin true, until `stop`.
pub(super) async fn plugin(
    plugin: PluginHandle,
    mut standing: watch::Receiver<Standing>,
    (health, metrics): (Health, PluginMetrics),
    stop: CancellationToken,
) {
    let (mut session, mut gates) = (plugin.subscribe(), plugin.gates());
    // The last error makes no noise of its own.
    let mut tick = tokio::time::interval(REFRESH);
    loop {
        let view = session.borrow_and_update().clone();
        let leads = matches!(*standing.borrow_and_update(), Standing::Leading(_));
        let gates_now = gates.borrow_and_update().clone();
        metrics.state(plugin.name(), view.state);
        health.show_plugin(plugin_state(&plugin, &view, &gates_now, leads));
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
            _ = session.changed() => {}
            _ = gates.changed() => {}
            _ = standing.changed() => {}
        }
    }
}

fn plugin_state(plugin: &PluginHandle, view: &SessionView, gates: &GateView, leads: bool) -> PluginState {
    let now = clock::now();
    let age = now.saturating_since(view.since);
    let since = clock::wall()
        .0
        .saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
    let last_error = plugin.calls().last_error.map(|it| status::last_error(it, now));
    let gates: Vec<GateStatus> = gates
        .gates
        .iter()
        .map(|(of, it)| status::gate(*of, *it, now))
        .collect();
    let mut details = BTreeMap::from([
        ("gates".to_owned(), json!(gates)),
        ("session".to_owned(), json!(view.session)),
        ("host_leads".to_owned(), json!(leads)),
        ("last_error".to_owned(), json!(last_error)),
    ]);
    if let Some(description) = &view.description {
        let capabilities: Vec<&str> = description.capabilities.iter().map(|it| it.name()).collect();
        details.extend([
            ("provider".to_owned(), json!(description.provider)),
            ("version".to_owned(), json!(description.version)),
            ("instance".to_owned(), json!(description.instance_id)),
            ("capabilities".to_owned(), json!(capabilities)),
        ]);
    }
    PluginState {
        name: plugin.name().to_owned(),
        state: view.state.name(),
        since: Timestamp(since),
        message: view.reason.clone(),
        held_back: gates.iter().filter_map(held_back).collect(),
        details,
    }
}

/// A gate that is not open, as one line says it.
fn held_back(gate: &GateStatus) -> Option<String> {
    let why = gate.message.as_ref()?;
    Some(format!("{} is {}: {why}", gate.capability, gate.state))
}
