//! What this process remembers of Services, in one term. All of it may be lost: plugins find by mark.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_core::election::Epoch;
use bulkhead_core::ids::{ServiceKey, Uid};
use bulkhead_core::service::plan::Memory;

/// The memories of one term, by Service and UID. Bounded by the Services of which something may stand in the cloud.
#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    epoch: Option<Epoch>,
    services: HashMap<ServiceKey, HashMap<Uid, Memory>>,
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything: another host may have worked since.
    pub(super) fn begin(&self, epoch: &Epoch) {
        let mut content = self.lock();
        content.epoch = Some(epoch.clone());
        content.services.clear();
    }

    /// What is remembered of one object, and the term that it belongs to.
    pub(super) fn get(&self, key: &ServiceKey, uid: &Uid) -> (Option<Epoch>, Memory) {
        let content = self.lock();
        let memory = content
            .services
            .get(key)
            .and_then(|objects| objects.get(uid))
            .cloned()
            .unwrap_or_default();
        (content.epoch.clone(), memory)
    }

    /// Remembers, unless `epoch` is over.
    pub(super) fn put(&self, key: &ServiceKey, uid: &Uid, epoch: Option<&Epoch>, memory: Option<Memory>) {
        let mut content = self.lock();
        if content.epoch.as_ref() != epoch {
            return;
        }
        match memory {
            Some(memory) => {
                content
                    .services
                    .entry(key.clone())
                    .or_default()
                    .insert(uid.clone(), memory);
            }
            None => {
                if let Some(objects) = content.services.get_mut(key) {
                    objects.remove(uid);
                    if objects.is_empty() {
                        content.services.remove(key);
                    }
                }
            }
        }
    }

    /// Every Service of which anything is remembered.
    pub(super) fn keys(&self) -> Vec<ServiceKey> {
        self.lock().services.keys().cloned().collect()
    }

    /// The Services that wait for room in the cloud.
    pub(super) fn starved(&self) -> Vec<ServiceKey> {
        let content = self.lock();
        let starved = content
            .services
            .iter()
            .filter(|(_, objects)| objects.values().any(|memory| memory.is_starved));
        starved.map(|(key, _)| key.clone()).collect()
    }

    /// Whether anything is remembered of one object.
    pub(super) fn has(&self, key: &ServiceKey, uid: &Uid) -> bool {
        self.lock()
            .services
            .get(key)
            .is_some_and(|objects| objects.contains_key(uid))
    }

    /// The objects of `key` other than `current`.
    pub(super) fn others(&self, key: &ServiceKey, current: Option<&Uid>) -> Vec<Uid> {
        let content = self.lock();
        let objects = content.services.get(key).into_iter().flat_map(HashMap::keys);
        objects.filter(|uid| Some(*uid) != current).cloned().collect()
    }
}
