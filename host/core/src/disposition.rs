//! What a plugin's error means for what the host does next: the table of `SPEC.md` section 3 as one function.
//!
//! An unattributed error (no reason: some library or proxy made it up) is transient and says nothing about the
//! cloud. No disposition ever permits a conclusion from a failure; it only says when and how to ask again.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::cloud::{Certainty, Failure, Reason};
use crate::outcome::{Next, SLOW};

/// What kind of call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// It changes nothing in the cloud.
    Read,
    /// It may have changed something.
    Write,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disposition {
    /// When and how to try again.
    pub again: Again,
    /// The cloud may have been changed: the next step is a read, never a blind create.
    pub look_first: bool,
    /// What the failure counts against.
    pub against: Against,
}

/// When and how to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// With growing pauses for this object.
    Backoff(Backoff),
    /// Soon, as a turn of the work and not as a failure.
    Soon(Duration),
    /// When the object changes; without a change after this time, if any.
    OnChange(Option<Duration>),
    /// With growing pauses, or at once after we deleted something of the kind.
    OnCapacity(Backoff),
    /// At once, with the node set in full.
    ResendNodeSet,
    /// At once, in two halves.
    Halve,
    /// At once, the list from its start.
    StartOver,
    /// When the plugin has had its `Lead`, if this host still leads.
    WhenLed,
    /// When there is a session again.
    WhenConnected,
    /// When the plugin's gate lets calls through again.
    WhenOpen,
    /// Never in this term: the host gave the call up.
    Stop,
    /// Not before the whole plugin's pause is over.
    PausePlugin(Backoff),
    /// Nothing of this plugin changes until it has other credentials; look for that this often.
    Freeze(Duration),
}

/// What a failure counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Against {
    /// Nothing: it is a turn of the work, not a failure, and says nothing of the provider.
    Nothing,
    /// The one object it is about: the provider was reached.
    Object,
    /// The reach of the provider: see [`crate::breaker`].
    Breaker,
    /// The plugin's soundness: see [`crate::gate::UNSOUND`].
    Soundness,
    /// The plugin's keeping of the protocol: see [`crate::breaker`].
    Protocol,
}

/// Longest wait that a plugin's retry information can ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(15 * 60);
/// Recheck of a resource that carries somebody else's mark.
const FOREIGN: Duration = Duration::from_secs(10 * 60);
/// How long a frozen plugin stays frozen at the least, unless it says that it has other credentials.
pub const FROZEN: Duration = Duration::from_secs(30);

const BUSY: Duration = Duration::from_secs(2);
const PERMISSION: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(15 * 60));
const QUOTA: Backoff = Backoff::new(Duration::from_secs(5 * 60), Duration::from_secs(30 * 60));

/// What `failure` of a call of this kind means.
pub fn classify(failure: &Failure, call: CallKind) -> Disposition {
    let write = call == CallKind::Write;
    let (again, against) = row(failure, call);
    Disposition {
        again,
        look_first: write
            && (failure.certainty != Certainty::NotApplied || outcome_is_unknown(failure.reason)),
        against,
    }
}

/// When a pass that met `failure` comes back for its object.
///
/// What the plugin runtime cures itself (a set that is resent, a batch that is halved) is a plain back-off here.
pub fn after_failure(failure: &Failure, call: CallKind) -> Next {
    match classify(failure, call).again {
        Again::Soon(pause) => Next::After(pause),
        Again::Backoff(backoff) | Again::OnCapacity(backoff) | Again::PausePlugin(backoff) => {
            Next::Backoff(backoff)
        }
        Again::OnChange(None) | Again::Stop => Next::AwaitChange,
        // A floor, that only another wish cuts short: what others write on the object must not bring it back.
        Again::OnChange(Some(pause)) | Again::Freeze(pause) => Next::retry_after(pause),
        Again::ResendNodeSet
        | Again::Halve
        | Again::StartOver
        | Again::WhenLed
        | Again::WhenConnected
        | Again::WhenOpen => Next::RETRY,
    }
}

