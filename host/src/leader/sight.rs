//! Watching the one Lease, so that a standby takes over when it is released and not a poll later.

use std::time::Duration;

use ::kube::Api;
use ::kube::api::{WatchEvent, WatchParams};
use futures::stream::{self, BoxStream, Stream};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// How long the API server keeps one watch open, in seconds.
const WATCH_SECONDS: u32 = 60;
/// A watch that is silent for longer than the API server keeps it open lost its connection.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

type Events = BoxStream<'static, ::kube::Result<WatchEvent<Lease>>>;

struct Sight {
    api: Api<Lease>,
    params: WatchParams,
    connect: Duration,
    pause: Duration,
    events: Option<Events>,
}

/// Each version of the Lease that the API server tells of, `None` for its deletion. Endless: a watch that ends
/// or fails is opened again after `pause`; opening it takes at most `connect`. What happened meanwhile comes
/// from the polls.
pub(super) fn changes(
    api: Api<Lease>,
    name: &str,
    connect: Duration,
    pause: Duration,
) -> impl Stream<Item = Option<Lease>> + Send + use<> {
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECONDS);
    let sight = Sight {
        api,
        params,
        connect,
        pause,
        events: None,
    };
    stream::unfold(
        sight,
        |mut sight| async move { Some((sight.next().await, sight)) },
    )
}

impl Sight {
    async fn next(&mut self) -> Option<Lease> {
        loop {
            let Some(events) = &mut self.events else {
                self.open().await;
                continue;
            };
            match timeout(SILENCE, events.try_next()).await {
                Ok(Ok(Some(WatchEvent::Added(lease) | WatchEvent::Modified(lease)))) => return Some(lease),
                Ok(Ok(Some(WatchEvent::Deleted(_)))) => return None,
                Ok(Ok(Some(WatchEvent::Bookmark(_)))) => {}
                Ok(Ok(Some(WatchEvent::Error(_)) | None) | Err(_)) | Err(_) => {
                    self.events = None;
                    sleep(self.pause).await;
                }
            }
        }
    }

    /// Opens the watch from the newest version on, which it tells first. A failure is no news of its own: the
    /// polls meet it too and say so.
    async fn open(&mut self) {
        match timeout(self.connect, self.api.watch(&self.params, "")).await {
            Ok(Ok(events)) => self.events = Some(events.boxed()),
            Ok(Err(error)) => {
                debug!("cannot watch the lease: {error}");
                sleep(self.pause).await;
            }
            Err(_) => debug!("cannot watch the lease: no answer in {:?}", self.connect),
        }
    }
}
