//! Who may speak to whom: certificates over a network, user ids at a socket.

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{
    Cluster, Metrics, SOON, Simulated,
    certificates::{Authority, Files, HOST, Identity, PLUGIN},
    is_uninitialised, simulated,
};
use bulkhead_harness::{
    Address, Host, PluginProcess, Workspace, eventually, resolve_binary, scenario, service_lb,
};
use kube::api::PostParams;
use serde_json::{Value, json};

/// Somebody who is neither root nor who runs the tests.
const STRANGER: u32 = 65_534;

/// What a host says of its one plugin: its state, and why.
async fn plugin_of(host: &Host) -> Result<(String, String)> {
    let answer = host.get("/readyz/plugins", None).await?;
    let page: Value = serde_json::from_str(&answer.body).with_context(|| answer.body.clone())?;
    let text = |pointer| page.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Ok((text("/plugins/0/state").to_owned(), page.to_string()))
}

/// Waits until the host is in this state with its plugin.
async fn is(host: &Host, wanted: &str) -> Result<()> {
    eventually(SOON, &format!("the plugin to be {wanted}"), async || {
        let (state, page) = plugin_of(host).await?;
        ensure!(state == wanted, "{page}");
        Ok(())
    })
    .await
}

/// Waits until the host says why it has no session with its plugin.
async fn says(host: &Host, part: &str) -> Result<()> {
    eventually(SOON, &format!("the host to say '{part}'"), async || {
        let (state, page) = plugin_of(host).await?;
        ensure!(state != "active" && page.contains(part), "{page}");
        Ok(())
    })
    .await?;
    host.process().wait_for_log(part, SOON).await.map(drop)
}

/// The configuration of a host that reaches the cloud's plugin by these files.
fn config(workspace: &Workspace, cloud: &Simulated<'_>, files: &Files) -> Result<PathBuf> {
    let mut plugin = cloud.config();
    let fields = plugin.as_object_mut().context("a plugin has fields")?;
    fields.insert("tls".to_owned(), files.section());
    simulated::configure(workspace, "host", &[plugin])
}

/// A machine of the cloud becomes a node, and a Service of it gets an address.
async fn works(cluster: &Cluster, cloud: &Simulated<'_>, name: &str) -> Result<()> {
    let node = cloud.machine(name).await?;
    cluster.nodes().create(&PostParams::default(), &node).await?;
    cluster.initialised(name).await?;
    cluster.add_service(&cloud.service(name)).await?;
    cluster.address(name).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_both_sides_and_their_authorities_change_under_load_and_nobody_notices() -> Result<()>
{
    const ROTATIONS: usize = 3;
    const BETWEEN: usize = 5;
    scenario("peers.rotation", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (mut plugins, mut hosts) = (Authority::new("plugins 0")?, Authority::new("hosts 0")?);
        let of_plugin = Files::new(workspace.join("plugin-tls"), &plugins.sign(PLUGIN)?, &[&hosts])?;
        let of_host = Files::new(workspace.join("host-tls"), &hosts.sign(HOST)?, &[&plugins])?;
        let cloud = Simulated::at_port(workspace, "far", of_plugin.arguments()).await?;
        let config = config(workspace, &cloud, &of_host)?;
        let options = cluster.configured_host(&config)?;
        let mut leader = Host::start(workspace, &options.clone().name("host-0"))?;
        works(&cluster, &cloud, "first").await?;

        let served = AtomicUsize::new(0);
        let load = async {
            loop {
                let number = served.load(Ordering::SeqCst);
                works(&cluster, &cloud, &format!("web-{number}")).await?;
                served.store(number + 1, Ordering::SeqCst);
            }
        };
        let serves_on = async || {
            let before = served.load(Ordering::SeqCst);
            eventually(SOON, "work to go on", async || {
                let now = served.load(Ordering::SeqCst);
                ensure!(now >= before + BETWEEN, "{now} after {before}");
                Ok(())
            })
            .await
        };
        let rotations = async {
            for round in 1..=ROTATIONS {
                let (new_plugins, new_hosts) = (
                    Authority::new(&format!("plugins {round}"))?,
                    Authority::new(&format!("hosts {round}"))?,
                );
                // Both authorities are trusted, then certificates change, then the old authorities go.
                of_plugin.trust(&[&hosts, &new_hosts])?;
                of_host.trust(&[&plugins, &new_plugins])?;
                of_plugin.prove_by(&new_plugins.sign(PLUGIN)?)?;
                of_host.prove_by(&new_hosts.sign(HOST)?)?;
                serves_on().await?;
                of_plugin.trust(&[&new_hosts])?;
                of_host.trust(&[&new_plugins])?;
                // The session of the one that leads goes on; another host is let in by the new ones, and takes over.
                let next = Host::start(workspace, &options.clone().name(&format!("host-{round}")))?;
                is(&next, "standby").await?;
                serves_on().await?;
                no_call_failed(&leader, &cluster).await?;
                ensure!(leader.stop(SOON).await?.success(), "the host did not end well");
                is(&next, "active").await?;
                serves_on().await?;
                (leader, plugins, hosts) = (next, new_plugins, new_hosts);
            }
            Ok(leader)
        };
        let leader = tokio::select! {
            failed = load => return failed,
            done = rotations => done?,
        };
        no_call_failed(&leader, &cluster).await?;
        let warnings = cluster.warnings().await?;
        ensure!(warnings.is_empty(), "{warnings:#?}");
        let log = cloud.plugin()?.process().log()?;
        ensure!(
            !log.contains("refused") && log.matches("has proved itself").count() == ROTATIONS + 1,
            "{log}"
        );
        Ok(())
    })
    .await
}

