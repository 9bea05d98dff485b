//! Which key is due when: the queue's state, without waiting and without a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_core::lane::Flow;
use bulkhead_core::outcome::Next;
use tokio::time::Instant;

use super::Stats;

/// What there is to take.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Take<K> {
    /// A key that became due at `due`.
    Key { key: K, due: Instant },
    /// Nothing before this time; `None`: nothing until something changes.
    Wait(Option<Instant>),
    /// Nothing, ever.
    ShutDown,
}

#[derive(Debug)]
pub(super) struct Schedule<K> {
    entries: BTreeMap<K, Entry>,
    /// The keys that wait, by their places in the order.
    waiting: BTreeSet<(Instant, K)>,
    in_work: usize,
    flow: Flow,
    closed: bool,
    shut_down: bool,
}

/// A key that waits or is in work. A key that does neither has no entry.
#[derive(Debug, Default)]
struct Entry {
    /// When a worker took it; `None`: it waits.
    taken: Option<Instant>,
    /// When it is due, or is to be due once the work on it has ended.
    due: Option<Instant>,
    /// It is in backoff until then.
    floor: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// Set while in work: the next turn comes whatever this one's end.
    at_once: bool,
    /// It goes ahead of what became due shortly before.
    ahead: bool,
    /// Set while in work: this turn's end does not count.
    disowned: bool,
}

impl Entry {
    /// It is due now, whatever failed before.
    fn excuse(&mut self, now: Instant) {
        self.wish(now);
        self.floor = None;
        self.at_once = self.taken.is_some();
    }

    fn wish(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// When it is due, backoff included.
    fn time(&self) -> Option<Instant> {
        self.due.map(|due| self.floor.map_or(due, |floor| due.max(floor)))
    }

    /// Its place in the order: the time at which it is due, or earlier.
    fn place(&self) -> Option<Instant> {
        let time = self.time()?;
        let earlier = time.checked_sub(AHEAD).filter(|_| self.ahead);
        Some(earlier.unwrap_or(time))
    }
}

/// A key that is wanted now goes ahead of those that became due up to so long before it: what somebody asked for does
/// not wait behind the upkeep of all else, and upkeep does not wait for ever.
const AHEAD: Duration = Duration::from_secs(5);

/// No wait is longer, so that no sum of times overflows.
const FAR: Duration = Duration::from_hours(24 * 365);

fn later(now: Instant, delay: Duration) -> Instant {
    now + delay.min(FAR)
}

impl<K> Default for Schedule<K> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            waiting: BTreeSet::new(),
            in_work: 0,
            flow: Flow::Freely,
            closed: false,
            shut_down: false,
        }
    }
}

impl<K: Clone + Ord> Schedule<K> {
    /// Makes `key` due `delay` after `now`; whether it was not waiting before.
    pub(super) fn add(&mut self, key: K, now: Instant, delay: Duration) -> bool {
        self.change(key, |entry| entry.wish(later(now, delay)))
    }

    /// Makes `key` due at `now`, backoff or not, ahead of others; whether it was not waiting before.
    pub(super) fn add_now(&mut self, key: K, now: Instant) -> bool {
        self.change(key, |entry| {
            entry.excuse(now);
            entry.ahead = true;
        })
    }

    /// Makes `key` due at `now`, backoff or not; whether it was not waiting before.
    pub(super) fn retry(&mut self, key: K, now: Instant) -> bool {
        self.change(key, |entry| entry.excuse(now))
    }

    /// Makes every key in backoff due at `now`, and those in work as soon as that ends: it may fail for the old cause.
    pub(super) fn retry_failed(&mut self, now: Instant) {
        let failed: Vec<K> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.taken.is_some() || entry.floor.is_some())
            .map(|(key, _)| key.clone())
            .collect();
        for key in failed {
            self.retry(key, now);
        }
    }

    fn change(&mut self, key: K, change: impl FnOnce(&mut Entry)) -> bool {
        if self.closed || self.shut_down {
            return false;
        }
        let entry = self.entries.entry(key.clone()).or_default();
        let before = entry.place();
        change(entry);
        let after = entry.place();
        if entry.taken.is_none() {
            self.reschedule(key, before, after);
        }
        before.is_none()
    }

    fn reschedule(&mut self, key: K, before: Option<Instant>, after: Option<Instant>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.waiting.remove(&(before, key.clone()));
        }
        if let Some(after) = after {
            self.waiting.insert((after, key));
        }
    }

    /// Takes the first of the keys that are due.
    pub(super) fn take(&mut self, now: Instant) -> Take<K> {
        if self.shut_down {
            return Take::ShutDown;
        }
        if !self.has_room() {
            return Take::Wait(None);
        }
        let Some((place, key)) = self.waiting.pop_first() else {
            return Take::Wait(None);
        };
        if place > now {
            self.waiting.insert((place, key));
            return Take::Wait(Some(place));
        }
        self.in_work += 1;
        let entry = self.entries.entry(key.clone()).or_default();
        let due = entry.time().unwrap_or(place);
        entry.taken = Some(now);
        entry.due = None;
        entry.floor = None;
        entry.ahead = false;
        Take::Key { key, due }
    }

    const fn has_room(&self) -> bool {
        match self.flow {
            Flow::Nothing => false,
            Flow::OneByOne => self.in_work == 0,
            Flow::Freely => true,
        }
    }

    /// From now on so many keys are handed out.
    pub(super) const fn set_flow(&mut self, flow: Flow) {
        self.flow = flow;
    }

    /// Ends the work on `key`; how long it took. `jitter` is a random number from -1 to 1.
    pub(super) fn finish(&mut self, key: K, next: Next, now: Instant, jitter: f64) -> Duration {
        let Some(mut entry) = self.entries.remove(&key) else {
            return Duration::ZERO;
        };
        self.in_work = self.in_work.saturating_sub(1);
        let worked = entry
            .taken
            .take()
            .map_or(Duration::ZERO, |taken| now.saturating_duration_since(taken));
        if !entry.disowned {
            match next {
                Next::AwaitChange => entry.failures = 0,
                Next::After(delay) => {
                    entry.failures = 0;
                    entry.wish(later(now, delay));
                }
                Next::Backoff(backoff) => {
                    entry.failures = entry.failures.saturating_add(1);
                    let end = later(now, backoff.delay(entry.failures, jitter));
                    entry.wish(end);
                    entry.floor = (!entry.at_once).then_some(end);
                }
            }
        }
        entry.at_once = false;
        entry.disowned = false;
        if let Some(place) = entry.place()
            && !self.shut_down
        {
            self.waiting.insert((place, key.clone()));
            self.entries.insert(key, entry);
        }
        worked
    }

    pub(super) const fn open(&mut self) {
        self.closed = false;
    }

    /// Forgets everything but which keys are in work, and takes nothing until it is opened.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.waiting.clear();
        self.entries.retain(|_, entry| entry.taken.is_some());
        for entry in self.entries.values_mut() {
            *entry = Entry {
                taken: entry.taken,
                disowned: true,
                ..Entry::default()
            };
        }
    }

    pub(super) fn shutdown(&mut self) {
        self.close();
        self.shut_down = true;
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    pub(super) fn stats(&self, now: Instant) -> Stats {
        let ages = || {
            self.entries
                .values()
                .filter_map(|entry| Some(now.saturating_duration_since(entry.taken?)))
        };
        let depth = self.waiting.iter().take_while(|(place, _)| *place <= now).count();
        Stats {
            depth,
            delayed: self.waiting.len() - depth,
            in_work: ages().count(),
            unfinished: ages().sum(),
            longest: ages().max().unwrap_or_default(),
        }
    }
}
