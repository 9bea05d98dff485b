//! A fault of one plugin stays in its room: what others own is served meanwhile, what it owns stays as it is, and it
//! works again without a restart of the host.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{
    Cluster, Metrics, SOON, Simulated, cloud, ingress, is_uninitialised, scripted, simulated,
};
use bulkhead_harness::{Host, Signal, Workspace, eventually, scenario, service_lb};
use bulkhead_scripted::{Behaviour, Failure, Rpc};
use bulkhead_sim::cloud::{Credentials, Effect, ErrorCode, Fault as Injected, SettingsChange, Span};
use futures::future::try_join_all;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::timeout;

/// What goes wrong with the faulty plugin or its cloud.
enum Fault {
    /// Its process is killed.
    Killed,
    /// Its process is stopped, and goes on later.
    Stopped,
    /// This happens in every call for instances or load balancers. The process that comes after it is in order.
    Broken(Effect),
    /// It takes more memory than it may, and so does every process that comes after it.
    Ballooned,
    /// The cloud's settings, and those that cure it.
    Cloud(Box<(SettingsChange, SettingsChange)>),
    /// The cloud asks for a pause, whatever it is asked.
    Throttled,
}

/// One row: its name, the fault, and the metric that says why, beyond `plugin="faulty"`.
struct Row {
    name: &'static str,
    fault: Fault,
    shown_by: (&'static str, &'static [(&'static str, &'static str)]),
}

const CALLS: &str = "bulkhead_plugin_calls_total";
const SHUT: &str = "bulkhead_plugin_gate_shut_total";
const SESSIONS: &str = "bulkhead_plugin_sessions_total";
/// What the plugin that takes too much memory may have.
const MEMORY: &str = "128Mi";
/// What it takes.
const BALLOON: u64 = 1 << 30;
/// More than the 16 MiB that an answer may have.
const TOO_LARGE: u64 = 17 << 20;

fn rows() -> Vec<Row> {
    let broken = |name, effect, result: &'static [(&'static str, &'static str)]| Row {
        name,
        fault: Fault::Broken(effect),
        shown_by: (CALLS, result),
    };
    let settings = SettingsChange::default;
    vec![
        Row {
            name: "killed",
            fault: Fault::Killed,
            shown_by: (SESSIONS, &[]),
        },
        Row {
            name: "stopped",
            fault: Fault::Stopped,
            shown_by: (SESSIONS, &[]),
        },
        Row {
            name: "balloons",
            fault: Fault::Ballooned,
            shown_by: (SESSIONS, &[]),
        },
        broken("panics", Effect::Panic, &[("result", "panic")]),
        broken("aborts", Effect::Abort, &[("result", "disconnected")]),
        broken("oversized", Effect::Oversized(TOO_LARGE), &[]),
        broken("wrong-ids", Effect::WrongIds, &[("result", "protocol_violation")]),
        broken("garbage", Effect::Garbage, &[("result", "protocol_violation")]),
        broken("empty", Effect::Empty, &[]),
        Row {
            name: "refused",
            fault: Fault::Cloud(Box::new((
                settings().credentials(Credentials::Invalid),
                settings().credentials(Credentials::Valid),
            ))),
            shown_by: (SHUT, &[("why", "credentials")]),
        },
        Row {
            name: "throttled",
            fault: Fault::Throttled,
            shown_by: (SHUT, &[("why", "throttled")]),
        },
    ]
}

/// This happens whenever the plugin works.
fn in_work(effect: &Effect) -> [Injected; 2] {
    ["plugin/GetInstances", "plugin/EnsureLoadBalancer"].map(|call| Injected::new(call, effect.clone()))
}

