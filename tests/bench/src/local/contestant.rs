//! The balancers that are compared, each a process started here.

use std::env;
use std::fs;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_harness::{LocalOptions, PluginProcess, Process, Workspace, eventually};

use super::config::{self, Site};
use super::load::hold;
use super::{led, usage};

const PATIENCE: Duration = Duration::from_secs(15);

/// Where services are that a user's PATH often lacks.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// One balancer that runs.
#[derive(Debug)]
pub(crate) struct Contestant {
    /// `bulkhead-local`, `HAProxy 2.6.12` and so on.
    pub(crate) name: String,
    pub(crate) at: SocketAddrV4,
    /// Whether it forwards UDP.
    pub(crate) datagrams: bool,
    running: Running,
}

#[derive(Debug)]
enum Running {
    Plugin(PluginProcess),
    Other(Process),
}

impl Contestant {
    /// Ours, as a host leads it.
    pub(crate) async fn local(workspace: &Workspace, site: &Site) -> Result<Self> {
        let inventory = workspace.join("inventory.yaml");
        fs::write(&inventory, "instances: []\n").context("write the inventory")?;
        let mut options = LocalOptions::new(inventory);
        options.arguments = vec!["--pool".into(), site.at.ip().to_string().into()];
        let plugin = PluginProcess::local(workspace, &options)?;
        plugin.wait_listening(PATIENCE).await?;
        led::balance(&PluginProcess::socket_path(workspace, "local")?, site).await?;
        Self::ready("bulkhead-local".to_owned(), site, true, Running::Plugin(plugin)).await
    }

    /// HAProxy at `program`.
    pub(crate) async fn haproxy(
        workspace: &Workspace,
        site: &Site,
        program: &Path,
        splice: bool,
    ) -> Result<Self> {
        let file = workspace.join("haproxy.cfg");
        fs::write(&file, config::haproxy(site, splice)).context("write HAProxy's configuration")?;
        let said = said(program, "-v")?;
        let mut command = Command::new(program);
        // In the foreground, one process.
        command.args(["-db", "-f"]).arg(file);
        let process = Process::spawn(workspace, "haproxy", command)?;
        let name = format!("HAProxy {}", version(&said).unwrap_or_default());
        Self::ready(name, site, false, Running::Other(process)).await
    }

    /// nginx at `program`.
    pub(crate) async fn nginx(workspace: &Workspace, site: &Site, program: &Path) -> Result<Self> {
        let said = said(program, "-V")?;
        let module = stream_module(&said);
        let file = workspace.join("nginx.conf");
        let text = config::nginx(site, module.as_deref(), workspace.path());
        fs::write(&file, text).context("write nginx's configuration")?;
        let mut command = Command::new(program);
        command.args(["-e", "stderr", "-c"]).arg(file);
        let process = Process::spawn(workspace, "nginx", command)?;
        let name = format!("nginx {}", version(&said).unwrap_or_default());
        Self::ready(name, site, true, Running::Other(process)).await
    }

    async fn ready(name: String, site: &Site, datagrams: bool, running: Running) -> Result<Self> {
        let contestant = Self {
            name,
            at: site.at,
            datagrams,
            running,
        };
        eventually(PATIENCE, &format!("{} to forward", contestant.name), async || {
            let process = contestant.process();
            anyhow::ensure!(process.is_running(), "it has ended; its log: {}", process.log()?);
            hold(site.at, 1).await.map(drop)
        })
        .await?;
        Ok(contestant)
    }

    fn process(&self) -> &Process {
        match &self.running {
            Running::Plugin(plugin) => plugin.process(),
            Running::Other(process) => process,
        }
    }

    /// CPU time that it has taken.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        usage::cpu(self.process().pid()).with_context(|| self.name.clone())
    }

    /// Memory that it has.
    pub(crate) fn memory(&self) -> Result<usage::Memory> {
        usage::memory(self.process().pid()).with_context(|| self.name.clone())
    }
}

/// The file of a program: the one that is given, else the first of its name.
pub(crate) fn find(given: Option<&Path>, name: &str) -> Option<PathBuf> {
    if let Some(given) = given {
        return Some(given.to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    folders
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// What a program says of itself, on either output.
fn said(program: &Path, flag: &str) -> Result<String> {
    let output = Command::new(program)
        .arg(flag)
        .output()
        .with_context(|| format!("run {} {flag}", program.display()))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// The first thing that looks like one: `2.6.12`.
fn version(said: &str) -> Option<&str> {
    said.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .find(|part| part.contains('.') && part.starts_with(|c: char| c.is_ascii_digit()))
}

/// Where the stream module is, if it is a file of its own; by `nginx -V`.
fn stream_module(said: &str) -> Option<PathBuf> {
    let mut options = said.split_ascii_whitespace();
    let folder = options
        .clone()
        .find_map(|option| option.strip_prefix("--modules-path="));
    options
        .any(|option| option == "--with-stream=dynamic")
        .then(|| Path::new(folder.unwrap_or("modules")).join("ngx_stream_module.so"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::haproxy(
        "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/",
        Some("2.6.12")
    )]
    #[case::nginx("nginx version: nginx/1.22.1\nbuilt with", Some("1.22.1"))]
    #[case::neither("sh: not found", None)]
    fn versions(#[case] said: &str, #[case] want: Option<&str>) {
        assert_eq!(version(said), want);
    }

    #[rstest]
    #[case::a_file(
        "configure arguments: --modules-path=/usr/lib/nginx/modules --with-stream=dynamic",
        Some("/usr/lib/nginx/modules/ngx_stream_module.so")
    )]
    #[case::built_in("configure arguments: --modules-path=/m --with-stream", None)]
    fn stream_modules(#[case] said: &str, #[case] want: Option<&str>) {
        assert_eq!(stream_module(said), want.map(PathBuf::from));
    }

    #[test]
    fn the_given_program_wins() {
        assert_eq!(find(Some(Path::new("/x/y")), "sh"), Some(PathBuf::from("/x/y")));
        assert!(find(None, "sh").is_some());
        assert_eq!(find(None, "no-such-program"), None);
    }
}