/// Whether people should read of `failure` at the object that met it. What only says that the host and the plugin
/// are between two sessions, terms or slices is not for them.
pub const fn deserves_notice(failure: &Failure) -> bool {
    match failure.reason {
        Some(
            Reason::BatchTooLarge
            | Reason::BadPageToken
            | Reason::NotLeading
            | Reason::NodeSetUnknown
            | Reason::OperationInProgress
            | Reason::Conflict
            | Reason::MessageTooLarge
            | Reason::Draining
            | Reason::SnapshotExpired
            | Reason::Cancelled
            | Reason::Disconnected
            | Reason::Shut,
        ) => false,
        None
        | Some(
            Reason::InvalidSpec
            | Reason::NotConfigured
            | Reason::ForeignOwner
            | Reason::InUse
            | Reason::Protected
            | Reason::ReferencedObjectMissing
            | Reason::PermissionMissing
            | Reason::CredentialsInvalid
            | Reason::CredentialsExpired
            | Reason::RateLimited
            | Reason::QuotaExceeded
            | Reason::LimitReached
            | Reason::CloudUnavailable
            | Reason::ProviderError
            | Reason::PluginBug
            | Reason::Panic
            | Reason::Unimplemented
            | Reason::DeadlineExceeded
            | Reason::ProtocolViolation,
        ) => true,
    }
}

fn row(failure: &Failure, call: CallKind) -> (Again, Against) {
    let asked = at_least(failure);
    let ordinary = Again::Backoff(Backoff::OBJECT.at_least(asked));
    let Some(reason) = failure.reason else {
        return (ordinary, Against::Breaker);
    };
    match reason {
        Reason::InvalidSpec => (
            Again::OnChange((call == CallKind::Write).then_some(SLOW)),
            Against::Object,
        ),
        Reason::BatchTooLarge | Reason::MessageTooLarge => (Again::Halve, Against::Object),
        Reason::NotConfigured | Reason::InUse | Reason::Protected | Reason::ReferencedObjectMissing => {
            (Again::OnChange(Some(SLOW)), Against::Object)
        }
        Reason::ForeignOwner => (Again::OnChange(Some(FOREIGN)), Against::Object),
        Reason::NotLeading => (Again::WhenLed, Against::Nothing),
        Reason::NodeSetUnknown => match call {
            CallKind::Read => (Again::OnChange(Some(SLOW)), Against::Object),
            CallKind::Write => (Again::ResendNodeSet, Against::Nothing),
        },
        Reason::OperationInProgress | Reason::Conflict => (Again::Soon(BUSY.max(asked)), Against::Nothing),
        Reason::PermissionMissing => (Again::Backoff(PERMISSION.at_least(asked)), Against::Object),
        Reason::CredentialsInvalid | Reason::CredentialsExpired => (Again::Freeze(FROZEN), Against::Nothing),
        Reason::RateLimited => (
            Again::PausePlugin(Backoff::OBJECT.at_least(asked)),
            Against::Nothing,
        ),
        Reason::QuotaExceeded | Reason::LimitReached => {
            (Again::OnCapacity(QUOTA.at_least(asked)), Against::Object)
        }
        Reason::CloudUnavailable | Reason::DeadlineExceeded => (ordinary, Against::Breaker),
        Reason::Draining => (Again::WhenConnected, Against::Nothing),
        Reason::ProviderError => (ordinary, Against::Object),
        Reason::PluginBug | Reason::Panic => (ordinary, Against::Soundness),
        Reason::BadPageToken | Reason::SnapshotExpired => (Again::StartOver, Against::Nothing),
        Reason::Unimplemented | Reason::ProtocolViolation => (ordinary, Against::Protocol),
        Reason::Cancelled => (Again::Stop, Against::Nothing),
        Reason::Disconnected => (Again::WhenConnected, Against::Breaker),
        Reason::Shut => (Again::WhenOpen, Against::Nothing),
    }
}

/// The wait that the plugin asked for, within reason.
fn at_least(failure: &Failure) -> Duration {
    failure.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX)
}

/// Whether a write that failed so may have been applied, whatever certainty came with it.
const fn outcome_is_unknown(reason: Option<Reason>) -> bool {
    matches!(
        reason,
        None | Some(Reason::DeadlineExceeded | Reason::PluginBug | Reason::Panic)
    )
}

#[cfg(test)]
mod tests;
