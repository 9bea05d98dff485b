//! What the host remembers of the cluster's objects, kept up to date by a watch.
//!
//! A change reaches the handlers once, in order, with what was before and what is now. What a write was answered
//! with can be put in at once ([`Store::absorb`]) and is not undone by older news that was still on its way, so
//! that the next pass never decides on what it has just changed.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use ::kube::runtime::WatchStreamExt;
use ::kube::runtime::utils::Backoff;
use ::kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use ::kube::{Api, Client};
use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::content::{Change, Content};
use super::views::{View, Watched};
use crate::telemetry::Chain;

mod content;

/// How long one watch lasts: it is taken up again where it ended. It also bounds how long a dead connection goes
/// unnoticed, so it is shorter than usual.
pub const WATCH_SECONDS: u32 = 120;

/// Longest pause between two attempts to take up a watch. A host has two watches: that burdens no API server.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Objects in a page, where lists are not streamed.
const PAGE: u32 = 100;

/// A list of which nothing has come for so long is started anew. No error within this time means that a broken
/// watch is back: it is longer than the longest backoff and connecting take together.
const SILENCE: Duration = Duration::from_mins(1);

/// What is called with an object before and after a change: `None` where it does not exist or does not matter.
type Handler<V> = Box<dyn Fn(Option<&Arc<V>>, Option<&Arc<V>>) + Send + Sync>;

/// The handlers of one store, by the order in which they came.
type Handlers<V> = BTreeMap<u64, Handler<V>>;

/// Has its handler called as long as it lives.
#[must_use = "the handler is called no longer once this is dropped"]
pub struct Subscription(Box<dyn Fn() + Send + Sync>);

impl Drop for Subscription {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

/// The objects of one kind. Clones are the same store.
pub struct Store<V: View> {
    shared: Arc<Shared<V>>,
}

struct Shared<V: View> {
    content: RwLock<Content<V>>,
    /// Locked while a change is made and told, so that changes are told in the order in which they were made.
    handlers: Mutex<Handlers<V>>,
    ready: watch::Sender<bool>,
    generation: AtomicU64,
}

impl<V: View> Store<V> {
    /// An empty store.
    pub fn new() -> Self {
        let shared = Shared {
            content: RwLock::new(Content::default()),
            handlers: Mutex::default(),
            ready: watch::Sender::new(false),
            generation: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Has `handler` called with every change from now on, until the subscription is dropped. Whoever comes after
    /// [`Store::run`] reads first what is there already, after this call.
    ///
    /// Handlers must be quick. They may read the store, but neither change it nor add or end subscriptions.
    pub fn on_change(
        &self,
        handler: impl Fn(Option<&Arc<V>>, Option<&Arc<V>>) + Send + Sync + 'static,
    ) -> Subscription {
        let id = {
            let mut handlers = self.shared.handlers();
            let id = handlers.last_key_value().map_or(0, |(last, _)| last + 1);
            handlers.insert(id, Box::new(handler));
            id
        };
        let shared = Arc::downgrade(&self.shared);
        Subscription(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                drop(shared.handlers().remove(&id));
            }
        }))
    }

