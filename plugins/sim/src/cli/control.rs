//! `bulkhead-sim control`: for people.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::{Args, Subcommand};

use crate::cloud::{Instance, Power};
use crate::control::{Client, ControlError};
use crate::v1;

#[derive(Debug, Args)]
pub(super) struct ControlFlags {
    /// The socket of a cloud, or of a plugin's --control
    #[arg(long, value_name = "URL")]
    endpoint: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print everything that exists, one object a line
    Dump {
        /// Only of these kinds, as `load_balancer`
        kinds: Vec<String>,
    },
    /// Print how often each operation was called
    Counts,
    /// Print the last calls, oldest first
    Calls {
        /// Only those after the call with this number
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// Only those that changed the cloud
        #[arg(long)]
        writes: bool,
    },
    /// Change settings, as `{latency: 50ms, outages: [zone-b]}`; prints all of them
    Set {
        /// What to change, in YAML or JSON
        settings: String,
    },
    /// What goes wrong
    #[command(subcommand)]
    Fault(Fault),
    /// Machines
    #[command(subcommand)]
    Instance(Machine),
    /// Remove objects at once, as somebody beside the plugin would
    Remove {
        /// Their ids
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Fault {
    /// Add one, as `{on: create/load_balancer, effect: lostAnswer, times: 1}`; prints its id
    Add {
        /// The fault, in YAML or JSON
        fault: String,
    },
    /// Print those that are set, and how often they happened
    List,
    /// Take these away, or all
    Clear {
        /// Their ids
        ids: Vec<u64>,
    },
}

#[derive(Debug, Subcommand)]
enum Machine {
    /// Add one that runs
    Add {
        /// The cloud's key
        id: String,
        /// The name of its node
        name: String,
        /// An IP address, or Type=value; repeatable
        #[arg(long)]
        address: Vec<String>,
        /// Where it is
        #[arg(long, default_value = "zone-a")]
        zone: String,
    },
    /// Let one do something: running, stopped, terminated and so on
    Power {
        /// The cloud's key
        id: String,
        /// What it does from now on
        power: String,
    },
    /// Remove one, without a trace
    Remove {
        /// The cloud's key
        id: String,
    },
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriveError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("{0:?} is no power state")]
    Power(String),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

impl From<tonic::Status> for DriveError {
    fn from(status: tonic::Status) -> Self {
        Self::Control(status.into())
    }
}

pub(super) async fn drive(flags: ControlFlags) -> Result<(), DriveError> {
    let client = Client::new(&flags.endpoint)?;
    let text = run(&client, flags.command).await?;
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

async fn run(client: &Client, command: Command) -> Result<String, DriveError> {
    match command {
        Command::Dump { kinds } => {
            let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
            Ok(lines(client.inventory(&kinds).await?, object))
        }
        Command::Counts => {
            let counts = client.counts().await?;
            Ok(lines(counts, |(name, count)| {
                let v1::Count {
                    calls,
                    writes,
                    failed,
                } = count;
                format!("{name}\tcalls={calls}\twrites={writes}\tfailed={failed}")
            }))
        }
        Command::Calls { after, writes } => {
            let calls = if writes {
                client.writes_after(after).await?
            } else {
                client.calls_after(after).await?
            };
            Ok(lines(calls, |record| call(&record)))
        }
        Command::Set { settings } => {
            let answer = client.raw().configure(v1::ConfigureRequest { settings }).await?;
            Ok(format!("{}\n", answer.into_inner().settings))
        }
        Command::Fault(command) => fault(client, command).await,
        Command::Instance(command) => instance(client, command).await,
        Command::Remove { ids } => {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            Ok(format!("removed {}\n", client.remove(&ids).await?))
        }
    }
}

async fn fault(client: &Client, command: Fault) -> Result<String, DriveError> {
    match command {
        Fault::Add { fault } => {
            let faults = format!("[{fault}]");
            let added = client.raw().add_faults(v1::AddFaultsRequest { faults }).await?;
            Ok(lines(added.into_inner().ids, |id| id.to_string()))
        }
        Fault::List => {
            let listed = client.raw().list_faults(v1::ListFaultsRequest {}).await?;
            Ok(lines(listed.into_inner().faults, |fault| state(&fault)))
        }
        Fault::Clear { ids } => {
            let gone = client.raw().clear_faults(v1::ClearFaultsRequest { ids }).await?;
            Ok(lines(gone.into_inner().faults, |fault| state(&fault)))
        }
    }
}

async fn instance(client: &Client, command: Machine) -> Result<String, DriveError> {
    match command {
        Machine::Add {
            id,
            name,
            address,
            zone,
        } => {
            let instance = Instance {
                addresses: address,
                zone,
                ..Instance::new(id, name, "")
            };
            client.put_instance(&instance).await?;
        }
        Machine::Power { id, power } => {
            let power = Power::of_name(&power).ok_or(DriveError::Power(power))?;
            client.set_power(&id, power).await?;
        }
        Machine::Remove { id } => return Ok(format!("removed {}\n", client.remove(&[&id]).await?)),
    }
    Ok(String::new())
}

fn lines<T>(all: impl IntoIterator<Item = T>, line: impl Fn(T) -> String) -> String {
    let mut text = String::new();
    for one in all {
        text.push_str(&line(one));
        text.push('\n');
    }
    text
}

fn object(object: v1::Object) -> String {
    let mut line = format!(
        "{}\t{}\t{}\t{}",
        object.id, object.kind, object.state, object.name
    );
    if !object.parent.is_empty() {
        write!(line, "\tparent={}", object.parent).ok();
    }
    for (key, value) in object.attributes {
        write!(line, "\t{key}={value}").ok();
    }
    for (key, value) in object.tags {
        write!(line, "\t[{key}={value}]").ok();
    }
    line
}

fn state(fault: &v1::FaultState) -> String {
    format!("{}\tfired={}\t{}", fault.id, fault.fired, fault.fault)
}

fn call(record: &v1::CallRecord) -> String {
    let caller = record.caller.clone().unwrap_or_default();
    let wrote = if record.wrote { "wrote" } else { "-" };
    let objects = record.objects.join(",");
    format!(
        "{}\t{}\t{wrote}\t{}\t{}\t{}\t{objects}",
        record.number, record.operation, record.answer, caller.plugin, caller.rpc
    )
}
