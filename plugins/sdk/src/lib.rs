//! What an author of a Bulkhead plugin in Rust needs: implement [`CloudProvider`], call [`serve`].
//!
//! A plugin is a process that speaks for one cloud. The host asks it over gRPC on a unix socket, or on a network over
//! mutual TLS; this crate owns the socket, the certificates, the protocol's roles, cancellation, panics and the end of
//! the process, so that an author writes cloud calls only.
//!
//! # A first plugin
//!
//! ```no_run
#![doc = include_str!("../examples/minimal.rs")]
//! ```
//!
//! # Roles
//!
//! A plugin is standby until a host sends `Lead`. From then on [`CloudProvider::initialise`] runs, then calls come. The
//! right to write runs out unless the host renews it: ask [`Call::writing`] before *every* cloud write. When the term
//! ends, [`Call::ending`] says so to running calls, which answer `IN_PROGRESS`, and [`CloudProvider::stand_down`] ends
//! background work.
//!
//! # Calls
//!
//! Each call is a slice of work in a task of its own. A caller that goes away cancels [`Call::cancellation`] and never
//! drops the work: what was created is remembered. A panic is answered INTERNAL/PANIC, and the process lives (build
//! plugins with unwinding panics).
//!
//! # Errors
//!
//! [`PluginError`] has a named constructor for every reason of the protocol; code and certainty come with it. Absence
//! is a field of a good answer, never an error.
//!
//! # The end
//!
//! On SIGTERM the plugin stays ready and says `DRAINING` until the last session is closed, at most 28 s. A plugin that
//! a host spawned (`BULKHEAD_SPAWNED=1`) ends the same way when its stdin ends.

mod asked;
pub mod call;
pub mod cloud_config;
pub mod describe;
mod dispatch;
pub mod error;
pub mod flags;
mod health;
mod listener;
pub mod logging;
mod node_sets;
pub mod options;
pub mod port;
pub mod provider;
mod role;
mod runner;
pub mod server;
mod service;
mod session;
pub mod socket;
pub mod status;
mod stop;
mod stream;
mod term;
mod terms;
pub mod time;
pub mod tls;

pub use bulkhead_proto::{mark, v1};
pub use call::{Call, Ending};
pub use describe::Description;
pub use error::{PluginError, Result};
pub use flags::ServeFlags;
pub use options::{ServeOptions, Stdin};
pub use provider::{CloudProvider, TargetUpdate};
pub use role::Epoch;
pub use server::{ServeError, serve, serve_until};
pub use term::Term;
pub use tls::TlsFiles;
