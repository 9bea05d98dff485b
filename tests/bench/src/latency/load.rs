//! Callers at work: one call after the other, and many at once.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_harness::Stopwatch;
use tokio::task::JoinSet;

use crate::sample::Sample;

/// Calls at once, where there are many.
pub(super) const IN_FLIGHT: usize = 64;

/// Makes the same call again and again.
pub(super) trait Caller: Clone + Send + Sync + 'static {
    /// One call; an error if it was not answered as it should be.
    fn call(&self) -> impl Future<Output = Result<()>> + Send;
}

/// What one round came to.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// How long calls take of which there is one at a time.
    pub(super) alone: Sample,
    /// Calls a second with [`IN_FLIGHT`] at once.
    pub(super) rate: f64,
}

/// Measures both, each for `lasting`, after a tenth of it that does not count.
pub(super) async fn round(caller: &impl Caller, lasting: Duration) -> Result<Round> {
    calls(caller, 1, lasting / 10).await?;
    let alone = calls(caller, 1, lasting).await?;
    calls(caller, IN_FLIGHT, lasting / 10).await?;
    let watch = Stopwatch::start();
    let made = calls(caller, IN_FLIGHT, lasting).await?.len();
    let rate = f64::from(u32::try_from(made)?) / watch.elapsed().as_secs_f64();
    Ok(Round { alone, rate })
}

/// The times of all calls begun within `lasting`, `at_once` of them at any time.
async fn calls(caller: &impl Caller, at_once: usize, lasting: Duration) -> Result<Sample> {
    let watch = Stopwatch::start();
    let mut workers = JoinSet::new();
    for _ in 0..at_once {
        let caller = caller.clone();
        // On the runtime's own threads, as the host's workers are.
        workers.spawn(async move {
            let mut times = Vec::new();
            while watch.elapsed() < lasting {
                let call = Stopwatch::start();
                caller.call().await?;
                times.push(call.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut all = Vec::new();
    while let Some(times) = workers.join_next().await {
        all.extend(times.context("a worker panicked")??);
    }
    Sample::new(all).context("no call was made")
}
