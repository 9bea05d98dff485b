//! Leadership: the Lease, and who may act because of it.
//!
//! [`start`] gives a handle and a driver. The driver feeds the pure machine of `bulkhead_core::election` with
//! what the API server answers and publishes where this process stands; the handle answers whether an effect
//! may start *now*. A leadership that is lost is sought again; only a release ends the driver.

mod alone;
mod driver;
mod lease;
mod sight;
mod stage;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use ::kube::{Api, Client};
use bulkhead_core::clock::Instant;
pub use bulkhead_core::election::{Ending, Epoch, Timing};
use bulkhead_core::election::{lead_valid_for, may_start};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::stage::{Shared, Stage};
use crate::clock;

/// The reason of the Events about leadership, as upstream's.
pub const EVENT_REASON: &str = "LeaderElection";

/// How much older than the lease duration the last renewal of a leader may be before it counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Which Lease to hold, as whom, at what pace.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// What to write as its holder, unique per process: [`identity`].
    pub identity: String,
    /// The election's durations.
    pub timing: Timing,
}

/// An identity that no other process has: `<host name>_<uuid>`.
pub fn identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "unknown",
        host => host,
    };
    format!("{host}_{}", Uuid::new_v4())
}

/// A leadership held, as of its last successful renewal.
#[derive(Clone, Debug)]
pub struct Term {
    /// What plugins are told. It becomes another one without a loss where a Lease that somebody deleted was
    /// made again.
    pub epoch: Epoch,
    /// When the last successful renewal was sent.
    pub renewed: Instant,
    /// How long others wait after it.
    pub lease_duration: Duration,
    /// Cancelled when the leadership is over, for whatever reason: so is every call that runs under it.
    pub lost: CancellationToken,
}

impl Term {
    /// How long a plugin that is told at `now` may start cloud writes.
    pub fn valid_for(&self, now: Instant) -> Duration {
        lead_valid_for(now, self.renewed, self.lease_duration)
    }
}

/// Where this process stands.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Another process leads, or nobody does.
    Standby,
    /// This process leads.
    Leading(Term),
    /// This process still holds the Lease, so that what runs can end, but starts nothing.
    Draining(Term),
    /// This process leads, but without the one plugin that is told so: it is no longer configured.
    Retired(Term),
}

impl Standing {
    /// The term held, drained or not.
    pub const fn term(&self) -> Option<&Term> {
        match self {
            Self::Standby => None,
            Self::Leading(term) | Self::Draining(term) | Self::Retired(term) => Some(term),
        }
    }

    /// The term in which work may begin.
    pub const fn leading(&self) -> Option<&Term> {
        match self {
            Self::Leading(term) => Some(term),
            Self::Standby | Self::Draining(_) | Self::Retired(_) => None,
        }
    }
}

/// The right to start one effect now. It cannot be kept for the next one: ask again.
#[derive(Debug)]
#[expect(
    clippy::manual_non_exhaustive,
    reason = "nobody in this crate may make one either"
)]
#[must_use = "a permit is asked for right before the effect that it permits"]
pub struct Permit {
    /// The epoch to name in the effect's intent.
    pub epoch: Epoch,
    /// Cancelled when the leadership is over: the effect's call must be too.
    pub lost: CancellationToken,
    /// Permits are made here only.
    _granted: (),
}

/// News for the Event recorder, about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// The Lease's UID.
    pub uid: String,
    /// `<identity> became leader` or `<identity> stopped leading`; its reason is [`EVENT_REASON`].
    pub message: String,
}

/// The Lease may still name this process: others wait until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The API server did not answer.
    #[error("releasing the lease has no known outcome: it may name this process until it expires")]
    Unknown,
    /// Nobody runs the driver any more.
    #[error("the lease was not released: its driver is gone")]
    DriverGone,
}

/// The handle on this process's leadership. Clones are the same leadership.
#[derive(Clone)]
pub struct Leadership {
    shared: Arc<Shared>,
    ending: watch::Receiver<Option<Ending>>,
}

impl fmt::Debug for Leadership {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Leadership")
            .field("standing", &*self.shared.standing())
            .finish_non_exhaustive()
    }
}

impl Leadership {
    /// Where this process stands, now and after each change; every successful renewal is one.
    pub fn subscribe(&self) -> watch::Receiver<Standing> {
        self.shared.subscribe()
    }

