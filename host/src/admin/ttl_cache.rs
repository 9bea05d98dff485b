//! Answers remembered for a while, bounded in number.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bulkhead_core::clock::Instant;

/// The sha256 of what was asked: secrets do not stay in memory, and keys have one size.
pub(super) type Digest = [u8; 32];

/// Answers by what was asked.
#[derive(Debug)]
pub(super) struct TtlCache<V> {
    capacity: usize,
    entries: Mutex<HashMap<Digest, (Instant, V)>>,
}

impl<V: Clone> TtlCache<V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Mutex::default(),
        }
    }

    pub(super) fn get(&self, asked: &Digest, now: Instant) -> Option<V> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries
            .get(asked)
            .filter(|(until, _)| now < *until)
            .map(|(_, answer)| answer.clone())
    }

    /// Remembers the answer for `ttl`. A full cache forgets what is out of date, else what will be next.
    pub(super) fn insert(&self, asked: Digest, answer: V, now: Instant, ttl: Duration) {
        if ttl.is_zero() {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= self.capacity {
            entries.retain(|_, (until, _)| now < *until);
        }
        if entries.len() >= self.capacity {
            let next = entries
                .iter()
                .min_by_key(|(_, (until, _))| *until)
                .map(|(asked, _)| *asked);
            next.map(|next| entries.remove(&next));
        }
        entries.insert(asked, (now + ttl, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::ORIGIN;
    const TTL: Duration = Duration::from_secs(10);

    fn asked(number: u8) -> Digest {
        [number; 32]
    }

    #[test]
    fn an_answer_lasts_its_time_and_no_longer() {
        let cache = TtlCache::new(2);
        cache.insert(asked(1), "yes", START, TTL);
        assert_eq!(
            cache.get(&asked(1), START + Duration::from_millis(9999)),
            Some("yes")
        );
        assert_eq!(cache.get(&asked(1), START + TTL), None);
        assert_eq!(cache.get(&asked(2), START), None);
    }

    #[test]
    fn without_a_time_nothing_is_remembered() {
        let cache = TtlCache::new(2);
        cache.insert(asked(1), "yes", START, Duration::ZERO);
        assert_eq!(cache.get(&asked(1), START), None);
    }

    #[test]
    fn a_full_cache_forgets_the_answer_that_ends_next() {
        let cache = TtlCache::new(2);
        cache.insert(asked(1), 1, START, TTL);
        cache.insert(asked(2), 2, START, TTL * 2);
        cache.insert(asked(3), 3, START, TTL);
        let kept: Vec<_> = (1..=3)
            .filter_map(|number| cache.get(&asked(number), START))
            .collect();
        assert_eq!(kept, [2, 3]);
    }
}
