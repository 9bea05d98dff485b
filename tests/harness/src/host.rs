//! The host as a process.

use std::{
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::{Process, Response, Signal, Workspace, binaries, eventually, https, other_user};

const PORT_WITHIN: Duration = Duration::from_secs(20);

/// How a host is started: `bulkhead run` with these flags and nothing else.
#[derive(Debug, Clone)]
pub struct HostOptions {
    name: String,
    kubeconfig: PathBuf,
    plugins: Vec<String>,
    secure_port: SecurePort,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    uid: Option<u32>,
}

/// Where the host serves `/readyz`, `/metrics` and the like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecurePort {
    /// A free one, which the host writes to a file of the workspace.
    Free,
    /// This one.
    Fixed(u16),
    /// Nowhere.
    Disabled,
}

/// The times of leader election, under upstream's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTiming {
    /// `--leader-elect-lease-duration`
    pub lease: Duration,
    /// `--leader-elect-renew-deadline`
    pub renew: Duration,
    /// `--leader-elect-retry-period`
    pub retry: Duration,
}

impl HostOptions {
    /// A host named `host` that uses this kubeconfig; leader election and all else as the binary's defaults.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Self {
        Self {
            name: "host".to_owned(),
            kubeconfig: kubeconfig.into(),
            plugins: Vec::new(),
            secure_port: SecurePort::Free,
            arguments: Vec::new(),
            environment: Vec::new(),
            uid: None,
        }
    }

    /// The name of its log and its port file: needed where one test runs two hosts.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// `--plugin`: `unix:///PATH` or `spawn:COMMAND LINE`; may be given several times.
    #[must_use]
    pub fn plugin(mut self, endpoint: impl Into<String>) -> Self {
        self.plugins.push(endpoint.into());
        self
    }

    /// Where it serves; a free port by default.
    #[must_use]
    pub fn secure_port(mut self, port: SecurePort) -> Self {
        self.secure_port = port;
        self
    }

    /// Times of leader election other than upstream's 15, 10 and 2 seconds.
    #[must_use]
    pub fn lease(self, timing: LeaseTiming) -> Self {
        self.flag("leader-elect", "true")
            .flag("leader-elect-lease-duration", &duration(timing.lease))
            .flag("leader-elect-renew-deadline", &duration(timing.renew))
            .flag("leader-elect-retry-period", &duration(timing.retry))
    }

    /// `--leader-elect=false`
    #[must_use]
    pub fn without_leader_election(self) -> Self {
        self.flag("leader-elect", "false")
    }

    /// `--controllers`, as upstream: `*`, `NAME`, `-NAME`, comma-separated.
    #[must_use]
    pub fn controllers(self, list: &str) -> Self {
        self.flag("controllers", list)
    }

    /// `-v`
    #[must_use]
    pub fn verbosity(self, level: u8) -> Self {
        self.argument("-v").argument(level.to_string())
    }

    /// Any other flag, as `--NAME=VALUE`.
    #[must_use]
    pub fn flag(self, name: &str, value: &str) -> Self {
        self.argument(format!("--{name}={value}"))
    }

    /// One argument, verbatim.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A variable of its environment, beside what it inherits.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Another user id to run under: only root can. The workspace is its own then.
    #[must_use]
    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    fn command(&self, mut command: Command, port_file: &Path) -> Command {
        command.arg("run").arg("--kubeconfig").arg(&self.kubeconfig);
        for endpoint in &self.plugins {
            command.args(["--plugin", endpoint]);
        }
        match self.secure_port {
            SecurePort::Free => command.arg("--secure-port-file").arg(port_file),
            SecurePort::Fixed(port) => command.arg(format!("--secure-port={port}")),
            SecurePort::Disabled => command.arg("--secure-port=0"),
        };
        if self.secure_port != SecurePort::Disabled {
            command.args(["--bind-address", &Ipv4Addr::LOCALHOST.to_string()]);
        }
        // A place of its own, so that hosts of several tests do not meet at the usual one.
        command
            .arg("--admin-socket")
            .arg(port_file.with_extension("sock"))
            .args(&self.arguments)
            .env_remove("BULKHEAD_SPAWNED")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// As Go prints it, which is what upstream's flags read.
fn duration(value: Duration) -> String {
    format!("{}ms", value.as_millis())
}

/// A host process. Dropping it kills it.
#[derive(Debug)]
pub struct Host {
    process: Process,
    secure_port: SecurePort,
    port_file: PathBuf,
}

impl Host {
    /// Starts the binary `bulkhead` (`BULKHEAD_BIN`, else cargo's); waits for nothing.
    ///
    /// # Errors
    ///
    /// If it is not built or cannot be started.
    pub fn start(workspace: &Workspace, options: &HostOptions) -> Result<Self> {
        let binary = binaries::resolve("bulkhead", "BULKHEAD_BIN")?;
        let port_file = workspace.join(format!("{}.port", options.name));
        // That of a host before must not be taken for this one's.
        if port_file.exists() {
            fs::remove_file(&port_file)?;
        }
        let command = match options.uid {
            None => Command::new(&binary),
            Some(uid) => {
                chown(workspace.path(), Some(uid), None)?;
                other_user::command(workspace, uid, &binary)?
            }
        };
        let command = options.command(command, &port_file);
        let process = Process::spawn(workspace, &options.name, command)?;
        Ok(Self {
            process,
            secure_port: options.secure_port,
            port_file,
        })
    }

    /// The process behind it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The port on 127.0.0.1 where it serves; waits until it has one.
    ///
    /// # Errors
    ///
    /// If it serves nowhere, ended, or has written no port within 20 seconds.
    pub async fn port(&self) -> Result<u16> {
        match self.secure_port {
            SecurePort::Fixed(port) => Ok(port),
            SecurePort::Disabled => bail!("{} serves nowhere: --secure-port=0", self.process.name()),
            SecurePort::Free => {
                eventually(PORT_WITHIN, "the host's port file", async || {
                    self.ensure_running()?;
                    let text = fs::read_to_string(&self.port_file)
                        .with_context(|| format!("read {}", self.port_file.display()))?;
                    Ok(text.trim().parse()?)
                })
                .await
            }
        }
    }

    /// Asks the host for a path, as `/readyz?verbose`, without a user or with a bearer token.
    ///
    /// # Errors
    ///
    /// If it does not answer; any status is an answer.
    pub async fn get(&self, path: &str, bearer_token: Option<&str>) -> Result<Response> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port().await?));
        https::get(address, path, bearer_token).await
    }

    /// Its admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.port_file.with_extension("sock")
    }

    /// Waits until `/readyz` is 200.
    ///
    /// # Errors
    ///
    /// If it is not after `within`, with the last answer.
    pub async fn wait_ready(&self, within: Duration) -> Result<()> {
        eventually(within, "the host's /readyz to be 200", async || {
            self.ensure_running()?;
            let answer = self.get("/readyz", None).await?;
            ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
            Ok(())
        })
        .await
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    ///
    /// If it runs still after `within`.
    pub async fn stop(&self, within: Duration) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(within).await
    }

    fn ensure_running(&self) -> Result<()> {
        ensure!(
            self.process.is_running(),
            "the host has ended; its log: {}",
            self.process.log()?
        );
        Ok(())
    }
}

