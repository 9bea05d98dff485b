//! The only reader of time in this crate, so that everything else can be tested with a paused clock.

use std::time::SystemTime;

use tokio::time::Instant;

/// Monotonic time, for decisions.
#[expect(clippy::disallowed_methods, reason = "this module is the crate's clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time, for display only.
#[expect(clippy::disallowed_methods, reason = "this module is the crate's clock")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
