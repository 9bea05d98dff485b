//! Plugins that come late, die and are replaced: the host goes on.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Machine, SOON, cloud, scripted, traffic};
use bulkhead_harness::{
    Address, Host, PluginProcess, Workspace, eventually,
    observed::{kill, only_child, runs},
    resolve_binary, scenario, service_lb, spawn_endpoint,
};
use bulkhead_scripted::{Behaviour, Entry, Journal, Rpc};
use kube::ResourceExt;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

/// Starts the scripted plugin as a process whose cloud is in the journal file.
fn process(
    workspace: &Workspace,
    name: &str,
    journal: &Path,
    script: &[(Rpc, Behaviour)],
) -> Result<PluginProcess> {
    let path = workspace.join(format!("{name}.script"));
    fs::write(&path, serde_json::to_string(script)?)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let arguments = [
        "--journal".to_owned(),
        text(journal),
        "--name".to_owned(),
        name.to_owned(),
    ];
    // The place is the same for all names: one takes it over from the other.
    PluginProcess::scripted(
        workspace,
        "scripted",
        arguments.into_iter().chain(["--script".to_owned(), text(&path)]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_killed_during_ensure_comes_back_to_the_one_load_balancer() -> Result<()> {
    scenario("plugin_faults.killed_during_ensure", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let path = workspace.join("journal");
        let journal = Journal::at(&path);
        let late = (
            Rpc::EnsureLoadBalancer,
            Behaviour::AnsweredLate(Duration::from_secs(300)),
        );
        let plugin = process(workspace, "first", &path, &[late])?;
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        let pid = host.process().pid();
        cluster.add_service(&service_lb("web")).await?;
        eventually(SOON, "the load balancer to be made", async || {
            ensure!(journal.creates()? == 1, "it is not");
            Ok(())
        })
        .await?;
        plugin.process().kill()?;
        plugin.process().wait(SOON).await?;
        drop(plugin);

        let _plugin = process(workspace, "second", &path, &[])?;
        cluster.address("web").await?;
        assert_eq!(journal.creates()?, 1, "a second load balancer was made");
        assert!(host.process().is_running() && host.process().pid() == pid);
        let ids: Vec<_> = journal
            .calls(Rpc::EnsureLoadBalancer)?
            .into_iter()
            .map(|call| call.request_id)
            .collect();
        assert!(
            ids.len() >= 2 && ids.iter().all(|id| *id == ids[0]),
            "one intent has one request id: {ids:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_plugin_is_away_is_ready_says_so_once_and_works_when_it_comes() -> Result<()> {
    scenario("plugin_faults.absent_at_start", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let socket = PluginProcess::socket_path(workspace, "scripted")?;
        let host = Host::start(workspace, &cluster.host(&format!("unix://{}", socket.display()))?)?;
        cluster.add_node("node-1").await?;
        host.wait_ready(SOON).await?;
        let page = host.get("/readyz/plugins", None).await?;
        let page: Value = serde_json::from_str(&page.body).with_context(|| page.body.clone())?;
        let state = page.pointer("/plugins/0/state").and_then(Value::as_str);
        assert!(matches!(state, Some("discovered" | "gone")), "{page:#}");
        let plugin_line = host.get("/readyz?verbose", None).await?.body;
        assert!(plugin_line.contains("plugin "), "{plugin_line}");
        let line = host.process().wait_for_log("is away", SOON).await?;
        assert!(line.contains(&socket.display().to_string()), "{line}");

        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        cluster.initialised("node-1").await?;
        // Many attempts were made meanwhile.
        let lines = host
            .process()
            .log()?
            .lines()
            .filter(|line| line.contains("is away"))
            .count();
        assert_eq!(lines, 1, "it was said more than once");
        drop(plugin);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_replaced_by_another_process_at_the_same_path_is_a_new_session() -> Result<()> {
    scenario("plugin_faults.replaced", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let path = workspace.join("journal");
        let journal = Journal::at(&path);
        let first = process(workspace, "first", &path, &[])?;
        let host = Host::start(workspace, &cluster.host(&first.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        let address = cluster.address("web").await?;

        // It takes the path while the first still serves its session: the session is of a process, not of a path.
        let second = process(workspace, "second", &path, &[])?;
        second.wait_listening(SOON).await?;
        cluster.add_service(&service_lb("still-first")).await?;
        cluster.address("still-first").await?;
        assert!(
            journal
                .calls(Rpc::Describe)?
                .iter()
                .all(|call| call.plugin == "first")
        );

        first.process().kill()?;
        cluster.add_service(&service_lb("second")).await?;
        cluster.address("second").await?;
        assert_eq!(cluster.address("web").await?, address);
        assert_eq!(journal.creates()?, 3);

        let mine = |entry: &Entry| match entry {
            Entry::Asked { plugin, rpc, .. } => (plugin == "second").then_some(*rpc),
            Entry::Ended { .. } | Entry::Led(_) | Entry::Wrote(_) => None,
        };
        let entries = journal.entries()?;
        let asked: Vec<Rpc> = entries
            .iter()
            .filter_map(mine)
            .filter(|rpc| *rpc != Rpc::GetStatus)
            .collect();
        assert_eq!(
            asked.get(..3),
            Some(&[Rpc::Describe, Rpc::Lead, Rpc::Lead][..]),
            "a session begins with these"
        );
        let grants = journal.grants()?;
        let first_grant = grants
            .iter()
            .find(|grant| grant.plugin == "second")
            .context("none")?;
        assert!(
            first_grant.until < first_grant.at,
            "the first Lead of a session granted something"
        );
        assert!(host.process().is_running());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spawned_plugin_is_restarted_when_it_dies_and_ends_with_its_host() -> Result<()> {
    scenario("plugin_faults.spawned", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let binary = resolve_binary("bulkhead-scripted", "BULKHEAD_SCRIPTED_BIN")?.canonicalize()?;
        let path = workspace.join("journal");
        let endpoint = spawn_endpoint(&binary, &["--journal", &path.to_string_lossy()])?;
        let host = Host::start(workspace, &cluster.host(&endpoint)?)?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        let first = only_child(host.process().pid())?;

        kill(first)?;
        cluster.add_service(&service_lb("after")).await?;
        cluster.address("after").await?;
        let second = only_child(host.process().pid())?;
        assert_ne!(first, second);
        assert_eq!(Journal::at(&path).creates()?, 2);

        host.process().kill()?;
        eventually(SOON, "the child to end with its host", async || {
            ensure!(!runs(second), "it runs");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_hangs_in_one_call_does_not_hold_up_the_others() -> Result<()> {
    scenario("plugin_faults.hangs", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        plugin.script().next(Rpc::EnsureLoadBalancer, [Behaviour::Hangs]);
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("hangs")).await?;
        let calls = || plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer);
        eventually(SOON, "the plugin to hang", async || {
            ensure!(!calls()?.is_empty(), "it was not asked");
            Ok(())
        })
        .await?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.add_node("node-1").await?;
        cluster.address("web").await?;
        cluster.initialised("node-1").await?;
        assert_eq!(
            calls()?[0].ended,
            None,
            "the call that hangs was given up before its deadline"
        );
        Ok(())
    })
    .await
}

/// The embedded plugin as on a disk that can fill up: then a write fails, and no signal ends the process.
async fn local(workspace: &Workspace, machine: &Machine<'_>) -> Result<PluginProcess> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#])
        .arg(resolve_binary("bulkhead-local", "BULKHEAD_LOCAL_BIN")?.canonicalize()?)
        .arg("--state-dir")
        .arg(workspace.join("local-state"))
        .arg("--inventory")
        .arg(machine.inventory())
        .args(["--pool", &format!("{}/27", workspace.loopback(128))]);
    let socket = PluginProcess::socket_path(workspace, "local")?;
    let plugin = PluginProcess::run(workspace, "local", Address::Unix(socket), command)?;
    plugin.wait_listening(SOON).await?;
    Ok(plugin)
}

/// From now on a file of the plugin may not grow at all, or as this process' files may.
fn fill_disk(plugin: &PluginProcess, is_full: bool) -> Result<()> {
    let whole = getrlimit(Resource::Fsize);
    let limit = Rlimit {
        current: if is_full { Some(0) } else { whole.current },
        maximum: whole.maximum,
    };
    let pid = Pid::from_raw(i32::try_from(plugin.process().pid())?);
    prlimit(pid, Resource::Fsize, limit)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_at_the_plugin_is_told_and_loses_nothing() -> Result<()> {
    const PORT: u16 = 80;
    scenario("plugin_faults.disk_full", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let mut machine = Machine::new(workspace, &["node-1", "node-2"])?;
        let plugin = local(workspace, &machine).await?;
        let options = cluster.host(&plugin.endpoint())?;
        let host = Host::start(workspace, &options.flag("cloud-provider", "local"))?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        for name in ["stays", "goes"] {
            machine
                .serve(&cluster.add_service(&service_lb(name)).await?)
                .await?;
        }
        let stays = SocketAddr::new(cluster.address("stays").await?, PORT);
        cluster.address("goes").await?;
        let is_served = async || traffic::answered_by(stays, &["node-1"]).await;
        is_served().await?;

        fill_disk(&plugin, true)?;
        machine
            .serve(&cluster.add_service(&service_lb("late")).await?)
            .await?;
        cluster.delete_service("goes").await?;
        for (name, reason) in [
            ("late", "SyncLoadBalancerFailed"),
            ("goes", "DeleteLoadBalancerFailed"),
        ] {
            cluster
                .event("Service", name, reason, "cannot store the load balancers")
                .await?;
        }
        ensure!(
            !cluster.services().get("goes").await?.finalizers().is_empty(),
            "a load balancer that is still stored was forgotten"
        );
        // What needs no disk goes on.
        cluster.add_node("node-2").await?;
        cluster.initialised("node-2").await?;
        is_served().await?;

        fill_disk(&plugin, false)?;
        let late = SocketAddr::new(cluster.address("late").await?, PORT);
        cluster.service_gone("goes").await?;
        plugin.process().kill()?;
        plugin.process().wait(SOON).await?;
        drop(plugin);
        let _plugin = local(workspace, &machine).await?;
        for front in [stays, late] {
            traffic::answered_by(front, &["node-1", "node-2"]).await?;
        }
        ensure!(host.process().is_running(), "the host has ended");
        Ok(())
    })
    .await
}
