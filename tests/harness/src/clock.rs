//! The one place of this crate that reads the time.

use std::time::Duration;

use tokio::time::Instant;

/// A point in time from which to measure, on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// From now on.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the reader of time that the lint asks for"
    )]
    #[must_use]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The same for people: `340 ms`, `2.4 s`.
    pub fn read(self) -> String {
        readable(self.elapsed())
    }
}

/// A duration for people: `340 ms`, `2.4 s`.
pub fn readable(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

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
