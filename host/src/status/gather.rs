//! The value, made from what the parts of the host show.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::Capability;
use bulkhead_core::gate::Gate;
use tokio::sync::watch;

use super::{
    API_VERSION, Described, ErrorStatus, GateStatus, HostProcess, HostStatus, KIND, LeadershipState,
    LeadershipStatus, PluginStatus, QueueStatus,
};
use crate::clock;
use crate::leader::{Leadership, Standing};
use crate::plugin::{LastError, PluginHandle};
use crate::queue::{Queue, Stats};

/// A plugin of this host, and what works for it.
#[derive(Clone, Debug)]
pub struct Presence {
    /// The plugin.
    pub plugin: PluginHandle,
    /// It is taken out of the configuration.
    pub is_leaving: bool,
    /// The queues of its controllers.
    pub queues: Vec<QueuePresence>,
}

/// A queue of this host.
#[derive(Clone)]
pub struct QueuePresence {
    name: &'static str,
    stats: Arc<dyn Fn() -> Stats + Send + Sync>,
}

impl QueuePresence {
    /// The queue that metrics know as `name`.
    pub fn new<K: Clone + Ord + Send + 'static>(name: &'static str, queue: Queue<K>) -> Self {
        Self {
            name,
            stats: Arc::new(move || queue.stats()),
        }
    }
}

impl fmt::Debug for QueuePresence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("QueuePresence").field(&self.name).finish()
    }
}

/// Where the value comes from. Clones are the same.
#[derive(Clone, Debug)]
pub struct Source {
    begun: Instant,
    parts: Arc<OnceLock<Parts>>,
}

#[derive(Debug)]
struct Parts {
    leadership: Leadership,
    plugins: watch::Receiver<Vec<Presence>>,
}

impl Source {
    /// That of a host which begins now and waits for the API server.
    pub fn new() -> Self {
        Self {
            begun: clock::now(),
            parts: Arc::default(),
        }
    }

    /// The host has begun its work. Told once.
    pub fn assembled(&self, leadership: Leadership, plugins: watch::Receiver<Vec<Presence>>) {
        self.parts.get_or_init(|| Parts { leadership, plugins });
    }

    /// How the host is now.
    pub fn status(&self) -> HostStatus {
        let now = clock::now();
        let parts = self.parts.get();
        let present = parts.map(|it| it.plugins.borrow().clone()).unwrap_or_default();
        HostStatus {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            time: jiff::Timestamp::from_microsecond(clock::wall().0)
                .unwrap_or_default()
                .to_string(),
            host: HostProcess {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                up_seconds: now.saturating_since(self.begun).as_secs(),
            },
            leadership: leadership(parts.map(|it| &it.leadership)),
            plugins: present.iter().map(|it| plugin(it, now)).collect(),
            queues: present.iter().flat_map(queues).collect(),
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::new()
    }
}

fn leadership(leadership: Option<&Leadership>) -> LeadershipStatus {
    let Some(leadership) = leadership else {
        return LeadershipStatus {
            state: LeadershipState::Starting,
            lease: None,
            identity: None,
            holder: None,
            renewed_seconds_ago: None,
        };
    };
    let state = match &*leadership.subscribe().borrow() {
        Standing::Standby => LeadershipState::Standby,
        // A plugin that is let go of is not what the host itself does.
        Standing::Leading(_) | Standing::Retired(_) => LeadershipState::Leading,
        Standing::Draining(_) => LeadershipState::Draining,
    };
    let lease = leadership.lease();
    let renewed = leadership.renewal_age().filter(|_| lease.is_some());
    LeadershipStatus {
        state,
        identity: Some(leadership.identity().to_owned()),
        holder: leadership.holder(),
        renewed_seconds_ago: renewed.map(|age| age.as_secs()),
        lease,
    }
}

fn plugin(present: &Presence, now: Instant) -> PluginStatus {
    let plugin = &present.plugin;
    let view = plugin.subscribe().borrow().clone();
    let gates = plugin.gates().borrow().clone();
    let calls = plugin.calls();
    PluginStatus {
        name: plugin.name().to_owned(),
        endpoint: plugin.endpoint().to_string(),
        state: view.state.name().to_owned(),
        state_seconds: now.saturating_since(view.since).as_secs(),
        message: view.reason,
        is_leaving: present.is_leaving,
        sessions: view.session,
        description: view.description.map(|it| Described {
            provider: it.provider.clone(),
            version: it.version.clone(),
            instance: it.instance_id.clone(),
        }),
        gates: gates.gates.iter().map(|(of, it)| gate(*of, *it, now)).collect(),
        is_unsound: gates.is_unsound,
        calls_in_flight: calls.in_flight,
        calls_last_minute: calls.last_minute,
        last_error: calls.last_error.map(|it| last_error(it, now)),
    }
}

/// How a gate is at `now`.
pub(crate) fn gate(capability: Capability, gate: Gate, now: Instant) -> GateStatus {
    let until = match gate {
        Gate::Shut { until, .. } => until,
        Gate::Open | Gate::Trial { .. } => None,
    };
    GateStatus {
        capability: capability.name().to_owned(),
        state: gate.name().to_owned(),
        why: gate.why().map(|why| why.name().to_owned()),
        message: gate.why().map(|why| why.sentence().to_owned()),
        opens_in_seconds: until.map(|until| until.saturating_since(now).as_secs()),
    }
}

/// A failure as it is told at `now`.
pub(crate) fn last_error(error: LastError, now: Instant) -> ErrorStatus {
    ErrorStatus {
        seconds_ago: now.saturating_since(error.at).as_secs(),
        verb: error.verb.to_owned(),
        result: error.result.to_owned(),
        message: error.message,
    }
}

fn queues(present: &Presence) -> impl Iterator<Item = QueueStatus> {
    present.queues.iter().map(|queue| {
        let stats = (queue.stats)();
        QueueStatus {
            plugin: present.plugin.name().to_owned(),
            name: queue.name.to_owned(),
            due: stats.depth,
            delayed: stats.delayed,
            in_work: stats.in_work,
            longest_seconds: stats.longest.as_secs(),
        }
    })
}
