//! `bulkhead-bench`: measures what the documentation promises, on this machine, in one run.

mod isolation;
mod latency;
mod local;
mod sample;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use bulkhead_harness::exit_code;
use clap::Parser;

/// Measures what the documentation promises, on this machine, in one run.
///
/// Exit codes: 0 every bound holds, 1 one does not or something was out of reach.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-bench", version)]
enum Arguments {
    /// The local balancer beside HAProxy and nginx: connections, bulk, UDP, memory
    Local(local::Options),
    /// A call to a plugin over a unix socket, through all layers of the host
    Latency(latency::Options),
    /// What `latency` calls
    #[command(hide = true)]
    Serve(latency::Serve),
    /// How long two plugins' calls take while a third misbehaves
    Isolation(isolation::Options),
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads() {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.enable_all().build().context("start the runtime")?;
    let ended = runtime.block_on(async {
        match arguments {
            Arguments::Local(options) => local::run(options).await,
            Arguments::Latency(options) => latency::run(options).await,
            Arguments::Serve(serve) => serve.run().await,
            Arguments::Isolation(options) => isolation::run(options).await,
        }
    });
    Ok(exit_code(ended)?)
}

impl Arguments {
    /// How many threads the runtime has; `None`: one for each core.
    const fn threads(&self) -> Option<usize> {
        match self {
            Self::Latency(options) => Some(options.threads.get()),
            Self::Serve(serve) => Some(serve.threads.get()),
            Self::Local(_) | Self::Isolation(_) => None,
        }
    }
}

/// Tells whoever runs this.
fn say(text: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}
