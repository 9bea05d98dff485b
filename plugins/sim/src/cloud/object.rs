//! An object of the cloud, and what it was before.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::kind::Kind;

/// Most former states of one object that stale reads can still see; older ones are forgotten.
const MAX_PAST: usize = 64;

/// Where an object is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Made, and not ready yet.
    Provisioning,
    /// Ready.
    Active,
    /// Deleted, and not gone yet.
    Deleting,
}

impl State {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Active => "active",
            Self::Deleting => "deleting",
        }
    }
}

/// An object as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Unique for ever.
    pub id: String,
    /// Its type.
    pub kind: Kind,
    /// Unique among the objects of its kind and parent, instances excepted.
    pub name: String,
    /// The id of what it is part of.
    pub parent: Option<String>,
    /// The zone of an instance, the region of everything else.
    pub scope: String,
    /// Labels that the cloud keeps and does not read.
    pub tags: BTreeMap<String, String>,
    /// What it is.
    pub attributes: BTreeMap<String, String>,
    /// Grows with each change of any object.
    pub revision: u64,
    /// Where it is in its life.
    pub state: State,
}

impl Object {
    /// An attribute, empty if it is not there.
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    /// A tag, empty if it is not there.
    pub fn tag(&self, key: &str) -> &str {
        self.tags.get(key).map_or("", String::as_str)
    }
}

/// One object over time.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What it is now; none: gone, and kept for stale reads only.
    now: Option<Object>,
    /// When it becomes active.
    ready_at: Duration,
    /// When it is gone, once deleted.
    gone_at: Option<Duration>,
    /// What it was, each until a time; oldest first.
    past: VecDeque<(Duration, Option<Object>)>,
}

impl Entry {
    /// An object that begins at `now` and is ready at `ready_at`.
    pub(crate) fn new(object: Object, now: Duration, ready_at: Duration) -> Self {
        Self {
            now: Some(object),
            ready_at,
            gone_at: None,
            past: VecDeque::from([(now, None)]),
        }
    }

    /// What it is at `now`, seen by whoever changes it.
    pub(crate) fn current(&self, now: Duration) -> Option<Object> {
        self.now.clone().map(|object| self.aged(object, now))
    }

    /// Whether it exists.
    pub(crate) fn exists(&self) -> bool {
        self.now.is_some()
    }

    /// What it is, without its place in life.
    pub(crate) fn stored(&self) -> Option<&Object> {
        self.now.as_ref()
    }

    /// What a reader sees at `now` who sees the state of `at`.
    pub(crate) fn seen(&self, at: Duration, now: Duration) -> Option<Object> {
        let past = self.past.iter().find(|(until, _)| *until > at);
        let seen = past.map_or(&self.now, |(_, object)| object);
        seen.clone().map(|object| self.aged(object, now))
    }

    fn aged(&self, object: Object, now: Duration) -> Object {
        let state = match self.gone_at {
            Some(_) => State::Deleting,
            None if now < self.ready_at => State::Provisioning,
            None => State::Active,
        };
        Object { state, ..object }
    }

    /// Becomes another, or nothing.
    pub(crate) fn replace(&mut self, with: Option<Object>, now: Duration) {
        let before = std::mem::replace(&mut self.now, with);
        self.past.push_back((now, before));
        if self.past.len() > MAX_PAST {
            self.past.pop_front();
        }
    }

    /// Is to be gone at `at`.
    pub(crate) fn end_at(&mut self, at: Duration) {
        self.gone_at = Some(at);
    }

    /// When it is to be gone, once deleted.
    pub(crate) fn gone_at(&self) -> Option<Duration> {
        self.gone_at
    }

    /// Forgets what no read can see any more; true if nothing is left.
    pub(crate) fn forget(&mut self, before: Duration) -> bool {
        while self.past.front().is_some_and(|(until, _)| *until <= before) {
            self.past.pop_front();
        }
        self.now.is_none() && self.past.is_empty()
    }
}
