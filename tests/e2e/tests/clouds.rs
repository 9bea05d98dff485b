//! Several clouds in one cluster: each has what the configuration gives it, and nobody touches what is another's.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_e2e::{Cluster, QUICK, SOON, Simulated, is_uninitialised, simulated};
use bulkhead_harness::{Host, Workspace, eventually, scenario};
use bulkhead_sim::cloud::Instance;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};

async fn add(cluster: &Cluster, node: &Node) -> Result<Node> {
    Ok(cluster.nodes().create(&PostParams::default(), node).await?)
}

/// A machine of `cloud` joins and is initialised as its own.
async fn joins(cluster: &Cluster, cloud: &Simulated<'_>, name: &str) -> Result<()> {
    add(cluster, &cloud.machine(name).await?).await?;
    has_id(cluster, name, &cloud.provider_id(name)).await
}

async fn has_id(cluster: &Cluster, name: &str, id: &str) -> Result<()> {
    let node = cluster.initialised(name).await?;
    let found = node.spec.unwrap_or_default().provider_id;
    ensure!(
        found.as_deref() == Some(id),
        "{name} has provider ID {found:?}, not {id}"
    );
    Ok(())
}

/// A Service of `cloud` gets an address.
async fn serves(cluster: &Cluster, cloud: &Simulated<'_>, name: &str) -> Result<()> {
    cluster.add_service(&cloud.service(name)).await?;
    cluster.address(name).await.map(drop)
}

/// The version of a node that must not change.
async fn version(cluster: &Cluster, name: &str) -> Result<Option<String>> {
    Ok(cluster.nodes().get(name).await?.resource_version())
}

async fn no_warning(cluster: &Cluster) -> Result<()> {
    let warnings = cluster.warnings().await?;
    ensure!(warnings.is_empty(), "{warnings:#?}");
    Ok(())
}

/// A node with a provider ID of its own choice.
fn with_id(mut node: Node, id: &str) -> Node {
    node.spec.get_or_insert_default().provider_id = Some(id.to_owned());
    node
}

