//! The crate's only reader of time, and conversions to the wire's types.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// A duration as the wire has it; longer than 292 billion years becomes that.
pub fn duration(value: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(value).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// The wall clock now, as the wire has it. For display only: decisions use the boot clock.
pub fn timestamp() -> prost_types::Timestamp {
    #[expect(clippy::disallowed_methods, reason = "this module is the crate's clock")]
    prost_types::Timestamp::from(SystemTime::now())
}

/// `CLOCK_BOOTTIME` in nanoseconds: it goes on while the machine sleeps, so that a lead runs out also then.
pub(crate) fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The boot clock as a [`Duration`] since boot.
pub(crate) fn boot_time() -> Duration {
    Duration::from_nanos(boot_nanos())
}
