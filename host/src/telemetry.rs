//! Logs: where they go, how much of them, and how an error is written.

use std::error::Error;
use std::fmt::{self, Write};
use std::io;
use std::panic;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::tasks;

/// How a log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The variable holds no filter.
    #[error("RUST_LOG={filter:?} is no log filter: {source}")]
    Filter {
        /// The variable's value.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was started before.
    #[error("logging is already started")]
    Started(#[source] TryInitError),
}

/// Starts logging to stderr. `verbosity` is `-v`; `filter` is the value of `RUST_LOG`, which, set and not
/// empty, decides alone. A panic becomes one log line that names its task.
///
/// # Errors
/// `filter` cannot be read, or logging is already started.
pub fn init(format: LogFormat, verbosity: u8, filter: Option<String>) -> Result<Detail, TelemetryError> {
    let filter = filter
        .filter(|filter| !filter.is_empty())
        .unwrap_or_else(|| directives(verbosity).to_owned());
    let targets: Targets = filter
        .parse()
        .map_err(|source| TelemetryError::Filter { filter, source })?;
    let lines = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(io::stderr)
        .with_span_events(FmtSpan::NONE);
    let (started, detail) = match format {
        LogFormat::Text => {
            let (filter, handle) = reload::Layer::new(targets);
            let lines = lines.with_ansi(io::IsTerminal::is_terminal(&io::stderr()));
            (lines.finish().with(filter).try_init(), Detail::of(handle))
        }
        LogFormat::Json => {
            let (filter, handle) = reload::Layer::new(targets);
            let lines = lines.json().flatten_event(true);
            (lines.finish().with(filter).try_init(), Detail::of(handle))
        }
    };
    started.map_err(TelemetryError::Started)?;
    log_panics();
    Ok(detail)
}

/// Changes the detail of a log that has been started.
pub struct Detail(Box<dyn Fn(u8) + Send + Sync>);

impl fmt::Debug for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detail").finish_non_exhaustive()
    }
}

impl Detail {
    fn of<S: 'static>(handle: reload::Handle<Targets, S>) -> Self {
        Self(Box::new(move |verbosity| {
            let Ok(targets) = directives(verbosity).parse::<Targets>() else {
                return;
            };
            // An error means that logging has ended.
            drop(handle.reload(targets));
        }))
    }

    /// A log that stays as it is.
    pub fn fixed() -> Self {
        Self(Box::new(|_| {}))
    }

    /// From now on what `-v` with this number shows.
    pub fn set(&self, verbosity: u8) {
        (self.0)(verbosity);
    }
}

/// What `-v` shows: our own lines in more detail first; libraries only from 6 on, where Kubernetes'
/// components begin to show requests.
///
/// The API client's own lines come once a try; ours, once a change, say the same.
const fn directives(verbosity: u8) -> &'static str {
    match verbosity {
        0 => "info,kube_client=off,kube_runtime=off",
        1..=5 => "info,kube_client=off,kube_runtime=off,bulkhead=debug,bulkhead_core=debug",
        _ => "debug,bulkhead=trace,bulkhead_core=trace",
    }
}

fn log_panics() {
    panic::set_hook(Box::new(|panicked| {
        let location = panicked.location().map(ToString::to_string).unwrap_or_default();
        let message = panicked.payload_as_str().unwrap_or("a panic without a text");
        let task = tasks::current();
        let task = task.as_deref().unwrap_or("none");
        tracing::error!(task, location, "panic: {message}");
    }));
}

/// An error with its sources, for the one place that reports it: `what failed: why: why that`.
///
/// A source whose text its parent already ends with is not repeated. Of each only the first line is taken: what
/// follows is a parser's extract of its input as a rule, and the input may be a file with secrets.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut next = Some(self.0);
        while let Some(error) = next {
            let part = error.to_string();
            let part = part.lines().next().unwrap_or_default();
            if text.is_empty() {
                part.clone_into(&mut text);
            } else if !text.ends_with(part) {
                write!(text, ": {part}")?;
            }
            next = error.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("the file is gone")]
        Plain,
        #[error("reading x")]
        Outer(#[source] Box<Self>),
        #[error("reading x: {0}")]
        Repeating(#[source] Box<Self>),
        #[error("bad input:\n1 | token: secret")]
        Extract,
    }

    #[rstest]
    #[case::alone(Failure::Plain, "the file is gone")]
    #[case::with_source(Failure::Outer(Box::new(Failure::Plain)), "reading x: the file is gone")]
    #[case::a_repeated_source_is_said_once(
        Failure::Repeating(Box::new(Failure::Plain)),
        "reading x: the file is gone"
    )]
    #[case::nested_repetition(
        Failure::Outer(Box::new(Failure::Repeating(Box::new(Failure::Plain)))),
        "reading x: reading x: the file is gone"
    )]
    #[case::an_extract_of_the_input_is_left_out(Failure::Extract, "bad input:")]
    fn a_chain_is_one_line(#[case] error: Failure, #[case] expected: &str) {
        assert_eq!(Chain(&error).to_string(), expected);
    }

    #[rstest]
    #[case(0)]
    #[case(1)]
    #[case(5)]
    #[case(6)]
    #[case(u8::MAX)]
    fn every_verbosity_is_a_filter(#[case] verbosity: u8) {
        assert!(directives(verbosity).parse::<Targets>().is_ok());
    }

    #[test]
    fn a_bad_filter_is_named() {
        let error = init(LogFormat::Text, 0, Some("a=b=c".into())).unwrap_err();
        assert!(error.to_string().contains("RUST_LOG=\"a=b=c\""), "{error}");
    }
}