/// The endpoint under which a host starts a plugin itself, for [`HostOptions::plugin`].
///
/// # Errors
///
/// If an argument holds white space, which would make two of it.
pub fn spawn_endpoint(binary: &Path, arguments: &[&str]) -> Result<String> {
    let binary = binary
        .to_str()
        .ok_or_else(|| anyhow!("{} is not UTF-8", binary.display()))?;
    let words: Vec<_> = std::iter::once(binary).chain(arguments.iter().copied()).collect();
    if let Some(word) = words.iter().find(|word| word.contains(char::is_whitespace)) {
        bail!("'{word}' holds white space");
    }
    Ok(format!("spawn:{}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(options: &HostOptions) -> String {
        let command = options.command(Command::new("bulkhead"), Path::new("/w/host.port"));
        command
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn by_default_it_serves_on_a_free_port_of_loopback() {
        assert_eq!(
            arguments(&HostOptions::new("/k").plugin("unix:///s")),
            "run --kubeconfig /k --plugin unix:///s --secure-port-file /w/host.port --bind-address 127.0.0.1 \
             --admin-socket /w/host.sock"
        );
    }

    #[test]
    fn a_lease_is_given_in_milliseconds() {
        let timing = LeaseTiming {
            lease: Duration::from_secs(3),
            renew: Duration::from_secs(2),
            retry: Duration::from_millis(500),
        };
        assert_eq!(
            arguments(
                &HostOptions::new("/k")
                    .secure_port(SecurePort::Disabled)
                    .lease(timing)
            ),
            "run --kubeconfig /k --secure-port=0 --admin-socket /w/host.sock --leader-elect=true --leader-elect-lease-duration=3000ms \
             --leader-elect-renew-deadline=2000ms --leader-elect-retry-period=500ms"
        );
    }

    #[test]
    fn a_word_with_a_space_is_no_argument_of_a_spawned_plugin() {
        assert!(spawn_endpoint(Path::new("/bin/plugin"), &["--name", "two words"]).is_err());
        assert_eq!(
            spawn_endpoint(Path::new("/bin/plugin"), &["-x"]).unwrap(),
            "spawn:/bin/plugin -x"
        );
    }
}
