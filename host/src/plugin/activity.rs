//! What the calls to one plugin come to lately, for people who look: how many there are, and which one failed last.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{Failure, Reason};

use super::Change;
use super::convert::failure;

/// The calls of one plugin. They outlive its sessions.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    in_flight: AtomicUsize,
    recent: Mutex<Recent>,
}

/// The calls of one plugin at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Sent and not over; those that keep the session alive not counted.
    pub in_flight: usize,
    /// Ended in the last minute, those that keep the session alive among them.
    pub last_minute: u64,
    /// The last one that failed, in whatever session.
    pub last_error: Option<LastError>,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// When it ended.
    pub at: Instant,
    /// The verb of the protocol.
    pub verb: &'static str,
    /// The failure's kind, as in metrics.
    pub result: &'static str,
    /// For people, cleaned and cut.
    pub message: String,
}

#[derive(Debug, Default)]
struct Recent {
    minute: Minute,
    last_error: Option<LastError>,
}

impl Activity {
    /// A call was sent, or is over.
    pub(crate) fn in_flight(&self, change: Change) {
        match change {
            Change::Begun => self.in_flight.fetch_add(1, Ordering::Relaxed),
            Change::Over => self.in_flight.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// A call ended at `now`. One that a shut gate held back is none, and one that the host gave up says nothing of the
    /// plugin.
    pub(crate) fn ended(&self, verb: &'static str, failure: Option<&Failure>, now: Instant) {
        let reason = failure.and_then(|it| it.reason);
        if reason == Some(Reason::Shut) {
            return;
        }
        let mut recent = self.recent();
        recent.minute.count(now);
        if let Some(failure) = failure.filter(|_| reason != Some(Reason::Cancelled)) {
            recent.last_error = Some(LastError {
                at: now,
                verb,
                result: failure::label(failure),
                message: failure.message.clone(),
            });
        }
    }

    /// How it is at `now`.
    pub(crate) fn calls(&self, now: Instant) -> Calls {
        let mut recent = self.recent();
        Calls {
            in_flight: self.in_flight.load(Ordering::Relaxed),
            last_minute: recent.minute.total(now),
            last_error: recent.last_error.clone(),
        }
    }

    /// Nothing in there is left half-done by a panic.
    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts of the last sixty seconds, one for each.
#[derive(Debug)]
struct Minute {
    /// The newest last.
    seconds: [u32; 60],
    /// Which second that is.
    newest: u64,
}

impl Default for Minute {
    fn default() -> Self {
        Self {
            seconds: [0; 60],
            newest: 0,
        }
    }
}

impl Minute {
    fn count(&mut self, now: Instant) {
        let slot = self.advance(now);
        *slot = slot.saturating_add(1);
    }

    fn total(&mut self, now: Instant) -> u64 {
        self.advance(now);
        self.seconds.iter().copied().map(u64::from).sum()
    }

    /// Forgets what is older than a minute; the count of `now`.
    fn advance(&mut self, now: Instant) -> &mut u32 {
        let now = now.since_origin().as_secs().max(self.newest);
        let passed = usize::try_from(now - self.newest).unwrap_or(usize::MAX);
        self.seconds.rotate_left(passed.min(60) % 60);
        let kept = 60_usize.saturating_sub(passed);
        for second in self.seconds.iter_mut().skip(kept) {
            *second = 0;
        }
        self.newest = now;
        let [.., newest] = &mut self.seconds;
        newest
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bulkhead_core::cloud::Certainty;
    use proptest::prelude::*;

    use super::super::call::own_failure;
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    proptest! {
        #[test]
        fn the_count_is_that_of_the_last_sixty_seconds(steps in prop::collection::vec(0_u64..100, 1..80)) {
            let mut minute = Minute::default();
            let mut times = Vec::new();
            let mut now = 1000;
            for step in steps {
                now += step;
                minute.count(at(now));
                times.push(now);
                let expected = times.iter().filter(|time| **time + 60 > now).count();
                prop_assert_eq!(minute.total(at(now)), u64::try_from(expected).unwrap());
            }
            prop_assert_eq!(minute.total(at(now + 60)), 0);
        }
    }

    #[test]
    fn the_last_failure_of_the_plugin_is_kept_and_what_the_host_did_itself_is_not() {
        let activity = Activity::default();
        let failure = |reason| own_failure(reason, Certainty::NotApplied, "why");
        activity.ended("EnsureLoadBalancer", Some(&failure(Reason::ProviderError)), at(1));
        activity.ended("GetInstances", Some(&failure(Reason::Shut)), at(2));
        activity.ended("GetInstances", Some(&failure(Reason::Cancelled)), at(3));
        activity.ended("GetInstances", None, at(4));
        let calls = activity.calls(at(5));
        assert_eq!(calls.last_minute, 3, "one was not made");
        let error = calls.last_error.unwrap();
        assert_eq!(
            (error.at, error.verb, error.message.as_str()),
            (at(1), "EnsureLoadBalancer", "why")
        );
    }
}
