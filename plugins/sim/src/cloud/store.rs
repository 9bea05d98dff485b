//! Everything that exists, by kind and id, and what it was a while ago.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::{CloudError, ErrorCode};
use super::kind::Kind;
use super::object::{Entry, Object};
use super::op::Query;

/// Most objects: some hundred megabytes.
pub(super) const MAX_OBJECTS: usize = 200_000;

/// How often what no read can see any more is looked for, in changes.
const SWEEP: u64 = 256;

/// Kind, parent (empty: none), name.
type Name = (Kind, String, String);

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    entries: BTreeMap<Kind, BTreeMap<String, Entry>>,
    /// The ids of what exists, by name; instances share names and are not here.
    names: BTreeMap<Name, String>,
    /// How many exist, by kind.
    exist: BTreeMap<Kind, usize>,
    /// Those that will be gone, by time.
    ending: BTreeMap<(Duration, String), Kind>,
    /// Where instances exist, and how many.
    zones: BTreeMap<String, usize>,
    revision: u64,
    last_id: u64,
}

impl Store {
    pub(crate) fn get(&self, kind: Kind, id: &str, now: Duration) -> Option<Object> {
        self.entries.get(&kind)?.get(id)?.current(now)
    }

    /// The object of any kind with this id.
    pub(crate) fn find(&self, id: &str, now: Duration) -> Option<Object> {
        Kind::ALL.into_iter().find_map(|kind| self.get(kind, id, now))
    }

    /// The id of the object with this name.
    pub(crate) fn named(&self, kind: Kind, parent: Option<&str>, name: &str) -> Option<&str> {
        let key = (kind, parent.unwrap_or_default().to_owned(), name.to_owned());
        self.names.get(&key).map(String::as_str)
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.exist.get(&kind).copied().unwrap_or_default()
    }

    /// Where the instances are.
    pub(crate) fn zones(&self) -> impl Iterator<Item = &String> {
        self.zones.keys()
    }

    pub(crate) fn total(&self) -> usize {
        self.exist.values().sum()
    }

    /// The ids of what is part of an object.
    pub(crate) fn parts<'a>(&'a self, kind: Kind, parent: &'a str) -> impl Iterator<Item = &'a str> {
        let from = (kind, parent.to_owned(), String::new());
        let of_parent = move |((one, of, _), _): &(&Name, &String)| *one == kind && of == parent;
        self.names
            .range(from..)
            .take_while(of_parent)
            .map(|(_, id)| id.as_str())
    }

    /// What stands in the way of a deletion: parts, and what refers to it.
    pub(crate) fn users(&self, kind: Kind, id: &str) -> Vec<String> {
        let mut users: Vec<String> = Vec::new();
        for child in kind.children() {
            users.extend(self.parts(child, id).map(str::to_owned));
        }
        for user in Kind::ALL {
            let keys = user.references().iter().filter(|(_, of)| *of == kind);
            for (key, _) in keys {
                let refers = self
                    .entries
                    .get(&user)
                    .into_iter()
                    .flatten()
                    .filter(|(_, entry)| entry.stored().is_some_and(|object| object.attribute(key) == id));
                users.extend(refers.map(|(id, _)| id.clone()));
            }
        }
        users
    }

