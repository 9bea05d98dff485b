//! One host, two plugins that are well, and a third that will not be.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Metrics, SOON, Simulated, simulated};
use bulkhead_harness::{Host, Signal, Workspace, eventually};
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::try_join;

use super::fault::{self, Fault};
use super::users::Users;
use super::verdict::Trial;

/// What is not measured before each trial.
const WARM_UP: Duration = Duration::from_secs(1);
/// Calls a second of a healthy plugin at the most: its budget is not what is measured.
const RATE: u32 = 1000;

/// How the API server's own Events begin, by which it tells of the cluster IP of a Service that is gone already.
const REPAIR: &str = "Cluster IP [";

/// The cluster and all who run in it.
pub(super) struct Stage<'a> {
    workspace: &'a Workspace,
    cluster: Cluster,
    host: Host,
    healthy: Vec<Simulated<'a>>,
    users: Users,
    lasting: Duration,
}

impl<'a> Stage<'a> {
    /// Starts everything but the plugin that will be faulty; a trial measures twice for `seconds`.
    pub(super) async fn set(workspace: &'a Workspace, seconds: u64) -> Result<Self> {
        let cluster = Cluster::start(workspace).await?;
        let healthy = vec![
            Simulated::start(workspace, "one").await?,
            Simulated::start(workspace, "other").await?,
        ];
        let config = simulated::configure(workspace, "host", &configs(&healthy))?;
        let host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        let stage = Self {
            workspace,
            users: Users::new(&cluster),
            cluster,
            host,
            healthy,
            lasting: Duration::from_secs(seconds),
        };
        for plugin in &stage.healthy {
            stage.is_active(plugin.name()).await?;
            stage.users.settle(plugin).await?;
        }
        Ok(stage)
    }

    /// One more plugin, first in order, then with the fault.
    pub(super) async fn play(&self, fault: Fault, round: u32) -> Result<Trial> {
        let name = format!("{}-{round}", fault.name());
        self.trial(fault, &name).await.with_context(|| name)
    }

    async fn trial(&self, fault: Fault, name: &str) -> Result<Trial> {
        let mut third = Simulated::without_plugin(self.workspace, name).await?;
        let config = if fault.is_of_a_child() {
            third.spawned_config(fault::MEMORY_LIMIT)?
        } else {
            third.replace().await?;
            third.config()
        };
        let mut plugins = configs(&self.healthy);
        plugins.push(config);
        simulated::configure(self.workspace, "host", &plugins)?;
        self.host.process().signal(Signal::HUP)?;
        self.is_active(name).await?;
        let node = self.users.settle(&third).await?;
        self.users.use_for(WARM_UP, &self.healthy).await?;

        let calm = self.users.use_for(self.lasting, &self.healthy);
        let (calm, served) = try_join!(calm, self.users.bring(&third))?;
        try_join_all(served.iter().map(|object| self.users.served(object))).await?;

        let lasting = fault.begin(&third).await?;
        let faulty = self.users.use_for(self.lasting, &self.healthy);
        let (faulty, waiting) = try_join!(faulty, self.users.bring(&third))?;
        let met = self.met(name).await?;
        for object in &waiting {
            ensure!(
                !self.users.is_served(object),
                "{object:?} was served under the fault"
            );
        }
        self.others_noticed_nothing().await?;
        drop(lasting);
        try_join_all(
            served
                .iter()
                .chain(&waiting)
                .chain([&node])
                .map(|object| self.users.remove(object)),
        )
        .await?;
        Ok(Trial { calm, faulty, met })
    }

    /// Ends the host, which must have run all the time.
    pub(super) async fn end(self) -> Result<()> {
        ensure!(self.host.process().is_running(), "the host has ended");
        self.host.stop(SOON).await?;
        Ok(())
    }

    async fn is_active(&self, plugin: &str) -> Result<()> {
        eventually(SOON, &format!("plugin {plugin} to be active"), async || {
            let state = self.state(plugin).await?;
            ensure!(state == "active", "it is {state}");
            Ok(())
        })
        .await
    }

    /// How the host sees `plugin`.
    async fn state(&self, plugin: &str) -> Result<String> {
        let answer = self.host.get("/readyz/plugins", None).await?;
        let page: Value = serde_json::from_str(&answer.body)?;
        let plugins = page.get("plugins").and_then(Value::as_array);
        let of = plugins.and_then(|all| all.iter().find(|it| it.get("name") == Some(&json!(plugin))));
        let state = of.and_then(|it| it.get("state")?.as_str());
        Ok(state.with_context(|| answer.body.clone())?.to_owned())
    }

    /// What the fault came to at the host, which must have met it.
    async fn met(&self, plugin: &str) -> Result<String> {
        let (state, metrics) = (
            self.state(plugin).await?,
            Metrics::of(&self.host, &self.cluster).await?,
        );
        let of_plugin = [("plugin", plugin)];
        let failed = failed(&metrics, plugin)?;
        let in_flight = metrics
            .sum("bulkhead_plugin_calls_in_flight", &of_plugin)?
            .unwrap_or_default();
        let shut = metrics
            .sum("bulkhead_plugin_gate_shut_total", &of_plugin)?
            .unwrap_or_default();
        let met = format!("{state}; calls failed: {failed}, in flight: {in_flight}; gates shut: {shut}");
        ensure!(
            state != "active" || failed + in_flight + shut > 0.0,
            "the host has not met the fault: {met}"
        );
        Ok(met)
    }

    async fn others_noticed_nothing(&self) -> Result<()> {
        let metrics = Metrics::of(&self.host, &self.cluster).await?;
        for plugin in self.healthy.iter().map(Simulated::name) {
            let failed = failed(&metrics, plugin)?;
            ensure!(
                failed == 0.0,
                "{failed} calls of plugin {plugin} failed, which has no fault"
            );
            let shut = metrics.sum("bulkhead_plugin_gate_shut_total", &[("plugin", plugin)])?;
            ensure!(
                shut.unwrap_or_default() == 0.0,
                "a gate of plugin {plugin} was shut"
            );
        }
        for warning in self.cluster.warnings().await? {
            let about = warning.regarding.unwrap_or_default().name.unwrap_or_default();
            let note = warning.note.unwrap_or_default();
            let is_theirs = |it: &Simulated<'_>| about.starts_with(&format!("{}-", it.name()));
            ensure!(
                note.starts_with(REPAIR) || !self.healthy.iter().any(is_theirs),
                "{about}: {note}"
            );
        }
        Ok(())
    }
}

fn configs(plugins: &[Simulated<'_>]) -> Vec<Value> {
    let config = |plugin: &Simulated<'_>| {
        let mut config = plugin.config();
        if let Some(fields) = config.as_object_mut() {
            fields.insert("budget".to_owned(), json!({ "ratePerSecond": RATE }));
        }
        config
    };
    plugins.iter().map(config).collect()
}

/// Calls of `plugin` that ended other than well.
fn failed(metrics: &Metrics, plugin: &str) -> Result<f64> {
    let calls = |labels: &[(&str, &str)]| metrics.sum("bulkhead_plugin_calls_total", labels);
    let all = calls(&[("plugin", plugin)])?.unwrap_or_default();
    Ok(all - calls(&[("plugin", plugin), ("result", "ok")])?.unwrap_or_default())
}
