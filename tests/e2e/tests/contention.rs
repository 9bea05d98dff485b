//! Others write to the same objects all the time: what they write stays, and what the host writes arrives.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, SOON, cloud, has_finalizer, ingress, is_uninitialised, scripted};
use bulkhead_harness::{HOST_USER, Host, UNINITIALIZED_TAINT, eventually, scenario, service_lb};
use bulkhead_scripted::{Behaviour, Rpc};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Nodes, and as many Services.
const OBJECTS: usize = 10;
/// Foreign writes to each object.
const ROUNDS: usize = 50;
/// Writers at work at once.
const AT_ONCE: usize = 8;
/// How often the host must have been overtaken, or this shows nothing.
const CONFLICTS: usize = 10;
const CONFLICT: u16 = 409;

/// The foreign mark of one round.
fn mark(round: usize) -> String {
    format!("example.com/{round}")
}

/// Every other round adds a condition, all else is added by those between.
fn is_condition(round: usize) -> bool {
    !round.is_multiple_of(2)
}

/// Writes as a careful writer does: decided on what was read, at that version, until it is taken.
async fn write<K>(api: &Api<K>, name: &str, change: impl Fn(&K) -> Value) -> Result<()>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    loop {
        let object = api.get(name).await?;
        let mut patch = change(&object);
        *patch
            .pointer_mut("/metadata/resourceVersion")
            .context("the patch has no place for the version")? = json!(object.meta().resource_version);
        match api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
            result => return result.map(drop).map_err(Into::into),
        }
    }
}

/// A condition that is nobody's but the test's, beside what is there.
async fn add_condition<K>(api: &Api<K>, name: &str, round: usize) -> Result<()>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let condition = json!({
        "type": mark(round), "status": "True", "reason": "Test", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
    api.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// One round on a node: the host has to write its taints anew, while label, taint and finalizer are added.
async fn disturb_node(cluster: &Cluster, name: &str, round: usize) -> Result<()> {
    let nodes = cluster.nodes();
    write(&nodes, name, |node| {
        let mut taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        let mut new = vec![mark(round)];
        if !is_uninitialised(node) {
            new.push(UNINITIALIZED_TAINT.to_owned());
        }
        taints.extend(new.into_iter().map(|key| k8s_openapi::api::core::v1::Taint {
            key,
            effect: "PreferNoSchedule".to_owned(),
            ..Default::default()
        }));
        let finalizers: Vec<_> = node.finalizers().iter().cloned().chain([mark(round)]).collect();
        json!({
            "metadata": { "resourceVersion": "", "labels": { mark(round): "" }, "finalizers": finalizers },
            "spec": { "taints": taints },
        })
    })
    .await
}

/// One round on a Service: the host has to put its finalizer on or take it off, while label and finalizer are added.
async fn disturb_service(cluster: &Cluster, name: &str, round: usize) -> Result<()> {
    let services = cluster.services();
    write(&services, name, |service| {
        let finalizers: Vec<_> = service
            .finalizers()
            .iter()
            .cloned()
            .chain([mark(round)])
            .collect();
        // The last of these rounds, the 48th, leaves a load balancer.
        let kind = if round.is_multiple_of(4) {
            "LoadBalancer"
        } else {
            "ClusterIP"
        };
        json!({
            "metadata": { "resourceVersion": "", "labels": { mark(round): "" }, "finalizers": finalizers },
            "spec": { "type": kind },
        })
    })
    .await
}

/// Which of the marks that rounds have left are missing among `present`: those of conditions, or all others.
fn lost<'a>(present: impl Iterator<Item = &'a str>, conditions: bool) -> Vec<String> {
    let present: BTreeSet<_> = present.collect();
    (0..ROUNDS)
        .filter(|round| is_condition(*round) == conditions)
        .map(mark)
        .filter(|mark| !present.contains(mark.as_str()))
        .collect()
}

fn assert_nothing_lost<K: ResourceExt>(object: &K, mut lists: Vec<(&str, Vec<String>)>) {
    let keys = object.labels().keys().map(String::as_str);
    let finalizers = object.finalizers().iter().map(String::as_str);
    lists.push(("labels", lost(keys, false)));
    lists.push(("finalizers", lost(finalizers, false)));
    for (what, lost) in lists {
        assert!(lost.is_empty(), "{} has lost {what} {lost:?}", object.name_any());
    }
}

fn check_node(node: &Node) {
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let taints = spec.taints.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let lists = vec![
        ("taints", lost(taints.iter().map(|it| &*it.key), false)),
        ("conditions", lost(conditions.iter().map(|it| &*it.type_), true)),
    ];
    assert_nothing_lost(node, lists);
    assert!(spec.provider_id.is_some() && status.addresses.is_some_and(|it| !it.is_empty()));
}

fn check_service(service: &Service) {
    let status = service.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let lists = vec![("conditions", lost(conditions.iter().map(|it| &*it.type_), true))];
    assert_nothing_lost(service, lists);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_thousand_rounds_nothing_of_others_is_lost_and_ours_arrives() -> Result<()> {
    scenario("contention.thousand", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        // Between what the host reads and what it writes others have time.
        for rpc in [Rpc::GetInstances, Rpc::EnsureLoadBalancer] {
            plugin
                .script()
                .always(rpc, Behaviour::AnsweredLate(Duration::from_millis(15)));
        }
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        let names: Vec<_> = (0..OBJECTS).map(|number| format!("it-{number}")).collect();
        for name in &names {
            cluster.add_node(name).await?;
            cluster.add_service(&service_lb(name)).await?;
        }
        let cluster = &cluster;
        let work = names.iter().flat_map(|name| [(name, true), (name, false)]);
        stream::iter(work)
            .map(|(name, is_node)| async move {
                for round in 0..ROUNDS {
                    match (is_node, is_condition(round)) {
                        (true, true) => add_condition(&cluster.nodes(), name, round).await?,
                        (true, false) => disturb_node(cluster, name, round).await?,
                        (false, true) => add_condition(&cluster.services(), name, round).await?,
                        (false, false) => disturb_service(cluster, name, round).await?,
                    }
                }
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;

        for name in &names {
            check_node(&cluster.initialised(name).await?);
            cluster.address(name).await?;
            let service = eventually(SOON, "our finalizer to be on", async || {
                let service = cluster.services().get(name).await?;
                ensure!(
                    has_finalizer(&service) && !ingress(&service).is_empty(),
                    "it is not"
                );
                Ok(service)
            })
            .await?;
            check_service(&service);
        }
        let events: Api<Event> = Api::default_namespaced(cluster.server().admin());
        for event in events.list(&ListParams::default()).await? {
            let is_failure = ["CloudProviderError", "SyncLoadBalancerFailed"]
                .contains(&event.reason.as_deref().unwrap_or_default());
            assert!(!is_failure, "{:?}: {:?}", event.regarding, event.note);
        }
        assert_was_contended(cluster)
    })
    .await
}

/// The host was overtaken, both at nodes and at Services.
fn assert_was_contended(cluster: &Cluster) -> Result<()> {
    let requests = cluster.server().audited_requests()?;
    for resource in ["nodes", "services"] {
        let conflicts = requests
            .iter()
            .filter(|it| it.user == HOST_USER && it.resource == resource && it.code == CONFLICT)
            .count();
        let some = (conflicts >= CONFLICTS).then_some(());
        some.with_context(|| format!("only {conflicts} conflicts at {resource}: this shows nothing"))?;
    }
    Ok(())
}
