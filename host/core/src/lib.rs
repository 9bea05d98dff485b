//! Every decision of the Bulkhead host, as pure functions over values.
//!
//! Nothing in here talks to anything: time comes in as an argument, effects go out as lists of actions.
//! The crate must not depend on tokio, kube, tonic or prost; `cargo xtask check` holds it to that.

pub mod backoff;
pub mod breaker;
pub mod bulletin;
pub mod clock;
pub mod cloud;
pub mod controllers;
pub mod digest;
pub mod disposition;
pub mod duration;
pub mod election;
pub mod endpoint;
pub mod gate;
pub mod handover;
pub mod ids;
pub mod lane;
pub mod node;
pub mod outcome;
pub mod ownership;
pub mod rights;
pub mod service;
pub mod supervise;
pub mod territory;

#[cfg(test)]
mod fixtures;
