//! What listens at a plugin's socket and cannot be used costs others nothing, is told once, and is in use as soon as a
//! plugin that can be used takes its place.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Metrics, SOON, Simulated, is_uninitialised, simulated};
use bulkhead_harness::{Address, Host, PluginProcess, Workspace, eventually, resolve_binary, scenario};
use futures::future::try_join_all;
use kube::{ResourceExt, api::PostParams};

/// One row: its name, the state in which it is shown, and the Event about it, if any.
struct Row {
    name: &'static str,
    state: &'static str,
    told: Option<[&'static str; 2]>,
}

/// Where Events about plugins are.
const NOTICE_BOARD: &str = "Lease/cloud-controller-manager";

const ROWS: [Row; 4] = [
    Row {
        name: "noisy",
        state: "discovered",
        told: None,
    },
    // It takes connections and never says anything.
    Row {
        name: "mute",
        state: "discovered",
        told: None,
    },
    Row {
        name: "future",
        state: "incompatible",
        told: Some([
            "PluginIncompatible",
            "it speaks protocol revisions [99], this host speaks 1",
        ]),
    },
    // It says that it is the provider whose provider IDs are those of plugin one.
    Row {
        name: "usurper",
        state: "active",
        told: Some(["PluginClaimRefused", "one"]),
    },
];

/// A process that is no plugin at the socket of `cloud`'s.
fn stranger(workspace: &Workspace, cloud: &Simulated<'_>, says: &str) -> Result<PluginProcess> {
    let mut command = Command::new(resolve_binary("bulkhead-stranger", "BULKHEAD_STRANGER_BIN")?);
    command.args(["--says", says]);
    PluginProcess::run(
        workspace,
        cloud.name(),
        Address::Unix(cloud.socket().to_owned()),
        command,
    )
}

/// Puts at each socket what cannot be used; what is in `processes` ends with it.
async fn occupy(workspace: &Workspace, clouds: &mut [Simulated<'_>]) -> Result<Vec<PluginProcess>> {
    let mut processes = Vec::new();
    for cloud in clouds {
        match cloud.name() {
            "noisy" => processes.push(stranger(workspace, cloud, "noise")?),
            "mute" => processes.push(stranger(workspace, cloud, "nothing")?),
            "future" => {
                let journal = workspace.join("journal").to_string_lossy().into_owned();
                let arguments = ["--journal", &journal, "--revision", "99"];
                processes.push(PluginProcess::scripted(workspace, "future", arguments)?);
            }
            _ => {
                cloud.pose_as("one")?;
                cloud.replace().await?;
            }
        }
    }
    for process in &processes {
        process.wait_listening(SOON).await?;
    }
    Ok(processes)
}

/// Whether its Services wait. The usurper's classes are its own, and served.
fn is_unserved(cloud: &Simulated<'_>) -> bool {
    cloud.name() != "usurper"
}

async fn nothing_has_changed(
    cluster: &Cluster,
    cloud: &Simulated<'_>,
    version: Option<&String>,
) -> Result<()> {
    let node = cluster.nodes().get(cloud.name()).await?;
    ensure!(
        is_uninitialised(&node) && node.resource_version().as_ref() == version,
        "node {} was written to",
        cloud.name()
    );
    if is_unserved(cloud) {
        let service = cluster.services().get(cloud.name()).await?;
        ensure!(
            service.finalizers().is_empty(),
            "Service {} was touched",
            cloud.name()
        );
    }
    Ok(())
}

/// Waits until the host has met it, and says so.
async fn is_met(host: &Host, cluster: &Cluster, row: &Row) -> Result<()> {
    let what = format!("the host to meet plugin {}", row.name);
    eventually(SOON, &what, async || {
        let metrics = Metrics::of(host, cluster).await?;
        let of = ("plugin", row.name);
        let state = metrics.sum("bulkhead_plugin_state", &[of, ("state", row.state)])?;
        let asked = metrics.sum("bulkhead_plugin_calls_total", &[of, ("verb", "Describe")])?;
        ensure!(state == Some(1.0), "state {} is {state:?}", row.state);
        ensure!(asked.unwrap_or_default() > 0.0, "it was not asked who it is");
        Ok(())
    })
    .await?;
    let what = format!("people to be told of plugin {}", row.name);
    eventually(SOON, &what, async || {
        let warnings = cluster.warnings_by_object().await?;
        let told = warnings.get(NOTICE_BOARD).into_iter().flatten();
        let told: Vec<_> = told.filter(|note| note.contains(row.name)).collect();
        let expected = row
            .told
            .is_none_or(|[reason, note]| told.iter().any(|it| it.starts_with(reason) && it.contains(note)));
        ensure!(expected, "{told:?}");
        Ok(())
    })
    .await
}

/// At most one Event about each plugin and each object of theirs, and none about anything else.
async fn is_told_once(cluster: &Cluster) -> Result<()> {
    for (object, notes) in cluster.warnings_by_object().await? {
        if object == NOTICE_BOARD {
            for row in ROWS {
                let about = notes.iter().filter(|note| note.contains(row.name)).count();
                ensure!(about == usize::from(row.told.is_some()), "{notes:#?}");
            }
            ensure!(notes.len() == 2, "{notes:#?}");
        } else {
            let is_theirs = ROWS.iter().any(|row| object.ends_with(&format!("/{}", row.name)));
            ensure!(is_theirs && notes.len() == 1, "{object}: {notes:#?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_costs_others_nothing_and_is_in_use_once_it_can_be() -> Result<()> {
    scenario("unusable.all", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let healthy = [
            Simulated::start(workspace, "one").await?,
            Simulated::start(workspace, "other").await?,
        ];
        let mut clouds = Vec::new();
        for row in ROWS {
            clouds.push(Simulated::without_plugin(workspace, row.name).await?);
        }
        let configs = |clouds: &[Simulated<'_>]| clouds.iter().map(Simulated::config).collect::<Vec<_>>();
        let config = simulated::configure(workspace, "host", &configs(&healthy))?;
        let host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        let serve = async |name: &str| -> Result<()> {
            try_join_all(healthy.iter().map(|cloud| cloud.serves(&cluster, name))).await?;
            Ok(())
        };
        serve("before").await?;

        let strangers = occupy(workspace, &mut clouds).await?;
        let all = [configs(&healthy), configs(&clouds)].concat();
        simulated::configure(workspace, "host", &all)?;
        let mut versions = Vec::new();
        for cloud in &clouds {
            let node = cloud.machine(cloud.name()).await?;
            let node = cluster.nodes().create(&PostParams::default(), &node).await?;
            versions.push(node.resource_version());
            if is_unserved(cloud) {
                cluster.add_service(&cloud.service(cloud.name())).await?;
            }
        }
        for row in &ROWS {
            is_met(&host, &cluster, row).await?;
        }
        serve("meanwhile").await?;
        for (cloud, version) in clouds.iter().zip(&versions) {
            nothing_has_changed(&cluster, cloud, version.as_ref()).await?;
        }

        drop(strangers);
        for cloud in &mut clouds {
            let provider = cloud.name().to_owned();
            cloud.pose_as(&provider)?;
            cloud.replace().await?;
        }
        for cloud in &clouds {
            let name = cloud.name();
            cluster.initialised(name).await?;
            if !is_unserved(cloud) {
                cluster.add_service(&cloud.service(name)).await?;
            }
            cloud.served(&cluster, name).await.context(name.to_owned())?;
        }
        is_told_once(&cluster).await
    })
    .await
}
