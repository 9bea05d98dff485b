//! How long two plugins' objects wait to be served while a third plugin misbehaves.
//!
//! One host, never restarted, on a real API server. For each fault a plugin joins it that is in order first, so that
//! the time without the fault is measured in the same minute, with as many processes and as much to do.

mod fault;
mod rogue;
mod sight;
mod stage;
mod users;
mod verdict;

use anyhow::{Result, bail, ensure};
use bulkhead_harness::{Stopwatch, Workspace};
use clap::Args;

use self::fault::Fault;
use self::stage::Stage;
use self::verdict::Trial;
use crate::say;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How often each fault is tried; the best counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds that each trial measures, without the fault and then with it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// This fault only; repeatable
    #[arg(long, value_name = "FAULT")]
    only: Vec<Fault>,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let workspace = Workspace::new("bench-isolation")?;
    let result = measure(&workspace, &options).await;
    if result.is_err() {
        workspace.mark_failed();
    }
    result
}

async fn measure(workspace: &Workspace, options: &Options) -> Result<()> {
    let watch = Stopwatch::start();
    let stage = Stage::set(workspace, options.seconds).await?;
    say(verdict::heading())?;
    let mut missed = Vec::new();
    for fault in Fault::all().filter(|fault| options.only.is_empty() || options.only.contains(fault)) {
        let mut trials = Vec::new();
        for round in 1..=options.rounds {
            trials.push(stage.play(fault, round).await?);
        }
        let Some(best) = Trial::best(trials) else {
            bail!("no round was played");
        };
        say(best.line(fault))?;
        if !best.holds() {
            missed.push(fault.name());
        }
    }
    stage.end().await?;
    say(format!("\n{}; {}", verdict::rule(), watch.read()))?;
    ensure!(missed.is_empty(), "not so under: {}", missed.join(", "));
    Ok(())
}
