//! What was called: counted for ever, listed while there is room.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::op::Caller;

/// Most calls on the list: some megabytes.
pub const MAX_LISTED: usize = 20_000;

/// Most ids of one call on the list.
const MAX_OBJECTS: usize = 16;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// From 1, without gaps.
    pub number: u64,
    /// When it arrived.
    pub at: Duration,
    /// As `create/load_balancer`.
    pub operation: String,
    /// The ids that it was about, of many the first.
    pub objects: Vec<String>,
    /// Whether it changed the cloud.
    pub wrote: bool,
    /// `ok`, an error's code, or `never`.
    pub answer: &'static str,
    /// Who called.
    pub caller: Caller,
    /// How long the answer took.
    pub latency: Duration,
}

/// How often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls.
    pub calls: u64,
    /// Calls that changed the cloud.
    pub writes: u64,
    /// Calls that were answered with an error, or never.
    pub failed: u64,
}

impl Count {
    fn add(&mut self, record: &Record) {
        self.calls += 1;
        self.writes += u64::from(record.wrote);
        self.failed += u64::from(record.answer != "ok");
    }
}

/// All calls of a cloud.
#[derive(Clone, Debug, Default)]
pub struct Records {
    listed: VecDeque<Record>,
    last: u64,
    counts: BTreeMap<String, Count>,
    total: Count,
}

impl Records {
    /// The number of the next call.
    pub(crate) fn next(&self) -> u64 {
        self.last + 1
    }

    pub(crate) fn add(&mut self, mut record: Record) {
        self.last = record.number;
        record.objects.truncate(MAX_OBJECTS);
        self.total.add(&record);
        // Operations and kinds are few, so that this is bounded by itself.
        self.counts
            .entry(record.operation.clone())
            .or_default()
            .add(&record);
        self.listed.push_back(record);
        if self.listed.len() > MAX_LISTED {
            self.listed.pop_front();
        }
    }

    /// By operation.
    pub fn counts(&self) -> &BTreeMap<String, Count> {
        &self.counts
    }

    /// All operations together.
    pub fn total(&self) -> Count {
        self.total
    }

    /// Those on the list that came after the one with this number.
    pub fn after(&self, number: u64) -> impl Iterator<Item = &Record> {
        self.listed.iter().filter(move |record| record.number > number)
    }

    /// How many are no longer on the list.
    pub fn forgotten(&self) -> u64 {
        let listed = u64::try_from(self.listed.len()).unwrap_or(u64::MAX);
        self.last.saturating_sub(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls_off_the_list_is_still_counted() {
        let mut records = Records::default();
        for _ in 0..MAX_LISTED + 5 {
            let record = Record {
                number: records.next(),
                at: Duration::ZERO,
                operation: "list".to_owned(),
                objects: Vec::new(),
                wrote: false,
                answer: "ok",
                caller: Caller::default(),
                latency: Duration::ZERO,
            };
            records.add(record);
        }
        assert_eq!(records.forgotten(), 5);
        assert_eq!(records.after(0).next().map(|first| first.number), Some(6));
        assert_eq!(records.total().calls, MAX_LISTED as u64 + 5);
    }
}
