//! Terms of leadership as authors see them, and the shell around the pure [`Role`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::error::{PluginError, Result};
use crate::role::{Epoch, LeadRefusal, Role, Told};
use crate::time;

/// One term of leadership: from a host's first granted `Lead` to its end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Term(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoch: Epoch,
    until: AtomicU64,
    ended: CancellationToken,
    calls: TaskTracker,
}

impl Term {
    fn new(epoch: Epoch) -> Self {
        Self(Arc::new(Inner {
            epoch,
            until: AtomicU64::new(0),
            ended: CancellationToken::new(),
            calls: TaskTracker::new(),
        }))
    }

    /// The epoch of this term.
    pub fn epoch(&self) -> &Epoch {
        &self.0.epoch
    }

    /// Whether a cloud write may start now. Ask before every single one: a host that froze cannot say that it did.
    pub fn may_write(&self) -> bool {
        time::boot_nanos() < self.0.until.load(Ordering::Acquire)
    }

    /// Cancelled when the term ends: finish the current cloud call, start nothing, end background work. A term that
    /// merely ran out is not cancelled, since the host may renew it.
    pub fn ended(&self) -> &CancellationToken {
        &self.0.ended
    }

    /// Running calls of this term.
    pub(crate) fn calls(&self) -> &TaskTracker {
        &self.0.calls
    }

    fn grant(&self, until: u64) {
        self.0.until.store(until, Ordering::Release);
    }

    /// Ends the term: nothing of it may write any more.
    pub(crate) fn end(&self) {
        self.grant(0);
        self.0.ended.cancel();
        self.0.calls.close();
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A call's right to run: its term, and the token that makes the end of the term wait for it.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) term: Term,
    pub(crate) running: TaskTrackerToken,
}

/// The role of this process. All sessions share it.
#[derive(Debug)]
pub(crate) struct Leadership {
    state: Mutex<State>,
    term: watch::Sender<Option<Term>>,
    ready: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    role: Role,
    term: Option<Term>,
    initialised: bool,
    problem: Option<String>,
}

impl Leadership {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            term: watch::Sender::new(None),
            ready: watch::Sender::new(true),
        }
    }

    /// Takes a `Lead`. What it ends is ended, and not ready, when this returns.
    pub(crate) fn lead(&self, epoch: &Epoch, told: &Told, now: u64) -> Result<()> {
        let mut state = self.lock();
        let change = state
            .role
            .lead(epoch, told, now)
            .map_err(|refused| refusal(&refused))?;
        if change.ended
            && let Some(term) = state.term.take()
        {
            term.end();
            state.initialised = false;
            state.problem = None;
        }
        if change.began {
            state.term = Some(Term::new(epoch.clone()));
        }
        self.ready
            .send_if_modified(|ready| std::mem::replace(ready, state.is_ready()) != state.is_ready());
        if let Some(term) = &state.term {
            term.grant(state.role.until());
        }
        if change.ended || change.began {
            self.term.send_replace(state.term.clone());
        }
        Ok(())
    }

    /// Whether a read may start.
    pub(crate) fn admit_read(&self) -> Result<Admission> {
        let state = self.lock();
        state
            .role
            .admit_read()
            .map_err(|refusal| PluginError::not_leading(refusal.to_string()))?;
        state.admission()
    }

    /// Whether a write of `epoch` may start.
    pub(crate) fn admit_write(&self, epoch: &Epoch) -> Result<Admission> {
        let state = self.lock();
        state
            .role
            .admit_write(epoch, time::boot_nanos())
            .map_err(|refusal| PluginError::not_leading(refusal.to_string()))?;
        state.admission()
    }

    /// Says that the provider is initialised for this term. Nothing if the term has ended meanwhile.
    pub(crate) fn set_ready(&self, term: &Term) {
        let mut state = self.lock();
        if state.term.as_ref().is_some_and(|current| current.is(term)) {
            state.initialised = true;
            state.problem = None;
            self.ready.send_replace(true);
        }
    }

    /// Says why the provider is not initialised.
    pub(crate) fn set_problem(&self, problem: String) {
        self.lock().problem = Some(problem);
    }

    /// Why the provider is not initialised, where it tried.
    pub(crate) fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    /// Whether a leading host may send any call: not while the provider initialises. A standby is ready.
    pub(crate) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// The present term.
    pub(crate) fn terms(&self) -> watch::Receiver<Option<Term>> {
        self.term.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_ready(&self) -> bool {
        self.term.is_none() || self.initialised
    }

    fn admission(&self) -> Result<Admission> {
        const WARMING: Duration = Duration::from_secs(1);
        match &self.term {
            Some(term) if self.initialised => Ok(Admission {
                term: term.clone(),
                running: term.calls().token(),
            }),
            _ => Err(PluginError::operation_in_progress(
                "the plugin is initialising",
                WARMING,
            )),
        }
    }
}

fn refusal(refusal: &LeadRefusal) -> PluginError {
    let error = PluginError::not_leading(refusal.to_string());
    match refusal {
        LeadRefusal::OtherLease { nanos, .. } => error.with_retry_after(Duration::from_nanos(*nanos)),
        LeadRefusal::LowerEpoch { .. } | LeadRefusal::Ended { .. } => error,
    }
}
