//! Rights: what the host says when some are missing, and that it takes work up when they are granted.

use anyhow::{Result, ensure};
use bulkhead_e2e::{Cluster, SOON, cloud, has_finalizer, is_uninitialised, scripted};
use bulkhead_harness::{Host, eventually, scenario, service_lb};
use bulkhead_scripted::Rpc;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

/// The lines of a log that tell of a missing right.
fn missing(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.contains("the host may not "))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sa_token_a_host_without_rights_names_each_at_its_start_and_works_once_they_are_granted() -> Result<()>
{
    scenario("rights.none", async |workspace| {
        workspace.provokes_refusals("the host starts before it has any right");
        let cluster = Cluster::without_rights(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        host.process().wait_for_log("rights are missing", SOON).await?;
        let log = host.process().log()?;
        let lines = missing(&log);
        for (resource, role) in [
            (
                "get namespaces,",
                "bulkhead:host has in deploy/manifests/20-host.yaml",
            ),
            ("create, patch events,", "bulkhead:host has"),
            ("create tokenreviews,", "bulkhead:host has"),
            ("create subjectaccessreviews,", "bulkhead:host has"),
            (
                "create leases in namespace kube-system,",
                "bulkhead:leader-election has",
            ),
            (
                "get, watch, patch leases in namespace kube-system,",
                "bulkhead:leader-election has",
            ),
            (
                "get, list, watch, patch nodes,",
                "deploy/manifests/30-cloud-node-controller.yaml",
            ),
            ("patch nodes/status,", "bulkhead:cloud-node-controller has"),
            (
                "get, list, watch services,",
                "deploy/manifests/30-service-lb-controller.yaml",
            ),
            ("patch services/status,", "bulkhead:service-lb-controller has"),
            ("list, watch nodes,", "bulkhead:service-lb-controller has"),
        ] {
            let told = lines
                .iter()
                .filter(|line| line.contains(&format!("may not {resource}")) && line.contains(role));
            assert_eq!(told.count(), 1, "{resource} of {role}: {lines:#?}");
        }
        assert_eq!(lines.len(), 11, "{lines:#?}");
        assert!(
            plugin.cloud().journal().calls(Rpc::Describe)?.is_empty(),
            "the plugin was asked before"
        );

        cluster.grant().await?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        assert!(host.process().is_running());
        // One identity: nobody asked for a token of another.
        let tokens = cluster.server().audited_requests()?;
        assert!(
            tokens
                .iter()
                .all(|it| it.resource != "serviceaccounts" || it.subresource != "token")
        );
        Ok(())
    })
    .await
}

/// Takes `resource` off a `ClusterRole` of the manifests.
async fn take(cluster: &Cluster, role: &str, resource: &str) -> Result<()> {
    let api: Api<ClusterRole> = Api::all(cluster.server().admin());
    let mut rules = api.get(role).await?.rules.unwrap_or_default();
    let before = rules.len();
    rules.retain(|rule| rule.resources != Some(vec![resource.to_owned()]));
    ensure!(rules.len() < before, "{role} does not grant {resource}");
    // As the harness applies them, so that granting them again is no conflict.
    let reduced = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": role }, "rules": rules,
    });
    let params = PatchParams::apply("bulkhead-harness");
    api.patch(role, &params, &Patch::Apply(reduced)).await?;
    eventually(SOON, &format!("{resource} to be forbidden"), async || {
        let allowed = cluster.host_is_allowed("patch", "", resource, None).await?;
        ensure!(!allowed, "it is allowed");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_status_without_the_right_to_patch_statuses_nothing_is_made_in_the_cloud() -> Result<()> {
    scenario("rights.status", async |workspace| {
        workspace.provokes_refusals("rights are taken from the host's roles");
        let cluster = Cluster::start(workspace).await?;
        take(&cluster, "bulkhead:service-lb-controller", "services/status").await?;
        take(&cluster, "bulkhead:cloud-node-controller", "nodes/status").await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        host.process().wait_for_log("2 rights are missing", SOON).await?;
        cluster.add_node("node-1").await?;
        cluster.add_service(&service_lb("web")).await?;
        let warning = cluster
            .event("Service", "web", "SyncLoadBalancerFailed", "services/status")
            .await?;
        let note = warning.note.unwrap_or_default();
        assert!(note.contains("Grant the right, see deploy/manifests"), "{note}");
        cluster
            .event("Node", "node-1", "CloudProviderError", "nodes/status")
            .await?;
        let service = cluster.services().get("web").await?;
        assert!(!has_finalizer(&service));
        assert!(
            is_uninitialised(&cluster.nodes().get("node-1").await?),
            "the taint went before the addresses came"
        );
        assert!(
            plugin
                .cloud()
                .journal()
                .calls(Rpc::EnsureLoadBalancer)?
                .is_empty()
        );

        cluster.grant().await?;
        cluster.address("web").await?;
        cluster.initialised("node-1").await?;
        assert_eq!(plugin.cloud().journal().creates()?, 1);
        assert!(host.process().is_running());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_one_controller_needs_no_role_of_the_others() -> Result<()> {
    scenario("rights.one_controller", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let bindings: Api<ClusterRoleBinding> = Api::all(cluster.server().admin());
        bindings
            .delete("bulkhead:cloud-node-controller", &DeleteParams::default())
            .await?;
        eventually(SOON, "the role to be in force no more", async || {
            let allowed = cluster.host_is_allowed("patch", "", "nodes/status", None).await?;
            ensure!(!allowed, "it is");
            Ok(())
        })
        .await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let options = cluster.host(&plugin.endpoint())?.controllers("service");
        let host = Host::start(workspace, &options)?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        let log = host.process().log()?;
        assert!(missing(&log).is_empty(), "{log}");
        Ok(())
    })
    .await
}
