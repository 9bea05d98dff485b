//! How a running host is: the value that its admin socket answers, and `bulkhead status`, which shows it.
//!
//! The value is a contract with scripts: fields are added and never change their meaning within one `apiVersion`. Every
//! span of time is in whole seconds and ends when the value was made.

use serde::{Deserialize, Serialize};

mod ask;
mod gather;
mod table;

pub use self::ask::{AskError, Output, answer};
pub use self::gather::{Presence, QueuePresence, Source};
pub(crate) use self::gather::{gate, last_error};

/// The version of the value.
pub const API_VERSION: &str = "status.bulkhead.dev/v1alpha1";
/// The kind of the value.
pub const KIND: &str = "HostStatus";
/// Where the admin socket has it.
pub const PATH: &str = "/status";

/// How a host is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// When this was so, RFC 3339.
    pub time: String,
    /// The process.
    pub host: HostProcess,
    /// Who leads.
    pub leadership: LeadershipStatus,
    /// Every plugin, in the order of the configuration; those that are taken out follow until their calls have ended.
    pub plugins: Vec<PluginStatus>,
    /// Every queue.
    pub queues: Vec<QueueStatus>,
}

/// The host's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostProcess {
    /// The host's version.
    pub version: String,
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// For how long it runs.
    pub up_seconds: u64,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeadershipStatus {
    /// This host's part in it.
    pub state: LeadershipState,
    /// The Lease as `namespace/name`; none without an election.
    pub lease: Option<String>,
    /// This host's name in the Lease.
    pub identity: Option<String>,
    /// Who holds the Lease, or was last seen to.
    pub holder: Option<String>,
    /// How long ago the last renewal was sent that succeeded, if this host leads.
    pub renewed_seconds_ago: Option<u64>,
}

/// A host's part in leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeadershipState {
    /// It waits for the API server.
    Starting,
    /// Another one leads, or nobody does.
    Standby,
    /// It leads.
    Leading,
    /// It holds the Lease until what runs has ended, and starts nothing.
    Draining,
}

/// One plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Where it is reached.
    pub endpoint: String,
    /// The state of its session, in the protocol's words.
    pub state: String,
    /// For how long it is in this state.
    pub state_seconds: u64,
    /// Why, for people; may be empty.
    pub message: String,
    /// It is taken out of the configuration, and its last calls end.
    pub is_leaving: bool,
    /// How many sessions there were.
    pub sessions: u64,
    /// What it says of itself, while there is a session.
    pub description: Option<Described>,
    /// The gates of its capabilities.
    pub gates: Vec<GateStatus>,
    /// It meets so many bugs of its own that people should look.
    pub is_unsound: bool,
    /// Calls sent and not over.
    pub calls_in_flight: usize,
    /// Calls ended in the last minute, those that keep the session alive among them.
    pub calls_last_minute: u64,
    /// The last call that failed.
    pub last_error: Option<ErrorStatus>,
}

/// What a plugin says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Described {
    /// The provider's name.
    pub provider: String,
    /// The plugin's version.
    pub version: String,
    /// Which process it is.
    pub instance: String,
}

/// The gate of one capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GateStatus {
    /// The capability.
    pub capability: String,
    /// `open`; `trial`: one call at a time until one succeeds; `shut`: nothing of the capability changes.
    pub state: String,
    /// Why it is not open, as in metrics.
    pub why: Option<String>,
    /// The same as a sentence.
    pub message: Option<String>,
    /// No sooner does it open; none where nobody knows.
    pub opens_in_seconds: Option<u64>,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorStatus {
    /// When it ended.
    pub seconds_ago: u64,
    /// The verb of the protocol.
    pub verb: String,
    /// The failure's kind, as in metrics.
    pub result: String,
    /// For people.
    pub message: String,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// The plugin that it works for.
    pub plugin: String,
    /// Its name, as in metrics.
    pub name: String,
    /// Keys that wait and are due.
    pub due: usize,
    /// Keys that wait for a time to come.
    pub delayed: usize,
    /// Keys in work.
    pub in_work: usize,
    /// For how long the oldest of those is in work.
    pub longest_seconds: u64,
}
