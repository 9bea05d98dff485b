//! Remembers every version of objects that the API server shows.

use std::{
    convert::Infallible,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, pin_mut};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{task::JoinSet, time::sleep};

use crate::eventually;

/// Before a broken watch is opened again.
const PAUSE: Duration = Duration::from_millis(50);

/// One version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<K> {
    /// It exists like this.
    Applied(K),
    /// It is gone; this was its last version.
    Deleted(K),
}

impl<K> Change<K> {
    /// The object.
    pub fn object(&self) -> &K {
        match self {
            Self::Applied(object) | Self::Deleted(object) => object,
        }
    }
}

/// Records every version from its start on, by a plain list and watch: nothing is merged or left out, so that
/// a test may say "never". What it cannot promise any more is an error, not a gap.
#[derive(Debug)]
pub struct Watcher<K> {
    record: Arc<Mutex<Record<K>>>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Record<K> {
    changes: Vec<Change<K>>,
    /// Why there may be versions that were not seen.
    lost: Option<String>,
}

impl<K> Watcher<K>
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    /// Begins with what exists now.
    ///
    /// # Errors
    ///
    /// If the objects cannot be listed.
    pub async fn start(api: Api<K>) -> Result<Self> {
        let list = api
            .list(&ListParams::default())
            .await
            .context("list what is to be watched")?;
        let version = list.metadata.resource_version.clone().unwrap_or_default();
        let changes = list.items.into_iter().map(Change::Applied).collect();
        let record = Arc::new(Mutex::new(Record { changes, lost: None }));
        let mut task = JoinSet::new();
        task.spawn(follow(api, version, Arc::clone(&record)));
        Ok(Self { record, _task: task })
    }

    /// All versions so far, in the order of their changes.
    ///
    /// # Errors
    ///
    /// If versions may be missing.
    pub fn changes(&self) -> Result<Vec<Change<K>>> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = &record.lost {
            bail!("the watch has a gap: {reason}");
        }
        Ok(record.changes.clone())
    }

    /// Waits until the versions seen fulfil a condition, and returns them.
    ///
    /// # Errors
    ///
    /// If they do not after `within`, with the last version seen.
    pub async fn wait_until(
        &self,
        within: Duration,
        what: &str,
        condition: impl Fn(&[Change<K>]) -> bool,
    ) -> Result<Vec<Change<K>>> {
        eventually(within, what, async || {
            let changes = self.changes()?;
            ensure!(
                condition(&changes),
                "{} versions, the last {:?}",
                changes.len(),
                changes.last()
            );
            Ok(changes)
        })
        .await
    }
}

/// Watches, over and over, until versions may have been missed.
async fn follow<K>(api: Api<K>, mut version: String, record: Arc<Mutex<Record<K>>>)
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    loop {
        let Err(end) = follow_once(&api, &mut version, &record).await;
        if let End::Gap(reason) = end {
            record.lock().unwrap_or_else(PoisonError::into_inner).lost = Some(reason);
            return;
        }
        sleep(PAUSE).await;
    }
}

/// How a watch ended.
enum End {
    /// It goes on from the last version.
    Interrupted,
    /// The server has forgotten what comes after the last version.
    Gap(String),
}

async fn follow_once<K>(
    api: &Api<K>,
    version: &mut String,
    record: &Mutex<Record<K>>,
) -> Result<Infallible, End>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    let stream = api
        .watch(&WatchParams::default(), version)
        .await
        .map_err(End::from)?;
    pin_mut!(stream);
    while let Some(event) = stream.next().await {
        let change = match event.map_err(End::from)? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Applied(object),
            WatchEvent::Deleted(object) => Change::Deleted(object),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        *version = change
            .object()
            .meta()
            .resource_version
            .clone()
            .unwrap_or_default();
        record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .changes
            .push(change);
    }
    Err(End::Interrupted)
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        const GONE: u16 = 410;
        if let kube::Error::Api(status) = error
            && status.code == GONE
        {
            return Self::Gap(status.message);
        }
        Self::Interrupted
    }
}
