//! Clients of the load balancer: one that asks a few times, one that never stops asking.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_harness::Stopwatch;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// For a whole connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Between two connections of the one that never stops: the resolution of the gap it measures.
const PAUSE: Duration = Duration::from_millis(2);
/// An answer is a name; whoever sends more is not a node.
const ANSWER_MAX: u64 = 256;

/// Connects, and returns the name that answers.
pub(crate) async fn ask(address: SocketAddr) -> Result<String> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let mut answer = String::new();
        stream.take(ANSWER_MAX).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = timeout(ANSWER_WITHIN, exchange)
        .await
        .with_context(|| format!("{address} has not answered within {ANSWER_WITHIN:?}"))?
        .with_context(|| format!("ask {address}"))?;
    match answer.strip_suffix('\n') {
        Some(name) => Ok(name.to_owned()),
        None => bail!("{address} answered {answer:?}, which is no name"),
    }
}

/// How often each node answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers(BTreeMap<String, usize>);

impl Answers {
    /// Asks so many times, one after another.
    pub(crate) async fn collect(address: SocketAddr, count: usize) -> Result<Self> {
        let mut answers = Self::default();
        for _ in 0..count {
            *answers.0.entry(ask(address).await?).or_default() += 1;
        }
        Ok(answers)
    }

    /// The nodes that answered at all, in alphabetical order.
    pub(crate) fn nodes(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self
            .0
            .iter()
            .map(|(name, count)| format!("{name} {count}×"))
            .collect();
        f.write_str(&shown.join(", "))
    }
}

/// What the prober has seen since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Connections that were answered.
    pub(crate) answered: usize,
    /// Connections that were not.
    pub(crate) failed: usize,
    /// The longest time between two answers.
    pub(crate) longest_gap: Duration,
}

/// Asks again and again, one connection after another, until it is dropped.
#[derive(Debug)]
pub(crate) struct Prober {
    tally: Arc<Mutex<Tally>>,
    _task: JoinSet<()>,
}

impl Prober {
    pub(crate) fn start(address: SocketAddr) -> Self {
        let tally = Arc::default();
        let mut task = JoinSet::new();
        task.spawn(probe(address, Arc::clone(&tally)));
        Self { tally, _task: task }
    }

    /// What it has seen since the last `take`.
    pub(crate) fn tally(&self) -> Tally {
        *lock(&self.tally)
    }

    /// What it has seen since the last `take`; begins to count anew.
    pub(crate) fn take(&self) -> Tally {
        std::mem::take(&mut lock(&self.tally))
    }
}

#[expect(clippy::infinite_loop, reason = "the prober that owns it ends it")]
async fn probe(address: SocketAddr, tally: Arc<Mutex<Tally>>) {
    let mut last_answer = Stopwatch::start();
    loop {
        let answered = ask(address).await.is_ok();
        {
            let mut tally = lock(&tally);
            if answered {
                tally.answered += 1;
                tally.longest_gap = tally.longest_gap.max(last_answer.elapsed());
                last_answer = Stopwatch::start();
            } else {
                tally.failed += 1;
            }
        }
        sleep(PAUSE).await;
    }
}

/// Numbers are always whole: a panic elsewhere leaves them good.
fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;
    use bulkhead_harness::{NodeStandIn, Workspace, eventually};

    use super::*;

    const PORT: u16 = 30_080;

    async fn until(prober: &Prober, what: &str, holds: fn(Tally) -> bool) {
        eventually(Duration::from_secs(10), what, async || {
            ensure!(holds(prober.tally()), "{:?}", prober.tally());
            Ok(())
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn an_outage_is_seen_as_failures_and_as_a_gap() {
        let workspace = Workspace::new("demo-prober").unwrap();
        let mut machine = NodeStandIn::new("node-1", workspace.loopback(1));
        machine.listen(PORT).await.unwrap();
        let prober = Prober::start(SocketAddr::new(machine.address(), PORT));
        until(&prober, "answers", |tally| tally.answered > 3).await;
        assert_eq!(prober.take().failed, 0);

        let outage = Stopwatch::start();
        machine.close(PORT).await;
        until(&prober, "failures", |tally| tally.failed > 3).await;
        let at_least = outage.elapsed();
        prober.take();
        machine.listen(PORT).await.unwrap();
        until(&prober, "answers again", |tally| tally.answered > 0).await;
        assert!(prober.tally().longest_gap >= at_least);
    }

    #[tokio::test]
    async fn answers_are_counted_by_name() {
        let workspace = Workspace::new("demo-answers").unwrap();
        let mut machine = NodeStandIn::new("node-1", workspace.loopback(1));
        machine.listen(PORT).await.unwrap();
        let front = SocketAddr::new(machine.address(), PORT);
        let answers = Answers::collect(front, 3).await.unwrap();
        assert_eq!(answers.nodes(), ["node-1"]);
        assert_eq!(answers.to_string(), "node-1 3×");
    }
}
