//! Which Events are new, which are repeats, and which are too many.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::Duration;

use bulkhead_core::clock::Instant;

use super::Regarding;
use crate::bucket::Bucket;
use crate::config::RateConfig;

/// A repeat within this time raises a count; later it is news again.
const SERIES: Duration = Duration::from_mins(6);

/// Upstream's allowance for each object and component: 25 at once, then one in 300 s.
const ALLOWANCE: RateConfig = RateConfig {
    per_second: 1.0 / 300.0,
    burst: NonZeroUsize::new(25).unwrap(),
};

/// Most Events and most objects that are remembered.
const REMEMBERED: usize = 1000;

/// What to do with an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is new.
    Create,
    /// It was told before, under this name, and is to have this count.
    Repeat { name: String, count: i32 },
    /// Its object has had its allowance.
    Drop,
}

/// Who tells about which object.
type Teller = (&'static str, Regarding);

/// Memory of Events of type `E`, and of their objects' allowances.
#[derive(Debug)]
pub(super) struct Series<E> {
    told: Recent<E, Last>,
    allowances: Recent<Teller, Bucket>,
}

#[derive(Debug)]
struct Last {
    name: String,
    count: i32,
    at: Instant,
}

impl<E> Default for Series<E> {
    fn default() -> Self {
        Self {
            told: Recent::default(),
            allowances: Recent::default(),
        }
    }
}

impl<E: Clone + Eq + Hash> Series<E> {
    /// What to do with `event` of `teller`, which uses up its allowance.
    pub(super) fn decide(&mut self, event: &E, teller: (&'static str, &Regarding), now: Instant) -> Decision {
        let teller = (teller.0, teller.1.clone());
        let allowance = self
            .allowances
            .get_or_insert_with(&teller, || Bucket::new(ALLOWANCE));
        if !allowance.try_take(now) {
            return Decision::Drop;
        }
        match self.told.get(event) {
            Some(last) if now.saturating_since(last.at) < SERIES => Decision::Repeat {
                name: last.name.clone(),
                count: last.count.saturating_add(1),
            },
            _ => Decision::Create,
        }
    }

    /// `event` was written under `name`.
    pub(super) fn created(&mut self, event: &E, name: String, now: Instant) {
        *self.told.get_or_insert_with(event, || Last {
            name: String::new(),
            count: 0,
            at: now,
        }) = Last {
            name,
            count: 1,
            at: now,
        };
    }

    /// The count of `event` was raised.
    pub(super) fn repeated(&mut self, event: &E, now: Instant) {
        if let Some(last) = self.told.get(event) {
            last.count = last.count.saturating_add(1);
            last.at = now;
        }
    }

    /// `event` is no longer there.
    pub(super) fn forget(&mut self, event: &E) {
        self.told.forget(event);
    }
}

/// A bounded map that drops what was not used for longest.
#[derive(Debug)]
struct Recent<K, V> {
    entries: HashMap<K, (V, u64)>,
    uses: u64,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            uses: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn get(&mut self, key: &K) -> Option<&mut V> {
        self.uses += 1;
        let (value, used) = self.entries.get_mut(key)?;
        *used = self.uses;
        Some(value)
    }

    fn get_or_insert_with(&mut self, key: &K, make: impl FnOnce() -> V) -> &mut V {
        if self.entries.len() >= REMEMBERED && !self.entries.contains_key(key) {
            self.drop_oldest();
        }
        self.uses += 1;
        let (value, used) = self.entries.entry(key.clone()).or_insert_with(|| (make(), 0));
        *used = self.uses;
        value
    }

    fn forget(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Looks at all: cheaper than keeping an order, at a thousand entries and a call to the API server for each.
    fn drop_oldest(&mut self) {
        let oldest = self
            .entries
            .iter()
            .min_by_key(|(_, (_, used))| *used)
            .map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(seconds)
    }

    fn object(name: &str) -> Regarding {
        Regarding {
            api_version: "v1",
            kind: "Node",
            namespace: None,
            name: name.into(),
            uid: None,
        }
    }

    fn decide(
        series: &mut Series<&'static str>,
        event: &'static str,
        object: &Regarding,
        now: u64,
    ) -> Decision {
        series.decide(&event, ("c", object), at(now))
    }

    #[test]
    fn a_repeat_within_six_minutes_of_the_last_raises_the_count() {
        let (mut series, a) = (Series::default(), object("a"));
        assert_eq!(decide(&mut series, "x", &a, 0), Decision::Create);
        series.created(&"x", "a.1".into(), at(0));
        assert_eq!(
            decide(&mut series, "x", &a, 359),
            Decision::Repeat {
                name: "a.1".into(),
                count: 2
            }
        );
        series.repeated(&"x", at(359));
        assert_eq!(
            decide(&mut series, "x", &a, 700),
            Decision::Repeat {
                name: "a.1".into(),
                count: 3
            }
        );
        assert_eq!(decide(&mut series, "x", &a, 719), Decision::Create);
    }

    #[test]
    fn what_was_never_written_or_is_forgotten_is_new() {
        let (mut series, a) = (Series::default(), object("a"));
        assert_eq!(decide(&mut series, "x", &a, 0), Decision::Create);
        assert_eq!(decide(&mut series, "x", &a, 1), Decision::Create);
        series.created(&"x", "a.1".into(), at(1));
        series.forget(&"x");
        assert_eq!(decide(&mut series, "x", &a, 2), Decision::Create);
    }

    #[test]
    fn an_object_has_twenty_five_at_once_and_then_one_in_five_minutes() {
        let (mut series, a) = (Series::default(), object("a"));
        let mut written = |now| {
            (0..50)
                .filter(|_| decide(&mut series, "x", &a, now) != Decision::Drop)
                .count()
        };
        assert_eq!([0, 299, 300].map(&mut written), [25, 0, 1]);
        assert_eq!(decide(&mut series, "x", &object("b"), 300), Decision::Create);
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_is_used() {
        let mut recent = Recent::default();
        for key in 0..=REMEMBERED {
            recent.get(&0);
            recent.get_or_insert_with(&key, || ());
        }
        assert_eq!(recent.entries.len(), REMEMBERED);
        assert!(recent.get(&0).is_some() && recent.get(&1).is_none());
    }
}
