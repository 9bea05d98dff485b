//! A token bucket as a value: whoever has it says what time it is, and waits or does not.

use std::time::Duration;

use bulkhead_core::clock::Instant;

use crate::config::RateConfig;

/// The bucket as the one time that says it all: when it will be full again.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// What one event takes.
    interval: Duration,
    /// How far the time of fullness may lie ahead without a wait.
    tolerance: Duration,
    full_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: RateConfig) -> Self {
        // A rate that is no rate makes the longest interval, not a panic.
        let interval = Duration::try_from_secs_f64(rate.per_second.recip()).unwrap_or(Duration::MAX);
        let others = u32::try_from(rate.burst.get() - 1).unwrap_or(u32::MAX);
        Self {
            interval,
            tolerance: interval.saturating_mul(others),
            full_at: Instant::ORIGIN,
        }
    }

    /// How long until there is a token.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.full_at.saturating_since(now).saturating_sub(self.tolerance)
    }

    /// Takes one token if there is one; whether it did.
    pub(crate) fn try_take(&mut self, now: Instant) -> bool {
        let free = self.wait(now).is_zero();
        if free {
            self.full_at = self.full_at.max(now) + self.interval;
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;

    const ORIGIN: Instant = Instant::ORIGIN;

    fn bucket(per_second: f64, burst: usize) -> Bucket {
        Bucket::new(RateConfig {
            per_second,
            burst: NonZeroUsize::new(burst).unwrap(),
        })
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = bucket(10.0, 3);
        let mut now = ORIGIN;
        let mut next = || {
            let wait = bucket.wait(now);
            now = now + wait;
            assert!(bucket.try_take(now));
            wait.as_millis()
        };
        assert_eq!([(); 5].map(|()| next()), [0, 0, 0, 100, 100]);
        assert_eq!(bucket.wait(ORIGIN + Duration::from_mins(1)), Duration::ZERO);
    }

    #[test]
    fn who_does_not_wait_gets_the_burst_and_then_one_an_interval() {
        let mut bucket = bucket(1.0 / 300.0, 25);
        let passed = |bucket: &mut Bucket, at: u64| {
            (0..100)
                .filter(|_| bucket.try_take(ORIGIN + Duration::from_secs(at)))
                .count()
        };
        assert_eq!(
            [0, 299, 300, 900, 90_000].map(|at| passed(&mut bucket, at)),
            [25, 0, 1, 2, 25]
        );
    }

    #[test]
    fn a_rate_that_is_none_does_not_panic() {
        for per_second in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut bucket = bucket(per_second, usize::MAX);
            bucket.try_take(ORIGIN);
            bucket.wait(ORIGIN);
        }
    }

    proptest! {
        #[test]
        fn no_second_sees_more_than_burst_and_rate(
            gaps in proptest::collection::vec(0_u64..400, 1..100), per_second in 1_u32..50, burst in 1_usize..20,
        ) {
            let mut bucket = bucket(f64::from(per_second), burst);
            let mut now = ORIGIN;
            let mut sent = Vec::new();
            for gap in gaps {
                now = now + Duration::from_millis(gap);
                now = now + bucket.wait(now);
                prop_assert!(bucket.try_take(now));
                sent.push(now);
            }
            for start in &sent {
                let within = sent.iter().filter(|at| *at >= start && at.saturating_since(*start) < Duration::from_secs(1));
                prop_assert!(within.count() <= burst + usize::try_from(per_second).unwrap() + 1);
            }
        }
    }
}
