//! A store's objects, and which news about them counts.
//!
//! The watch is the authority: what it says replaces what it said before, even if its list went back in time, as
//! after a restore of the cluster's database. Only what a write was answered with gives way to nothing older than
//! itself, until the watch has caught up with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kube::views::View;

/// An object before and after.
#[derive(Debug)]
pub(super) struct Change<V> {
    pub(super) old: Option<Arc<V>>,
    pub(super) new: Option<Arc<V>>,
}

#[derive(Debug)]
pub(super) struct Content<V: View> {
    entries: BTreeMap<V::Key, Entry<V>>,
}

#[derive(Debug)]
struct Entry<V> {
    view: Arc<V>,
    source: Source,
}

/// Where a view comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Watch,
    /// A write's answer that the watch has not caught up with.
    Write,
}

impl<V: View> Default for Content<V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
        }
    }
}

impl<V: View> Content<V> {
    pub(super) fn get(&self, key: &V::Key) -> Option<&Arc<V>> {
        self.entries.get(key).map(|entry| &entry.view)
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &Arc<V>> {
        self.entries.values().map(|entry| &entry.view)
    }

    /// An object as the watch has it.
    pub(super) fn apply(&mut self, view: V) -> Option<Change<V>> {
        let key = view.key();
        match self.entries.get_mut(&key) {
            Some(entry) if entry.outranks(&view) => None,
            // Told already, or listed again unchanged.
            Some(entry) if entry.is(&view) && view.matters() => {
                entry.source = Source::Watch;
                None
            }
            _ if view.matters() => Some(self.put(key, view, Source::Watch)),
            _ => self.remove(&key),
        }
    }

    /// An object that the watch saw deleted, as it was last.
    pub(super) fn delete(&mut self, view: &V) -> Option<Change<V>> {
        let key = view.key();
        if self.entries.get(&key)?.outranks(view) {
            // Deleted and made again: the news of the second is still to come, and known already.
            return None;
        }
        self.remove(&key)
    }

    /// All objects that there are.
    pub(super) fn relist(&mut self, list: BTreeMap<V::Key, V>) -> Vec<Change<V>> {
        let gone: Vec<_> = self
            .entries
            .keys()
            .filter(|key| !list.contains_key(key))
            .cloned()
            .collect();
        let mut changes: Vec<_> = gone.iter().filter_map(|key| self.remove(key)).collect();
        changes.extend(list.into_values().filter_map(|view| self.apply(view)));
        changes
    }

    /// What a write was answered with. An object that no longer matters stays until the watch says so too, or
    /// older news would bring it back.
    pub(super) fn absorb(&mut self, view: V) -> Option<Change<V>> {
        let key = view.key();
        let entry = self.entries.get(&key)?;
        let counts = entry.view.uid() == view.uid() && is_newer(&view, &*entry.view);
        counts.then(|| self.put(key, view, Source::Write))
    }

    fn put(&mut self, key: V::Key, view: V, source: Source) -> Change<V> {
        let view = Arc::new(view);
        let old = self.entries.insert(
            key,
            Entry {
                view: Arc::clone(&view),
                source,
            },
        );
        Change {
            old: old.map(|entry| entry.view),
            new: Some(view),
        }
    }

    fn remove(&mut self, key: &V::Key) -> Option<Change<V>> {
        let old = self.entries.remove(key)?.view;
        Some(Change {
            old: Some(old),
            new: None,
        })
    }
}

impl<V: View> Entry<V> {
    /// Whether it holds a write's answer that is newer than what the watch says.
    fn outranks(&self, watched: &V) -> bool {
        self.source == Source::Write && is_newer(&*self.view, watched)
    }

    fn is(&self, view: &V) -> bool {
        self.view.uid() == view.uid() && self.view.resource_version() == view.resource_version()
    }
}

/// Versions of one kind's objects compare as numbers; what is no number is never newer.
fn is_newer<V: View>(view: &V, other: &V) -> bool {
    let number = |view: &V| view.resource_version().parse::<u64>().ok();
    match (number(view), number(other)) {
        (Some(view), Some(other)) => view > other,
        _ => false,
    }
}
