//! The plugin over its socket as a host asks it, and the processes.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends at what it did not expect"
)]

mod balancers;
mod fixture;
mod instances;
mod processes;
mod routes;
