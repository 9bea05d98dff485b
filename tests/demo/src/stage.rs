//! What runs: the API server, the host, the plugin, the machines.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{ApiServer, Host, LocalOptions, PluginProcess, User, Workspace, eventually};
use kube::Client;
use serde_json::Value;
use tokio::time::sleep;

use crate::cluster::SERVICE;
use crate::machine::{Inventory, Machine};

/// The Service's port: above 1023, so that no privilege is needed.
pub(crate) const PORT: u16 = 8080;
/// How long anything here may take before the demo gives up on it.
pub(crate) const WITHIN: Duration = Duration::from_secs(15);
/// Addresses for load balancers, in the workspace's own /24.
const POOL_FIRST: u8 = 128;
const POOL_PREFIX: u8 = 26;

/// Between two looks at the plugin that is to be started again.
const KUBELET_LOOKS_EVERY: Duration = Duration::from_millis(100);

/// Everything that runs. What is dropped first ends first.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) machines: Vec<Machine>,
    pub(crate) inventory: Inventory,
    pub(crate) host: Host,
    pub(crate) plugin: PluginProcess,
    pub(crate) server: ApiServer,
    pub(crate) workspace: &'a Workspace,
    /// Where the Service is reached, once it has an address.
    pub(crate) address: Option<IpAddr>,
    /// Where the machines serve it, once the API server has chosen.
    pub(crate) node_port: Option<u16>,
    /// The Service's `resourceVersion` when it had its address.
    pub(crate) service_version: Option<String>,
}

/// The plugin as the host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) state: String,
    /// Raised with each session.
    pub(crate) number: u64,
}

impl Stage<'_> {
    pub(crate) fn admin(&self) -> Client {
        self.server.admin()
    }

    /// Where clients reach the Service.
    pub(crate) fn front(&self) -> Result<SocketAddr> {
        let address = self.address.context("the Service has no address yet")?;
        Ok(SocketAddr::new(address, PORT))
    }

    /// Asks the host how it sees the plugin.
    pub(crate) async fn session(&self) -> Result<Session> {
        let answer = self.host.get("/readyz/plugins", None).await?;
        let body: Value = serde_json::from_str(&answer.body)
            .with_context(|| format!("read {:?}, the host's answer", answer.body))?;
        let plugin = body.pointer("/plugins/0").context("the host shows no plugin")?;
        let state = plugin.get("state").and_then(Value::as_str);
        let number = plugin.pointer("/details/session").and_then(Value::as_u64);
        Ok(Session {
            state: state.unwrap_or_default().to_owned(),
            number: number.unwrap_or_default(),
        })
    }

    /// Waits until the host has a session, newer than `after`, in which it may send work.
    pub(crate) async fn session_after(&self, after: u64) -> Result<Session> {
        eventually(WITHIN, "the host to work with the plugin", async || {
            let session = self.session().await?;
            ensure!(
                session.state == "active" && session.number > after,
                "it shows the plugin as {session:?}"
            );
            Ok(session)
        })
        .await
    }

    /// Where the plugin keeps the load balancers.
    pub(crate) fn saved_state(&self) -> PathBuf {
        state_dir(self.workspace).join("balancers.json")
    }

    /// How a user goes on from here.
    pub(crate) async fn how_to_use_it(&self) -> Result<String> {
        let kubeconfig = self.server.kubeconfig(User::Admin)?;
        Ok(format!(
            "\nEverything keeps running until Ctrl-C. In another terminal:\n\n  \
             export KUBECONFIG={kubeconfig}\n  \
             kubectl get nodes -L topology.kubernetes.io/zone\n  \
             kubectl describe service {SERVICE}\n  \
             curl --http0.9 http://{front}       # a node's name\n  \
             kill -KILL {plugin}                        # the plugin, which is started again\n  \
             curl -k https://127.0.0.1:{port}/readyz/plugins\n\n\
             Logs are in {logs}",
            kubeconfig = kubeconfig.display(),
            front = self.front()?,
            plugin = self.plugin.process().pid(),
            port = self.host.port().await?,
            logs = self.workspace.logs().display(),
        ))
    }

    /// Starts the plugin again whenever it ends, for ever: as the kubelet does.
    pub(crate) async fn play_kubelet(&mut self) -> Result<Infallible> {
        loop {
            while self.plugin.process().is_running() {
                sleep(KUBELET_LOOKS_EVERY).await;
            }
            self.plugin = start_plugin(self.workspace, &self.inventory)?;
        }
    }
}

/// Starts the plugin as the kubelet would start its container: the same command each time.
pub(crate) fn start_plugin(workspace: &Workspace, inventory: &Inventory) -> Result<PluginProcess> {
    let pool = format!("{}/{POOL_PREFIX}", workspace.loopback(POOL_FIRST));
    let options = LocalOptions {
        state: Some(state_dir(workspace)),
        arguments: vec!["--pool".into(), pool.into()],
        ..LocalOptions::new(inventory.path())
    };
    PluginProcess::local(workspace, &options)
}

fn state_dir(workspace: &Workspace) -> PathBuf {
    workspace.join("local-state")
}
