//! What everybody sees of a plugin, whichever of its processes works.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_core::clock::Instant;
use bulkhead_core::handover::Process;
use tokio::sync::watch;

use super::access::Access;
use super::gatekeeper::Gatekeeper;
use super::session::{Led, SessionState, SessionView};
use super::{Observer, Settings};
use crate::clock;

/// The state of one plugin. A line is logged for every change of it, and for nothing else.
pub(crate) struct Front {
    settings: Arc<Settings>,
    gatekeeper: Arc<Gatekeeper>,
    view: watch::Sender<SessionView>,
    access: watch::Sender<Access>,
    shown: watch::Sender<Option<Process>>,
    processes: AtomicU64,
}

impl Front {
    pub(crate) fn new(settings: Arc<Settings>, observer: Arc<dyn Observer>) -> Self {
        Self {
            gatekeeper: Arc::new(Gatekeeper::new(&settings, observer)),
            settings,
            view: watch::Sender::new(SessionView::new()),
            access: watch::Sender::new(Access::Away),
            shown: watch::Sender::new(None),
            processes: AtomicU64::new(0),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<SessionView> {
        self.view.subscribe()
    }

    pub(crate) fn access(&self) -> watch::Receiver<Access> {
        self.access.subscribe()
    }

    /// The gates, which outlive processes.
    pub(crate) const fn gatekeeper(&self) -> &Arc<Gatekeeper> {
        &self.gatekeeper
    }

    /// The name of the next process.
    pub(crate) fn next_process(&self) -> Process {
        Process(self.processes.fetch_add(1, Ordering::Relaxed))
    }

    /// Calls go to `process`, which is as `its` says.
    pub(crate) fn show(&self, process: Process, its: SessionView, access: Access, led: Option<Instant>) {
        let is_new = self.shown.send_replace(Some(process)) != Some(process);
        if let Some(description) = its.description.as_ref().filter(|_| is_new) {
            self.gatekeeper.session_began(&description.capabilities);
        }
        self.view.send_if_modified(|view| {
            let led_changed = view.set_led(led);
            let described = match (&view.description, &its.description) {
                (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
                (old, new) => old.is_some() != new.is_some(),
            };
            view.session += u64::from(is_new);
            view.description = its.description;
            led_changed || described || is_new
        });
        self.publish(its.state, its.reason);
        self.give(access);
    }

    /// Calls wait.
    pub(crate) fn hold(&self, led: Option<Instant>) {
        self.give(Access::Held);
        self.view.send_if_modified(|view| view.set_led(led));
    }

    /// A session ended in which a `Lead` until then may be in force: nobody knows what its process does.
    pub(crate) fn remember(&self, until: Option<Instant>) {
        self.view.send_if_modified(|view| view.remember(until));
    }

    /// The last session has ended; what its process may still do was [remembered](Self::remember).
    pub(crate) fn left(&self) {
        self.view.send_if_modified(|view| view.set_led(None));
        self.ended();
    }

    /// There is no session any more, whatever the processes do.
    pub(crate) fn ended(&self) {
        self.give(Access::Away);
        self.view.send_if_modified(|view| {
            let changed = view.description.is_some();
            view.led.session_ended();
            view.description = None;
            changed
        });
    }

    /// The one process that this host started is dead, and so is all that it started.
    pub(crate) fn nobody_lives(&self) {
        self.view.send_modify(|view| view.led = Led::default());
    }

    /// There is no session, because of `reason`.
    pub(crate) fn away(&self, reason: String) {
        let was_met = self.view.borrow().session > 0;
        self.publish(
            if was_met {
                SessionState::Gone
            } else {
                SessionState::Discovered
            },
            reason,
        );
    }

    /// The plugin answers and cannot be used.
    pub(crate) fn incompatible(&self, reason: String) {
        self.publish(SessionState::Incompatible, reason);
    }

    fn give(&self, access: Access) {
        self.access.send_if_modified(|now| {
            let changed = !now.is(&access);
            *now = access;
            changed
        });
    }

    fn publish(&self, state: SessionState, reason: String) {
        let now = clock::now();
        if self
            .view
            .send_if_modified(|view| view.becomes(state, reason, now))
        {
            self.log(&self.view.borrow().clone());
        }
    }

    fn log(&self, view: &SessionView) {
        let (plugin, endpoint, reason) = (&self.settings.name, &self.settings.endpoint, &view.reason);
        let because = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        match view.state {
            SessionState::Discovered | SessionState::Gone => {
                tracing::warn!(plugin, "plugin at {endpoint} is away{because}; waiting");
            }
            SessionState::Incompatible => {
                tracing::error!(plugin, "plugin at {endpoint} cannot be used{because}");
            }
            SessionState::Degraded => tracing::warn!(plugin, "plugin at {endpoint} is degraded{because}"),
            state @ (SessionState::Warming
            | SessionState::Standby
            | SessionState::Active
            | SessionState::Draining) => tracing::info!(plugin, "plugin at {endpoint} is {state}{because}"),
        }
    }
}
