//! The API server that the end-to-end tests stand on. Needs `target/tools/bulkhead-cluster`.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use bulkhead_harness::{
    ApiServer, AuditedRequest, Change, HOST_USER, Mode, TcpProxy, UNINITIALIZED_TAINT, User, Watcher,
    apply_manifests, eventually, node, port, scenario, service_lb,
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    core::v1::{Node, Secret, Service},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

const SOON: Duration = Duration::from_secs(15);

/// The least that shows a right of the host, and that it ends there.
const RIGHTS: &str = r"
apiVersion: v1
kind: Namespace
metadata: {name: bulkhead-system}
---
# Only a comment stands between these separators.
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: bulkhead, namespace: bulkhead-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reads-nodes}
rules: [{apiGroups: [''], resources: [nodes], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reads-nodes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reads-nodes}
subjects: [{kind: ServiceAccount, name: bulkhead, namespace: bulkhead-system}]
";

fn is_forbidden<T>(result: kube::Result<T>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 403)
}

#[tokio::test]
async fn two_run_side_by_side_and_know_nothing_of_each_other() -> Result<()> {
    scenario("two_api_servers", async |one| {
        scenario("two_api_servers_other", async |other| {
            let (one, other) = tokio::try_join!(ApiServer::start(one), ApiServer::start(other))?;
            ensure!(one.port() != other.port());
            Api::all(one.admin())
                .create(&PostParams::default(), &node("only-here"))
                .await?;
            let there: Api<Node> = Api::all(other.admin());
            ensure!(there.get_opt("only-here").await?.is_none());
            ensure!(one.admin().apiserver_version().await?.git_version == "v1.36.3");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn the_hosts_token_may_do_what_the_manifests_grant_and_no_more() -> Result<()> {
    scenario("host_rights", async |workspace| {
        let server = ApiServer::start(workspace).await?;
        let host = server.client(User::Host).await?;
        let nodes: Api<Node> = Api::all(host.clone());
        ensure!(
            is_forbidden(nodes.list(&ListParams::default()).await),
            "rights before any manifest"
        );

        let manifests = workspace.join("manifests");
        std::fs::create_dir(&manifests)?;
        std::fs::write(manifests.join("rights.yaml"), RIGHTS)?;
        let applied = apply_manifests(&server.admin(), &manifests).await?;
        ensure!(
            applied.len() == 4 && applied.contains(&"ClusterRole/reads-nodes".to_owned()),
            "{applied:?}"
        );
        // As an upgrade would: once more, onto what is there.
        apply_manifests(&server.admin(), &manifests).await?;

        // The authoriser learns of a binding by a watch of its own.
        eventually(SOON, "the host to read nodes", async || {
            Ok(nodes.list(&ListParams::default()).await?)
        })
        .await?;
        ensure!(is_forbidden(
            nodes.create(&PostParams::default(), &node("n")).await
        ));
        let secrets: Api<Secret> = Api::all(host);
        ensure!(is_forbidden(secrets.list(&ListParams::default()).await));
        let scraper: Api<Node> = Api::all(server.client(User::Scraper).await?);
        ensure!(is_forbidden(scraper.list(&ListParams::default()).await));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_shipped_manifests_apply_strictly_and_grant_no_secrets() -> Result<()> {
    scenario("shipped_manifests", async |workspace| {
        let server = ApiServer::start(workspace).await?;
        server.apply_manifests().await?;
        let host = server.client(User::Host).await?;
        let nodes: Api<Node> = Api::all(host.clone());
        eventually(SOON, "the host to read nodes", async || {
            Ok(nodes.list(&ListParams::default()).await?)
        })
        .await?;
        let secrets: Api<Secret> = Api::all(host);
        ensure!(is_forbidden(secrets.list(&ListParams::default()).await));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_manifest_with_an_unknown_field_is_refused_by_name() -> Result<()> {
    scenario("strict_manifests", async |workspace| {
        let server = ApiServer::start(workspace).await?;
        let manifests = workspace.join("manifests");
        std::fs::create_dir(&manifests)?;
        std::fs::write(manifests.join("a.yaml"), RIGHTS.replace("rules:", "rulez:"))?;
        let error = apply_manifests(&server.admin(), &manifests)
            .await
            .expect_err("it was taken");
        let text = format!("{error:#}");
        ensure!(
            text.contains("ClusterRole/reads-nodes") && text.contains("rulez"),
            "{text}"
        );
        let bindings: Api<ClusterRoleBinding> = Api::all(server.admin());
        ensure!(bindings.get_opt("reads-nodes").await?.is_none());
        let roles: Api<ClusterRole> = Api::all(server.admin());
        ensure!(roles.get_opt("reads-nodes").await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn tokens_are_reviewed_and_name_their_user() -> Result<()> {
    scenario("token_review", async |workspace| {
        let server = ApiServer::start(workspace).await?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(server.token(User::Host).to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let answer = Api::all(server.admin())
            .create(&PostParams::default(), &review)
            .await?;
        let user = answer
            .status
            .and_then(|status| status.user)
            .and_then(|user| user.username);
        ensure!(user.as_deref() == Some(HOST_USER), "{user:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_restart_keeps_objects_port_and_credentials() -> Result<()> {
    scenario("restart", async |workspace| {
        let mut server = ApiServer::start(workspace).await?;
        let nodes: Api<Node> = Api::all(server.admin());
        let before = nodes.create(&PostParams::default(), &node("survivor")).await?;

        server.stop().await?;
        ensure!(nodes.get("survivor").await.is_err(), "it answers after its stop");
        server.start_again(workspace).await?;
        ensure!(nodes.get("survivor").await?.uid() == before.uid());

        // A crash, as with a stop, loses nothing that was answered.
        nodes.create(&PostParams::default(), &node("late")).await?;
        server.process().expect("it runs").kill()?;
        server.stop().await?;
        server.start_again(workspace).await?;
        nodes.get("late").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_watcher_has_every_version_over_a_cut_wire() -> Result<()> {
    scenario("watcher", async |workspace| {
        let server = ApiServer::start(workspace).await?;
        let target = bulkhead_harness::Address::Tcp((Ipv4Addr::LOCALHOST, server.port()).into());
        let proxy = TcpProxy::tcp(target).await?;
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig_via(User::Admin, proxy.port()?)?)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let watcher = Watcher::<Node>::start(Api::all(Client::try_from(config)?)).await?;

        let nodes: Api<Node> = Api::all(server.admin());
        nodes.create(&PostParams::default(), &node("n")).await?;
        for version in 0..20 {
            if version == 10 {
                proxy.set(Mode::Cut).await?;
            }
            let label = json!({"metadata": {"labels": {"version": version.to_string()}}});
            nodes
                .patch("n", &PatchParams::default(), &Patch::Merge(label))
                .await?;
        }
        proxy.set(Mode::Pass).await?;
        nodes.delete("n", &DeleteParams::default()).await?;

        let changes = watcher
            .wait_until(SOON, "the deletion", |changes| {
                matches!(changes.last(), Some(Change::Deleted(_)))
            })
            .await?;
        let labels: Vec<_> = changes
            .iter()
            .filter_map(|change| change.object().labels().get("version")?.parse::<u32>().ok())
            .collect();
        // The deletion shows the last version again.
        ensure!(labels == (0..20).chain([19]).collect::<Vec<_>>(), "{labels:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn objects_are_as_the_api_server_takes_them_and_requests_are_on_record() -> Result<()> {
    scenario("objects", async |workspace| {
        let server = ApiServer::start(workspace).await?;
        let created = Api::all(server.admin())
            .create(&PostParams::default(), &node("fresh"))
            .await?;
        let taints = created.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(
            taints.len() == 1 && taints.iter().all(|taint| taint.key == UNINITIALIZED_TAINT),
            "{taints:?}"
        );

        let mut service = service_lb("web");
        let ports = service
            .spec
            .as_mut()
            .and_then(|spec| spec.ports.as_mut())
            .expect("it has ports");
        ports.push(port("dns", "UDP", 53));
        let services: Api<Service> = Api::default_namespaced(server.admin());
        let created = services.create(&PostParams::default(), &service).await?;
        let spec = created.spec.unwrap_or_default();
        let node_ports: Vec<_> = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| port.node_port)
            .collect();
        ensure!(node_ports.len() == 2, "{node_ports:?}");
        // Both families of the cluster's ranges are on offer.
        let dual = json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}});
        let patched = services
            .patch("web", &PatchParams::default(), &Patch::Merge(dual))
            .await?;
        ensure!(
            patched
                .spec
                .and_then(|spec| spec.cluster_ips)
                .is_some_and(|ips| ips.len() == 2)
        );

        let writes: Vec<_> = server
            .audited_requests()?
            .into_iter()
            .filter(AuditedRequest::is_write)
            .collect();
        let ours = writes.iter().filter(|request| request.user == "admin");
        let told: Vec<_> = ours
            .map(|request| (request.verb.as_str(), request.resource.as_str()))
            .collect();
        ensure!(
            told == [("create", "nodes"), ("create", "services"), ("patch", "services")],
            "{told:?}"
        );
        Ok(())
    })
    .await
}
