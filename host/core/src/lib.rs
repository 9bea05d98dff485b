//! Every decision of the Bulkhead host, as pure functions over values.
//!
//! Nothing in here talks to anything: time comes in as an argument, effects go out as lists of actions.
//! The crate must not depend on tokio, kube, tonic or prost; `cargo xtask check` holds it to that.

pub mod clock;
pub mod controllers;
pub mod duration;
pub mod endpoint;
