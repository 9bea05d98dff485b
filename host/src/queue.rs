//! The keyed queue: every controller works on one key at a time, and each lane has a queue of its own.
//!
//! Invariants: a key is handed out to one worker at a time; a key added while it is worked on runs once more
//! afterwards; a key in backoff is not brought forward by events, or every heartbeat of a broken node would retry
//! it; a turn that is dropped without a conclusion counts as failed, so that no panic loses a key. There is at most
//! one entry for each key, so the keys bound the queue.
//!
//! Turns come in the order in which their keys became due, but what somebody wants now goes ahead of what became due in
//! the seconds before.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_core::lane::Flow;
use bulkhead_core::outcome::Next;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use self::schedule::{Schedule, Take};

mod schedule;

/// What a queue tells its metrics.
pub trait QueueObserver: Send + Sync {
    /// A key was added that was not waiting already.
    fn added(&self);
    /// A key was handed out, `waited` after it became due.
    fn taken(&self, waited: Duration);
    /// The work on a key ended.
    fn finished(&self, worked: Duration);
    /// A key was put back after a failure.
    fn retried(&self);
}

/// A queue's figures at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys that wait and are due.
    pub depth: usize,
    /// Keys that wait for a time to come.
    pub delayed: usize,
    /// Keys in work.
    pub in_work: usize,
    /// Time spent so far on the keys in work, summed.
    pub unfinished: Duration,
    /// Time spent so far on the key that has been in work for longest.
    pub longest: Duration,
}

/// A keyed queue. Clones are the same queue.
pub struct Queue<K: Clone + Ord> {
    shared: Arc<Shared<K>>,
}

struct Shared<K: Clone + Ord> {
    schedule: Mutex<Schedule<K>>,
    changed: Notify,
    observer: Box<dyn QueueObserver>,
}

impl<K: Clone + Ord> Queue<K> {
    /// An empty queue that hands out what is added.
    pub fn new(observer: impl QueueObserver + 'static) -> Self {
        let shared = Shared {
            schedule: Mutex::new(Schedule::default()),
            changed: Notify::new(),
            observer: Box::new(observer),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Something happened to `key`: it is due now, or at the end of its backoff.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// `key` is due after `delay`, or at the end of its backoff if that is later. The earliest of several wishes
    /// counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.insert(|schedule| schedule.add(key, now(), delay));
    }

    /// `key` is due now, whatever its backoff, and goes ahead of others: what failed before is not what is wanted now. A
    /// key in work is due again as soon as that ends, even if it fails.
    pub fn add_now(&self, key: K) {
        self.insert(|schedule| schedule.add_now(key, now()));
    }

    /// What made `key` fail may be mended: it is due now, whatever its backoff, and goes ahead of nobody.
    pub fn retry(&self, key: K) {
        self.insert(|schedule| schedule.retry(key, now()));
    }

    /// What made keys fail is mended: every key in backoff is due now, and those in work as soon as that ends.
    pub fn retry_failed(&self) {
        self.shared.update(|schedule| schedule.retry_failed(now()));
    }

    fn insert(&self, add: impl FnOnce(&mut Schedule<K>) -> bool) {
        if self.shared.update(add) {
            self.shared.observer.added();
        }
    }

    /// The next key that is due, as soon as there is one; `None` once the queue is shut down.
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&self) -> Option<Turn<K>> {
        let mut changed = std::pin::pin!(self.shared.changed.notified());
        loop {
            // Enrolled before looking, so that no change falls between the look and the wait.
            changed.as_mut().enable();
            let now = now();
            let take = self.shared.lock().take(now);
            let wake = match take {
                Take::Key { key, due } => {
                    self.shared.observer.taken(now.saturating_duration_since(due));
                    return Some(Turn {
                        shared: Arc::clone(&self.shared),
                        key,
                        ended: false,
                    });
                }
                Take::ShutDown => return None,
                Take::Wait(wake) => wake,
            };
            if let Some(wake) = wake {
                tokio::select! {
                    () = changed.as_mut() => changed.set(self.shared.changed.notified()),
                    () = sleep_until(wake) => {}
                }
            } else {
                changed.as_mut().await;
                changed.set(self.shared.changed.notified());
            }
        }
    }

    /// Forgets every key and every failure, and takes none until it is opened: a queue that nobody works on must not
    /// grow. Keys in work stay in work; how they end is not remembered.
    pub fn close(&self) {
        self.shared.update(Schedule::close);
    }

    /// Takes keys again. Whoever opens it adds what there is to do.
    pub fn open(&self) {
        self.shared.update(Schedule::open);
    }

    /// Hands out so many keys from now on. All else goes on as before: keys are taken, wait and become due.
    pub fn set_flow(&self, flow: Flow) {
        self.shared.update(|schedule| schedule.set_flow(flow));
    }

    /// Ends the queue for good: everybody in [`Queue::next`] gets `None`.
    pub fn shutdown(&self) {
        self.shared.update(Schedule::shutdown);
    }

    /// The figures now; it looks at every key.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats(now())
    }
}

impl<K: Clone + Ord> Shared<K> {
    /// Nothing in the schedule panics half-way, so a poisoned lock holds a sound schedule.
    fn lock(&self) -> MutexGuard<'_, Schedule<K>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(&self, change: impl FnOnce(&mut Schedule<K>) -> T) -> T {
        let result = change(&mut self.lock());
        // All waiters: which of them sleeps for the right time is not worth knowing, they are few.
        self.changed.notify_waiters();
        result
    }

    fn finish(&self, key: K, next: Next) {
        let jitter = rand::random_range(-1.0..=1.0);
        let now = now();
        let worked = self.update(|schedule| schedule.finish(key, next, now, jitter));
        if matches!(next, Next::Backoff(_)) {
            self.observer.retried();
        }
        self.observer.finished(worked);
    }
}

/// The right to work on one key, until it is dropped.
pub struct Turn<K: Clone + Ord> {
    shared: Arc<Shared<K>>,
    key: K,
    ended: bool,
}

impl<K: Clone + Ord> Turn<K> {
    /// The key.
    pub const fn key(&self) -> &K {
        &self.key
    }

    /// How many turns of this key failed in a row before this one.
    pub fn failures(&self) -> u32 {
        self.shared.lock().failures(&self.key)
    }

    /// Ends the turn. `AwaitChange` and `After` forget earlier failures, `Backoff` counts one more.
    pub fn done(mut self, next: Next) {
        self.end(next);
    }

    fn end(&mut self, next: Next) {
        if !std::mem::replace(&mut self.ended, true) {
            self.shared.finish(self.key.clone(), next);
        }
    }
}

impl<K: Clone + Ord> Drop for Turn<K> {
    fn drop(&mut self) {
        self.end(Next::RETRY);
    }
}

/// The queue's timers are tokio's, so its clock is too.
#[expect(
    clippy::disallowed_methods,
    reason = "must be the clock that `sleep_until` waits by, also when it is paused"
)]
fn now() -> Instant {
    Instant::now()
}

impl<K: Clone + Ord> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Clone + Ord> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("stats", &self.stats()).finish()
    }
}

impl<K: Clone + Ord + fmt::Debug> fmt::Debug for Turn<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.key).finish()
    }
}

#[cfg(test)]
mod tests;
