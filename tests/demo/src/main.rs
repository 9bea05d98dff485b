//! `bulkhead-demo`: shows Bulkhead at work, on a real API server and with real traffic.
//!
//! Every line that it prints is a fact that it has just measured; one that does not hold makes the exit code
//! non-zero. It plays the parts that a real cluster has beside the host: machines, kubelets, clients.

mod acts;
mod cluster;
mod machine;
mod prober;
mod report;
mod stage;

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bulkhead_harness::Workspace;
use clap::Parser;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::report::Report;

/// Shows Bulkhead at work on a real API server, checking every line it prints.
///
/// Exit codes: 0 everything holds, 1 something does not, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-demo", version)]
struct Arguments {
    /// Leave everything running until Ctrl-C, and print how to use kubectl with it
    #[arg(long)]
    keep: bool,
}

const INTERRUPTED: u8 = 130;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the demo's runtime")?;
    runtime.block_on(show(arguments.keep))
}

/// Plays until the end, or until somebody has seen enough. Either way everything that runs is ended by its drop.
async fn show(keep: bool) -> Result<ExitCode> {
    let mut interruption = Interruption::install().context("listen for Ctrl-C")?;
    let workspace = Workspace::new("demo")?;
    let mut report = Report::begin();
    let played = tokio::select! {
        stage = acts::play(&workspace, &mut report) => stage,
        () = interruption.comes() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    match played {
        Ok(stage) if keep => {
            let ended = tokio::select! {
                Err(error) = acts::go_on(stage, &mut report) => Some(error),
                () = interruption.comes() => None,
            };
            if let Some(error) = ended {
                report.failed(format_args!("{error:#}"))?;
            }
        }
        Ok(_) => {}
        Err(error) => report.failed(format_args!("{error:#}"))?,
    }
    if report.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    workspace.mark_failed();
    Ok(ExitCode::FAILURE)
}

/// Ctrl-C, or what a supervisor sends in its place.
struct Interruption {
    interrupt: Signal,
    terminate: Signal,
}

impl Interruption {
    fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn comes(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
