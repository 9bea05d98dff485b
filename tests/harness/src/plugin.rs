//! Plugins as processes of their own, beside the host as in a Pod or elsewhere.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::net::{TcpStream, UnixStream};

use crate::{Address, Process, Workspace, binaries, eventually, other_user};

/// What the embedded plugin `bulkhead-local` is started with.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The file that lists the instances.
    pub inventory: PathBuf,
    /// The folder of its state; `local-state` in the workspace if unset.
    pub state: Option<PathBuf>,
    /// Further arguments.
    pub arguments: Vec<OsString>,
}

impl LocalOptions {
    /// Options with an inventory and nothing else.
    pub fn new(inventory: impl Into<PathBuf>) -> Self {
        Self {
            inventory: inventory.into(),
            state: None,
            arguments: Vec::new(),
        }
    }
}

/// A plugin process that listens on a unix socket or a port. Dropping it kills it.
#[derive(Debug)]
pub struct PluginProcess {
    process: Process,
    address: Address,
}

impl PluginProcess {
    /// Starts a binary as the plugin `name` with `--endpoint unix://WORKSPACE/plugins/NAME/plugin.sock` and
    /// further arguments; waits for nothing. A second start under one name takes over the path.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn spawn(
        workspace: &Workspace,
        name: &str,
        binary: &Path,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(arguments.into_iter().map(Into::into));
        let address = Address::Unix(Self::socket_path(workspace, name)?);
        Self::run(workspace, name, address, command)
    }

    /// As [`PluginProcess::spawn`], under another user id: only root can.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn spawn_under(
        uid: u32,
        workspace: &Workspace,
        name: &str,
        binary: &Path,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self> {
        let socket = Self::socket_path(workspace, name)?;
        if let Some(folder) = socket.parent() {
            fs::create_dir_all(folder)?;
            chown(folder, Some(uid), None)?;
        }
        let mut command = other_user::command(workspace, uid, binary)?;
        command.args(arguments.into_iter().map(Into::into));
        Self::run(workspace, name, Address::Unix(socket), command)
    }

    /// Starts a command that takes `--endpoint`, which is added, as a plugin at `address`: a socket, or a port with TLS;
    /// `name` is that of its log.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn run(workspace: &Workspace, name: &str, address: Address, mut command: Command) -> Result<Self> {
        command
            .args(["--endpoint", &endpoint(&address)])
            .env_remove("BULKHEAD_SPAWNED");
        Ok(Self {
            process: Process::spawn(workspace, name, command)?,
            address,
        })
    }

    /// Starts `bulkhead-local` (`BULKHEAD_LOCAL_BIN`, else cargo's) as the plugin `local`.
    ///
    /// # Errors
    ///
    /// If it is not built or cannot be started.
    pub fn local(workspace: &Workspace, options: &LocalOptions) -> Result<Self> {
        let binary = binaries::resolve("bulkhead-local", "BULKHEAD_LOCAL_BIN")?;
        let state = options
            .state
            .clone()
            .unwrap_or_else(|| workspace.join("local-state"));
        let mut arguments: Vec<OsString> = vec![
            "--state-dir".into(),
            state.into(),
            "--inventory".into(),
            options.inventory.clone().into(),
        ];
        arguments.extend(options.arguments.iter().cloned());
        Self::spawn(workspace, "local", &binary, arguments)
    }

    /// Starts `bulkhead-scripted` (`BULKHEAD_SCRIPTED_BIN`, else cargo's) as the plugin `name`.
    ///
    /// # Errors
    ///
    /// If it is not built or cannot be started.
    pub fn scripted(
        workspace: &Workspace,
        name: &str,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self> {
        let binary = binaries::resolve("bulkhead-scripted", "BULKHEAD_SCRIPTED_BIN")?;
        Self::spawn(workspace, name, &binary, arguments)
    }

    /// Starts `bulkhead-sim` (`BULKHEAD_SIM_BIN`, else cargo's) as a plugin at `address`; `name` is that of its log.
    ///
    /// # Errors
    ///
    /// If it is not built or cannot be started.
    pub fn simulated(
        workspace: &Workspace,
        name: &str,
        address: Address,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self> {
        let mut command = Command::new(binaries::resolve("bulkhead-sim", "BULKHEAD_SIM_BIN")?);
        command.args(arguments.into_iter().map(Into::into));
        Self::run(workspace, name, address, command)
    }

    /// The socket at which a plugin `name` will listen: for a host that starts before its plugin.
    ///
    /// # Errors
    ///
    /// If the folder of plugins cannot be made. The plugin makes its own below.
    pub fn socket_path(workspace: &Workspace, name: &str) -> Result<PathBuf> {
        let root = workspace.join("plugins");
        fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
        Ok(root.join(name).join("plugin.sock"))
    }

    /// The process behind it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its endpoint, for [`crate::HostOptions::plugin`].
    pub fn endpoint(&self) -> String {
        endpoint(&self.address)
    }

    /// Waits until it takes connections.
    ///
    /// # Errors
    ///
    /// If it does not within `within`, or the process ended.
    pub async fn wait_listening(&self, within: Duration) -> Result<()> {
        eventually(
            within,
            &format!("{} to listen", self.process.name()),
            async || {
                anyhow::ensure!(
                    self.process.is_running(),
                    "it has ended; its log: {}",
                    self.process.log()?
                );
                let connected = match &self.address {
                    Address::Unix(path) => UnixStream::connect(path).await.map(drop),
                    Address::Tcp(port) => TcpStream::connect(port).await.map(drop),
                };
                connected.with_context(|| format!("connect to {}", self.endpoint()))
            },
        )
        .await
    }
}

fn endpoint(address: &Address) -> String {
    match address {
        Address::Unix(path) => format!("unix://{}", path.display()),
        Address::Tcp(port) => format!("https://{port}"),
    }
}
