//! `bulkhead-soak`: hours of churn in minutes, on a real API server, looking for whatever is left behind.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use bulkhead_e2e::soak::{self, Options};
use bulkhead_harness::{Workspace, exit_code, scenario};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Hours of churn in minutes, on a real API server, looking for whatever is left behind.
///
/// Exit codes: 0 nothing leaked, 1 something did or was out of reach, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-soak", version)]
struct Arguments {
    /// How long, without start and end
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// What decides what happens; a random one if not given
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

const INTERRUPTED: u8 = 130;

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let options = Options {
        seed: arguments.seed.unwrap_or_else(rand::random),
        length: Duration::from_secs(60) * arguments.minutes,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            played = scenario("soak", async |workspace| play(workspace, options).await) => Ok(exit_code(played)?),
            _ = interrupt.recv() => Ok(ExitCode::from(INTERRUPTED)),
            _ = terminate.recv() => Ok(ExitCode::from(INTERRUPTED)),
        }
    })
}

async fn play(workspace: &Workspace, options: Options) -> Result<()> {
    // Nobody reads: nothing to be said, and the exit code remains.
    soak::run(workspace, options, &mut |line| {
        drop(writeln!(io::stdout(), "{line}"));
    })
    .await
}
