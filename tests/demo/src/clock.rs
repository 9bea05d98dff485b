//! The one place of this crate that reads the time.

use std::time::{Duration, Instant};

/// A point in time from which to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the reader of time that the lint asks for"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// For people: `340 ms`, `2.4 s`.
    pub(crate) fn read(self) -> String {
        readable(self.elapsed())
    }
}

/// A duration for people: `340 ms`, `2.4 s`.
pub(crate) fn readable(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
