//! Where a session writes what it knows of its process, and the owner reads it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bulkhead_core::clock::{Instant, Timestamp};
use bulkhead_core::cloud::Description;
use bulkhead_core::election::Epoch;
use bulkhead_core::gate::Report;
use tokio::sync::{Notify, watch};

use super::Described;
use super::state::{Facts, SessionState, SessionView};
use crate::clock;
use crate::plugin::gatekeeper::Gatekeeper;
use crate::plugin::link::Link;
use crate::plugin::place::Stamp;
use crate::plugin::{Observer, Settings};

/// The state of one session.
pub(crate) struct Board {
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    facts: watch::Sender<Facts>,
    gatekeeper: Arc<Gatekeeper>,
    /// Calls go to this process.
    is_front: AtomicBool,
    view: watch::Sender<SessionView>,
    link: watch::Sender<Option<Arc<Link>>>,
    process: OnceLock<(String, Option<Timestamp>)>,
    stamp: Mutex<Option<Stamp>>,
    /// Told of every change.
    changed: Arc<Notify>,
}

impl Board {
    pub(crate) fn new(
        settings: Arc<Settings>,
        observer: Arc<dyn Observer>,
        changed: Arc<Notify>,
        gatekeeper: Arc<Gatekeeper>,
        stamp: Option<Stamp>,
    ) -> Self {
        Self {
            gatekeeper,
            is_front: AtomicBool::new(false),
            settings,
            observer,
            facts: watch::Sender::new(Facts::default()),
            view: watch::Sender::new(SessionView::new()),
            link: watch::Sender::new(None),
            process: OnceLock::new(),
            stamp: Mutex::new(stamp),
            changed,
        }
    }

    /// What is known now.
    pub(crate) fn view(&self) -> SessionView {
        self.view.borrow().clone()
    }

    /// The way to the process; `None`: nothing may be sent any more.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.borrow().clone()
    }

    /// When the process says that it started.
    pub(crate) fn started(&self) -> Option<Timestamp> {
        self.process.get().and_then(|(_, started)| *started)
    }

    /// What tells the process from all others; empty if it never said.
    pub(crate) fn instance(&self) -> String {
        self.process
            .get()
            .map(|(instance, _)| instance.clone())
            .unwrap_or_default()
    }

    /// Which file the process is reached by.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        *self.stamp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process is reached by this file.
    pub(crate) fn reached_by(&self, stamp: Option<Stamp>) {
        *self.stamp.lock().unwrap_or_else(PoisonError::into_inner) = stamp;
    }

    /// What another session with the same process granted is still in force.
    pub(crate) fn inherit(&self, until: Instant) {
        self.view.send_modify(|view| view.led.inherited(until));
    }

    /// The gates, which outlive sessions.
    pub(crate) const fn gatekeeper(&self) -> &Arc<Gatekeeper> {
        &self.gatekeeper
    }

    /// Whether calls go to this process.
    pub(crate) fn set_front(&self, is_front: bool) {
        self.is_front.store(is_front, Ordering::Relaxed);
    }

    /// The process said how it is; whether the plugin is unsound. What a process says that does not work shuts no gate.
    pub(crate) fn reported(&self, report: Report) -> bool {
        self.is_front.load(Ordering::Relaxed) && self.gatekeeper.reported(report)
    }

    /// A session began.
    pub(crate) fn began(&self, described: Described, link: Arc<Link>) {
        self.observer.session(&self.settings.name);
        self.process
            .get_or_init(|| (described.description.instance_id.clone(), described.started));
        self.link.send_replace(Some(link));
        self.view.send_modify(|view| {
            view.session += 1;
            view.description = Some(Arc::new(described.description));
        });
        let (state, reason) = Facts::default().state();
        self.publish(state, reason);
    }

    /// Lets no new call begin, and waits for those in flight.
    pub(crate) async fn end_calls(&self) {
        let link = self.link.send_replace(None);
        self.changed.notify_one();
        if let Some(link) = link {
            link.close().await;
        }
    }

    /// The session ended.
    pub(crate) fn ended(&self) {
        self.link.send_replace(None);
        self.view.send_modify(|view| {
            view.led.session_ended();
            view.description = None;
        });
        self.changed.notify_one();
    }

    /// Something about the live session changed.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Facts)) {
        self.facts.send_modify(change);
        let (state, reason) = self.facts.borrow().state();
        self.publish(state, reason);
    }

    /// The term that the process has taken and was not heard to be ready for.
    pub(crate) fn unconfirmed(&self) -> Option<Epoch> {
        self.facts.borrow().lead.unconfirmed().cloned()
    }

    /// Resolves when the process has taken a term other than `known` and was not heard to be ready for it.
    pub(crate) async fn takes_other_than(&self, known: Option<&Epoch>) {
        let is_news = |facts: &Facts| {
            let taken = facts.lead.unconfirmed();
            taken.is_some() && taken != known
        };
        // The sender lives in this value.
        drop(self.facts.subscribe().wait_for(is_news).await);
    }

    /// The plugin describes itself anew within the session.
    pub(crate) fn redescribed(&self, description: Description) {
        self.view
            .send_modify(|view| view.description = Some(Arc::new(description)));
        self.changed.notify_one();
    }

    /// From here on a `Lead` that ends at `until` at the latest may be in force in the session.
    pub(crate) fn led(&self, until: Instant) {
        self.view.send_modify(|view| view.led.told(until));
        self.changed.notify_one();
    }

    /// The session has answered that it stands down.
    pub(crate) fn stood_down(&self) {
        self.view.send_modify(|view| view.led.stood_down());
        self.changed.notify_one();
    }

    fn publish(&self, state: SessionState, reason: String) {
        let now = clock::now();
        let changed = self
            .view
            .send_if_modified(|view| view.becomes(state, reason, now));
        if changed {
            self.changed.notify_one();
        }
    }
}