/// Every call of the host so far has had a good answer. How the plugin is is asked again and again: a busy machine may
/// answer that late.
async fn no_call_failed(host: &Host, cluster: &Cluster) -> Result<()> {
    let metrics = Metrics::of(host, cluster).await?;
    let calls = metrics.samples("bulkhead_plugin_calls_total");
    let failed: Vec<_> = calls
        .iter()
        .filter(|line| {
            !["result=\"ok\"", "verb=\"Health\"", "verb=\"GetStatus\""]
                .iter()
                .any(|part| line.contains(part))
        })
        .collect();
    ensure!(!calls.is_empty() && failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// A way in which host and plugin do not trust each other.
struct Distrust {
    name: &'static str,
    /// Whose certificate is exchanged, and for what.
    of_host: bool,
    exchanged_for: fn(&Authority, &Authority) -> Result<Identity>,
    host_says: &'static str,
    plugin_says: &'static str,
}

/// All of them; the first authority is the one that the other side trusts.
const DISTRUST: [Distrust; 5] = [
    Distrust {
        name: "another-authority-s-host",
        of_host: true,
        exchanged_for: |_, other| other.sign(HOST),
        host_says: "tls.certFile: UnknownCA",
        plugin_says: "UnknownIssuer",
    },
    Distrust {
        name: "expired-host",
        of_host: true,
        exchanged_for: |own, _| own.sign_expired(HOST),
        host_says: "tls.certFile: CertificateExpired",
        plugin_says: "certificate expired",
    },
    Distrust {
        name: "another-authority-s-plugin",
        of_host: false,
        exchanged_for: |_, other| other.sign(PLUGIN),
        host_says: "UnknownIssuer",
        plugin_says: "UnknownCA",
    },
    Distrust {
        name: "expired-plugin",
        of_host: false,
        exchanged_for: |own, _| own.sign_expired(PLUGIN),
        host_says: "certificate expired",
        plugin_says: "CertificateExpired",
    },
    Distrust {
        name: "another-plugin",
        of_host: false,
        exchanged_for: |own, _| own.sign("other.test"),
        host_says: "not valid for name",
        plugin_says: "BadCertificate",
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn whoever_cannot_prove_itself_is_refused_and_a_renewed_certificate_needs_no_restart_of_the_host()
-> Result<()> {
    scenario("peers.distrust", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (plugins, hosts) = (Authority::new("plugins")?, Authority::new("hosts")?);
        let (plugin, host) = (plugins.sign(PLUGIN)?, hosts.sign(HOST)?);
        let of_plugin = Files::new(workspace.join("plugin-tls"), &plugin, &[&hosts])?;
        let of_host = Files::new(workspace.join("host-tls"), &host, &[&plugins])?;
        let mut cloud = Simulated::at_port(workspace, "far", of_plugin.arguments()).await?;
        let config = config(workspace, &cloud, &of_host)?;
        let running = Host::start(workspace, &cluster.configured_host(&config)?)?;
        let pid = running.process().pid();
        works(&cluster, &cloud, "first").await?;
        for row in DISTRUST {
            refused(&cluster, &mut cloud, &running, &row, async |distrusted| {
                let (files, own, good, other) = if row.of_host {
                    (&of_host, &hosts, &host, &plugins)
                } else {
                    (&of_plugin, &plugins, &plugin, &hosts)
                };
                if distrusted {
                    files.prove_by(&(row.exchanged_for)(own, other)?)
                } else {
                    files.prove_by(good)
                }
            })
            .await
            .context(row.name)?;
        }
        ensure!(
            running.process().is_running() && running.process().pid() == pid,
            "the host has ended"
        );
        let warnings = cluster.warnings().await?;
        ensure!(warnings.is_empty(), "{warnings:#?}");
        Ok(())
    })
    .await
}

async fn refused(
    cluster: &Cluster,
    cloud: &mut Simulated<'_>,
    host: &Host,
    row: &Distrust,
    exchange: impl AsyncFn(bool) -> Result<()>,
) -> Result<()> {
    exchange(true).await?;
    // A session that lives keeps what it was begun with: only the next one is refused.
    works(cluster, cloud, &format!("{}-before", row.name)).await?;
    cloud.replace().await?;
    says(host, row.host_says).await?;
    cloud
        .plugin()?
        .process()
        .wait_for_log(row.plugin_says, SOON)
        .await?;
    let writes = cluster.host_writes()?.len();
    let during = format!("{}-during", row.name);
    cluster
        .nodes()
        .create(&PostParams::default(), &cloud.machine(&during).await?)
        .await?;
    cluster.add_service(&cloud.service(&during)).await?;
    let sessions = cloud.plugin()?.process().log()?;
    ensure!(!sessions.contains("has proved itself"), "{sessions}");
    ensure!(
        is_uninitialised(&cluster.nodes().get(&during).await?),
        "{during} was initialised"
    );
    ensure!(cluster.host_writes()?.len() == writes, "something was written");

    exchange(false).await?;
    is(host, "active").await?;
    cluster.initialised(&during).await?;
    cluster.address(&during).await.map(drop)
}

/// Whether this test may start processes under another user id.
fn may_be_somebody_else() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        writeln!(
            std::io::stderr(),
            "left out: only root can start a process under another user id"
        )
        .ok();
    }
    is_root
}

/// The scenario of a plugin whose cloud has `node-1` and nothing else.
fn one_machine(workspace: &Workspace, plugin: &str) -> Result<PathBuf> {
    let path = simulated::scenario_path(workspace, plugin);
    let machine = json!({ "id": "i-1", "name": "node-1" });
    fs::write(&path, json!({ "cloud": { "instances": [machine] } }).to_string())?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_of_another_user_is_not_spoken_to_until_the_configuration_allows_that_user() -> Result<()> {
    if !may_be_somebody_else() {
        return Ok(());
    }
    scenario("peers.plugin_uid", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let scenario = one_machine(workspace, "foreign")?;
        let binary = resolve_binary("bulkhead-sim", "BULKHEAD_SIM_BIN")?;
        let arguments = [OsString::from("--scenario"), scenario.into()];
        let plugin = PluginProcess::spawn_under(STRANGER, workspace, "foreign", &binary, arguments)?;
        plugin.wait_listening(SOON).await?;
        let configured = |allowed: &[u32]| {
            let plugin = json!({ "name": "foreign", "endpoint": plugin.endpoint(), "allowedUIDs": allowed });
            simulated::configure(workspace, "host", &[plugin])
        };
        let host = Host::start(workspace, &cluster.configured_host(&configured(&[])?)?)?;
        cluster.add_node("node-1").await?;
        cluster.add_service(&service_lb("web")).await?;
        let line = format!("it runs as uid {STRANGER}");
        says(&host, &line).await?;
        ensure!(
            is_uninitialised(&cluster.nodes().get("node-1").await?),
            "it was initialised"
        );
        ensure!(cluster.host_writes()?.is_empty(), "something was written");

        configured(&[STRANGER])?;
        cluster.initialised("node-1").await?;
        cluster.address("web").await.map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_another_user_is_cut_off_by_the_plugin_until_the_plugin_allows_that_user() -> Result<()> {
    if !may_be_somebody_else() {
        return Ok(());
    }
    scenario("peers.host_uid", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let scenario = one_machine(workspace, "own")?;
        let start = |more: &[String]| {
            let scenario = ["--scenario".to_owned(), scenario.to_string_lossy().into_owned()];
            let address = Address::Unix(PluginProcess::socket_path(workspace, "own")?);
            PluginProcess::simulated(workspace, "own", address, scenario.iter().chain(more))
        };
        let plugin = start(&[])?;
        plugin.wait_listening(SOON).await?;
        // All that a host needs of the API server but a token.
        let readable = Permissions::from_mode(0o644);
        fs::set_permissions(cluster.server().ca_certificate(), readable)?;
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?.uid(STRANGER))?;
        cluster.add_node("node-1").await?;
        let line = plugin
            .process()
            .wait_for_log("whose uid may not connect", SOON)
            .await?;
        ensure!(line.contains(&STRANGER.to_string()), "{line}");
        says(&host, "").await?;
        ensure!(
            is_uninitialised(&cluster.nodes().get("node-1").await?),
            "it was initialised"
        );
        ensure!(cluster.host_writes()?.is_empty(), "something was written");

        drop(plugin);
        let plugin = start(&[format!("--allow-uid={STRANGER}")])?;
        cluster.initialised("node-1").await?;
        drop(plugin);
        Ok(())
    })
    .await
}
