//! A simulated cloud that misbehaves on demand, and a plugin in front of it.
//!
//! ```text
//!   main -> cli -> scenario
//!     |
//!     +-- plugin        the protocol's calls, converging from what the cloud shows
//!     |     `-- api     the cloud: in this process, or in another
//!     |           `-- running    the value, a clock, and waiting
//!     |                 `-- cloud    what exists, who may, what goes wrong (pure)
//!     `-- control       SimControl: how tests and people drive both
//! ```
//!
//! Invariants: the cloud is a value whose only chance is a seed; every call is counted; what is listed is bounded, and
//! what falls off is counted; the plugin knows of the cloud only what its calls answer.

pub mod api;
pub mod cli;
mod clock;
pub mod cloud;
pub mod control;
pub mod endpoint;
pub mod plugin;
pub mod running;
pub mod scenario;

/// Package `bulkhead.sim.v1`.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::derive_partial_eq_without_eq,
    clippy::pedantic,
    missing_docs,
    unused_qualifications,
    reason = "generated"
)]
pub mod v1 {
    include!("gen/bulkhead.sim.v1.rs");
}