    /// Whether the first list is complete; it stays so when the watch breaks.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.shared.ready.subscribe()
    }

    /// An object.
    pub fn get(&self, key: &V::Key) -> Option<Arc<V>> {
        self.read(|content| content.get(key).map(Arc::clone))
    }

    /// All objects, by key.
    pub fn snapshot(&self) -> Vec<Arc<V>> {
        self.read(|content| content.views().map(Arc::clone).collect())
    }

    /// Raised with every change, before handlers hear of it: what was made from a snapshot is good while this is
    /// what it was before the snapshot.
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// An object for which `is_sought` holds, the first by key.
    pub fn find(&self, is_sought: impl Fn(&Arc<V>) -> bool) -> Option<Arc<V>> {
        self.read(|content| content.views().find(|view| is_sought(view)).map(Arc::clone))
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read(|content| content.views().count())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read<T>(&self, look: impl FnOnce(&Content<V>) -> T) -> T {
        look(&self.shared.content.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts in what a write was answered with, unless the store has something newer, another object of that name,
    /// or none: the watch knows better whether an object exists.
    pub fn absorb(&self, view: V) {
        self.shared
            .change(|content| content.absorb(view).into_iter().collect());
    }

    /// Keeps the store up to date until `stop` is cancelled; the caller owns the task. Errors are waited out, 0.8 to
    /// 5 s between attempts: one line says that the watch broke, one that it is back.
    pub async fn run(self, client: Client, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep_up(client)).await;
    }

    async fn keep_up(&self, client: Client) -> ! {
        let mut strategy = Strategy::Streamed;
        let mut streams = true;
        let mut health = Health::default();
        loop {
            let end = self.follow(client.clone(), strategy, &mut health).await;
            if end == End::Refused {
                streams = false;
                tracing::info!(
                    "the API server does not stream lists of {}; listing in pages",
                    V::PLURAL
                );
            } else {
                tracing::warn!("the list of {} does not get on; listing anew", V::PLURAL);
            }
            strategy = match strategy {
                Strategy::Paged if streams => Strategy::Streamed,
                Strategy::Paged | Strategy::Streamed => Strategy::Paged,
            };
        }
    }

    /// Follows one watcher until its list cannot be had in this way.
    async fn follow(&self, client: Client, strategy: Strategy, health: &mut Health) -> End {
        let watcher = watcher(Api::<Watched<V>>::all(client), strategy.config());
        let mut events = pin!(watcher.backoff(Capped::default()));
        // `Some` while a list comes in.
        let mut list = Some(BTreeMap::new());
        loop {
            let event = match timeout(SILENCE, events.next()).await {
                Ok(Some(event)) => event,
                Ok(None) => return End::Stuck,
                Err(_) if list.is_some() => return End::Stuck,
                Err(_) => {
                    health.well::<V>();
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    // A paged list says that it begins before it has asked for anything.
                    if !matches!(event, Event::Init) {
                        health.well::<V>();
                    }
                    self.take(event, &mut list);
                }
                Err(error) if strategy == Strategy::Streamed && list.is_some() && is_refusal(&error) => {
                    return End::Refused;
                }
                Err(error) => health.broken::<V>(&error),
            }
        }
    }

    fn take(&self, event: Event<Watched<V>>, list: &mut Option<BTreeMap<V::Key, V>>) {
        match event {
            Event::Init => *list = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                if object.view.matters() {
                    list.get_or_insert_default()
                        .insert(object.view.key(), object.view);
                }
            }
            Event::InitDone => {
                let list = list.take().unwrap_or_default();
                self.shared.change(|content| content.relist(list));
                self.shared.ready.send_replace(true);
            }
            Event::Apply(object) => {
                self.shared
                    .change(|content| content.apply(object.view).into_iter().collect());
            }
            Event::Delete(object) => {
                self.shared
                    .change(|content| content.delete(&object.view).into_iter().collect());
            }
        }
    }
}

impl<V: View> Shared<V> {
    fn handlers(&self) -> MutexGuard<'_, Handlers<V>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Content<V>) -> Vec<Change<V>>) {
        let handlers = self.handlers();
        let changes = change(&mut self.content.write().unwrap_or_else(PoisonError::into_inner));
        if !changes.is_empty() {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        for Change { old, new } in &changes {
            for handler in handlers.values() {
                handler(old.as_ref(), new.as_ref());
            }
        }
    }
}

/// Until every one of these stores is complete.
pub async fn all_ready(stores: Vec<watch::Receiver<bool>>) {
    for mut ready in stores {
        // A store that is gone will never be complete, and nobody is left to wait for it.
        drop(ready.wait_for(|ready| *ready).await);
    }
}

/// kube's pauses between attempts, none longer than [`PAUSE_MAX`]: while a watch is broken the host is blind.
#[derive(Default)]
struct Capped(DefaultBackoff);

impl Iterator for Capped {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(PAUSE_MAX))
    }
}

impl Backoff for Capped {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// How the first list is had. What a server does is found by trying: its version does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// As the beginning of the watch.
    Streamed,
    /// In pages.
    Paged,
}

impl Strategy {
    fn config(self) -> watcher::Config {
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        match self {
            Self::Streamed => config.streaming_lists(),
            Self::Paged => config.page_size(PAGE),
        }
    }
}

/// Why a watcher is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server does not know streaming lists.
    Refused,
    /// Its list does not get on.
    Stuck,
}

/// Servers refuse the parameters of a streaming list as invalid.
fn is_refusal(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::WatchStartFailed(::kube::Error::Api(status)) if matches!(status.code, 400 | 422)
    )
}

/// Whether the watch works: two lines for each break, however long it takes.
#[derive(Debug, Default)]
struct Health {
    is_broken: bool,
}

impl Health {
    fn broken<V: View>(&mut self, error: &watcher::Error) {
        let error = Chain(error);
        if self.is_broken {
            tracing::debug!(%error, "the watch of {} is still broken", V::PLURAL);
        } else {
            tracing::warn!(%error, "the watch of {} broke; retrying", V::PLURAL);
        }
        self.is_broken = true;
    }

    fn well<V: View>(&mut self) {
        if std::mem::take(&mut self.is_broken) {
            tracing::info!("the watch of {} is back", V::PLURAL);
        }
    }
}

impl<V: View> Default for Store<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: View> Clone for Store<V> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<V: View> fmt::Debug for Store<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("kind", &V::KIND)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
