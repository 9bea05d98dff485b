//! Wrong input meets an answer that says what, where and what to do; and once it is mended, all goes on by itself.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Machine, SOON, cloud, is_uninitialised, scripted, traffic};
use bulkhead_harness::{
    Host, HostOptions, LocalOptions, PluginProcess, Workspace, eventually, port, scenario, service_lb,
};
use bulkhead_scripted::Rpc;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A Service that asks for one address.
fn asking_for(name: &str, address: impl Into<IpAddr>) -> Service {
    let mut service = service_lb(name);
    service.annotations_mut().insert(
        "bulkhead.dev/load-balancer-ips".to_owned(),
        address.into().to_string(),
    );
    service
}

/// Waits for a Warning on a Service and returns its text.
async fn warning(cluster: &Cluster, service: &str, part: &str) -> Result<String> {
    let event = cluster
        .event("Service", service, "SyncLoadBalancerFailed", part)
        .await?;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    event.note.context("an Event without a note")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_without_a_free_address_is_told_and_the_next_free_one_is_given() -> Result<()> {
    scenario("bad_input.pool_empty", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let machine = Machine::new(workspace, &["node-1"])?;
        let only = workspace.loopback(129);
        let plugin = machine.plugin_with_pool(&only.to_string()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("first")).await?;
        assert_eq!(cluster.address("first").await?, IpAddr::from(only));
        cluster.add_service(&service_lb("second")).await?;
        let note = warning(&cluster, "second", "no free IPv4 address").await?;
        assert!(
            note.contains(&only.to_string()) && note.contains("--pool"),
            "{note}"
        );
        cluster.delete_service("first").await?;
        assert_eq!(cluster.address("second").await?, IpAddr::from(only));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_that_want_one_address_are_told_apart_and_the_first_keeps_it() -> Result<()> {
    scenario("bad_input.one_address", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let machine = Machine::new(workspace, &["node-1"])?;
        let plugin = machine.plugin().await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        let wanted = workspace.loopback(140);
        cluster.add_service(&asking_for("first", wanted)).await?;
        assert_eq!(cluster.address("first").await?, IpAddr::from(wanted));
        cluster.add_service(&asking_for("second", wanted)).await?;
        let note = warning(&cluster, "second", "default/first").await?;
        assert!(
            note.contains(&wanted.to_string())
                && note.contains("is taken by")
                && note.contains("annotation bulkhead.dev/load-balancer-ips: "),
            "{note}"
        );
        assert_eq!(cluster.address("first").await?, IpAddr::from(wanted));
        cluster.delete_service("first").await?;
        assert_eq!(cluster.address("second").await?, IpAddr::from(wanted));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_nobody_s_is_told_in_the_words_of_users() -> Result<()> {
    scenario("bad_input.strange_address", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let machine = Machine::new(workspace, &["node-1"])?;
        let plugin = machine.plugin().await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster
            .add_service(&asking_for("web", Ipv4Addr::new(198, 51, 100, 7)))
            .await?;
        let note = warning(&cluster, "web", "198.51.100.7").await?;
        assert!(
            note.contains("bulkhead.dev/load-balancer-ips") && !note.contains("requested_addresses"),
            "{note}"
        );
        let taken_back = json!({ "metadata": { "annotations": { "bulkhead.dev/load-balancer-ips": null } } });
        cluster.patch_service("web", taken_back).await?;
        cluster.address("web").await.map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_process_has_is_told_and_served_once_it_is_free() -> Result<()> {
    scenario("bad_input.port_in_use", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let mut machine = Machine::new(workspace, &["node-1"])?;
        let plugin = machine.plugin().await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        let front = SocketAddr::from((workspace.loopback(141), 8080));
        let holder = TcpListener::bind(front)?;
        let mut service = asking_for("web", front.ip());
        service.spec.get_or_insert_default().ports = Some(vec![port("http", "TCP", 8080)]);
        let created = cluster.add_service(&service).await?;
        machine.serve(&created).await?;
        let note = warning(&cluster, "web", "8080").await?;
        assert!(note.to_lowercase().contains("in use"), "{note}");
        drop(holder);
        cluster.initialised("node-1").await?;
        // Nobody gives notice of a free port: the host looks again in minutes, or when the user changes something.
        let renamed = json!({ "spec": { "ports": [port("web", "TCP", 8080)] } });
        let changed = cluster.patch_service("web", renamed).await?;
        machine.serve(&changed).await?;
        traffic::answered_by(front, &["node-1"]).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_ports_are_all_served() -> Result<()> {
    const PORTS: u16 = 300;
    scenario("bad_input.three_hundred_ports", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let mut machine = Machine::new(workspace, &["node-1"])?;
        let plugin = machine.plugin().await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        let mut service = service_lb("wide");
        let ports = (0..PORTS).map(|number| port(&format!("p{number}"), "TCP", 10_000 + number));
        service.spec.get_or_insert_default().ports = Some(ports.collect());
        let created = cluster.add_service(&service).await?;
        machine.serve(&created).await?;
        let ip = cluster.address("wide").await?;
        for number in [0, PORTS / 2, PORTS - 1] {
            traffic::answered_by(SocketAddr::new(ip, 10_000 + number), &["node-1"]).await?;
        }
        for event in cluster.events("Service", "wide").await? {
            ensure!(
                event.reason.as_deref() != Some("SyncLoadBalancerFailed"),
                "{:?}",
                event.note
            );
        }
        cluster.delete_service("wide").await?;
        cluster.service_gone("wide").await?;
        traffic::refused(SocketAddr::new(ip, 10_000)).await
    })
    .await
}

/// An inventory of instances with these IDs, names and addresses.
fn inventory(workspace: &Workspace, instances: &[(&str, &str, Ipv4Addr)]) -> Result<PathBuf> {
    let path = workspace.join("inventory.yaml");
    let entry = |(id, name, address): &(&str, &str, Ipv4Addr)| {
        format!("- id: {id}\n  name: {name}\n  addresses: [{address}]\n")
    };
    let text = format!("instances:\n{}", instances.iter().map(entry).collect::<String>());
    // Never half written.
    let fresh = workspace.join("inventory.fresh");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_with_duplicates_is_refused_with_both_lines_and_taken_once_mended() -> Result<()> {
    scenario("bad_input.duplicates", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (one, two) = (workspace.loopback(1), workspace.loopback(2));
        let path = inventory(workspace, &[("i-1", "node-1", one), ("i-2", "node-1", two)])?;
        let plugin = PluginProcess::local(workspace, &LocalOptions::new(&path))?;
        plugin.wait_listening(SOON).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        let duplicate_name = "already that of the instance in line 3";
        plugin.process().wait_for_log(duplicate_name, SOON).await?;
        cluster
            .event("Node", "node-1", "CloudProviderError", duplicate_name)
            .await?;
        assert!(is_uninitialised(&cluster.nodes().get("node-1").await?));

        inventory(workspace, &[("i-1", "node-1", one), ("i-2", "node-2", one)])?;
        plugin
            .process()
            .wait_for_log("already that of the instance in line 4", SOON)
            .await?;
        inventory(workspace, &[("i-1", "node-1", one), ("i-2", "node-2", two)])?;
        plugin.process().wait_for_log("inventory read", SOON).await?;
        // The one that met the error is looked at again once the plugin is well, not in minutes.
        cluster.add_node("node-2").await?;
        cluster.initialised("node-2").await?;
        cluster.initialised("node-1").await.map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_the_inventory_does_not_know_is_told_how_to_be_known() -> Result<()> {
    scenario("bad_input.unknown_node", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (one, two) = (workspace.loopback(1), workspace.loopback(2));
        let path = inventory(workspace, &[("i-1", "node-1", one)])?;
        let plugin = PluginProcess::local(workspace, &LocalOptions::new(&path))?;
        plugin.wait_listening(SOON).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        cluster.add_node("stranger").await?;
        let event = cluster
            .event(
                "Node",
                "stranger",
                "CloudProviderError",
                "No instance for this node",
            )
            .await?;
        let note = event.note.unwrap_or_default();
        assert!(
            note.contains("by name stranger") && note.contains("--provider-id"),
            "{note}"
        );
        cluster.initialised("node-1").await?;
        let stranger = cluster.nodes().get("stranger").await?;
        assert!(is_uninitialised(&stranger) && stranger.metadata.deletion_timestamp.is_none());

        inventory(workspace, &[("i-1", "node-1", one), ("i-2", "stranger", two)])?;
        cluster.initialised("stranger").await.map(drop)
    })
    .await
}

/// An authority that is valid, and what it signs: a certificate for 127.0.0.1 that has expired.
fn expired() -> Result<(String, rcgen::Certificate, KeyPair)> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    let root = authority.self_signed(&authority_key)?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &Issuer::from_params(&authority, &authority_key))?;
    Ok((root.pem(), certificate, key))
}

/// A kubeconfig from its parts.
fn kubeconfig(
    workspace: &Workspace,
    server: &str,
    authority: &str,
    user: &serde_json::Value,
) -> Result<PathBuf> {
    let (path, ca) = (workspace.join("kubeconfig"), workspace.join("authority.crt"));
    fs::write(&ca, authority)?;
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "k", "cluster": { "server": server, "certificate-authority": ca } }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
    });
    fs::write(&path, content.to_string())?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_certificate_that_has_expired_is_named_with_what_to_do() -> Result<()> {
    scenario("bad_input.server_certificate", async |workspace| {
        let (authority, certificate, key) = expired()?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(certificate)],
                PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )?;
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let server = format!("https://{}", listener.local_addr()?);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                // No client gets so far as to ask.
                acceptor.accept(stream).await.ok();
            }
        });
        let path = kubeconfig(workspace, &server, &authority, &json!({ "token": "t" }))?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let host = Host::start(workspace, &HostOptions::new(path).plugin(plugin.endpoint()))?;
        let line = host.process().wait_for_log("does not answer", SOON).await?;
        assert!(
            line.contains(&server) && line.contains("certificate has expired: renew it there"),
            "{line}"
        );
        assert!(plugin.cloud().journal().calls(Rpc::Describe)?.is_empty());
        // It waits: a certificate is renewed without a restart of its clients.
        assert_eq!(host.stop(SOON).await?.code(), Some(0));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_that_has_expired_is_named_with_what_to_do() -> Result<()> {
    scenario("bad_input.client_certificate", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (_, certificate, key) = expired()?;
        let (certificate_file, key_file) = (workspace.join("tls.crt"), workspace.join("tls.key"));
        fs::write(&certificate_file, certificate.pem())?;
        fs::write(&key_file, key.serialize_pem())?;
        let user = json!({ "client-certificate": certificate_file, "client-key": key_file });
        let authority = fs::read_to_string(cluster.server().ca_certificate())?;
        let path = kubeconfig(workspace, &cluster.server().url(), &authority, &user)?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let host = Host::start(workspace, &HostOptions::new(path).plugin(plugin.endpoint()))?;
        let line = host.process().wait_for_log("does not accept", SOON).await?;
        assert!(line.contains("client certificate has expired"), "{line}");
        assert_eq!(host.get("/livez", None).await?.status, 200);
        eventually(SOON, "the host to say that it is not ready", async || {
            let answer = host.get("/readyz", None).await?;
            ensure!(answer.status == 500, "{}", answer.status);
            Ok(())
        })
        .await?;
        assert!(plugin.cloud().journal().calls(Rpc::Describe)?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_cannot_be_served_have_the_names_that_users_know() -> Result<()> {
    use bulkhead_scripted::{Behaviour, Failure};
    scenario("bad_input.field_names", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let wrong = Failure::invalid("spec.ports[0].app_protocol", "h3 is not served");
        plugin
            .script()
            .next(Rpc::EnsureLoadBalancer, [Behaviour::Fails(wrong)]);
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        let note = warning(&cluster, "web", "h3").await?;
        assert!(
            note.contains(".spec.ports[0].appProtocol: h3 is not served"),
            "{note}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_type_that_overtakes_a_status_is_no_complaint() -> Result<()> {
    const TIMES: usize = 15;
    scenario("bad_input.type_change", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let late = bulkhead_scripted::Behaviour::AnsweredLate(Duration::from_millis(30));
        plugin.script().always(Rpc::EnsureLoadBalancer, late);
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        let asked = || anyhow::Ok(plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer)?.len());
        let (mut refused, mut seen) = (0, 0);
        for _ in 0..TIMES {
            eventually(SOON, "the plugin to be asked", async || {
                ensure!(asked()? > seen, "not yet");
                Ok(())
            })
            .await?;
            cluster
                .patch_service("web", json!({ "spec": { "type": "ClusterIP" } }))
                .await?;
            eventually(SOON, "the finalizer to be gone", async || {
                let service = cluster.services().get("web").await?;
                ensure!(!bulkhead_e2e::has_finalizer(&service), "it is on");
                Ok(())
            })
            .await?;
            seen = asked()?;
            cluster
                .patch_service("web", json!({ "spec": { "type": "LoadBalancer" } }))
                .await?;
            refused = cluster
                .host_writes()?
                .iter()
                .filter(|write| write.code == 422)
                .count();
            if refused > 1 {
                break;
            }
        }
        cluster.address("web").await?;
        assert!(refused > 0, "no status was overtaken: this shows nothing");
        for event in cluster.events("Service", "web").await? {
            assert_ne!(
                event.reason.as_deref(),
                Some("SyncLoadBalancerFailed"),
                "{:?}",
                event.note
            );
        }
        Ok(())
    })
    .await
}
