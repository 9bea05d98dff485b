//! The API server: the way to it, what is kept of its objects, every write to it, and Events.
//!
//! Stores keep small views decoded straight from the watch stream; the writer sends each write of the design's
//! table in its one form and never retries: that is the queues' business.

pub mod client;
pub mod error;
pub mod events;
mod patch;
pub mod rights;
pub mod stores;
pub mod views;
pub mod writer;

#[cfg(test)]
mod fake;
