//! The host as a process: what it says when it cannot start, what it shows, how it ends.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    process::Output,
    time::Duration,
};

use anyhow::{Result, ensure};
use bulkhead_e2e::{Cluster, SOON, cloud, is_uninitialised, scripted};
use bulkhead_harness::{
    Address, Host, HostOptions, Mode, SecurePort, TcpProxy, User, eventually, resolve_binary, scenario,
    service_lb,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::{process::Command, time::timeout};

const AT_ONCE: Duration = Duration::from_secs(10);

async fn run(arguments: &[&str]) -> Result<Output> {
    let binary = resolve_binary("bulkhead", "BULKHEAD_BIN")?;
    let mut command = Command::new(binary);
    command
        .arg("run")
        .args(arguments)
        .kill_on_drop(true)
        .env_remove("KUBERNETES_SERVICE_HOST");
    Ok(timeout(AT_ONCE, command.output()).await??)
}

#[tokio::test]
async fn wrong_input_is_one_line_that_names_it_and_exit_code_2() -> Result<()> {
    scenario("process.wrong_input", async |workspace| {
        let plugin = "--plugin=unix:///run/none/plugin.sock";
        let (missing, broken) = (workspace.join("missing"), workspace.join("broken"));
        fs::write(&broken, "{ not: [ a kubeconfig")?;
        let (missing, broken) = (missing.to_string_lossy(), broken.to_string_lossy());
        let rows: [(&str, Vec<&str>, &str); 8] = [
            ("unknown flag", vec![plugin, "--no-such-flag"], "--no-such-flag"),
            (
                "bad duration",
                vec![plugin, "--leader-elect-retry-period=soon"],
                "--leader-elect-retry-period",
            ),
            ("bad endpoint", vec!["--plugin=tcp://1.2.3.4"], "--plugin"),
            (
                "missing kubeconfig",
                vec![plugin, "--kubeconfig", &missing],
                &missing,
            ),
            (
                "broken kubeconfig",
                vec![plugin, "--kubeconfig", &broken],
                &broken,
            ),
            ("no cluster", vec![plugin], "--kubeconfig"),
            ("unknown controller", vec![plugin, "--controllers=nodes"], "nodes"),
            (
                "controller that is not built",
                vec![plugin, "--controllers=node-route-controller"],
                "node-route-controller",
            ),
        ];
        for (name, arguments, named) in rows {
            let output = run(&arguments).await?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{name}: {said}");
            assert_eq!(said.lines().count(), 1, "{name}: {said}");
            assert!(said.contains(named), "{name}: {said}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_exit_code_3() -> Result<()> {
    scenario("process.port_taken", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = holder.local_addr()?.port();
        let options = cluster
            .host("unix:///run/none/plugin.sock")?
            .secure_port(SecurePort::Fixed(port));
        let host = Host::start(workspace, &options)?;
        assert_eq!(host.process().wait(AT_ONCE).await?.code(), Some(3));
        let log = host.process().log()?;
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(&port.to_string()), "{log}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_at_the_start_is_waited_for() -> Result<()> {
    scenario("process.api_server_away", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let target = Address::Tcp((Ipv4Addr::LOCALHOST, cluster.server().port()).into());
        let proxy = TcpProxy::tcp(target).await?;
        proxy.set(Mode::Cut).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let kubeconfig = cluster.server().kubeconfig_via(User::Host, proxy.port()?)?;
        let host = Host::start(workspace, &HostOptions::new(kubeconfig).plugin(plugin.endpoint()))?;
        cluster.add_node("node-1").await?;
        eventually(SOON, "the host to say that it is not ready", async || {
            let answer = host.get("/readyz", None).await?;
            ensure!(answer.status == 500, "{}", answer.status);
            Ok(())
        })
        .await?;
        assert_eq!(host.get("/livez", None).await?.status, 200);

        proxy.set(Mode::Pass).await?;
        host.wait_ready(SOON).await?;
        cluster.initialised("node-1").await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_whoever_may_get_them_and_health_is_for_all() -> Result<()> {
    scenario("process.metrics", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let options = cluster
            .host("unix:///run/none/plugin.sock")?
            .flag("authorization-webhook-cache-unauthorized-ttl", "1s");
        let host = Host::start(workspace, &options)?;
        host.wait_ready(SOON).await?;
        for path in ["/livez", "/readyz", "/healthz", "/readyz/plugins"] {
            assert_eq!(host.get(path, None).await?.status, 200, "{path}");
        }
        assert_eq!(
            host.get("/metrics", None).await?.status,
            403,
            "as upstream: nobody is somebody without rights"
        );
        assert_eq!(host.get("/metrics", Some("no-such-token")).await?.status, 401);
        let scraper = cluster.server().token(User::Scraper);
        assert_eq!(host.get("/metrics", Some(scraper)).await?.status, 403);

        let admin = cluster.server().admin();
        let role: ClusterRole = serde_json::from_value(json!({
            "metadata": { "name": "scrape" },
            "rules": [{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }],
        }))?;
        Api::all(admin.clone())
            .create(&PostParams::default(), &role)
            .await?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": { "name": "scrape" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scrape" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "scraper" }],
        }))?;
        Api::all(admin).create(&PostParams::default(), &binding).await?;
        let metrics = eventually(SOON, "the scraper to be let in", async || {
            let answer = host.get("/metrics", Some(scraper)).await?;
            ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
            Ok(answer.body)
        })
        .await?;
        for name in [
            "workqueue_depth",
            "leader_election_master_status",
            "process_resident_memory_bytes",
        ] {
            assert!(metrics.contains(name), "{name} is missing in {metrics}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_port_it_works_and_sigterm_is_exit_code_0() -> Result<()> {
    scenario("process.no_port", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let options = cluster
            .host(&plugin.endpoint())?
            .secure_port(SecurePort::Disabled);
        let host = Host::start(workspace, &options)?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        assert_eq!(host.stop(SOON).await?.code(), Some(0));
        let lease = cluster.leases().get("cloud-controller-manager").await?;
        let holder = lease
            .spec
            .and_then(|spec| spec.holder_identity)
            .unwrap_or_default();
        assert_eq!(holder, "", "the lease was not released");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_controllers_that_were_named_run() -> Result<()> {
    scenario("process.controllers", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        cluster.add_node("node-1").await?;
        let host = Host::start(
            workspace,
            &cluster.host(&plugin.endpoint())?.controllers("service"),
        )?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        let node = cluster.nodes().get("node-1").await?;
        assert!(is_uninitialised(&node));
        assert_eq!(host.stop(SOON).await?.code(), Some(0));
        drop(host);

        let options = cluster
            .host(&plugin.endpoint())?
            .controllers("*,-service-lb-controller");
        let _host = Host::start(workspace, &options)?;
        cluster.add_service(&service_lb("nobodys")).await?;
        cluster.initialised("node-1").await?;
        let service = cluster.services().get("nobodys").await?;
        assert_eq!(service.metadata.finalizers, None);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_of_leadership_plugins_and_queues_and_where_no_host_is() -> Result<()> {
    scenario("process.status", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        let socket = host.admin_socket();
        let ask = async |form: &str| -> Result<Output> {
            let mut command = Command::new(resolve_binary("bulkhead", "BULKHEAD_BIN")?);
            command.arg("status").arg("--admin-socket").arg(&socket);
            Ok(timeout(AT_ONCE, command.args(["-o", form]).output()).await??)
        };
        let output = ask("json").await?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{said}");
        let status: serde_json::Value = serde_json::from_str(&said)?;
        assert_eq!(status["apiVersion"], "status.bulkhead.dev/v1alpha1");
        assert_eq!(status["leadership"]["state"], "leading");
        assert_eq!(status["leadership"]["holder"], status["leadership"]["identity"]);
        assert_eq!(status["plugins"][0]["state"], "active", "{said}");
        assert!(
            status["plugins"][0]["callsLastMinute"].as_u64() > Some(0),
            "{said}"
        );
        assert_eq!(status["queues"][0]["name"], "Nodes", "{said}");
        let table = String::from_utf8(ask("table").await?.stdout)?;
        for part in ["Leadership: leading by Lease kube-system/", "active", "QUEUE"] {
            assert!(table.contains(part), "no {part:?} in {table}");
        }

        assert_eq!(host.stop(SOON).await?.code(), Some(0));
        let output = ask("table").await?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("bulkhead: no host at"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        Ok(())
    })
    .await
}
