//! A call to a plugin over a unix socket through all layers of the host, beside the same call by tonic alone.

mod load;
mod question;
mod serve;
mod through_host;
mod through_tonic;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead::telemetry::{self, LogFormat};
use bulkhead_harness::{Process, Workspace, eventually};
use clap::Args;

pub(crate) use self::serve::Serve;

use self::load::Round;
use self::question::Question;
use self::serve::Kind;
use self::through_host::ThroughHost;
use self::through_tonic::TonicCaller;
use crate::sample::median;
use crate::say;

/// What half of the small calls through the host may take at the most, one at a time.
const P50_MOST: Duration = Duration::from_micros(150);
/// With [`load::IN_FLIGHT`] small ones in flight, the least that may pass through the host of what passes from tonic to
/// tonic: 50,000 calls a second on a machine where tonic alone makes 84,000.
const SHARE_LEAST: f64 = 50.0 / 84.0;
/// For what works at once.
const SOON: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How often each is measured, one after the other; the medians count
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds that each measures in a round, once with one call at a time and once with 64 in flight
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Threads of the runtime of each process
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    pub(crate) threads: NonZeroUsize,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    // As in a host: without a subscriber the libraries' spans would cost more than they do there.
    let _detail = telemetry::init(LogFormat::Text, 0, Some("warn".to_owned()))?;
    let workspace = Workspace::new("bench-latency")?;
    let (_bare, bare_socket) = start(&workspace, Kind::Bare, options.threads).await?;
    let (_plugin, plugin_socket) = start(&workspace, Kind::Plugin, options.threads).await?;
    let host = ThroughHost::start(&plugin_socket).await?;
    say(format!(
        "GetInstances over a unix socket; median of {} rounds of {} s each; the caller in one process, the called in \
         another, threads for each: {}\n",
        options.rounds, options.seconds, options.threads
    ))?;

    let ways = Ways {
        bare: &bare_socket,
        plugin: &plugin_socket,
        host: &host,
    };
    let (p50, share) = ways.measure(Question::Small, &options).await?;
    ways.measure(Question::Joined, &options).await?;
    host.end().await?;
    judge(p50, share)
}

/// The ways that a question takes.
struct Ways<'a> {
    bare: &'a Path,
    plugin: &'a Path,
    host: &'a ThroughHost,
}

impl Ways<'_> {
    /// Measures all three, and says what they come to. Half of the calls through the host take so long, and with many in
    /// flight that share of what passes from tonic to tonic passes through it.
    async fn measure(&self, question: Question, options: &Options) -> Result<(Duration, f64)> {
        let bare = TonicCaller::connect(self.bare, question).await?;
        let to_plugin = TonicCaller::connect(self.plugin, question).await?;
        let through_host = self.host.caller(question);
        let lasting = Duration::from_secs(options.seconds);
        let (mut bares, mut plugins, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            bares.push(load::round(&bare, lasting).await?);
            plugins.push(load::round(&to_plugin, lasting).await?);
            hosts.push(load::round(&through_host, lasting).await?);
        }
        let (host, floor) = (Figures::of(&hosts)?, Figures::of(&bares)?);
        // Of each round: what else the machine does changes from one to the next.
        let shares = hosts
            .iter()
            .zip(&bares)
            .map(|(host, bare)| share(host.rate, bare.rate));
        let share = median(shares).context("no round")?;
        say(question)?;
        say(format!(
            "{:34} {:>9} {:>9} {:>9} {:>14}",
            "", "p50", "p99", "p99.9", "64 in flight"
        ))?;
        say(row("tonic to tonic", &floor))?;
        say(row("tonic to a plugin on the SDK", &Figures::of(&plugins)?))?;
        say(row("the host to a plugin on the SDK", &host))?;
        say(ratio(&host, &floor, share))?;
        Ok((host.p50, share))
    }
}

/// Starts a process that answers, and waits until it does.
async fn start(workspace: &Workspace, kind: Kind, threads: NonZeroUsize) -> Result<(Process, PathBuf)> {
    let folder = workspace.join(kind.name());
    let socket = folder.join("plugin.sock");
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command
        .arg("serve")
        .arg(kind.name())
        .arg(&socket)
        .arg(threads.to_string());
    let process = Process::spawn(workspace, kind.name(), command)?;
    eventually(SOON, &format!("{} to listen", kind.name()), async || {
        Ok(tokio::net::UnixStream::connect(&socket).await?)
    })
    .await?;
    Ok((process, socket))
}

/// How much of `whole` is `part`.
fn share(part: f64, whole: f64) -> f64 {
    part / whole.max(f64::MIN_POSITIVE)
}

/// The medians of some rounds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    p50: Duration,
    p99: Duration,
    p999: Duration,
    /// Calls a second.
    rate: f64,
}

impl Figures {
    fn of(rounds: &[Round]) -> Result<Self> {
        let time = |rank| median(rounds.iter().map(|round| round.alone.per_mille(rank))).context("no round");
        Ok(Self {
            p50: time(500)?,
            p99: time(990)?,
            p999: time(999)?,
            rate: median(rounds.iter().map(|round| round.rate)).context("no round")?,
        })
    }
}

fn row(name: &str, figures: &Figures) -> String {
    let micros = |time: Duration| format!("{:.0} µs", time.as_secs_f64() * 1e6);
    format!(
        "{name:34} {:>9} {:>9} {:>9} {:>12.0}/s",
        micros(figures.p50),
        micros(figures.p99),
        micros(figures.p999),
        figures.rate
    )
}

fn ratio(host: &Figures, bare: &Figures, share: f64) -> String {
    let of = |one: Duration, other: Duration| self::share(one.as_secs_f64(), other.as_secs_f64());
    format!(
        "{:34} {:>9.2} {:>9.2} {:>9.2} {share:>14.2}\n",
        "  of tonic to tonic",
        of(host.p50, bare.p50),
        of(host.p99, bare.p99),
        of(host.p999, bare.p999),
    )
}

fn judge(p50: Duration, share: f64) -> Result<()> {
    let bounds = [
        (
            format!("p50 through the host: {p50:?}, at most {P50_MOST:?}"),
            p50 <= P50_MOST,
        ),
        (
            format!(
                "through the host with {} in flight: {share:.2} of tonic to tonic, at least {SHARE_LEAST:.2}",
                load::IN_FLIGHT
            ),
            share >= SHARE_LEAST,
        ),
    ];
    for (bound, holds) in &bounds {
        say(format!("{} {bound}", if *holds { "✓" } else { "✗" }))?;
    }
    ensure!(bounds.iter().all(|(_, holds)| *holds), "a bound does not hold");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::both_hold(150, 50_000.0, true)]
    #[case::slow(151, 50_000.0, false)]
    #[case::few(150, 49_999.0, false)]
    fn a_bound_that_is_missed_fails_the_run(#[case] micros: u64, #[case] rate: f64, #[case] holds: bool) {
        let share = share(rate, 84_000.0);
        assert_eq!(judge(Duration::from_micros(micros), share).is_ok(), holds);
    }
}