    /// The right to start an effect now, if there is one. The clock is read here, so that a process that was
    /// stopped or suspended gets none before its driver has noticed.
    pub fn permit(&self) -> Option<Permit> {
        match &*self.shared.standing() {
            Standing::Leading(Term {
                epoch,
                renewed,
                lease_duration,
                lost,
            }) if !lost.is_cancelled() && may_start(clock::now(), *renewed, *lease_duration) => {
                Some(Permit {
                    epoch: epoch.clone(),
                    lost: lost.clone(),
                    _granted: (),
                })
            }
            Standing::Leading(_) | Standing::Draining(_) | Standing::Retired(_) | Standing::Standby => None,
        }
    }

    /// Whether this process holds the Lease: the metric `leader_election_master_status`.
    pub fn is_leader(&self) -> bool {
        self.shared.standing().term().is_some()
    }

    /// The Lease's name: the label `name` of that metric.
    pub fn lease_name(&self) -> &str {
        self.shared.lease_name()
    }

    /// The Lease as `namespace/name`; `None` without an election.
    pub fn lease(&self) -> Option<String> {
        self.shared.lease()
    }

    /// Who holds the Lease, as far as this process knows: itself, or whom it last saw holding it.
    pub fn holder(&self) -> Option<String> {
        if self.is_leader() {
            return Some(self.identity().to_owned());
        }
        self.shared.rival()
    }

    /// This process's name in the Lease.
    pub fn identity(&self) -> &str {
        self.shared.identity()
    }

    /// Time since the last successful renewal was sent, while this process leads.
    pub fn renewal_age(&self) -> Option<Duration> {
        self.shared
            .standing()
            .term()
            .map(|term| clock::now().saturating_since(term.renewed))
    }

    /// Whether the election works, for `/livez`: a leader whose last renewal is older than the lease duration
    /// and 20 s should have noticed long ago.
    pub fn is_healthy(&self) -> bool {
        let standing = self.shared.standing();
        standing.term().is_none_or(|term| {
            clock::now().saturating_since(term.renewed) <= term.lease_duration + STUCK_AFTER
        })
    }

    /// How many announcements nobody took in time.
    pub fn announcements_dropped(&self) -> u64 {
        self.shared.announcements_dropped()
    }

    /// No permit is given from here on, and no leadership won; one that is held is renewed until it is
    /// released.
    pub fn begin_drain(&self) {
        self.shared.begin_drain();
    }

    /// Gives the Lease up if this process holds it, so that a standby takes over at once; drains first. The
    /// driver ends with it. Takes as long as the API server does, at most about twice the renew deadline.
    ///
    /// # Errors
    /// The Lease may still name this process.
    pub async fn release(&self) -> Result<Ending, ReleaseError> {
        self.shared.begin_release();
        let mut ending = self.ending.clone();
        let ended = ending.wait_for(Option::is_some).await.map(|ending| *ending);
        match ended {
            Ok(Some(Ending::Unknown)) => Err(ReleaseError::Unknown),
            Ok(Some(ended @ (Ending::Released | Ending::NothingHeld))) => Ok(ended),
            Ok(None) | Err(_) => Err(ReleaseError::DriverGone),
        }
    }
}

/// Takes part in the election of the Lease in `settings`, by a client that serves nothing else. Announcements
/// that find their queue full are dropped and counted.
///
/// The driver must be run; dropped, it ends the leadership without a release.
pub fn start(
    settings: Settings,
    client: Client,
    announcements: mpsc::Sender<Announcement>,
) -> (Leadership, BoxFuture<'static, ()>) {
    let (ended, ending) = watch::channel(None);
    let shared = Arc::new(Shared::new(settings.clone(), Some(announcements)));
    let api = Api::namespaced(client, &settings.namespace);
    let driver = driver::run(settings, api, Stage::new(Arc::clone(&shared)), ended);
    (Leadership { shared, ending }, driver.boxed())
}

/// Leads at once and without a Lease (`--leader-elect=false`), in an epoch that no other process has.
///
/// The driver must be run; dropped, it ends the leadership.
pub fn start_alone(settings: Settings) -> (Leadership, BoxFuture<'static, ()>) {
    let (ended, ending) = watch::channel(None);
    let shared = Arc::new(Shared::new(settings, None));
    let driver = alone::run(Stage::new(Arc::clone(&shared)), ended);
    (Leadership { shared, ending }, driver.boxed())
}
