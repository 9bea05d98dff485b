//! What the API server shows of objects, as it shows it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::{Context, Result};
use bulkhead_e2e::SOON;
use futures::{StreamExt as _, pin_mut};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Whether each object that exists is served.
type Objects = BTreeMap<String, bool>;

/// Follows all objects of a kind.
#[derive(Debug)]
pub(super) struct Sight {
    objects: watch::Receiver<Objects>,
    _task: JoinSet<()>,
}

impl Sight {
    /// Begins to follow; `is_served` says whether an object has what the host gives it.
    pub(super) fn follow<K>(api: Api<K>, is_served: fn(&K) -> bool) -> Self
    where
        K: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let (seen, objects) = watch::channel(Objects::new());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let events = watcher(api, watcher::Config::default());
            pin_mut!(events);
            // Errors are tried again by the watcher itself, and what is waited for has a deadline.
            while let Some(event) = events.next().await {
                let Ok(event) = event else { continue };
                seen.send_if_modified(|objects| apply(objects, event, is_served));
            }
        });
        Self { objects, _task: task }
    }

    /// Waits until `name` is served.
    pub(super) async fn served(&self, name: &str) -> Result<()> {
        self.until(name, "be served", |served| served == Some(true)).await
    }

    /// Waits until `name` is gone.
    pub(super) async fn gone(&self, name: &str) -> Result<()> {
        self.until(name, "be gone", |served| served.is_none()).await
    }

    /// Whether `name` is served now.
    pub(super) fn is_served(&self, name: &str) -> bool {
        self.objects.borrow().get(name) == Some(&true)
    }

    async fn until(&self, name: &str, what: &str, is_so: fn(Option<bool>) -> bool) -> Result<()> {
        let mut objects = self.objects.clone();
        let seen = objects.wait_for(|objects| is_so(objects.get(name).copied()));
        timeout(SOON, seen)
            .await
            .with_context(|| format!("waited {SOON:?} for {name} to {what}"))?
            .context("the watch has ended")?;
        Ok(())
    }
}

/// Whether that changed anything that somebody may wait for.
fn apply<K: Resource>(objects: &mut Objects, event: watcher::Event<K>, is_served: fn(&K) -> bool) -> bool {
    match event {
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
            let served = is_served(&object);
            objects.insert(object.name_any(), served) != Some(served)
        }
        watcher::Event::Delete(object) => objects.remove(&object.name_any()).is_some(),
        watcher::Event::Init => {
            objects.clear();
            false
        }
        watcher::Event::InitDone => true,
    }
}
