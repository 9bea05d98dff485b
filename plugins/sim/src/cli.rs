//! The command line: a plugin, a cloud of its own, or a control.

mod control;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bulkhead_plugin::ServeFlags;
use bulkhead_plugin::options::{EndpointError, socket_path};
use bulkhead_plugin::server::ServeError;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::api::{self, CloudApi};
use crate::clock;
use crate::plugin::{PluginFaults, Sim};
use crate::running::RunningCloud;
use crate::scenario::{Scenario, ScenarioError};

const WRONG_INPUT: u8 = 2;

/// Bulkhead's simulated cloud: a plugin in front of a cloud that misbehaves on demand.
///
/// Without a command it is a plugin, with a cloud in its own process or, with --cloud, in another. Exit codes: 0 ended
/// when asked, 1 failed while running, 2 wrong input.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-sim", version, args_conflicts_with_subcommands = true)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    plugin: PluginFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cloud that several plugins share and that outlives them
    Cloud(CloudFlags),
    /// Drive a cloud or a plugin that runs with --control
    Control(control::ControlFlags),
}

#[derive(Debug, Args)]
struct PluginFlags {
    #[command(flatten)]
    serve: ServeFlags,
    /// A socket to drive this process by, in a folder that exists
    #[arg(long, value_name = "URL")]
    control: Option<String>,
    /// The cloud's socket, where the cloud is another process: see `bulkhead-sim cloud`
    #[arg(long, value_name = "URL")]
    cloud: Option<String>,
    /// What the cloud has and how all of this behaves, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// What chance begins with; wins over the scenario's
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// The provider's name, and the scheme of its provider IDs; wins over the scenario's [default: sim]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// A load-balancer class, in place of those of the scenario; empty for Services without; repeatable
    #[arg(long, value_name = "CLASS")]
    class: Vec<String>,
}

#[derive(Debug, Args)]
struct CloudFlags {
    /// The socket to serve the cloud and its control on, in a folder that exists
    #[arg(long, value_name = "URL")]
    listen: String,
    /// What the cloud has and how it behaves, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// What chance begins with; wins over the scenario's
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

/// Why it does not run.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Fault(#[from] crate::cloud::FaultError),
    #[error(transparent)]
    Logging(#[from] bulkhead_plugin::logging::LoggingError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot serve the control: {0}")]
    Control(#[source] io::Error),
    #[error("cannot serve the cloud: {0}")]
    Cloud(#[source] io::Error),
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Driven(#[from] control::DriveError),
}

impl RunError {
    /// Whether the input must change.
    fn is_input(&self) -> bool {
        matches!(
            self,
            Self::Endpoint(_) | Self::Scenario(_) | Self::Fault(_) | Self::Logging(_)
        )
    }
}

/// The whole program.
pub fn main() -> ExitCode {
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
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            if error.is_input() {
                ExitCode::from(WRONG_INPUT)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn run(flags: Flags) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(RunError::Start)?;
    runtime.block_on(async {
        match flags.command {
            None => plugin(flags.plugin).await,
            Some(Command::Cloud(flags)) => cloud(flags).await,
            Some(Command::Control(flags)) => Ok(control::drive(flags).await?),
        }
    })
}

async fn plugin(flags: PluginFlags) -> Result<(), RunError> {
    let options = flags.serve.resolve()?.answers_of_any_size();
    let mut scenario = scenario(flags.scenario.as_deref(), flags.seed)?;
    if let Some(provider) = flags.provider {
        scenario.plugin.provider = provider;
    }
    if !flags.class.is_empty() {
        scenario.plugin.classes = flags.class;
    }
    let api = match &flags.cloud {
        Some(cloud) => CloudApi::there(&socket_path(cloud)?),
        None => CloudApi::Here(RunningCloud::new(scenario.cloud(clock::boot())?)),
    };
    let faults = PluginFaults::new(scenario.seed);
    for fault in scenario.faults.iter().filter(|fault| fault.is_of_plugin()) {
        faults.add(fault.clone())?;
    }
    let control = flags.control.as_deref().map(socket_path).transpose()?;
    bulkhead_plugin::logging::init()?;
    let driven = async {
        match &control {
            Some(path) => crate::control::serve(&api, faults.clone(), path).await,
            None => std::future::pending().await,
        }
    };
    let sim = Sim::new(api.clone(), scenario.plugin, faults.clone());
    tokio::select! {
        served = bulkhead_plugin::serve(sim, options) => Ok(served?),
        failed = driven => failed.map_err(RunError::Control),
    }
}

async fn cloud(flags: CloudFlags) -> Result<(), RunError> {
    let path = socket_path(&flags.listen)?;
    let cloud = RunningCloud::new(scenario(flags.scenario.as_deref(), flags.seed)?.cloud(clock::boot())?);
    bulkhead_plugin::logging::init()?;
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Start)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Start)?;
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tracing::info!(endpoint = %path.display(), "serving a cloud");
    api::serve_cloud(cloud, &path, stop)
        .await
        .map_err(RunError::Cloud)
}

fn scenario(path: Option<&Path>, seed: Option<u64>) -> Result<Scenario, ScenarioError> {
    let mut scenario = path.map(Scenario::load).transpose()?.unwrap_or_default();
    scenario.seed = seed.unwrap_or(scenario.seed);
    Ok(scenario)
}

/// One line on stderr; where that is closed there is nobody to tell.
fn say(what: &impl Display) {
    writeln!(io::stderr(), "bulkhead-sim: {what}").ok();
}
