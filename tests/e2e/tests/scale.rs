//! Many Services and many nodes: what is new does not wait for what is old, and nothing is asked or written in vain.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Metrics, SOON, Simulated, simulated};
use bulkhead_harness::{Host, eventually, scenario};
use bulkhead_sim::cloud::Distribution;
use futures::future::try_join_all;
use kube::api::PostParams;

async fn joins(cluster: &Cluster, cloud: &Simulated<'_>, name: &str) -> Result<()> {
    let node = cloud.machine(name).await?;
    cluster.nodes().create(&PostParams::default(), &node).await?;
    cluster.initialised(name).await.map(drop)
}

async fn serves(cluster: &Cluster, cloud: &Simulated<'_>, name: &str) -> Result<()> {
    cluster.add_service(&cloud.service(name)).await?;
    cluster.address(name).await.map(drop)
}

async fn serve_many(cluster: &Cluster, cloud: &Simulated<'_>, count: usize) -> Result<()> {
    let names: Vec<String> = (0..count).map(|number| format!("web-{number}")).collect();
    try_join_all(names.iter().map(|name| serves(cluster, cloud, name))).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn serial_sync_a_new_service_does_not_wait_for_those_before_a_restart() -> Result<()> {
    const BEFORE: usize = 60;
    /// Of each call of the cloud. One load balancer is looked at with several, and made with more than ten: one after
    /// another they would take a minute.
    const LATENCY: Duration = Duration::from_millis(150);
    const WITHIN: Duration = Duration::from_secs(15);
    scenario("scale.serial_sync", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let own = Simulated::start(workspace, "own").await?;
        let config = simulated::configure(workspace, "host", &[own.config()])?;
        let options = cluster.configured_host(&config)?;
        let host = Host::start(workspace, &options)?;
        joins(&cluster, &own, "node-1").await?;
        serve_many(&cluster, &own, BEFORE).await?;
        ensure!(host.stop(SOON).await?.success());
        drop(host);

        own.cloud().set_latency(Distribution::always(LATENCY)).await?;
        let last = own.cloud().total().await?.calls;
        let host = Host::start(workspace, &options)?;
        host.wait_ready(SOON).await?;
        cluster.add_service(&own.service("new")).await?;
        cluster.address_within("new", WITHIN).await?;

        // Those that stand as they should cost no write, also once all of them have been looked at.
        eventually(SOON, "the queue to be empty", async || {
            let metrics = Metrics::of(&host, &cluster).await?;
            let labels = [("name", "service"), ("plugin", "own")];
            let depth = metrics.sum("workqueue_depth", &labels)?.context("no depth")?;
            let working = metrics.sum("workqueue_unfinished_work_seconds", &labels)?;
            ensure!(
                depth == 0.0 && working == Some(0.0),
                "{depth} keys, {working:?} s in work"
            );
            Ok(())
        })
        .await?;
        let writes = own.cloud().writes_after(last).await?;
        let of = |operation: &str| writes.iter().filter(|write| write.operation == operation).count();
        ensure!(
            of("create/load_balancer") == 1 && of("create/listener") == 1,
            "{writes:#?}"
        );
        ensure!(writes.len() <= 12, "{writes:#?}");
        ensure!(own.balancers().await? == BEFORE + 1);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_subscription_many_nodes_cost_each_load_balancer_few_writes() -> Result<()> {
    const SERVICES: usize = 30;
    const NODES: usize = 20;
    /// Of targets, of one load balancer, while all nodes join at once; one for each node would be 20.
    const WRITES: u64 = 5;
    const WITHIN: Duration = Duration::from_secs(10);
    scenario("scale.quota_subscription", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let own = Simulated::start(workspace, "own").await?;
        let config = simulated::configure(workspace, "host", &[own.config()])?;
        let host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        joins(&cluster, &own, "node-0").await?;
        serve_many(&cluster, &own, SERVICES).await?;
        let writes = async || -> Result<u64> {
            let counts = own.cloud().counts().await?;
            let of = |operation: &str| counts.get(operation).map_or(0, |count| count.writes);
            Ok(of("create/target") + of("delete/target"))
        };
        let before = writes().await?;

        let names: Vec<String> = (1..=NODES).map(|number| format!("node-{number}")).collect();
        let joining = try_join_all(names.iter().map(|name| joins(&cluster, &own, name)));
        let new = async {
            cluster.add_service(&own.service("new")).await?;
            cluster.address_within("new", WITHIN).await
        };
        tokio::try_join!(joining, new)?;
        eventually(
            SOON,
            "all nodes to be targets of all load balancers",
            async || {
                let targets = own.cloud().inventory(&["target"]).await?.len();
                ensure!(targets == (SERVICES + 1) * (NODES + 1), "{targets} targets");
                Ok(())
            },
        )
        .await?;
        let written = writes().await? - before;
        let most = WRITES * u64::try_from(SERVICES + 1)?;
        ensure!(written <= most, "{written} writes of targets, more than {most}");
        let waits = Metrics::of(&host, &cluster).await?.sum(
            "workqueue_queue_duration_seconds_count",
            &[("name", "service"), ("plugin", "own")],
        )?;
        ensure!(
            waits.is_some_and(|waits| waits > 0.0),
            "how long keys wait is not shown"
        );
        let warnings = cluster.warnings().await?;
        ensure!(warnings.is_empty(), "{warnings:#?}");
        Ok(())
    })
    .await
}
