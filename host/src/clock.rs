//! The only reader of time in the host.

use std::time::Duration;

use bulkhead_core::clock::{Instant, Timestamp};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Now, on the boot-time clock: it goes on while the machine is suspended, so that a host that slept through
/// its lease knows it.
pub fn now() -> Instant {
    Instant::from_origin(span(clock_gettime(ClockId::Boottime)))
}

/// Now, on the wall clock: for display and for ages of API objects.
pub fn wall() -> Timestamp {
    let since_epoch = span(clock_gettime(ClockId::Realtime));
    Timestamp(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

/// A kernel time as a duration; the parts that a clock never makes negative are taken as zero if it did.
fn span(time: Timespec) -> Duration {
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}
