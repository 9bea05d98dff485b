//! The Bulkhead host: everything that observes, performs and records. Decisions are in `bulkhead-core`.

pub mod clock;