impl Fault {
    async fn begin(&self, cloud: &Simulated<'_>) -> Result<()> {
        match self {
            Self::Killed => {
                let process = cloud.plugin()?.process();
                process.kill()?;
                process.wait(SOON).await?;
            }
            Self::Stopped => cloud.plugin()?.process().signal(Signal::STOP)?,
            Self::Broken(effect) => {
                cloud.faults().add_faults(&in_work(effect)).await?;
            }
            Self::Ballooned => {
                let faults = in_work(&Effect::Balloon(BALLOON));
                // That process, and those that come after it.
                cloud.break_next(&faults)?;
                cloud.faults().add_faults(&faults).await?;
            }
            Self::Throttled => {
                let effect = Effect::Error {
                    code: ErrorCode::Throttled,
                    message: "too many calls".to_owned(),
                    retry_after: Some(Span(Duration::from_secs(2))),
                };
                cloud.cloud().add_fault(&Injected::new("*", effect)).await?;
            }
            Self::Cloud(settings) => cloud.cloud().configure(&settings.0).await?,
        }
        Ok(())
    }

    /// Whether it is over once another process is there.
    const fn ends_with_its_process(&self) -> bool {
        match self {
            Self::Killed => true,
            // A panic breaks one call, not the process.
            Self::Broken(effect) => !matches!(effect, Effect::Panic),
            Self::Stopped | Self::Ballooned | Self::Cloud(_) | Self::Throttled => false,
        }
    }

    async fn end(&self, cloud: &Simulated<'_>) -> Result<()> {
        match self {
            Self::Killed | Self::Broken(_) => Ok(cloud.faults().clear_faults().await?),
            Self::Stopped => cloud.plugin()?.process().signal(Signal::CONT),
            Self::Ballooned => cloud.break_next(&[]),
            Self::Throttled => Ok(cloud.cloud().clear_faults().await?),
            Self::Cloud(settings) => Ok(cloud.cloud().configure(&settings.1).await?),
        }
    }
}

/// Four plugins of four clouds and a fifth that ends as soon as it is started, at one host.
struct Stage<'a> {
    cluster: &'a Cluster,
    host: Host,
    faulty: Simulated<'a>,
    /// Whose plugin is a child of the host.
    hungry: Simulated<'a>,
    healthy: Vec<Simulated<'a>>,
}

