//! How soon something that ended is started again: a child process, a session.

use std::time::Duration;

/// The numbers of a restart intensity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// The pause after the first end.
    pub first: Duration,
    /// The longest pause.
    pub cap: Duration,
    /// Whatever lived this long counts as well: its end is a first one.
    pub steady: Duration,
}

impl Intensity {
    /// 0.2 s, doubling to 30 s, from the start again after a minute of life.
    pub const DEFAULT: Self = Self {
        first: Duration::from_millis(200),
        cap: Duration::from_secs(30),
        steady: Duration::from_secs(60),
    };
}

/// The ends of one thing, and the pause that each costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    intensity: Intensity,
    next: Duration,
}

impl Restarts {
    /// Nothing has ended yet.
    pub const fn new(intensity: Intensity) -> Self {
        Self {
            intensity,
            next: intensity.first,
        }
    }

    /// It ended after living for `lived`: how long to wait before the next start.
    pub fn ended_after(&mut self, lived: Duration) -> Duration {
        if lived >= self.intensity.steady {
            self.reset();
        }
        let pause = self.next.min(self.intensity.cap);
        self.next = pause.saturating_mul(2).min(self.intensity.cap);
        pause
    }

    /// It works: the next end is a first one, however soon it comes.
    pub const fn reset(&mut self) {
        self.next = self.intensity.first;
    }
}

impl Default for Restarts {
    fn default() -> Self {
        Self::new(Intensity::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[rstest]
    #[case::crash_loop(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000])]
    #[case::just_under_a_minute_goes_on_doubling(&[0, 0, 59_999, 0], &[200, 400, 800, 1600])]
    #[case::a_minute_of_life_starts_anew(&[0, 0, 60_000, 0], &[200, 400, 200, 400])]
    fn each_end_costs_a_pause(#[case] lives: &[u64], #[case] pauses: &[u64]) {
        let mut restarts = Restarts::default();
        let measured: Vec<_> = lives.iter().map(|&life| restarts.ended_after(ms(life))).collect();
        assert_eq!(measured, pauses.iter().copied().map(ms).collect::<Vec<_>>());
    }

    #[test]
    fn success_starts_anew_however_short_the_life() {
        let mut restarts = Restarts::default();
        restarts.ended_after(ms(0));
        restarts.ended_after(ms(0));
        restarts.reset();
        assert_eq!(restarts.ended_after(ms(0)), ms(200));
    }

    proptest! {
        #[test]
        fn a_pause_lies_between_first_and_cap(lives in proptest::collection::vec(0_u64..200_000, 0..50)) {
            let mut restarts = Restarts::default();
            for life in lives {
                let pause = restarts.ended_after(ms(life));
                prop_assert!((Intensity::DEFAULT.first..=Intensity::DEFAULT.cap).contains(&pause));
            }
        }
    }
}
