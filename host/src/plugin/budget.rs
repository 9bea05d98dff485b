//! How much of a plugin is used at once: calls in flight, and calls a second.
//!
//! Whoever finds no room waits, in the order of coming, within the time that the call itself has; and so many wait at
//! the most. What keeps the session alive (`Lead`, health checks, `GetStatus`) takes no room.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use crate::config::RateConfig;

/// Calls that wait for room at the most; every worker and every batch of a host is far less.
const WAITING: usize = 256;

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Too many wait already.
    Crowded,
    /// There will be none any more.
    Closed,
}

/// Room for the calls of one session.
#[derive(Debug)]
pub(super) struct Room {
    slots: Semaphore,
    size: usize,
    waiting: AtomicUsize,
    pace: Option<Arc<Pace>>,
}

impl Room {
    /// Room for `size` calls, which come no faster than `pace`.
    pub(super) const fn new(size: usize, pace: Option<Arc<Pace>>) -> Self {
        Self {
            slots: Semaphore::const_new(size),
            size,
            waiting: AtomicUsize::new(0),
            pace,
        }
    }

    /// Waits for room, which is taken until what is returned is dropped.
    pub(super) async fn enter(&self) -> Result<SemaphorePermit<'_>, NoRoom> {
        let _place = Place::take(&self.waiting)?;
        let slot = self.slots.acquire().await.map_err(|_| NoRoom::Closed)?;
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        Ok(slot)
    }

    /// Lets nobody in any more, and waits until nobody is left.
    pub(super) async fn close(&self) {
        let all = u32::try_from(self.size).unwrap_or(u32::MAX);
        drop(self.slots.acquire_many(all).await);
        self.slots.close();
    }
}

/// One of the places for those who wait.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize) -> Result<Self, NoRoom> {
        let place = Self(waiting);
        if waiting.fetch_add(1, Ordering::Relaxed) < WAITING {
            Ok(place)
        } else {
            Err(NoRoom::Crowded)
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Hands out turns at a rate, in the order in which they are asked for.
#[derive(Debug)]
pub(super) struct Pace {
    limiter: RateLimiter<NotKeyed, InMemoryState, Ticks, NoOpMiddleware<Nanos>>,
    clock: Ticks,
    /// Held by the next in the order, while it waits.
    next: Mutex<()>,
}

impl Pace {
    /// A pace with `rate`.
    pub(super) fn new(rate: RateConfig) -> Self {
        // A rate that is no rate makes the longest interval, not a panic.
        let interval = Duration::try_from_secs_f64(rate.per_second.recip())
            .unwrap_or(LONGEST)
            .clamp(SHORTEST, LONGEST);
        let burst = u32::try_from(rate.burst.get()).unwrap_or(u32::MAX);
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let clock = Ticks::new();
        // The interval is not zero.
        let quota = Quota::with_period(interval).unwrap_or_else(|| Quota::per_second(burst));
        Self {
            limiter: RateLimiter::direct_with_clock(quota.allow_burst(burst), clock.clone()),
            clock,
            next: Mutex::new(()),
        }
    }

    /// Waits for a turn. Who gives up waiting takes none.
    async fn turn(&self) {
        let _next = self.next.lock().await;
        while let Err(early) = self.limiter.check() {
            sleep(early.wait_time_from(self.clock.now())).await;
        }
    }
}

/// Bounds of what one call takes of a rate.
const SHORTEST: Duration = Duration::from_nanos(1);
const LONGEST: Duration = Duration::from_hours(1);

/// The clock that timers run on, so that a turn comes when its timer ends, also where time is paused.
#[derive(Clone, Debug)]
struct Ticks(Instant);

impl Ticks {
    #[expect(
        clippy::disallowed_methods,
        reason = "must be the clock that `sleep` waits by, also when it is paused"
    )]
    fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Ticks {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.0.elapsed().into()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use futures::FutureExt as _;
    use rstest::rstest;
    use tokio::time::advance;

    use super::*;

    fn pace(per_second: f64, burst: usize) -> Pace {
        Pace::new(RateConfig {
            per_second,
            burst: NonZeroUsize::new(burst).unwrap(),
        })
    }

    /// How long ten turns take.
    #[rstest]
    #[case::one_by_one(2.0, 1, 4500)]
    #[case::half_at_once(2.0, 5, 2500)]
    #[case::all_at_once(2.0, 10, 0)]
    #[case::slower_than_one_a_second(0.5, 1, 18_000)]
    #[tokio::test(start_paused = true)]
    async fn turns_come_at_the_rate(#[case] per_second: f64, #[case] burst: usize, #[case] took: u64) {
        let pace = pace(per_second, burst);
        for _ in 0..10 {
            pace.turn().await;
        }
        let elapsed = pace.clock.0.elapsed();
        let expected = Duration::from_millis(took);
        assert!(
            elapsed >= expected && elapsed < expected + Duration::from_millis(50),
            "{elapsed:?}"
        );
    }

    #[rstest]
    #[tokio::test(start_paused = true)]
    async fn a_rate_that_is_no_rate_is_a_slow_one(
        #[values(0.0, -1.0, f64::NAN, f64::INFINITY)] no_rate: f64,
    ) {
        let pace = pace(no_rate, 1);
        assert!(pace.turn().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_takes_no_turn() {
        let pace = pace(1.0, 1);
        pace.turn().await;
        assert!(pace.turn().now_or_never().is_none());
        advance(Duration::from_millis(1001)).await;
        assert!(pace.turn().now_or_never().is_some());
    }

    #[tokio::test]
    async fn no_more_wait_than_there_are_places_for() {
        let room = Room::new(1, None);
        let _inside = room.enter().await.unwrap();
        let mut waiting: Vec<_> = (0..=WAITING).map(|_| Box::pin(room.enter())).collect();
        let ends: Vec<_> = waiting
            .iter_mut()
            .filter_map(|enter| enter.as_mut().now_or_never())
            .map(Result::err)
            .collect();
        assert_eq!(ends, [Some(NoRoom::Crowded)]);
        drop(waiting);
        assert!(
            Box::pin(room.enter()).now_or_never().is_none(),
            "the places are free again"
        );
    }

    #[tokio::test]
    async fn a_closed_room_lets_nobody_in_and_waits_for_those_inside() {
        let room = Room::new(2, None);
        let inside = room.enter().await.unwrap();
        let mut closing = Box::pin(room.close());
        assert!(closing.as_mut().now_or_never().is_none());
        drop(inside);
        closing.await;
        assert_eq!(room.enter().await.err(), Some(NoRoom::Closed));
    }
}
