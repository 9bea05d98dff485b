//! The host's way to a plugin: handle, gate, budget, deadline, cancellation, count, tonic, and the check of the answer.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead::clock;
use bulkhead::config::{BudgetConfig, RateConfig};
use bulkhead::leader::{Epoch, Standing, Term};
use bulkhead::metrics::Metrics;
use bulkhead::plugin::{self, PluginHandle, SessionState, Settings, Timing};
use bulkhead::tasks::Tasks;
use bulkhead_core::cloud::InstanceAnswer;
use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::node::view::NodeView;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::SOON;
use super::load::{Caller, IN_FLIGHT};
use super::question::{self, Question};

/// No bound that is met, and one that is counted in each call all the same.
const RATE: f64 = 1e7;
/// Longer than any run.
const TERM: Duration = Duration::from_hours(1);
const GRACE: Duration = Duration::from_secs(5);

/// The runtime of one plugin, as a host has it.
pub(super) struct ThroughHost {
    plugin: PluginHandle,
    tasks: Tasks,
    _standing: watch::Sender<Standing>,
}

impl ThroughHost {
    /// Begins a session, and waits until it takes calls.
    pub(super) async fn start(socket: &Path) -> Result<Self> {
        let in_flight = NonZeroUsize::new(IN_FLIGHT).context("nothing in flight")?;
        let settings = Settings {
            name: "bench".to_owned(),
            endpoint: Endpoint::Unix(socket.to_owned()),
            allowed_uids: Vec::new(),
            provider: None,
            cluster: question::cluster(),
            host_name: "bench".to_owned(),
            run_root: std::env::temp_dir(),
            memory_limit: None,
            tls: None,
            timing: Timing::DEFAULT,
            budget: BudgetConfig {
                calls_in_flight: Some(in_flight),
                rate: Some(RateConfig {
                    per_second: RATE,
                    burst: in_flight,
                }),
            },
        };
        let (standing, follow) = watch::channel(Standing::Leading(term()));
        let (tasks, metrics) = (Tasks::new(), Metrics::register(&mut Registry::default()));
        let plugin = plugin::start(settings, follow, Arc::new(metrics.plugins), &tasks);
        let mut view = plugin.subscribe();
        let active = timeout(SOON, view.wait_for(|view| view.state == SessionState::Active));
        active.await.context("the plugin's session does not begin")??;
        Ok(Self {
            plugin,
            tasks,
            _standing: standing,
        })
    }

    pub(super) fn caller(&self, question: Question) -> HostCaller {
        HostCaller {
            plugin: self.plugin.clone(),
            question,
            nodes: Arc::new([question.node()]),
        }
    }

    /// Ends the session.
    pub(super) async fn end(self) -> Result<()> {
        Ok(self.tasks.stop(GRACE).await?)
    }
}

/// A controller, as it asks for a node.
#[derive(Clone)]
pub(super) struct HostCaller {
    plugin: PluginHandle,
    question: Question,
    nodes: Arc<[Arc<NodeView>; 1]>,
}

impl Caller for HostCaller {
    async fn call(&self) -> Result<()> {
        let answers = self
            .plugin
            .get_instances(&*self.nodes, self.question.aspects(), Duration::ZERO);
        match answers.await {
            Ok(answers) if matches!(answers[..], [InstanceAnswer::Found(_)]) => Ok(()),
            other => bail!("not the answer: {other:?}"),
        }
    }
}

fn term() -> Term {
    Term {
        epoch: Epoch {
            lease_uid: "bench".to_owned(),
            transitions: 1,
        },
        renewed: clock::now(),
        lease_duration: TERM,
        lost: CancellationToken::new(),
    }
}
