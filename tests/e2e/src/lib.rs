//! What the scenarios in `tests/` share: a cluster with the host's rights in it, a machine for the embedded plugin,
//! and words for what is waited for.

pub mod certificates;
mod cluster;
mod machine;
mod metrics;
pub mod simulated;
pub mod soak;
pub mod traffic;

pub use cluster::{Cluster, has_finalizer, ingress, is_uninitialised, leads};
pub use machine::Machine;
pub use metrics::Metrics;
pub use simulated::Simulated;

use std::time::Duration;

use bulkhead_harness::{LeaseTiming, PluginProcess, Workspace};
use bulkhead_scripted::{Cloud, Journal, Options, Script, ScriptedPlugin};

/// For everything that works: far more than it takes, also with three API servers on two cores.
pub const SOON: Duration = Duration::from_secs(40);

/// Leader election for tests in which one host comes after another.
pub const QUICK: LeaseTiming = LeaseTiming {
    lease: Duration::from_secs(6),
    renew: Duration::from_secs(4),
    retry: Duration::from_secs(1),
};

/// Starts a scripted plugin of this name in this process, at the workspace's place for it.
///
/// # Errors
///
/// If it cannot listen.
pub async fn scripted(workspace: &Workspace, name: &str, cloud: &Cloud) -> anyhow::Result<ScriptedPlugin> {
    let socket = PluginProcess::socket_path(workspace, name)?;
    ScriptedPlugin::start(&socket, Options::new(name), Script::default(), cloud).await
}

/// A cloud whose journal is in memory.
pub fn cloud() -> Cloud {
    Cloud::new(Journal::in_memory())
}
