//! The clock of journals.

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME` in nanoseconds: the same for all processes of this machine.
pub fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
