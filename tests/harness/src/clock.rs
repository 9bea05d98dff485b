//! The one place of this crate that reads the time.

use std::time::Duration;

use tokio::time::Instant;

/// Now, on the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the reader of time that the lint asks for"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The point in time `within` from now.
pub(crate) fn after(within: Duration) -> Instant {
    now() + within
}
