//! How long to wait after a failure: capped exponential growth with jitter.

use std::time::Duration;

/// How pauses grow with the number of failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// No pause is longer, jitter aside.
    pub cap: Duration,
    /// What was asked for: no pause is shorter, whatever the cap.
    pub at_least: Duration,
}

/// How far jitter moves a pause, as a part of it.
const JITTER: f64 = 0.2;

impl Backoff {
    /// What objects get: 1 s, doubling, at most 5 minutes.
    pub const OBJECT: Self = Self::new(Duration::from_secs(1), Duration::from_secs(300));

    /// Pauses from `first` to `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self {
            first,
            cap,
            at_least: Duration::ZERO,
        }
    }

    /// The same, but no pause shorter than `pause`.
    #[must_use]
    pub const fn at_least(self, pause: Duration) -> Self {
        Self {
            at_least: pause,
            ..self
        }
    }

    /// The pause after `failures` failures in a row; none after no failure.
    ///
    /// `jitter` is a random number from -1 to 1 (others are taken as the nearest of these): it moves the pause by
    /// up to a fifth, so that what failed together does not come back together.
    pub fn delay(self, failures: u32, jitter: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
        let jitter = if jitter.is_nan() {
            0.0
        } else {
            jitter.clamp(-1.0, 1.0)
        };
        self.first
            .saturating_mul(factor)
            .min(self.cap)
            .mul_f64(1.0 + JITTER * jitter)
            .max(self.at_least)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_failure(0, 0)]
    #[case::first(1, 1)]
    #[case::second(2, 2)]
    #[case::ninth(9, 256)]
    #[case::tenth_is_capped(10, 300)]
    #[case::endless(u32::MAX, 300)]
    fn pauses_double_up_to_the_cap(#[case] failures: u32, #[case] seconds: u64) {
        assert_eq!(Backoff::OBJECT.delay(failures, 0.0), Duration::from_secs(seconds));
    }

    #[rstest]
    #[case::down(-1.0, 240)]
    #[case::up(1.0, 360)]
    #[case::too_far(7.0, 360)]
    #[case::no_number(f64::NAN, 300)]
    fn jitter_moves_a_pause_by_a_fifth(#[case] jitter: f64, #[case] seconds: u64) {
        assert_eq!(Backoff::OBJECT.delay(20, jitter), Duration::from_secs(seconds));
    }

    proptest! {
        #[test]
        fn more_failures_never_make_the_pause_shorter(failures in 0_u32..100, jitter in -1.0..1.0_f64) {
            prop_assert!(Backoff::OBJECT.delay(failures, jitter) <= Backoff::OBJECT.delay(failures + 1, jitter));
        }

        #[test]
        fn no_pause_is_shorter_than_asked_or_longer_than_both_bounds(
            failures in 1..u32::MAX, jitter in -1.0..1.0, asked in 0_u64..10_000,
        ) {
            let backoff = Backoff::OBJECT.at_least(Duration::from_secs(asked));
            let pause = backoff.delay(failures, jitter);
            prop_assert!(pause >= backoff.at_least);
            prop_assert!(pause <= backoff.at_least.max(backoff.cap.mul_f64(1.2)));
        }
    }
}
