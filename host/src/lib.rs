//! The Bulkhead host: everything that observes, performs and records. Decisions are in `bulkhead-core`.

pub mod admin;
pub mod announcer;
mod bucket;
pub mod cli;
pub mod clock;
pub mod config;
pub mod controllers;
pub mod exit;
pub mod kube;
pub mod leader;
pub mod loader;
pub mod metrics;
pub mod pem;
pub mod plugin;
pub mod queue;
pub mod readiness;
pub mod run;
pub mod shutdown;
pub mod status;
pub mod tasks;
pub mod telemetry;
