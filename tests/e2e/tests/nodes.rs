//! Nodes: initialised in the safe order, never half, never somebody else's.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Machine, SOON, cloud, is_uninitialised, scripted};
use bulkhead_harness::{Change, Host, Watcher, eventually, node, scenario};
use bulkhead_scripted::{Behaviour, Failure, Rpc};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::time::Duration;

const LABELS: [&str; 6] = [
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/region",
];

fn addresses(node: &Node) -> Vec<NodeAddress> {
    node.status
        .as_ref()
        .and_then(|status| status.addresses.clone())
        .unwrap_or_default()
}

fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref())
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default()
}

fn is_complete(node: &Node) -> bool {
    provider_id(node).is_some()
        && !addresses(node).is_empty()
        && LABELS.iter().all(|label| node.labels().contains_key(*label))
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_complete_before_the_taint_goes_and_nothing_is_missing_after_it() -> Result<()> {
    scenario("nodes.safe_order", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let names = ["node-1", "node-2", "node-3"];
        let machine = Machine::new(workspace, &names)?;
        let plugin = machine.plugin().await?;
        let watcher = Watcher::start(cluster.nodes()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        for name in names {
            cluster.add_node(name).await?;
        }
        for name in names {
            let node = cluster.initialised(name).await?;
            assert_eq!(provider_id(&node), Some(format!("local://i-{name}").as_str()));
            let address = machine.address(name)?;
            assert!(
                addresses(&node)
                    .iter()
                    .any(|it| it.type_ == "InternalIP" && it.address == address)
            );
        }
        let is_synced = |changes: &[Change<Node>]| {
            let done = |name: &&&str| {
                changes
                    .iter()
                    .any(|it| it.object().name_any() == **name && !is_uninitialised(it.object()))
            };
            names.iter().filter(done).count() == names.len()
        };
        let changes = watcher
            .wait_until(SOON, "the watch to see all nodes initialised", is_synced)
            .await?;
        for name in names {
            let versions: Vec<&Node> = changes
                .iter()
                .map(Change::object)
                .filter(|node| node.name_any() == name)
                .collect();
            let early = versions
                .iter()
                .find(|node| is_uninitialised(node) && !addresses(node).is_empty());
            let early =
                early.with_context(|| format!("{name} got its addresses only with the taint's removal"))?;
            assert_eq!(
                addresses(early),
                addresses(versions.last().context("no version")?)
            );
            for version in versions {
                assert!(
                    is_uninitialised(version) || is_complete(version),
                    "seen without the taint: {version:?}"
                );
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_nodes_at_once_are_initialised_with_few_cloud_calls() -> Result<()> {
    const NODES: usize = 300;
    const CALLS: usize = 40;
    scenario("nodes.three_hundred", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let nodes = cluster.nodes();
        stream::iter(0..NODES)
            .map(|number| {
                let (nodes, node) = (nodes.clone(), node(&format!("node-{number}")));
                async move { nodes.create(&PostParams::default(), &node).await }
            })
            .buffer_unordered(32)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        eventually(SOON, "all nodes to be initialised", async || {
            let list = nodes.list(&ListParams::default()).await?.items;
            let waiting = list.iter().filter(|node| is_uninitialised(node)).count();
            ensure!(
                list.len() == NODES && waiting == 0,
                "{waiting} of {} wait",
                list.len()
            );
            ensure!(list.iter().all(is_complete), "one is not complete");
            Ok(())
        })
        .await?;
        let calls = plugin.cloud().journal().calls(Rpc::GetInstances)?;
        let sizes: Vec<_> = calls.iter().map(|call| call.about.len()).collect();
        assert!(
            calls.len() < CALLS,
            "{} GetInstances calls for {NODES} nodes: {sizes:?}",
            calls.len()
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn taint_stuck_a_node_whose_instance_cannot_be_read_says_why_and_is_initialised_later() -> Result<()> {
    scenario("nodes.taint_stuck", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let error = || Behaviour::ItemsFail(Failure::provider("internal error 500 of the metadata service"));
        plugin.script().next(Rpc::GetInstances, [error(), error()]);
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;

        let warning = cluster
            .event("Node", "node-1", "CloudProviderError", "internal error 500")
            .await?;
        assert_eq!(warning.type_.as_deref(), Some("Warning"));
        cluster.initialised("node-1").await?;
        let synced = cluster.event("Node", "node-1", "Synced", "").await?;
        assert_eq!(synced.type_.as_deref(), Some("Normal"));
        assert!(warning.event_time.map(|time| time.0) < synced.event_time.map(|time| time.0));
        assert_eq!(plugin.cloud().journal().calls(Rpc::GetInstances)?.len(), 3);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn provided_ip_a_node_ip_that_the_cloud_does_not_know_is_told_with_both_sides() -> Result<()> {
    scenario("nodes.provided_ip", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let known = bulkhead_scripted::instance("wrong-ip")
            .addresses
            .remove(0)
            .address;
        let mut wrong = node("wrong-ip");
        wrong.annotations_mut().insert(
            "alpha.kubernetes.io/provided-node-ip".to_owned(),
            "172.25.100.3".to_owned(),
        );
        cluster.nodes().create(&PostParams::default(), &wrong).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;

        let event = cluster
            .event("Node", "wrong-ip", "CloudProviderError", "172.25.100.3")
            .await?;
        assert!(
            event.note.unwrap_or_default().contains(&known),
            "the cloud's side is not told"
        );
        cluster.add_node("other").await?;
        cluster.initialised("other").await?;
        let wrong = cluster.nodes().get("wrong-ip").await?;
        assert!(is_uninitialised(&wrong) && provider_id(&wrong).is_none() && addresses(&wrong).is_empty());
        Ok(())
    })
    .await
}

/// Nodes that are nobody's or somebody else's, with their versions.
async fn add_foreign(cluster: &Cluster) -> Result<BTreeMap<String, Option<String>>> {
    let mut other_scheme = node("other-scheme");
    other_scheme.spec.get_or_insert_default().provider_id = Some("talos://hcloud/10.0.0.78".to_owned());
    let mut no_scheme = node("no-scheme");
    no_scheme.spec.get_or_insert_default().provider_id = Some("6407101".to_owned());
    let mut never_tainted = node("never-tainted");
    never_tainted.spec.get_or_insert_default().taints = None;
    let mut versions = BTreeMap::new();
    for node in [other_scheme, no_scheme, never_tainted] {
        let node = cluster.nodes().create(&PostParams::default(), &node).await?;
        versions.insert(node.name_any(), node.resource_version());
    }
    Ok(versions)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_others_are_not_touched() -> Result<()> {
    scenario("nodes.foreign", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let before = Box::pin(add_foreign(&cluster)).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        // One that is ours, created after them, shows that they were passed over.
        cluster.add_node("ours").await?;
        cluster.initialised("ours").await?;
        for (name, version) in before {
            assert_eq!(
                cluster.nodes().get(&name).await?.resource_version(),
                version,
                "{name} was written"
            );
        }
        for call in plugin.cloud().journal().calls(Rpc::GetInstances)? {
            assert_eq!(call.about, ["ours"]);
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_on_a_node_while_it_is_initialised_is_not_lost() -> Result<()> {
    const WRITES: usize = 20;
    scenario("nodes.other_writers", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        // The object that the host decides on is old when the answer comes.
        plugin.script().next(
            Rpc::GetInstances,
            [Behaviour::AnsweredLate(Duration::from_millis(700))],
        );
        let watcher = Watcher::start(cluster.nodes()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        eventually(SOON, "the cloud to be asked", async || {
            ensure!(
                !plugin.cloud().journal().calls(Rpc::GetInstances)?.is_empty(),
                "not yet"
            );
            Ok(())
        })
        .await?;
        for number in 0..WRITES {
            write_as_another(&cluster, "node-1", number).await?;
        }
        let initialised = |changes: &[Change<Node>]| changes.iter().any(|it| !is_uninitialised(it.object()));
        let changes = watcher
            .wait_until(SOON, "the node to be initialised", initialised)
            .await?;
        let first = changes
            .iter()
            .position(|it| !is_uninitialised(it.object()))
            .context("never")?;
        assert!(
            changes.iter().skip(first).all(|it| is_complete(it.object())),
            "the taint came back, or more went"
        );

        let node = cluster.nodes().get("node-1").await?;
        for number in 0..WRITES {
            assert!(
                node.labels().contains_key(&format!("example.com/{number}")),
                "label {number} is lost"
            );
            let has_taint = taints(&node)
                .iter()
                .any(|taint| taint.key == format!("example.com/{number}"));
            assert!(has_taint, "taint {number} is lost");
        }
        Ok(())
    })
    .await
}

/// Adds a label and a taint as a careful writer does: the list as read, at that version, until it is taken.
async fn write_as_another(cluster: &Cluster, name: &str, number: usize) -> Result<()> {
    let key = format!("example.com/{number}");
    loop {
        let node = cluster.nodes().get(name).await?;
        let mut all = taints(&node);
        all.push(Taint {
            key: key.clone(),
            effect: "PreferNoSchedule".to_owned(),
            ..Taint::default()
        });
        let patch = json!({
            "metadata": { "resourceVersion": node.resource_version(), "labels": { &key: "" } },
            "spec": { "taints": all },
        });
        match cluster
            .nodes()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => return result.map(drop).map_err(Into::into),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn label_lost_labels_of_ours_come_back_when_somebody_takes_them() -> Result<()> {
    scenario("nodes.label_lost", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        let patch = Patch::Merge(json!({ "metadata": { "labels": { LABELS[2]: null } } }));
        let node = cluster
            .nodes()
            .patch("node-1", &PatchParams::default(), &patch)
            .await?;
        assert!(!is_complete(&node));
        eventually(SOON, "the zone label to be back", async || {
            let node = cluster.nodes().get("node-1").await?;
            ensure!(is_complete(&node), "labels {:?}", node.labels());
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_the_protocol_forbids_cost_one_more_question_and_nothing_else() -> Result<()> {
    use bulkhead_scripted::Wrong;
    scenario("nodes.wrong_answers", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let wrong = [Wrong::Nil, Wrong::Count, Wrong::Uid].map(Behaviour::Wrong);
        plugin.script().next(Rpc::GetInstances, wrong);
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        let node = cluster.initialised("node-1").await?;
        assert!(is_complete(&node) && host.process().is_running());
        assert_eq!(plugin.cloud().journal().calls(Rpc::GetInstances)?.len(), 4);
        Ok(())
    })
    .await
}
