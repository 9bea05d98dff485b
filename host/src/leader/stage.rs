//! Where the driver shows how this process stands, and where the handle sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_core::election::Leading;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{Announcement, Settings, Standing, Term};

/// What the handle and the driver share.
pub(super) struct Shared {
    settings: Settings,
    standing: watch::Sender<Standing>,
    draining: CancellationToken,
    releasing: CancellationToken,
    announcements: Option<mpsc::Sender<Announcement>>,
    dropped: AtomicU64,
    /// Who leads in place of this process; `None`: this process does, or nobody is known to.
    rival: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(settings: Settings, announcements: Option<mpsc::Sender<Announcement>>) -> Self {
        Self {
            settings,
            standing: watch::Sender::new(Standing::Standby),
            draining: CancellationToken::new(),
            releasing: CancellationToken::new(),
            announcements,
            dropped: AtomicU64::new(0),
            rival: Mutex::default(),
        }
    }

    pub(super) fn standing(&self) -> watch::Ref<'_, Standing> {
        self.standing.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    pub(super) fn lease_name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn lease(&self) -> Option<String> {
        let Settings { namespace, name, .. } = &self.settings;
        let is_elected = self.announcements.is_some();
        is_elected.then(|| format!("{namespace}/{name}"))
    }

    pub(super) fn rival(&self) -> Option<String> {
        self.rival.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_rival(&self, rival: Option<String>) {
        *self.rival.lock().unwrap_or_else(PoisonError::into_inner) = rival;
    }

    pub(super) fn identity(&self) -> &str {
        &self.settings.identity
    }

    pub(super) fn announcements_dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn begin_drain(&self) {
        self.draining.cancel();
        // Whoever publishes looks at `draining` under the same lock: it is Draining from here on.
        self.standing.send_if_modified(|standing| {
            let Standing::Leading(term) = standing else {
                return false;
            };
            *standing = Standing::Draining(term.clone());
            true
        });
    }

    pub(super) fn begin_release(&self) {
        self.begin_drain();
        self.releasing.cancel();
    }

    fn announce(&self, uid: &str, message: String) {
        let Some(announcements) = &self.announcements else {
            return;
        };
        let announcement = Announcement {
            namespace: self.settings.namespace.clone(),
            name: self.settings.name.clone(),
            uid: uid.to_owned(),
            message,
        };
        if announcements.try_send(announcement).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The driver's side. Dropped, it ends the leadership that is held.
pub(super) struct Stage {
    shared: Arc<Shared>,
    held: Option<Term>,
}

impl Stage {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, held: None }
    }

    /// Becomes ready once the drain was asked for.
    pub(super) async fn drain_wanted(&self) {
        self.shared.draining.cancelled().await;
    }

    /// Becomes ready once the release was asked for.
    pub(super) async fn release_wanted(&self) {
        self.shared.releasing.cancelled().await;
    }

    /// Shows a leadership that begins or goes on.
    pub(super) fn lead(&mut self, leading: Leading, lease_duration: Duration) {
        let identity = self.shared.identity();
        let before = self.held.take();
        if before.as_ref().is_none_or(|term| term.epoch != leading.epoch) {
            info!(
                lease = self.shared.lease_name(),
                lease_uid = leading.epoch.lease_uid,
                "leading as {identity}, term {}",
                leading.epoch.transitions
            );
        }
        if before.is_none() {
            self.shared
                .announce(&leading.epoch.lease_uid, format!("{identity} became leader"));
        }
        let term = Term {
            epoch: leading.epoch,
            renewed: leading.renewed,
            lease_duration,
            lost: before.map_or_else(CancellationToken::new, |term| term.lost),
        };
        self.shared.set_rival(None);
        self.held = Some(term.clone());
        self.shared.standing.send_modify(|standing| {
            *standing = if self.shared.draining.is_cancelled() {
                Standing::Draining(term)
            } else {
                Standing::Leading(term)
            };
        });
    }

    /// Another process leads.
    pub(super) fn led_by(&self, holder: String) {
        self.shared.set_rival(Some(holder));
    }

    /// Ends the leadership that is held, if one is: what runs under it is cancelled first.
    pub(super) fn stand_by(&mut self) {
        let Some(term) = self.held.take() else { return };
        term.lost.cancel();
        self.shared.standing.send_replace(Standing::Standby);
        let message = format!("{} stopped leading", self.shared.identity());
        self.shared.announce(&term.epoch.lease_uid, message);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stand_by();
    }
}
