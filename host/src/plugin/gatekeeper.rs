//! Holds the gates of one plugin: feeds the decision in `bulkhead_core::gate`, and shows what it comes to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_core::breaker::Subject;
use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{Capability, Failure};
use bulkhead_core::disposition::CallKind;
use bulkhead_core::gate::{CallEnd, Gate, GateView, Gates, Report, Ticket, Why};
use tokio::sync::watch;
use tokio::time::sleep;

use super::activity::Activity;
use super::budget::Pace;
use super::{Change, Observer, Settings};
use crate::clock;

/// The gates of one plugin. They outlive its sessions: a process that dies again and again is a failure too.
pub(crate) struct Gatekeeper {
    plugin: String,
    gates: Mutex<Gates>,
    view: watch::Sender<GateView>,
    observer: Arc<dyn Observer>,
    /// The rate of calls, which outlives sessions too.
    pub(super) pace: Option<Arc<Pace>>,
    /// What calls come to lately.
    pub(super) activity: Arc<Activity>,
}

impl Gatekeeper {
    pub(crate) fn new(settings: &Settings, observer: Arc<dyn Observer>) -> Self {
        Self {
            plugin: settings.name.clone(),
            gates: Mutex::new(Gates::new(settings.timing.gates)),
            view: watch::Sender::default(),
            observer,
            pace: settings.budget.rate.map(|rate| Arc::new(Pace::new(rate))),
            activity: Arc::default(),
        }
    }

    /// The gates, now and in future.
    pub(crate) fn subscribe(&self) -> watch::Receiver<GateView> {
        self.view.subscribe()
    }

    /// A session began with a process that declares `capabilities`.
    pub(crate) fn session_began(&self, capabilities: &[Capability]) {
        self.change(|gates, _| gates.session_began(capabilities));
    }

    /// The plugin said how it is. Whether it is unsound.
    pub(crate) fn reported(&self, report: Report) -> bool {
        self.change(|gates, now| gates.reported(report, now));
        self.view.borrow().is_unsound
    }

    /// Why no call of `capability` is let through, if none is.
    pub(super) fn refuses(&self, capability: Capability) -> Option<Why> {
        let gate = self.view.borrow().of(capability);
        match gate {
            Gate::Shut { why, .. } => Some(why),
            Gate::Open | Gate::Trial { .. } => None,
        }
    }

    /// Lets a call through, to be told how it ended.
    ///
    /// # Errors
    /// Why it is held back.
    pub(super) fn begin(&self, capability: Capability) -> Result<Admission<'_>, Why> {
        let ticket = self.gates().begin(capability, clock::now())?;
        self.in_flight(Change::Begun);
        Ok(Admission {
            gatekeeper: self,
            ticket: Some(ticket),
        })
    }

    /// A call waited for room for so long.
    pub(super) fn waited(&self, took: Duration) {
        self.observer.waited(&self.plugin, took);
    }

    /// A call is not made because too many wait for room.
    pub(super) fn crowded_out(&self) {
        self.observer.crowded_out(&self.plugin);
    }

    /// Shows what the mere passing of time changes.
    pub(crate) async fn keep(&self) -> Infallible {
        let mut view = self.subscribe();
        loop {
            let now = clock::now();
            let next = self.gates().next_change(now);
            let time = async {
                match next {
                    Some(at) => sleep(at.saturating_since(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = time => self.change(|_, _| ()),
                // Its sender is `self`.
                _ = view.changed() => {}
            }
        }
    }

    fn in_flight(&self, change: Change) {
        self.activity.in_flight(change);
        self.observer.in_flight(&self.plugin, change);
    }

    fn gates(&self) -> MutexGuard<'_, Gates> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the gates and shows what they have become, one change after another.
    fn change(&self, change: impl FnOnce(&mut Gates, Instant)) {
        let now = clock::now();
        let mut gates = self.gates();
        change(&mut gates, now);
        self.view.send_if_modified(|view| {
            if gates.are_as_in(view, now) {
                return false;
            }
            let new = gates.view(now);
            self.tell(view, &new, now);
            *view = new;
            true
        });
        drop(gates);
    }

    fn tell(&self, old: &GateView, new: &GateView, now: Instant) {
        for (capability, gate) in &new.gates {
            let before = old.of(*capability);
            if old.gates.contains_key(capability) && before == *gate {
                continue;
            }
            self.observer.gate(&self.plugin, *capability, *gate);
            if let Gate::Shut { why, .. } = gate
                && !matches!(before, Gate::Shut { .. })
            {
                self.observer.shut(&self.plugin, *capability, *why);
            }
            self.log(*capability, before, *gate, now);
        }
    }

    fn log(&self, capability: Capability, before: Gate, gate: Gate, now: Instant) {
        let (plugin, capability) = (&self.plugin, capability.name());
        match gate {
            Gate::Open if before == Gate::Open => {}
            Gate::Shut {
                why: Why::Throttled, ..
            } => {
                tracing::debug!(
                    "plugin {plugin}: {capability} pauses: {}",
                    Why::Throttled.sentence()
                );
            }
            Gate::Open if before.why() == Some(Why::Throttled) => {
                tracing::debug!("plugin {plugin}: {capability} goes on");
            }
            Gate::Open => tracing::info!("plugin {plugin}: {capability} works again"),
            Gate::Trial { why } => {
                tracing::info!(
                    "plugin {plugin}: {capability} is tried again; before: {}",
                    why.sentence()
                );
            }
            Gate::Shut { why, until } => {
                let wait = until.map_or_else(
                    || "until it has others".to_owned(),
                    |until| format!("for {:?}", until.saturating_since(now)),
                );
                tracing::warn!(
                    "plugin {plugin}: {capability} is frozen {wait}: {}. Nothing of it changes",
                    why.sentence()
                );
            }
        }
    }
}

impl std::fmt::Debug for Gatekeeper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Gatekeeper")
            .field("plugin", &self.plugin)
            .field("gates", &*self.view.borrow())
            .finish_non_exhaustive()
    }
}

/// A call that was let through. Dropped, it was given up.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    gatekeeper: &'a Gatekeeper,
    ticket: Option<Ticket>,
}

impl Admission<'_> {
    /// The call ended.
    pub(super) fn ended(mut self, subject: Subject<'_>, kind: CallKind, failure: Option<&Failure>) {
        if let Some(ticket) = self.ticket.take() {
            let end = CallEnd {
                subject,
                kind,
                failure,
            };
            self.gatekeeper.change(|gates, now| gates.ended(ticket, end, now));
        }
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.gatekeeper.in_flight(Change::Over);
        if let Some(ticket) = self.ticket.take() {
            self.gatekeeper.gates().abandoned(ticket, clock::now());
        }
    }
}
