//! What goes wrong with the third plugin.

use std::time::Duration;

use anyhow::Result;
use bulkhead_e2e::{SOON, Simulated};
use bulkhead_harness::Signal;
use bulkhead_sim::cloud::{Credentials, Effect, ErrorCode, Fault as Injected, SettingsChange, Span};
use clap::ValueEnum;

use super::rogue::Rogue;

/// More than the 16 MiB that an answer may have.
const TOO_LARGE: u64 = 17 << 20;
/// More than [`MEMORY_LIMIT`].
const TOO_MUCH: u64 = 256 << 20;
/// How much memory a child of the host may take for its data.
pub(super) const MEMORY_LIMIT: &str = "128Mi";
/// The calls that spoil everything that the plugin's objects need.
const CALLS: [&str; 2] = ["plugin/GetInstances", "plugin/EnsureLoadBalancer"];

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// SIGKILL, and nobody starts it again.
    Killed,
    /// SIGSTOP.
    Stopped,
    /// The process aborts in a call.
    Aborts,
    /// Each call panics.
    Panics,
    /// The process ends as soon as it is started, again and again.
    ExitsAtStart,
    /// Each call takes memory until the process meets its limit, again and again.
    Balloons,
    /// What listens there does not speak HTTP/2.
    Garbage,
    /// Each answer has 17 MiB.
    Oversized,
    /// What listens there speaks another revision of the protocol only.
    OtherRevision,
    /// The cloud refuses its credentials.
    Refused,
    /// The cloud asks for a pause, whatever it is asked.
    Throttled,
}

/// What a fault holds while it lasts.
pub(super) struct Lasting(
    #[expect(dead_code, reason = "what listens in the plugin's place ends by its drop")] Option<Rogue>,
);

impl Fault {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Aborts => "aborts",
            Self::Panics => "panics",
            Self::ExitsAtStart => "exits-at-start",
            Self::Balloons => "balloons",
            Self::Garbage => "garbage",
            Self::Oversized => "oversized",
            Self::OtherRevision => "other-revision",
            Self::Refused => "refused",
            Self::Throttled => "throttled",
        }
    }

    /// Whether the host starts the plugin itself, again and again.
    pub(super) const fn is_of_a_child(self) -> bool {
        matches!(self, Self::ExitsAtStart | Self::Balloons)
    }

    /// From now on, until what is returned is dropped or longer.
    pub(super) async fn begin(self, plugin: &Simulated<'_>) -> Result<Lasting> {
        let rogue = match self {
            Self::Killed => {
                end(plugin).await?;
                None
            }
            Self::Stopped => {
                plugin.plugin()?.process().signal(Signal::STOP)?;
                None
            }
            Self::Garbage => {
                end(plugin).await?;
                Some(Rogue::garbage(plugin.socket())?)
            }
            Self::OtherRevision => {
                end(plugin).await?;
                Some(Rogue::of_another_revision(plugin.socket())?)
            }
            Self::Refused => {
                let refused = SettingsChange::default().credentials(Credentials::Invalid);
                plugin.cloud().configure(&refused).await?;
                None
            }
            Self::Throttled => {
                let effect = Effect::Error {
                    code: ErrorCode::Throttled,
                    message: "too many calls".to_owned(),
                    retry_after: Some(Span(Duration::from_secs(2))),
                };
                plugin.cloud().add_fault(&Injected::new("*", effect)).await?;
                None
            }
            Self::Aborts => in_calls(plugin, &Effect::Abort).await?,
            Self::Panics => in_calls(plugin, &Effect::Panic).await?,
            Self::Oversized => in_calls(plugin, &Effect::Oversized(TOO_LARGE)).await?,
            Self::ExitsAtStart => {
                let exit = Injected::new("plugin/*", Effect::Exit(1));
                plugin.break_next(std::slice::from_ref(&exit))?;
                plugin.faults().add_fault(&exit).await?;
                None
            }
            Self::Balloons => {
                let faults = CALLS.map(|call| Injected::new(call, Effect::Balloon(TOO_MUCH)));
                plugin.break_next(&faults)?;
                in_calls(plugin, &Effect::Balloon(TOO_MUCH)).await?
            }
        };
        Ok(Lasting(rogue))
    }
}

async fn in_calls(plugin: &Simulated<'_>, effect: &Effect) -> Result<Option<Rogue>> {
    let faults = CALLS.map(|call| Injected::new(call, effect.clone()));
    plugin.faults().add_faults(&faults).await?;
    Ok(None)
}

async fn end(plugin: &Simulated<'_>) -> Result<()> {
    let process = plugin.plugin()?.process();
    process.kill()?;
    process.wait(SOON).await?;
    Ok(())
}