    /// What a reader finds who sees the state of `at`: at most one more than `most`, in the order of kinds and ids, after
    /// a place.
    pub(crate) fn list(
        &self,
        query: &Query,
        after: &Place,
        most: usize,
        at: Duration,
        now: Duration,
    ) -> Vec<Object> {
        let mut found = Vec::new();
        let mut kinds = query.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let Some(entries) = self.entries.get(&kind) else {
                continue;
            };
            let mut take = |id: &String, entry: &Entry| {
                if (kind, id.as_str()) <= (after.kind, after.id.as_str()) && !after.id.is_empty() {
                    return false;
                }
                // Looked at before it is copied.
                let hopeless = at == now && !entry.stored().is_some_and(|object| query.matches(object));
                if !hopeless && let Some(object) = entry.seen(at, now).filter(|object| query.matches(object))
                {
                    found.push(object);
                }
                found.len() > most
            };
            let full = match &query.ids {
                Some(ids) => ids
                    .iter()
                    .any(|id| entries.get(id).is_some_and(|entry| take(id, entry))),
                None => entries.iter().any(|(id, entry)| take(id, entry)),
            };
            if full {
                break;
            }
        }
        found
    }

    /// Everything that exists, in the order of kinds and ids.
    pub(crate) fn all(&self, now: Duration) -> impl Iterator<Item = Object> {
        let entries = self.entries.values().flat_map(BTreeMap::values);
        entries.filter_map(move |entry| entry.current(now))
    }

    /// Everything of a kind that exists.
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        let entries = self.entries.get(&kind).into_iter().flat_map(BTreeMap::values);
        entries.filter_map(Entry::stored)
    }

    /// Puts an object; an empty id is given one. What was there under its id is replaced.
    pub(crate) fn put(
        &mut self,
        mut object: Object,
        now: Duration,
        ready_at: Duration,
    ) -> Result<Object, CloudError> {
        if self.total() >= MAX_OBJECTS {
            let text = format!("this cloud holds at most {MAX_OBJECTS} objects");
            return Err(CloudError::new(ErrorCode::QuotaExceeded, text));
        }
        if object.id.is_empty() {
            self.last_id += 1;
            object.id = format!("{}-{:08}", object.kind.prefix(), self.last_id);
        }
        self.revision += 1;
        object.revision = self.revision;
        if self.get(object.kind, &object.id, now).is_some() {
            self.forget_places(object.kind, &object.id);
        } else {
            *self.exist.entry(object.kind).or_default() += 1;
        }
        if let Some(name) = name_of(&object) {
            self.names.insert(name, object.id.clone());
        }
        if object.kind == Kind::Instance {
            *self.zones.entry(object.scope.clone()).or_default() += 1;
        }
        let entries = self.entries.entry(object.kind).or_default();
        match entries.get_mut(&object.id) {
            Some(entry) => entry.replace(Some(object.clone()), now),
            None => {
                entries.insert(object.id.clone(), Entry::new(object.clone(), now, ready_at));
            }
        }
        let id = object.id.clone();
        Ok(self.get(object.kind, &id, now).unwrap_or(object))
    }

    /// Takes an object away at once.
    pub(crate) fn remove(&mut self, kind: Kind, id: &str, now: Duration) -> bool {
        self.forget_places(kind, id);
        let Some(entry) = self
            .entries
            .get_mut(&kind)
            .and_then(|entries| entries.get_mut(id))
        else {
            return false;
        };
        if !entry.exists() {
            return false;
        }
        entry.replace(None, now);
        if let Some(at) = entry.gone_at() {
            self.ending.remove(&(at, id.to_owned()));
        }
        self.revision += 1;
        if let Some(count) = self.exist.get_mut(&kind) {
            *count = count.saturating_sub(1);
        }
        true
    }

    /// Lets an object be gone at a time.
    pub(crate) fn end(&mut self, kind: Kind, id: &str, at: Duration) {
        if let Some(entry) = self
            .entries
            .get_mut(&kind)
            .and_then(|entries| entries.get_mut(id))
        {
            entry.end_at(at);
            self.ending.insert((at, id.to_owned()), kind);
        }
    }

    /// What time does by itself: deleted objects go, and what no read can see any more is forgotten.
    pub(crate) fn pass(&mut self, now: Duration, lag: Duration) {
        while let Some(((at, id), kind)) = self.ending.pop_first() {
            if at > now {
                self.ending.insert((at, id), kind);
                break;
            }
            self.remove(kind, &id, at);
        }
        if self.revision.is_multiple_of(SWEEP) {
            let before = now.saturating_sub(lag);
            for entries in self.entries.values_mut() {
                entries.retain(|_, entry| !entry.forget(before));
            }
            self.revision += 1;
        }
    }

    /// Takes an object out of what is kept by name and by zone.
    fn forget_places(&mut self, kind: Kind, id: &str) {
        let entry = self.entries.get(&kind).and_then(|entries| entries.get(id));
        let Some(object) = entry.and_then(Entry::stored) else {
            return;
        };
        if let Some(name) = name_of(object) {
            self.names.remove(&name);
        }
        if kind == Kind::Instance
            && let Some(count) = self.zones.get_mut(&object.scope)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.zones.remove(&object.scope);
            }
        }
    }
}

fn name_of(object: &Object) -> Option<Name> {
    let parent = object.parent.clone().unwrap_or_default();
    (!object.kind.shares_names()).then(|| (object.kind, parent, object.name.clone()))
}

/// Where a page begins: behind this object. An empty id: at the start.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) id: String,
}

impl Place {
    pub(crate) const START: Self = Self {
        kind: Kind::Instance,
        id: String::new(),
    };

    pub(crate) fn token(&self) -> String {
        format!("{}/{}", self.kind.name(), self.id)
    }

    pub(crate) fn read(token: &str) -> Option<Self> {
        if token.is_empty() {
            return Some(Self::START);
        }
        let (kind, id) = token.split_once('/')?;
        Some(Self {
            kind: Kind::of_name(kind)?,
            id: id.to_owned(),
        })
    }
}
