//! Where a plugin's owner writes what it knows, and everybody reads the state.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::Description;
use tokio::sync::watch;

use super::state::{Facts, Led, SessionState, SessionView};
use crate::clock;
use crate::plugin::gatekeeper::Gatekeeper;
use crate::plugin::link::Link;
use crate::plugin::{Observer, Settings};

/// The state of one plugin. A line is logged for every change of it, and for nothing else.
pub(crate) struct Board {
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    facts: Mutex<Facts>,
    gatekeeper: Arc<Gatekeeper>,
    view: watch::Sender<SessionView>,
    link: watch::Sender<Option<Arc<Link>>>,
}

impl Board {
    pub(crate) fn new(settings: Arc<Settings>, observer: Arc<dyn Observer>) -> Self {
        let view = SessionView {
            state: SessionState::Discovered,
            since: clock::now(),
            reason: String::new(),
            description: None,
            session: 0,
            led: Led::default(),
        };
        Self {
            gatekeeper: Arc::new(Gatekeeper::new(&settings, Arc::clone(&observer))),
            settings,
            observer,
            facts: Mutex::default(),
            view: watch::Sender::new(view),
            link: watch::Sender::new(None),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<SessionView> {
        self.view.subscribe()
    }

    pub(crate) fn link(&self) -> watch::Receiver<Option<Arc<Link>>> {
        self.link.subscribe()
    }

    /// The gates, which outlive sessions.
    pub(crate) const fn gatekeeper(&self) -> &Arc<Gatekeeper> {
        &self.gatekeeper
    }

    /// A session began.
    pub(crate) fn began(&self, description: Description, link: Arc<Link>) {
        self.observer.session(&self.settings.name);
        self.gatekeeper.session_began(&description.capabilities);
        *self.facts() = Facts::default();
        self.link.send_replace(Some(link));
        self.view.send_modify(|view| {
            view.session += 1;
            view.description = Some(Arc::new(description));
        });
        let (state, reason) = Facts::default().state();
        self.publish(state, reason);
    }

    /// Lets no new call begin, and waits for those in flight.
    pub(crate) async fn end_calls(&self) {
        let link = self.link.send_replace(None);
        if let Some(link) = link {
            link.close().await;
        }
    }

    /// The session ended; [`away`](Self::away) says why.
    pub(crate) fn ended(&self) {
        self.link.send_replace(None);
        self.view.send_modify(|view| {
            view.led.session_ended();
            view.description = None;
        });
    }

    /// The one process that this host started is dead, and so is all that it started.
    pub(crate) fn nobody_lives(&self) {
        self.view.send_modify(|view| view.led = Led::default());
    }

    /// There is no session.
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

    /// Something about the live session changed.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Facts)) {
        let (state, reason) = {
            let mut facts = self.facts();
            change(&mut facts);
            facts.state()
        };
        self.publish(state, reason);
    }

    /// The plugin describes itself anew within the session.
    pub(crate) fn redescribed(&self, description: Description) {
        self.view
            .send_modify(|view| view.description = Some(Arc::new(description)));
    }

    /// From here on a `Lead` that ends at `until` at the latest may be in force in the session.
    pub(crate) fn led(&self, until: Instant) {
        self.view.send_modify(|view| view.led.told(until));
    }

    /// The session has answered that it stands down.
    pub(crate) fn stood_down(&self) {
        self.view.send_modify(|view| view.led.stood_down());
    }

    fn publish(&self, state: SessionState, reason: String) {
        let now = clock::now();
        let changed = self.view.send_if_modified(|view| {
            if view.state == state && view.reason == reason {
                return false;
            }
            if view.state != state {
                view.since = now;
            }
            view.state = state;
            view.reason = reason;
            true
        });
        if changed {
            self.log(&self.view.borrow().clone());
        }
    }

    fn log(&self, view: &SessionView) {
        let (endpoint, reason) = (&self.settings.endpoint, &view.reason);
        let because = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        match view.state {
            SessionState::Discovered | SessionState::Gone => {
                tracing::warn!("plugin at {endpoint} is away{because}; waiting");
            }
            SessionState::Incompatible => tracing::error!("plugin at {endpoint} cannot be used{because}"),
            SessionState::Degraded => tracing::warn!("plugin at {endpoint} is degraded{because}"),
            state @ (SessionState::Warming
            | SessionState::Standby
            | SessionState::Active
            | SessionState::Draining) => tracing::info!("plugin at {endpoint} is {state}{because}"),
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
