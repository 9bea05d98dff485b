//! `bulkhead-local`: reads the command line, serves, says in one line why it cannot.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use bulkhead_local::config::{Config, Flags};
use bulkhead_local::plugin::Local;
use bulkhead_local::state::LockError;
use bulkhead_plugin::server::ServeError;
use clap::Parser;
use clap::error::ErrorKind;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Two threads: one that forwards must not starve one that answers; more would only cost memory.
const WORKERS: usize = 2;

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
    let config = match flags.resolve() {
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
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> Result<(), RunError> {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_stack_size(STACK)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    runtime.block_on(async {
        let Config {
            serve,
            settings,
            inventory,
        } = config;
        let plugin = Local::new(&settings.pool, inventory.as_deref());
        let running = plugin.clone();
        tokio::select! {
            served = bulkhead_plugin::serve(plugin, serve) => Ok(served?),
            failed = running.run(settings) => Ok(failed?),
        }
    })
}

/// Every connection costs two file descriptors, and the usual soft limit is 1,024.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// One line on stderr; where that is closed there is nobody to tell.
fn say(what: &impl Display) {
    writeln!(io::stderr(), "bulkhead-local: {what}").ok();
}
