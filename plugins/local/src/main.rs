//! `bulkhead-local`: reads the command line, serves, says in one line why it cannot.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use bulkhead_local::config::{Config, Flags};
use bulkhead_local::metrics::{Metrics, MetricsError};
use bulkhead_local::plugin::Local;
use bulkhead_local::state::LockError;
use bulkhead_plugin::server::ServeError;
use clap::Parser;
use clap::error::ErrorKind;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// At least two threads: one that forwards must not starve one that answers. More than four only cost
/// memory: what is forwarded passes through the kernel far more than through here.
const WORKERS: std::ops::RangeInclusive<usize> = 2..=4;

/// The usual limit of open files of a process that has not been given another one.
const OPEN_FILES: u64 = 1024;

/// Nothing here recurses; the usual 2 MiB per thread would be reserved for nothing.
const STACK: usize = 1 << 20;

const WRONG_INPUT: u8 = 2;

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot start threads: {0}")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    State(#[from] LockError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(asked) if matches!(asked.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return if asked.print().is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        Err(wrong) => {
            let text = wrong.to_string();
            let line = text.lines().next().unwrap_or_default();
            say(&line.trim_start_matches("error: "));
            return ExitCode::from(WRONG_INPUT);
        }
    };
    let (open_files, raised) = raise_open_files();
    let config = match flags.resolve(open_files) {
        Ok(config) => config,
        Err(errors) => {
            for error in &errors {
                say(error);
            }
            return ExitCode::from(WRONG_INPUT);
        }
    };
    if let Err(error) = bulkhead_plugin::logging::init() {
        say(&error);
        return ExitCode::from(WRONG_INPUT);
    }
    if let Err(error) = raised {
        tracing::warn!(%error, open_files, "the limit of open files stays as it is");
    }
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> Result<(), RunError> {
    let cores = std::thread::available_parallelism().map_or(*WORKERS.start(), usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(*WORKERS.start(), *WORKERS.end()))
        .thread_stack_size(STACK)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    runtime.block_on(async {
        let Config {
            serve,
            settings,
            inventory,
            metrics_address,
        } = config;
        let plugin = Local::new(&settings.pool, inventory.as_deref());
        let metrics = match metrics_address {
            Some(at) => Some(Metrics::bind(at).await?),
            None => None,
        };
        let measured = plugin.clone();
        let show = async {
            match metrics {
                Some(metrics) => metrics.serve(measured).await,
                None => std::future::pending().await,
            }
        };
        let running = plugin.clone();
        tokio::select! {
            served = bulkhead_plugin::serve(plugin, serve) => Ok(served?),
            failed = running.run(settings) => Ok(failed?),
            failed = show => Ok(failed?),
        }
    })
}

/// Every connection costs two file descriptors, and the usual soft limit is 1,024. Says what the limit
/// is now.
fn raise_open_files() -> (u64, rustix::io::Result<()>) {
    let before = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: before.maximum,
            maximum: before.maximum,
        },
    );
    let now = if raised.is_ok() {
        before.maximum
    } else {
        before.current
    };
    (now.unwrap_or(OPEN_FILES), raised)
}

/// One line on stderr; where that is closed there is nobody to tell.
fn say(what: &impl Display) {
    writeln!(io::stderr(), "bulkhead-local: {what}").ok();
}
