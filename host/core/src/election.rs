//! Who leads: the rules of Lease leader election, as values.
//!
//! Time is this process's own boot-time clock throughout. What another machine's wall clock says decides
//! nothing: a record expires when *this* process has seen no new version of the Lease for the record's
//! duration. [`Machine`] is the step function; this module holds the words it uses and the two rules that
//! others ask for: [`may_start`] and [`lead_valid_for`].

mod machine;
mod timing;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use machine::{Answer, Candidate, Effect, Ending, Event, Leading, Loss, Machine};
pub use timing::{Timing, TimingError};

use crate::clock::{Instant, Timestamp};

/// The duration written into a Lease that was given up: one second, as client-go writes it.
pub const RELEASED_DURATION: Duration = Duration::from_secs(1);

/// One leadership: never the same twice, and within one Lease object ordered by `transitions`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// UID of the Lease object; a Lease that was deleted and made again starts a new order.
    pub lease_uid: String,
    /// How often the Lease changed hands (`spec.leaseTransitions`), raised by every win.
    pub transitions: i64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of lease {}", self.transitions, self.lease_uid)
    }
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Identity of the holder; empty when nobody holds the Lease.
    pub holder: String,
    /// How long the record counts after its last change, in whole seconds.
    pub lease_duration: Duration,
    /// The holder's wall clock when it won; for display.
    pub acquired: Option<Timestamp>,
    /// The holder's wall clock at its last renewal; for display.
    pub renewed: Option<Timestamp>,
    /// How often the Lease changed hands.
    pub transitions: i64,
}

/// One version of the Lease object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// UID of the object.
    pub uid: String,
    /// `metadata.resourceVersion`: opaque, compared for equality only.
    pub resource_version: String,
    /// What it says.
    pub record: Record,
}

/// What a candidate wants the Lease to say; complete but for the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The holder to write; empty gives the Lease up.
    pub holder: String,
    /// The duration to write.
    pub lease_duration: Duration,
    /// The number of changes of hands to write.
    pub transitions: i64,
    /// When the leadership that goes on was won; unset where a new one starts.
    pub acquired: Option<Timestamp>,
    /// The renewal time that the written one must exceed.
    pub after: Option<Timestamp>,
}

impl Claim {
    /// The record to write at wall-clock time `wall`.
    ///
    /// The renewal time always grows, even while the wall clock stands still or jumps back: a patch that
    /// changed nothing would leave the resource version as it is, and nobody would see the renewal.
    pub fn stamped(&self, wall: Timestamp) -> Record {
        let renewed = match self.after {
            Some(Timestamp(after)) => Timestamp(wall.0.max(after.saturating_add(1))),
            None => wall,
        };
        Record {
            holder: self.holder.clone(),
            lease_duration: self.lease_duration,
            acquired: Some(self.acquired.unwrap_or(renewed)),
            renewed: Some(renewed),
            transitions: self.transitions,
        }
    }
}

/// Whether an effect may start at `now`, the last successful renewal having been *sent* at `renewal_sent`:
/// at least a fifth of the lease duration is left.
pub fn may_start(now: Instant, renewal_sent: Instant, lease_duration: Duration) -> bool {
    remaining(now, renewal_sent, lease_duration) >= lease_duration / 5
}

/// How long from `now` a plugin may start cloud writes, told right away: what is left of the lease since the
/// last successful renewal was *sent*, less an eighth of the lease duration for clocks that run apart.
pub fn lead_valid_for(now: Instant, renewal_sent: Instant, lease_duration: Duration) -> Duration {
    remaining(now, renewal_sent, lease_duration).saturating_sub(lease_duration / 8)
}

/// What is left of the lease at `now`.
fn remaining(now: Instant, renewal_sent: Instant, lease_duration: Duration) -> Duration {
    lease_duration.saturating_sub(now.saturating_since(renewal_sent))
}
