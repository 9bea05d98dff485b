//! The local balancer beside HAProxy and nginx: one load after another, on each in turn, in several rounds.

mod backend;
mod config;
mod contestant;
mod figures;
mod led;
mod load;
mod report;
mod usage;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_harness::{Stopwatch, Workspace};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::sleep;

use backend::Backends;
use config::Site;
use contestant::{Contestant, find};
use figures::{Measure, figures, mebibytes};
use load::{Load, hold};
use report::Rounds;

/// What the local plugin takes, see its `main`; the others are told the same.
const THREADS: std::ops::RangeInclusive<usize> = 2..=4;
/// Held while memory is looked at; below the local plugin's default maximum.
const HELD: usize = 1000;
/// Open files that holding those takes here: clients and backends.
const OPEN_FILES: u64 = 4096;
const PORT: u16 = 7000;
const BACKEND_PORT: u16 = 7100;
/// Hosts of this run's network of loopback addresses.
const BACKENDS: [u8; 2] = [101, 102];
const FIRST_CONTESTANT: u8 = 10;
/// Between two loads: what the one before left to clear up must not count for the next.
const SETTLE: Duration = Duration::from_millis(150);
const INSTALL: &str = "on Debian: `apt-get install haproxy nginx libnginx-mod-stream`";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long each load lasts, on each balancer, in each round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// How often everything is measured; medians count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// HAProxy's program [default: `haproxy` on the PATH]
    #[arg(long, value_name = "PATH")]
    haproxy: Option<PathBuf>,
    /// Give HAProxy `option splice-auto`
    #[arg(long)]
    splice: bool,
    /// nginx's program, which needs the stream module [default: `nginx` on the PATH]
    #[arg(long, value_name = "PATH")]
    nginx: Option<PathBuf>,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    raise_open_files()?;
    let workspace = Workspace::new("bench-local")?;
    let watch = Stopwatch::start();
    let measured = Box::pin(measure(&workspace, &options)).await;
    let (contestants, rounds) = measured.inspect_err(|_| workspace.mark_failed())?;
    drop(contestants);
    let report = rounds.report(conditions(&options, watch)?);
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "{report}")?;
    }
    let (checked, missed) = report.missed();
    ensure!(missed == 0, "{missed} of {checked} bounds are missed");
    Ok(())
}

async fn measure(workspace: &Workspace, options: &Options) -> Result<(Vec<Contestant>, Rounds)> {
    let addresses = BACKENDS.map(|host| workspace.loopback(host));
    let _backends = Backends::serve(&addresses, BACKEND_PORT).await?;
    let contestants = Box::pin(start(workspace, options)).await?;
    let names = contestants.iter().map(|one| one.name.clone());
    let mut rounds = Rounds::new(names.collect());
    for (number, contestant) in contestants.iter().enumerate() {
        let memory = contestant.memory()?.proportional;
        rounds.add(number, Measure::IdleMebibytes, mebibytes(memory));
    }
    for round in 1..=options.rounds {
        say(&format!("round {round} of {}", options.rounds))?;
        Box::pin(memory(&contestants, &mut rounds)).await?;
        for load in Load::ALL {
            for (number, contestant) in contestants.iter().enumerate() {
                if load == Load::Datagrams && !contestant.datagrams {
                    continue;
                }
                let before = contestant.cpu()?;
                let run = load
                    .put_on(contestant.at, Duration::from_secs(options.seconds))
                    .await
                    .with_context(|| format!("{load:?} through {}", contestant.name))?;
                let cpu = contestant.cpu()?.saturating_sub(before);
                for (measure, value) in figures(load, run, cpu) {
                    rounds.add(number, measure, value);
                }
                sleep(SETTLE).await;
            }
        }
    }
    Ok((contestants, rounds))
}

async fn memory(contestants: &[Contestant], rounds: &mut Rounds) -> Result<()> {
    for (number, contestant) in contestants.iter().enumerate() {
        let held = hold(contestant.at, HELD)
            .await
            .with_context(|| format!("{HELD} connections through {}", contestant.name))?;
        let memory = contestant.memory()?;
        rounds.add(number, Measure::HeldMebibytes, mebibytes(memory.proportional));
        rounds.add(number, Measure::HeldResidentMebibytes, mebibytes(memory.resident));
        drop(held);
        sleep(SETTLE).await;
    }
    Ok(())
}

/// All of them; ours first.
async fn start(workspace: &Workspace, options: &Options) -> Result<Vec<Contestant>> {
    let haproxy = find(options.haproxy.as_deref(), "haproxy");
    let nginx = find(options.nginx.as_deref(), "nginx");
    if haproxy.is_none() && nginx.is_none() {
        bail!("neither HAProxy nor nginx is here to compare with; {INSTALL}");
    }
    let mut sites = (FIRST_CONTESTANT..).map(|host| Site {
        at: std::net::SocketAddrV4::new(workspace.loopback(host), PORT),
        backends: BACKENDS.map(|host| workspace.loopback(host)),
        backend_port: BACKEND_PORT,
        threads: threads(),
    });
    let mut site = || sites.next().context("no address is left");
    let mut all = vec![Box::pin(Contestant::local(workspace, &site()?)).await?];
    match haproxy {
        Some(program) => {
            let site = site()?;
            let one = Contestant::haproxy(workspace, &site, &program, options.splice);
            all.push(Box::pin(one).await?);
        }
        None => say(&format!(
            "HAProxy is not here: nothing is compared with it; {INSTALL}"
        ))?,
    }
    match nginx {
        Some(program) => {
            all.push(Box::pin(Contestant::nginx(workspace, &site()?, &program)).await?);
        }
        None => say(&format!(
            "nginx is not here: TCP is not compared with it, UDP with nothing; {INSTALL}"
        ))?,
    }
    Ok(all)
}

fn threads() -> usize {
    cores().clamp(*THREADS.start(), *THREADS.end())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(*THREADS.start(), usize::from)
}

fn conditions(options: &Options, watch: Stopwatch) -> Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's version")?;
    let splice = if options.splice { "; HAProxy splices" } else { "" };
    Ok(format!(
        "{} cores shared by clients, balancer and backends; {} threads each; Linux {}; {} rounds of {} s; took {}{splice}\n\
         median (least-most); ratio: ours to theirs",
        cores(),
        threads(),
        kernel.trim(),
        options.rounds,
        options.seconds,
        watch.read()
    ))
}

/// Clients and backends hold two each for every held connection; the usual soft limit is 1,024.
fn raise_open_files() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    ensure!(
        maximum.is_none_or(|maximum| maximum >= OPEN_FILES),
        "open files are limited to {maximum:?}: at least {OPEN_FILES} are needed (`ulimit -Hn`)"
    );
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).context("raise the limit of open files")
}

/// To the user, beside the report.
fn say(text: &str) -> Result<()> {
    Ok(writeln!(io::stderr(), "{text}")?)
}
