//! The only reader of time in this program.

use std::time::{Duration, Instant};

/// A stopwatch that runs from its making.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this module is the clock")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// A duration as people read it: `0.8 s`, `2 min 5 s`.
pub(crate) fn readable(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_for_people() {
        assert_eq!(readable(Duration::from_millis(840)), "0.8 s");
        assert_eq!(readable(Duration::from_millis(125_600)), "2 min 5 s");
    }
}
