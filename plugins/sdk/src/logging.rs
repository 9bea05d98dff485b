//! Logs as JSON lines on stderr, where hosts and kubelets collect them.
//!
//! The SDK logs no request and no answer: both may carry what users keep secret in annotations. Authors should log
//! names and ids only.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Environment variable with the filter, as `info` or `warn,bulkhead_plugin=debug`.
pub const FILTER_VARIABLE: &str = "BULKHEAD_LOG";

/// Why logging cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter cannot be read.
    #[error("{FILTER_VARIABLE} is {filter:?}, which is no log filter: {source}")]
    Filter {
        /// What the variable holds.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Something else logs already.
    #[error("logging has begun before")]
    AlreadyBegun,
}

/// Begins to log: level `info`, or what `BULKHEAD_LOG` says.
///
/// # Errors
///
/// The filter cannot be read, or the process logs already.
pub fn init() -> Result<(), LoggingError> {
    let filter = std::env::var(FILTER_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let targets: Targets = filter
        .parse()
        .map_err(|source| LoggingError::Filter { filter, source })?;
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .finish()
        .with(targets)
        .try_init()
        .map_err(|_| LoggingError::AlreadyBegun)
}