impl Stage<'_> {
    async fn serve_healthy(&self, name: &str) -> Result<()> {
        try_join_all(self.healthy.iter().map(|cloud| cloud.serves(self.cluster, name))).await?;
        Ok(())
    }

    /// The plugin that has the fault.
    fn faulty(&self, row: &Row) -> &Simulated<'_> {
        if matches!(row.fault, Fault::Ballooned) {
            &self.hungry
        } else {
            &self.faulty
        }
    }

    /// How the plugin is, and why.
    async fn state(&self, row: &Row) -> Result<[String; 2]> {
        let answer = self.host.get("/readyz/plugins", None).await?;
        let page: Value = serde_json::from_str(&answer.body)?;
        let plugins = page
            .get("plugins")
            .and_then(Value::as_array)
            .context("no plugins")?;
        let name = self.faulty(row).name();
        let plugin = plugins.iter().find(|plugin| plugin["name"] == name);
        let plugin = plugin.with_context(|| answer.body.clone())?;
        let text = |field: &str| plugin[field].as_str().unwrap_or_default().to_owned();
        Ok([text("state"), text("message")])
    }

    async fn count(&self, row: &Row) -> Result<f64> {
        let (name, labels) = row.shown_by;
        let labels: Vec<_> = labels
            .iter()
            .copied()
            .chain([("plugin", self.faulty(row).name())])
            .collect();
        Ok(Metrics::of(&self.host, self.cluster)
            .await?
            .sum(name, &labels)?
            .unwrap_or_default())
    }

    /// Waits until the host has met the fault.
    async fn felt(&self, row: &Row, before: f64) -> Result<()> {
        let what = format!("the host to meet: {}", row.name);
        eventually(SOON, &what, async || {
            match &row.fault {
                Fault::Killed | Fault::Stopped | Fault::Broken(Effect::Abort) => {
                    let [state, why] = self.state(row).await?;
                    ensure!(state == "gone", "the plugin is {state}: {why}");
                }
                Fault::Ballooned => {
                    let [_, why] = self.state(row).await?;
                    ensure!(why.contains("SIGABRT"), "the plugin is as it is: {why}");
                }
                Fault::Broken(_) => {
                    let faults = self.faulty.faults().raw();
                    let faults = faults
                        .clone()
                        .list_faults(bulkhead_sim::v1::ListFaultsRequest {})
                        .await?;
                    let faults = faults.into_inner().faults;
                    ensure!(faults.iter().all(|fault| fault.fired > 0), "{faults:?}");
                }
                Fault::Cloud(..) | Fault::Throttled => {
                    let (count, [state, _]) = (self.count(row).await?, self.state(row).await?);
                    ensure!(count > before, "{:?} is {count}", row.shown_by);
                    // It has said so itself: that it has others will be news.
                    let is_told = row.shown_by.1 != [("why", "credentials")] || state == "degraded";
                    ensure!(is_told, "the plugin is {state}");
                }
            }
            Ok(())
        })
        .await
    }

    async fn play(&mut self, row: &Row) -> Result<()> {
        let cluster = self.cluster;
        let cloud = self.faulty(row);
        let name = &format!("{}-{}", cloud.name(), row.name);
        let of_settled = async || cluster.versions(&settled(cloud)).await;
        let versions = of_settled().await?;
        let before = self.count(row).await?;
        row.fault.begin(cloud).await?;
        cloud.add(cluster, name).await?;
        self.felt(row, before).await?;
        self.serve_healthy(row.name).await?;
        ensure!(
            of_settled().await? == versions,
            "what was in order has been written to"
        );
        let node = cluster.nodes().get(name).await?;
        ensure!(
            is_uninitialised(&node) && node.spec.unwrap_or_default().provider_id.is_none(),
            "{name} was initialised"
        );
        ensure!(
            ingress(&cluster.services().get(name).await?).is_empty(),
            "{name} has an address"
        );

        if row.fault.ends_with_its_process() {
            self.faulty.replace().await?;
        } else {
            row.fault.end(cloud).await?;
        }
        self.faulty(row).served(cluster, name).await?;
        let after = self.count(row).await?;
        ensure!(after > before, "{:?} is {after} as before", row.shown_by);
        cluster.remove(name).await
    }
}

/// The node and the Service of a cloud that were in order before anything went wrong.
fn settled(cloud: &Simulated<'_>) -> String {
    format!("{}-settled", cloud.name())
}

