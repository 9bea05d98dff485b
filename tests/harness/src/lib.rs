//! Starts real API servers, hosts and plugins for tests and for the demo, and takes them down again.
//!
//! Everything here is the real thing: processes, sockets, files. Nothing listens on a fixed port, and every
//! process started dies with the value that stands for it, also when the test panics or is killed itself.
//!
//! A test makes a [`Workspace`] first; it outlives all else and keeps the logs if the test fails.

mod api_proxy;
mod api_server;
mod audit;
mod binaries;
mod clock;
mod eventually;
mod exit;
mod host;
mod https;
mod manifests;
mod node_stand_in;
mod objects;
pub mod observed;
mod other_user;
mod plugin;
mod process;
mod tcp_proxy;
mod watcher;
mod workspace;

pub use api_proxy::{ApiProxy, Fault};
pub use api_server::{ApiServer, HOST_USER, User};
pub use audit::AuditedRequest;
pub use binaries::{repository_root, resolve as resolve_binary};
pub use clock::{Stopwatch, readable};
pub use eventually::eventually;
pub use exit::exit_code;
pub use host::{Host, HostOptions, LeaseTiming, SecurePort, spawn_endpoint};
pub use https::{Response, get, get_in_the_clear};
pub use manifests::apply_manifests;
pub use node_stand_in::NodeStandIn;
pub use objects::{UNINITIALIZED_TAINT, node, port, service_lb};
pub use plugin::{LocalOptions, PluginProcess};
pub use process::{Process, Signal};
pub use tcp_proxy::{Address, Mode, TcpProxy};
pub use watcher::{Change, Watcher};
pub use workspace::{Workspace, scenario};
