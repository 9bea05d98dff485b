//! The runtime against scripted plugins on real sockets.

mod calls;
mod children;
mod directory;
pub(in crate::plugin) mod fixtures;
mod gates;
mod scripted;
mod sessions;
mod upgrades;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_core::backoff::Backoff;
use bulkhead_core::breaker::Waits;
use bulkhead_core::election::Epoch;
use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::supervise::Intensity;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::scripted::{Scripted, Server};
use super::*;
use crate::clock;
use crate::leader::Term;

/// Longest wait for something that must happen.
const SOON: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(15);

/// Quick where nothing is measured.
const QUICK: Timing = Timing {
    handshake: Duration::from_secs(2),
    status: Duration::from_millis(300),
    read: Duration::from_millis(500),
    look: Duration::from_secs(5),
    write_soft: Duration::from_secs(4),
    write: Duration::from_secs(5),
    poll: Duration::from_millis(30),
    poll_warming: Duration::from_millis(30),
    reconnect: Intensity {
        first: Duration::from_millis(20),
        cap: Duration::from_millis(100),
        steady: Duration::from_secs(60),
    },
    restart: Intensity {
        first: Duration::from_millis(20),
        cap: Duration::from_millis(100),
        steady: Duration::from_secs(60),
    },
    start_limit: Duration::from_secs(30),
    grace: Duration::from_millis(300),
    gates: Pauses {
        breaker: Waits {
            unreached: Backoff::new(Duration::from_millis(200), Duration::from_secs(1)),
            violated: Backoff::new(Duration::from_millis(200), Duration::from_secs(1)),
        },
        credentials: Duration::from_millis(200),
    },
};

#[derive(Debug, Default)]
struct Counts(Mutex<Vec<(&'static str, &'static str)>>);

impl Observer for Counts {
    fn call(&self, _plugin: &str, verb: &'static str, result: &'static str, _took: Duration) {
        self.0.lock().unwrap().push((verb, result));
    }

    fn session(&self, _plugin: &str) {
        self.0.lock().unwrap().push(("session", ""));
    }

    fn gate(&self, _plugin: &str, _capability: Capability, _gate: Gate) {}

    fn shut(&self, _plugin: &str, capability: Capability, why: Why) {
        self.0.lock().unwrap().push((capability.name(), why.name()));
    }

    fn in_flight(&self, _plugin: &str, _change: Change) {}

    fn waited(&self, _plugin: &str, _took: Duration) {}

    fn crowded_out(&self, _plugin: &str) {}
}

/// A host with one plugin.
struct Host {
    standing: watch::Sender<Standing>,
    plugin: PluginHandle,
    counts: Arc<Counts>,
    tasks: Tasks,
}

impl Host {
    fn start(endpoint: Endpoint, standing: Standing, adapt: impl FnOnce(&mut Settings)) -> Self {
        Self::start_at(endpoint, None, standing, adapt)
    }

    fn start_at(
        endpoint: Endpoint,
        sockets: Option<super::directory::Sockets>,
        standing: Standing,
        adapt: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings {
            name: "test".to_owned(),
            endpoint,
            allowed_uids: Vec::new(),
            provider: None,
            cluster: Cluster {
                uid: "cluster-uid".to_owned(),
                name: "cluster".to_owned(),
            },
            host_name: "host".to_owned(),
            run_root: std::env::temp_dir(),
            memory_limit: None,
            tls: None,
            timing: QUICK,
            budget: BudgetConfig::default(),
        };
        adapt(&mut settings);
        let (sender, receiver) = watch::channel(standing);
        let (counts, tasks) = (Arc::new(Counts::default()), Tasks::new());
        let observer: Arc<dyn Observer> = Arc::<Counts>::clone(&counts);
        let plugin = start_with(settings, receiver, observer, &tasks, sockets);
        Self {
            standing: sender,
            plugin,
            counts,
            tasks,
        }
    }

    fn at(socket: &Path, standing: Standing) -> Self {
        Self::start(Endpoint::Unix(socket.to_owned()), standing, |_| {})
    }

    /// Waits until the session is as `expected` says.
    async fn sees(&self, expected: impl Fn(&SessionView) -> bool) -> SessionView {
        let mut view = self.plugin.subscribe();
        let seen = timeout(SOON, view.wait_for(|view| expected(view))).await;
        let in_vain = || panic!("in vain: {:?}", self.plugin.subscribe().borrow());
        seen.unwrap_or_else(|_| in_vain()).unwrap().clone()
    }

    async fn is(&self, state: SessionState) -> SessionView {
        self.sees(|view| view.state == state).await
    }

    /// Results counted for `verb`.
    fn results(&self, verb: &str) -> Vec<&'static str> {
        let counts = self.counts.0.lock().unwrap();
        counts
            .iter()
            .filter(|(counted, _)| *counted == verb)
            .map(|(_, result)| *result)
            .collect()
    }
}

/// A host that leads, its active session, and the plugin.
async fn active(adapt: impl FnOnce(&mut scripted::Script)) -> (Host, Server, TempDir) {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(adapt));
    let host = Host::at(&server.socket, Standing::Leading(term(1)));
    host.is(SessionState::Active).await;
    (host, server, folder)
}

fn epoch(transitions: i64) -> Epoch {
    Epoch {
        lease_uid: "lease".to_owned(),
        transitions,
    }
}

/// A term that was renewed just now.
fn term(transitions: i64) -> Term {
    Term {
        epoch: epoch(transitions),
        renewed: clock::now(),
        lease_duration: LEASE,
        lost: CancellationToken::new(),
    }
}
