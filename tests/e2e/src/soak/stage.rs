//! What runs in a soak: the API server, the host, the local plugin, the machines; and how each is ended.

use std::{
    ffi::OsString,
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{
    Host, LocalOptions, PluginProcess, Workspace, eventually, observed, resolve_binary, spawn_endpoint,
};

use super::model::MACHINES;
use crate::{Cluster, Machine, QUICK, SOON};

/// In the workspace's own /24, with no address of a machine in it. Twice what can be taken at once: one that is
/// leaked in a while is missed soon.
const POOL_FIRST: u8 = 128;
const POOL_PREFIX: u8 = 28;
const METRICS: (u8, u16) = (120, 9100);

/// What is over must soon be gone, so that what is left is a leak.
const CLOUD_CONFIG: &str = "flowIdleSeconds: 1\ndrainSeconds: 1\n";

/// Who starts the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// The host, as its child.
    Spawned,
    /// Somebody else, who also starts it again.
    Beside,
}

#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) machine: Machine<'a>,
    host: Option<Host>,
    plugin: Option<PluginProcess>,
    style: Style,
    pub(crate) cluster: Cluster,
    workspace: &'a Workspace,
}

impl<'a> Stage<'a> {
    /// Starts the API server; no host yet.
    pub(crate) async fn set(workspace: &'a Workspace) -> Result<Self> {
        fs::write(cloud_config(workspace), CLOUD_CONFIG)?;
        Ok(Self {
            machine: Machine::new(workspace, &MACHINES)?,
            host: None,
            plugin: None,
            style: Style::Spawned,
            cluster: Cluster::start(workspace).await?,
            workspace,
        })
    }

    /// Ends what runs, in order, and starts host and plugin in another style.
    pub(crate) async fn change_to(&mut self, style: Style) -> Result<()> {
        if self.host.is_some() {
            self.stop_host().await?;
        }
        self.plugin = None;
        self.style = style;
        if style == Style::Beside {
            self.plugin = Some(self.start_plugin()?);
        }
        self.start_host()
    }

    pub(crate) fn host_pid(&self) -> Result<u32> {
        Ok(self.host()?.process().pid())
    }

    /// The plugin's process id; waits for one that is being started again.
    pub(crate) async fn plugin_pid(&self) -> Result<u32> {
        if let Some(plugin) = &self.plugin {
            return Ok(plugin.process().pid());
        }
        let host = self.host_pid()?;
        eventually(SOON, "the host to have a plugin", async || {
            observed::only_child(host)
        })
        .await
    }

    /// A crash of the plugin. Who started it starts it again.
    pub(crate) async fn kill_plugin(&mut self) -> Result<()> {
        let pid = self.plugin_pid().await?;
        observed::kill(pid)?;
        gone(pid).await?;
        if self.plugin.take().is_some() {
            self.plugin = Some(self.start_plugin()?);
        }
        Ok(())
    }

    /// A crash of the host; another is started. A plugin that it had started must be gone by then.
    pub(crate) async fn kill_host(&mut self) -> Result<()> {
        let child = self.child().await?;
        let process = self.host()?.process();
        process.kill()?;
        process.wait(SOON).await?;
        if let Some(child) = child {
            gone(child).await?;
        }
        self.start_host()
    }

    /// The host is told to end, and another is started.
    pub(crate) async fn restart_host(&mut self) -> Result<()> {
        self.stop_host().await?;
        self.start_host()
    }

    /// Fails if somebody has ended whom nobody has ended.
    pub(crate) fn ensure_running(&self) -> Result<()> {
        let host = self.host()?.process();
        let plugin = self.plugin.as_ref().map(PluginProcess::process);
        for process in plugin.into_iter().chain([host]) {
            ensure!(process.is_running(), "{} has ended by itself", process.name());
        }
        Ok(())
    }

    /// Where the plugin keeps the load balancers.
    pub(crate) fn saved_state(&self) -> PathBuf {
        self.workspace.join("local-state/balancers.json")
    }

    /// Where the plugin tells its metrics.
    pub(crate) fn metrics(&self) -> SocketAddr {
        let (host, port) = METRICS;
        SocketAddr::new(IpAddr::V4(self.workspace.loopback(host)), port)
    }

    async fn stop_host(&mut self) -> Result<()> {
        const IN_ORDER: Duration = Duration::from_secs(60);
        let child = self.child().await?;
        // In its first moments a process has no handler for the signal yet: it ends by it, with nothing to put in order.
        eventually(IN_ORDER, "the host to serve", async || {
            ensure!(self.host()?.get("/livez", None).await?.status == 200, "not yet");
            Ok(())
        })
        .await?;
        let status = self.host()?.stop(IN_ORDER).await?;
        ensure!(status.success(), "the host ended with {status}");
        if let Some(child) = child {
            gone(child).await?;
        }
        self.host = None;
        Ok(())
    }

    /// The plugin, if the host started it.
    async fn child(&self) -> Result<Option<u32>> {
        match self.style {
            Style::Spawned => self.plugin_pid().await.map(Some),
            Style::Beside => Ok(None),
        }
    }

    fn host(&self) -> Result<&Host> {
        self.host.as_ref().context("there is no host")
    }

    fn start_host(&mut self) -> Result<()> {
        let endpoint = match &self.plugin {
            Some(plugin) => plugin.endpoint(),
            None => self.spawned()?,
        };
        // The one before is reaped first: its port file is the next one's.
        self.host = None;
        let options = self.cluster.host(&endpoint)?.lease(QUICK);
        self.host = Some(Host::start(self.workspace, &options)?);
        Ok(())
    }

    fn start_plugin(&self) -> Result<PluginProcess> {
        let mut options = LocalOptions::new(self.machine.inventory());
        options.arguments = self.arguments();
        PluginProcess::local(self.workspace, &options)
    }

    fn spawned(&self) -> Result<String> {
        let binary = resolve_binary("bulkhead-local", "BULKHEAD_LOCAL_BIN")?.canonicalize()?;
        let mut words: Vec<OsString> = vec![
            "--state-dir".into(),
            self.workspace.join("local-state").into(),
            "--inventory".into(),
            self.machine.inventory().into(),
        ];
        words.extend(self.arguments());
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        spawn_endpoint(&binary, &words)
    }

    /// Beyond inventory and state, in either style.
    fn arguments(&self) -> Vec<OsString> {
        vec![
            "--pool".into(),
            format!("{}/{POOL_PREFIX}", self.workspace.loopback(POOL_FIRST)).into(),
            "--metrics-address".into(),
            self.metrics().to_string().into(),
            "--cloud-config".into(),
            cloud_config(self.workspace).into(),
        ]
    }
}

fn cloud_config(workspace: &Workspace) -> PathBuf {
    workspace.join("local.yaml")
}

async fn gone(pid: u32) -> Result<()> {
    eventually(SOON, &format!("process {pid} to be gone"), async || {
        ensure!(!observed::runs(pid), "it runs");
        Ok(())
    })
    .await
}
