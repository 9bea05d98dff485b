//! Faults of this process: what a broken plugin does, not a broken cloud.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_plugin::Result;
use bulkhead_plugin::error::{ErrorReason, PluginError};

use super::spoil::Spoil;
use crate::clock;
use crate::cloud::fault::{Called, Faults, PLUGIN};
use crate::cloud::{Effect, Fault, FaultError, FaultState, Random, Span};

/// Ids of this process' faults begin behind those of any cloud.
const FIRST_ID: u64 = 1_000_000_000;

/// Memory is taken in steps of this many bytes.
const STEP: usize = 1 << 20;

/// The faults of one plugin process. Clones are the same.
#[derive(Clone, Debug)]
pub struct PluginFaults(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    faults: Faults,
    random: Random,
    /// What `Effect::Balloon` took.
    taken: Vec<Vec<u8>>,
}

impl PluginFaults {
    /// None yet.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            faults: Faults::numbered_from(FIRST_ID),
            random: Random::new(seed),
            taken: Vec::new(),
        })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State, Duration) -> T) -> T {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut state, clock::boot())
    }

    /// Sets one; its id.
    ///
    /// # Errors
    ///
    /// As [`Fault::check`].
    pub fn add(&self, fault: Fault) -> std::result::Result<u64, FaultError> {
        self.with(|state, now| state.faults.add(fault, now))
    }

    /// Takes away those with these ids, or all.
    pub fn clear(&self, ids: &[u64]) -> Vec<FaultState> {
        self.with(|state, _| state.faults.clear(ids))
    }

    /// Those that can still happen.
    pub fn list(&self) -> Vec<FaultState> {
        self.with(|state, now| state.faults.list(now))
    }

    fn strike(&self, rpc: &str) -> Option<Effect> {
        let name = format!("{PLUGIN}{rpc}");
        let call = Called {
            verb: "plugin/*",
            name: &name,
            writes: false,
        };
        self.with(|state, now| state.faults.strike(&call, now, &mut state.random))
    }

    /// Runs a call that gives no answer that could be spoiled.
    pub(super) async fn around<T>(&self, rpc: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        if let Some(effect) = self.strike(rpc) {
            self.happen(&effect).await?;
        }
        work.await
    }

    /// Runs a call and spoils its answer.
    pub(super) async fn answer<T: Spoil>(
        &self,
        rpc: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(effect) = self.strike(rpc) else {
            return work.await;
        };
        if !effect.is_of_answer() {
            self.happen(&effect).await?;
        }
        let mut answer = work.await?;
        match effect {
            Effect::Delay(Span(delay)) => tokio::time::sleep(delay).await,
            Effect::Empty => answer.empty(),
            Effect::WrongIds => answer.wrong_ids(),
            Effect::Garbage => answer.garbage(),
            Effect::Oversized(bytes) => {
                answer.text("x".repeat(usize::try_from(bytes).unwrap_or(STEP)));
            }
            Effect::Error { .. }
            | Effect::LostAnswer
            | Effect::Hang
            | Effect::DoneThenHang
            | Effect::Panic
            | Effect::Exit(_)
            | Effect::Abort
            | Effect::Balloon(_)
            | Effect::Fail(_) => {}
        }
        Ok(answer)
    }

    async fn happen(&self, effect: &Effect) -> Result<()> {
        match effect {
            Effect::Hang => std::future::pending().await,
            Effect::Delay(Span(delay)) => tokio::time::sleep(*delay).await,
            Effect::Panic => panicking(),
            Effect::Exit(code) => exiting(*code),
            Effect::Abort => std::process::abort(),
            Effect::Balloon(bytes) => self.balloon(*bytes),
            Effect::Fail(reason) => return Err(failed(reason)),
            Effect::Error { .. }
            | Effect::LostAnswer
            | Effect::DoneThenHang
            | Effect::Empty
            | Effect::WrongIds
            | Effect::Garbage
            | Effect::Oversized(_) => {}
        }
        Ok(())
    }

    fn balloon(&self, bytes: u64) {
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
        while left > 0 {
            let step = left.min(STEP);
            // Written to, or the kernel would give no memory for it.
            self.with(|state, _| state.taken.push(vec![1; step]));
            left -= step;
        }
    }
}

impl Effect {
    /// Whether it changes an answer that the work gave.
    fn is_of_answer(&self) -> bool {
        matches!(
            self,
            Self::Delay(_) | Self::Empty | Self::WrongIds | Self::Garbage | Self::Oversized(_)
        )
    }
}

#[expect(clippy::panic, reason = "demanded by a fault")]
fn panicking() {
    panic!("a fault says so");
}

#[expect(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "demanded by a fault: nothing may run after it"
)]
fn exiting(code: u8) {
    std::process::exit(i32::from(code));
}

/// An error with the reason that a fault names, whatever the call.
fn failed(reason: &str) -> PluginError {
    const TEXT: &str = "a fault says so";
    const WAIT: Duration = Duration::from_secs(1);
    let known = ErrorReason::from_str_name(&format!("ERROR_REASON_{reason}")).unwrap_or_default();
    match known {
        ErrorReason::Unspecified | ErrorReason::PluginBug => {
            PluginError::plugin_bug(format!("{TEXT}: {reason}"))
        }
        ErrorReason::InvalidSpec => PluginError::invalid_spec("spec", TEXT),
        ErrorReason::BatchTooLarge => PluginError::batch_too_large(2, 1),
        ErrorReason::BadPageToken => PluginError::bad_page_token(TEXT),
        ErrorReason::NotConfigured => PluginError::not_configured(TEXT),
        ErrorReason::NotLeading => PluginError::not_leading(TEXT),
        ErrorReason::ForeignOwner => PluginError::foreign_owner(TEXT),
        ErrorReason::InUse => PluginError::in_use(TEXT),
        ErrorReason::Protected => PluginError::protected(TEXT),
        ErrorReason::NodeSetUnknown => PluginError::node_set_unknown(TEXT),
        ErrorReason::OperationInProgress => PluginError::operation_in_progress(TEXT, WAIT),
        ErrorReason::Conflict => PluginError::conflict(TEXT),
        ErrorReason::ReferencedObjectMissing => PluginError::referenced_object_missing(TEXT),
        ErrorReason::PermissionMissing => PluginError::permission_missing(TEXT),
        ErrorReason::CredentialsInvalid => PluginError::credentials_invalid(TEXT),
        ErrorReason::CredentialsExpired => PluginError::credentials_expired(TEXT),
        ErrorReason::RateLimited => PluginError::rate_limited(TEXT, WAIT),
        ErrorReason::QuotaExceeded => PluginError::quota_exceeded(TEXT),
        ErrorReason::LimitReached => PluginError::limit_reached(TEXT),
        ErrorReason::MessageTooLarge => PluginError::message_too_large(0),
        ErrorReason::CloudUnavailable => PluginError::cloud_unavailable(TEXT),
        ErrorReason::Draining => PluginError::draining(),
        ErrorReason::ProviderError => PluginError::provider_error(TEXT),
        ErrorReason::Panic => PluginError::panicked(TEXT),
        ErrorReason::SnapshotExpired => PluginError::snapshot_expired(TEXT),
        ErrorReason::Unimplemented => PluginError::unimplemented(TEXT),
    }
}
