//! A plugin that answers exactly what a test says, call by call: late, never, wrongly, or as an honest one.
//!
//! [`ScriptedPlugin`] serves inside the test's own process, the binary `bulkhead-scripted` in one that can be killed.
//! Both speak the protocol through generated code only, not through the plugin SDK, since they must be able to break
//! it. What they do, and when, is in the [`Journal`] of the [`Cloud`], which several plugins may share.
//!
//! The binary `bulkhead-patient` is an honest plugin on the SDK whose cloud needs many writes for one load balancer,
//! and `bulkhead-stranger` no plugin at all.

mod answers;
mod argument;
mod clock;
mod cloud;
mod dispatch;
mod journal;
mod lead;
mod plugin;
mod script;
mod service;

pub use argument::argument;
pub use clock::boot_nanos;
pub use cloud::{Balancer, Cloud, instance, provider_id};
pub use journal::{Call, Change, Entry, Grant, Journal, Write};
pub use plugin::{Options, ScriptedPlugin, listen};
pub use script::{Behaviour, Failure, Rpc, Script, Wrong};