/// A region of the provider `acme` and its part of the provider's IDs.
fn region(cloud: &Simulated<'_>) -> Value {
    let mut config = cloud.config();
    if let Some(fields) = config.as_object_mut() {
        let ids = format!("acme://{}-*", cloud.name());
        fields.insert("schemes".to_owned(), json!(["acme"]));
        fields.insert("providerIDs".to_owned(), json!([ids]));
    }
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn two_plugins_of_one_scheme_share_it_by_provider_id_pattern() -> Result<()> {
    scenario("clouds.one_scheme", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let eu = Simulated::of_provider(workspace, "eu", "acme").await?;
        let us = Simulated::of_provider(workspace, "us", "acme").await?;
        let config = simulated::configure(workspace, "host", &[region(&eu), region(&us)])?;
        let _host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        joins(&cluster, &eu, "eu-1").await?;
        joins(&cluster, &us, "us-1").await?;

        // The provider ID says whose it is, not the label.
        us.machine("given").await?;
        add(
            &cluster,
            &with_id(simulated::node_of("eu", "given"), &us.provider_id("given")),
        )
        .await?;
        has_id(&cluster, "given", &us.provider_id("given")).await?;

        // Nobody's: of the scheme, but of no region; of no label.
        let nobody = with_id(simulated::node_of("eu", "nobody"), "acme://ap-nobody");
        let nobody = add(&cluster, &nobody).await?.resource_version();
        let unselected = add(&cluster, &simulated::node_of("ap", "unselected"))
            .await?
            .resource_version();
        serves(&cluster, &eu, "web-eu").await?;
        serves(&cluster, &us, "web-us").await?;
        cluster
            .add_service(&simulated::service_of("ap", "web-ap"))
            .await?;
        eu.compared().await?;
        us.compared().await?;

        ensure!(eu.balancers().await? == 1 && us.balancers().await? == 1);
        ensure!(version(&cluster, "nobody").await? == nobody);
        ensure!(version(&cluster, "unselected").await? == unselected);
        ensure!(cluster.services().get("web-ap").await?.finalizers().is_empty());
        no_warning(&cluster).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn k3s_embedded_a_node_of_a_third_scheme_is_never_touched() -> Result<()> {
    scenario("clouds.k3s_embedded", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let own = Simulated::start(workspace, "own").await?;
        let config = simulated::configure(workspace, "host", &[own.config()])?;
        let _host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        // The cloud knows machines of both names, and the label is its own.
        let tainted = with_id(own.machine("tainted").await?, "k3s://tainted");
        let mut plain = with_id(own.machine("plain").await?, "k3s://plain");
        plain.spec.get_or_insert_default().taints = None;
        let tainted = add(&cluster, &tainted).await?.resource_version();
        let plain = add(&cluster, &plain).await?.resource_version();
        joins(&cluster, &own, "mine").await?;
        serves(&cluster, &own, "web").await?;
        own.compared().await?;
        ensure!(version(&cluster, "tainted").await? == tainted);
        ensure!(version(&cluster, "plain").await? == plain);
        // And neither is a target.
        let targets = own.cloud().inventory(&["target"]).await?;
        ensure!(targets.len() == 1, "{targets:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_come_go_and_change_with_the_configuration_file_while_the_host_runs() -> Result<()> {
    scenario("clouds.reload", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let one = Simulated::start(workspace, "one").await?;
        let two = Simulated::start(workspace, "two").await?;
        let config = simulated::configure(workspace, "host", &[one.config()])?;
        let host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        joins(&cluster, &one, "one-1").await?;
        serves(&cluster, &one, "web-one").await?;
        let waits = two.machine("two-1").await?;
        add(&cluster, &waits).await?;

        simulated::configure(workspace, "host", &[one.config(), two.config()])?;
        has_id(&cluster, "two-1", &two.provider_id("two-1")).await?;
        serves(&cluster, &two, "web-two").await?;

        let mut spare = two.service("web-spare");
        spare.spec.get_or_insert_default().load_balancer_class = Some(simulated::spare_class_of("two"));
        cluster.add_service(&spare).await?;
        let mut changed = two.config();
        changed["classes"] = json!([simulated::class_of("two"), simulated::spare_class_of("two")]);
        changed["budget"] = json!({ "callsInFlight": 4 });
        simulated::configure(workspace, "host", &[one.config(), changed.clone()])?;
        cluster.address("web-spare").await?;

        simulated::configure(workspace, "host", &[changed])?;
        host.process()
            .wait_for_log("is no longer configured", SOON)
            .await?;
        let before = [
            cluster.services().get("web-one").await?.resource_version(),
            version(&cluster, "one-1").await?,
        ];
        let calls = eventually(SOON, "the plugin to be left alone", async || {
            let page = host.get("/readyz/plugins", None).await?.body;
            ensure!(!page.contains("\"one\""), "{page}");
            Ok(one.cloud().total().await?.calls)
        })
        .await?;
        add(&cluster, &one.machine("one-2").await?).await?;
        joins(&cluster, &two, "two-2").await?;
        two.compared().await?;
        ensure!(is_uninitialised(&cluster.nodes().get("one-2").await?));
        ensure!(
            one.cloud().total().await?.calls == calls,
            "a plugin that is not configured was asked"
        );
        ensure!(one.balancers().await? == 1, "the load balancer is gone");
        let after = [
            cluster.services().get("web-one").await?.resource_version(),
            version(&cluster, "one-1").await?,
        ];
        ensure!(after == before, "what was the plugin's has changed");

        simulated::configure(workspace, "host", &[one.config(), two.config()])?;
        has_id(&cluster, "one-2", &one.provider_id("one-2")).await?;
        no_warning(&cluster).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_file_in_which_plugins_overlap_changes_nothing() -> Result<()> {
    scenario("clouds.overlap", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let one = Simulated::start(workspace, "one").await?;
        let config = simulated::configure(workspace, "host", &[one.config()])?;
        let host = Host::start(workspace, &cluster.configured_host(&config)?)?;
        joins(&cluster, &one, "one-1").await?;
        let mut other = one.config();
        other["name"] = json!("other");
        simulated::configure(workspace, "host", &[one.config(), other])?;
        let line = host
            .process()
            .wait_for_log("plugins one and other both", SOON)
            .await?;
        ensure!(
            line.contains("example.com/cloud=one") || line.contains("class example.com/one"),
            "{line}"
        );
        joins(&cluster, &one, "one-2").await?;
        serves(&cluster, &one, "web").await
    })
    .await
}

/// A host that shares no Lease with others.
fn host_of(workspace: &Workspace, cluster: &Cluster, cloud: &Simulated<'_>) -> Result<Host> {
    let name = cloud.name();
    let config = simulated::configure(workspace, name, &[cloud.config()])?;
    let options = cluster
        .configured_host(&config)?
        .name(name)
        .without_leader_election();
    Host::start(workspace, &options)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_ccm_two_hosts_in_one_cluster_keep_to_their_own() -> Result<()> {
    scenario("clouds.two_ccm", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let a = Simulated::start(workspace, "a").await?;
        let b = Simulated::start(workspace, "b").await?;
        // Each cloud knows a machine of that name: who is asked first must not matter.
        for name in ["b-1", "b-2"] {
            a.cloud()
                .put_instance(&Instance::new(format!("wrong-{name}"), name, "192.0.2.9"))
                .await?;
        }
        let _a_host = host_of(workspace, &cluster, &a)?;
        joins(&cluster, &a, "a-1").await?;
        add(&cluster, &b.machine("b-1").await?).await?;
        let _b_host = host_of(workspace, &cluster, &b)?;
        has_id(&cluster, "b-1", &b.provider_id("b-1")).await?;
        joins(&cluster, &b, "b-2").await?;
        joins(&cluster, &a, "a-2").await?;
        serves(&cluster, &a, "web-a").await?;
        serves(&cluster, &b, "web-b").await?;
        ensure!(a.balancers().await? == 1 && b.balancers().await? == 1);
        let versions = async || -> Result<Vec<Option<String>>> {
            let mut versions = Vec::new();
            for name in ["a-1", "a-2", "b-1", "b-2"] {
                versions.push(version(&cluster, name).await?);
            }
            Ok(versions)
        };
        let before = versions().await?;
        a.compared().await?;
        b.compared().await?;
        ensure!(versions().await? == before, "two hosts write on one node");
        no_warning(&cluster).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_makes_no_cloud_call_but_those_of_get_status() -> Result<()> {
    const LONG: Duration = Duration::from_secs(60);
    /// It is asked how it is every two seconds; half of that shows that it was.
    const ASKED: usize = 15;
    scenario("clouds.standby", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let leader = Simulated::of_provider(workspace, "leader", "acme").await?;
        let standby = Simulated::of_provider(workspace, "standby", "acme").await?;
        let start = |cloud: &Simulated<'_>| {
            let mut config = cloud.config();
            config["nodes"] = json!({});
            let config = simulated::configure(workspace, cloud.name(), &[config])?;
            let options = cluster.configured_host(&config)?.name(cloud.name()).lease(QUICK);
            Host::start(workspace, &options)
        };
        let leading = start(&leader)?;
        joins(&cluster, &leader, "node-0").await?;
        let waiting = start(&standby)?;
        waiting.wait_ready(SOON).await?;
        let mut number = 0;
        let work = async {
            loop {
                number += 1;
                joins(&cluster, &leader, &format!("node-{number}")).await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        tokio::select! {
            failed = work => return failed,
            () = tokio::time::sleep(LONG) => {}
        }
        let calls = standby.cloud().calls_after(0).await?;
        ensure!(calls.len() >= ASKED, "{} calls in {LONG:?}", calls.len());
        for call in &calls {
            let rpc = call.caller.as_ref().map(|caller| caller.rpc.as_str());
            ensure!(rpc == Some("GetStatus"), "{call:?}");
        }
        // And it was able to.
        leading.process().kill()?;
        let last = add(&cluster, &standby.machine("last").await?).await?;
        has_id(&cluster, &last.name_any(), &standby.provider_id("last")).await
    })
    .await
}
