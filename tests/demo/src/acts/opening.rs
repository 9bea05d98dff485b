//! The control plane, the host under its own rights, the plugin beside it.

use anyhow::{Context, Result, bail};
use bulkhead_harness::{ApiServer, Host, HostOptions, PluginProcess, Stopwatch, User, Workspace, eventually};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;

use crate::machine::{Inventory, Machine};
use crate::report::Report;
use crate::stage::{Stage, WITHIN, start_plugin};

/// How many machines there are at first.
const MACHINES: u8 = 3;
const FORBIDDEN: u16 = 403;

pub(super) async fn start<'a>(workspace: &'a Workspace, report: &mut Report) -> Result<Stage<'a>> {
    let server = start_server(workspace, report).await?;
    let machines: Vec<_> = (1..=MACHINES)
        .map(|number| Machine::new(workspace, number))
        .collect();
    let inventory = Inventory::new(workspace);
    inventory.write(&machines)?;

    let watch = Stopwatch::start();
    let endpoint = format!(
        "unix://{}",
        PluginProcess::socket_path(workspace, "local")?.display()
    );
    let options = HostOptions::new(server.kubeconfig(User::Host)?)
        .plugin(endpoint)
        .flag("cloud-provider", "local");
    let stage = Stage {
        host: Host::start(workspace, &options)?,
        plugin: start_plugin(workspace, &inventory)?,
        machines,
        inventory,
        server,
        workspace,
        address: None,
        node_port: None,
        service_version: None,
    };
    stage.host.wait_ready(WITHIN).await?;
    stage.session_after(0).await?;
    report.holds(format_args!(
        "host (pid {}) leads and works with plugin local (pid {}), after {}",
        stage.host.process().pid(),
        stage.plugin.process().pid(),
        watch.read()
    ))?;
    Ok(stage)
}

async fn start_server(workspace: &Workspace, report: &mut Report) -> Result<ApiServer> {
    let server = ApiServer::start(workspace)
        .await
        .context("start the API server")?;
    let version = server.admin().apiserver_version().await?.git_version;
    report.holds(format_args!(
        "kube-apiserver {version} answers at {}",
        server.url()
    ))?;
    let applied = server.apply_manifests().await?;
    ensure_rights_end(&server).await?;
    report.holds(format_args!(
        "deploy/manifests: {} objects applied; with them the host's ServiceAccount may read Nodes, not Secrets",
        applied.len()
    ))?;
    Ok(server)
}

/// RBAC is on: the host has the rights of the manifests, and no others.
async fn ensure_rights_end(server: &ApiServer) -> Result<()> {
    let client = server.client(User::Host).await?;
    // The authoriser hears of new roles by a watch of its own.
    eventually(WITHIN, "the host's right to list Nodes", async || {
        Ok(crate::cluster::nodes(client.clone())
            .list(&ListParams::default())
            .await?)
    })
    .await?;
    match Api::<Secret>::all(client).list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => Ok(()),
        Err(error) => Err(error).context("ask for Secrets as the host"),
        Ok(_) => bail!("the host's ServiceAccount may list Secrets"),
    }
}