async fn stage<'a>(workspace: &'a Workspace, cluster: &'a Cluster) -> Result<Stage<'a>> {
    let faulty = Simulated::start(workspace, "faulty").await?;
    let hungry = Simulated::without_plugin(workspace, "hungry").await?;
    let healthy = vec![
        Simulated::start(workspace, "one").await?,
        Simulated::start(workspace, "other").await?,
    ];
    let mut plugins = vec![
        faulty.config(),
        hungry.spawned_config(MEMORY)?,
        simulated::spawned(workspace, "looping")?,
    ];
    plugins.extend(healthy.iter().map(Simulated::config));
    let config = simulated::configure(workspace, "host", &plugins)?;
    let host = Host::start(workspace, &cluster.configured_host(&config)?)?;
    Ok(Stage {
        cluster,
        host,
        faulty,
        hungry,
        healthy,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_plugin_costs_the_others_nothing_and_its_own_objects_no_change() -> Result<()> {
    scenario("isolation.faults", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let mut stage = stage(workspace, &cluster).await?;
        let pid = stage.host.process().pid();

        // There is no scenario to start with: it ends with exit code 2, again and again.
        cluster
            .nodes()
            .create(
                &PostParams::default(),
                &simulated::node_of("looping", "looping-node"),
            )
            .await?;
        let looping = simulated::scenario_path(workspace, "looping");
        stage
            .host
            .process()
            .wait_for_log("plugin looping started", SOON)
            .await?;
        for cloud in [&stage.faulty, &stage.hungry] {
            let name = &settled(cloud);
            let node = cloud.machine(name).await?;
            cluster.nodes().create(&PostParams::default(), &node).await?;
            cluster.initialised(name).await?;
            cluster.add_service(&cloud.service(name)).await?;
            cloud.served(&cluster, name).await?;
        }
        stage.serve_healthy("looping").await?;
        let starts = |log: String| log.matches("plugin looping started").count();
        eventually(SOON, "some starts", async || {
            let starts = starts(stage.host.process().log()?);
            ensure!(starts >= 4, "{starts}");
            Ok(())
        })
        .await?;
        let instance = json!({ "id": "i-1", "name": "looping-node" });
        let repaired = json!({
            "plugin": { "provider": "looping", "classes": [simulated::class_of("looping")] },
            "cloud": { "instances": [instance] },
        });
        fs::write(&looping, repaired.to_string())?;
        cluster.initialised("looping-node").await?;
        cluster
            .add_service(&simulated::service_of("looping", "looping-service"))
            .await?;
        cluster.address("looping-service").await?;

        for row in rows() {
            stage.play(&row).await.with_context(|| row.name)?;
        }

        ensure!(
            stage.host.process().is_running() && stage.host.process().pid() == pid,
            "the host has ended"
        );
        for (object, notes) in cluster.warnings_by_object().await? {
            let is_of = |name: &str| {
                object.contains(&format!("/{name}-"))
                    || notes
                        .iter()
                        .all(|note| note.contains(&format!("lugin {name} is frozen")))
            };
            ensure!(is_of("faulty") || is_of("hungry"), "{object}: {notes:#?}");
            // What went well between faults may go wrong in each of them.
            let most = if object.ends_with("-settled") {
                rows().len()
            } else {
                1
            };
            ensure!(notes.len() <= most, "{object}: {notes:#?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_services_that_all_fail_do_not_delay_the_others_of_their_plugin() -> Result<()> {
    const FAILING: usize = 20;
    const OTHERS: usize = 10;
    /// Without those that fail it takes some hundred milliseconds.
    const USUAL: Duration = Duration::from_secs(5);
    scenario("isolation.provider_error", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let failing: Vec<String> = (0..FAILING).map(|number| format!("failing-{number}")).collect();
        for name in &failing {
            let no = Behaviour::Fails(Failure::provider("the cloud says no"));
            plugin
                .script()
                .always_about(Rpc::EnsureLoadBalancer, &format!("default/{name}"), no);
        }
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        for name in &failing {
            cluster.add_service(&service_lb(name)).await?;
        }
        // Each has failed, and again after its first pause.
        eventually(SOON, "two failures of each", async || {
            let calls = plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer)?;
            for name in &failing {
                let about = format!("default/{name}");
                let count = calls.iter().filter(|call| call.about.contains(&about)).count();
                ensure!(count >= 2, "{name}: {count}");
            }
            Ok(())
        })
        .await?;
        for number in 0..OTHERS {
            let name = format!("well-{number}");
            cluster.add_service(&service_lb(&name)).await?;
            cluster.add_node(&name).await?;
            cluster.address_within(&name, USUAL).await?;
            timeout(USUAL, cluster.initialised(&name)).await.context(name)??;
        }
        let metrics = Metrics::of(&host, &cluster).await?;
        let lb = |state| metrics.sum("bulkhead_plugin_gate", &[("capability", "lb"), ("state", state)]);
        ensure!(
            lb("open")? == Some(1.0) && lb("shut")? == Some(0.0),
            "the gate is not open"
        );
        ensure!(
            metrics.sum(SHUT, &[])?.unwrap_or_default() == 0.0,
            "a gate was shut"
        );
        for (object, notes) in cluster.warnings_by_object().await? {
            ensure!(
                object.contains("/failing-") && notes.len() == 1,
                "{object}: {notes:#?}"
            );
        }
        Ok(())
    })
    .await
}
