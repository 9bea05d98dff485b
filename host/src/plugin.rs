//! The plugin runtime: reaches a plugin, keeps a session with it, tells it who leads, and calls it.
//!
//! A session is one connection to one process. When the connection ends the session is gone, and the next one
//! begins with the peer check, `Describe` and `Lead`: nobody talks to another process without noticing. The
//! owner task of a plugin ([`start`]) is the only writer of its state; controllers hold a [`PluginHandle`],
//! which knows the state and calls the plugin while there is a session.

mod access;
mod activity;
mod budget;
mod call;
mod client;
mod connect;
mod convert;
mod crew;
pub mod directory;
mod front;
mod gatekeeper;
mod link;
mod node_sets;
mod owner;
mod place;
mod process;
mod session;
mod socket_guard;
mod tls;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::cloud::Capability;
use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::gate::{Gate, Pauses, Why};
use bulkhead_core::supervise::Intensity;
use tokio::sync::watch;

pub use self::activity::{Calls, LastError};
pub use self::client::{Ensure, PluginHandle, Right};
pub use self::connect::ConnectError;
pub use self::convert::Violation;
pub use self::process::SpawnError;
pub use self::session::{Led, SessionState, SessionView};
pub use self::socket_guard::Refusal;
pub use self::tls::TlsError;

use crate::config::{BudgetConfig, TlsConfig};
use crate::leader::Standing;
use crate::tasks::Tasks;

/// Which plugin, and how it is treated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The plugin's name in metrics and logs.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// User ids, beside the host's own and 0, under which it may run.
    pub allowed_uids: Vec<u32>,
    /// The provider name that it must report; `None`: any.
    pub provider: Option<String>,
    /// The cluster that this host speaks for.
    pub cluster: Cluster,
    /// This host's name, for the plugin's logs.
    pub host_name: String,
    /// Where the private folder of a child's socket is made.
    pub run_root: PathBuf,
    /// Most bytes of memory that a child may have for its data; `None`: as much as the host may.
    pub memory_limit: Option<u64>,
    /// How the two prove themselves to each other on `https://`; `None`: not at all, in plaintext.
    pub tls: Option<TlsConfig>,
    /// Deadlines and pauses.
    pub timing: Timing,
    /// How much of it is used at once.
    pub budget: BudgetConfig,
}

/// The cluster that every request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Unique for ever.
    pub uid: String,
    /// For people.
    pub name: String,
}

/// Deadlines and pauses; [`Timing::DEFAULT`] has the protocol's.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Hard deadline of connecting, `Describe`, `Lead` and `PutNodeSet`.
    pub handshake: Duration,
    /// Hard deadline of health checks and `GetStatus`.
    pub status: Duration,
    /// Hard deadline of `GetInstances`.
    pub read: Duration,
    /// Hard deadline of `GetLoadBalancers`.
    pub look: Duration,
    /// When a plugin is to answer a write with what is done so far.
    pub write_soft: Duration,
    /// Hard deadline of writes.
    pub write: Duration,
    /// Time between health checks.
    pub poll: Duration,
    /// Time between health checks while the plugin is not ready.
    pub poll_warming: Duration,
    /// How soon a session is tried again.
    pub reconnect: Intensity,
    /// How soon a child is started again.
    pub restart: Intensity,
    /// How long a child may take until its first session.
    pub start_limit: Duration,
    /// How long a child may take to end after SIGTERM.
    pub grace: Duration,
    /// How long gates are shut.
    pub gates: Pauses,
}

impl Timing {
    /// The protocol's deadlines.
    pub const DEFAULT: Self = Self {
        handshake: Duration::from_secs(5),
        status: Duration::from_secs(2),
        read: Duration::from_secs(15),
        look: Duration::from_secs(30),
        write_soft: Duration::from_secs(50),
        write: Duration::from_secs(60),
        poll: Duration::from_secs(2),
        poll_warming: Duration::from_millis(250),
        reconnect: Intensity::DEFAULT,
        restart: Intensity::DEFAULT,
        start_limit: Duration::from_secs(60),
        grace: Duration::from_secs(5),
        gates: Pauses::DEFAULT,
    };
}

/// What the host wants to know of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aspect {
    /// Whether it exists.
    Existence,
    /// Its power state.
    Power,
    /// Everything else.
    Metadata,
}

/// Whoever counts what happens between host and plugin.
pub trait Observer: Send + Sync + 'static {
    /// A call ended; `result` is `ok` or the failure's kind.
    fn call(&self, plugin: &str, verb: &'static str, result: &'static str, took: Duration);
    /// A session began.
    fn session(&self, plugin: &str);
    /// The gate of a capability is this now.
    fn gate(&self, plugin: &str, capability: Capability, gate: Gate);
    /// The gate of a capability, which let calls through, was shut.
    fn shut(&self, plugin: &str, capability: Capability, why: Why);
    /// A call was sent, or is over.
    fn in_flight(&self, plugin: &str, change: Change);
    /// A call had to wait for its budget.
    fn waited(&self, plugin: &str, took: Duration);
    /// A call was not made because too many waited for their budget.
    fn crowded_out(&self, plugin: &str);
}

/// What happened to the number of calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One more.
    Begun,
    /// One less.
    Over,
}

/// Where the private folder of a child's socket is made, given `$XDG_RUNTIME_DIR`.
pub fn run_root(xdg_runtime_dir: Option<&Path>) -> PathBuf {
    xdg_runtime_dir
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| Path::new("/tmp"))
        .to_owned()
}

/// Starts the task that owns the plugin. It runs until `tasks` is stopped; a child is ended then.
pub fn start(
    settings: Settings,
    standing: watch::Receiver<Standing>,
    observer: Arc<dyn Observer>,
    tasks: &Tasks,
) -> PluginHandle {
    start_with(settings, standing, observer, tasks, None)
}

/// Starts the task that owns a plugin of the plugins directory: `settings.endpoint` only names it in the log.
pub fn start_found(
    settings: Settings,
    sockets: directory::Sockets,
    standing: watch::Receiver<Standing>,
    observer: Arc<dyn Observer>,
    tasks: &Tasks,
) -> PluginHandle {
    start_with(settings, standing, observer, tasks, Some(sockets))
}

fn start_with(
    settings: Settings,
    standing: watch::Receiver<Standing>,
    observer: Arc<dyn Observer>,
    tasks: &Tasks,
    sockets: Option<directory::Sockets>,
) -> PluginHandle {
    let settings = Arc::new(settings);
    let front = Arc::new(front::Front::new(Arc::clone(&settings), Arc::clone(&observer)));
    let handle = PluginHandle::new(Arc::clone(&settings), &front);
    let owner = owner::Owner::new(settings, standing, observer, front, tasks.clone());
    let owner = match sockets {
        Some(sockets) => owner.with_sockets(sockets),
        None => owner,
    };
    tasks.spawn(format!("plugin {}", handle.name()), owner.run());
    handle
}
