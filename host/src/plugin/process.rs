//! A plugin as a child process: its private socket, its limits, its end.

mod output;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bulkhead_core::endpoint::SOCKET_PATH_LIMIT;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::output::{forward, logger};
use super::Settings;
use crate::tasks::Tasks;

/// Environment of a spawned plugin: where to listen, and that the host is its parent.
const ENDPOINT_VARIABLE: &str = "BULKHEAD_ENDPOINT";
const SPAWNED_VARIABLE: &str = "BULKHEAD_SPAWNED";
/// The folder of sockets inside the private one.
const SOCKETS: &str = "s";
/// How long output may go on after the process has ended, while others hold the pipe.
const OUTPUT_REST: Duration = Duration::from_secs(1);

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no place for its socket.
    #[error("cannot make the private folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The program could not be run.
    #[error("cannot run {program}: {source}")]
    Program {
        /// The program.
        program: String,
        /// Why not.
        source: io::Error,
    },
}

/// A folder that only this process's user can enter; removed with the value.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    starts: u32,
}

impl RunFolder {
    /// Makes a folder in `root`, or in `/tmp` if a socket's path would not fit there.
    pub(crate) fn create(root: &Path) -> Result<Self, SpawnError> {
        let name = format!("bulkhead-{}", uuid::Uuid::new_v4().simple());
        let longest = socket_in(&root.join(&name), u32::MAX);
        let fits = longest.as_os_str().len() <= SOCKET_PATH_LIMIT;
        let folder = Self {
            path: if fits { root } else { Path::new("/tmp") }.join(name),
            starts: 0,
        };
        // Plugins set the mode of the socket's own folder; the one around it stays shut.
        for path in [folder.path.clone(), folder.path.join(SOCKETS)] {
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.map_err(|source| SpawnError::Folder { path, source })?;
        }
        Ok(folder)
    }

    /// A path for the next child's socket. Each child has its own: what a killed one left behind is in nobody's
    /// way, and nobody reaches the old one by the new one's path.
    pub(crate) fn next_socket(&mut self) -> PathBuf {
        // A leftover is harmless; it goes with the folder at the latest.
        drop(std::fs::remove_file(socket_in(&self.path, self.starts)));
        self.starts = self.starts.wrapping_add(1);
        socket_in(&self.path, self.starts)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::debug!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn socket_in(folder: &Path, start: u32) -> PathBuf {
    folder.join(SOCKETS).join(format!("plugin-{start}.sock"))
}

/// A running child. It dies with the value, its group only by [`Process::end`].
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Option<Pid>,
    /// Its end of file tells the child that the host is gone.
    stdin: Option<ChildStdin>,
    output: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts `program` in a process group of its own, to listen on `socket`; its output goes to the host's log.
    pub(crate) fn start(
        (program, args): (&str, &[String]),
        socket: &Path,
        settings: &Settings,
        tasks: &Tasks,
    ) -> Result<Self, SpawnError> {
        let plugin = settings.name.as_str();
        let mut child = Command::new(program)
            .args(args)
            .env(ENDPOINT_VARIABLE, format!("unix://{}", socket.display()))
            .env(SPAWNED_VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| SpawnError::Program {
                program: program.to_owned(),
                source,
            })?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        if let Some(bytes) = settings.memory_limit {
            limit_memory(group, bytes);
        }
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            output.push(tasks.spawn_finite(format!("stdout of {plugin}"), forward(stdout, logger(plugin))));
        }
        if let Some(stderr) = child.stderr.take() {
            output.push(tasks.spawn_finite(format!("stderr of {plugin}"), forward(stderr, logger(plugin))));
        }
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            group,
            output,
        })
    }

    /// The child's process id, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the child to end by itself.
    pub(crate) async fn exited(&mut self) -> String {
        describe(self.child.wait().await)
    }

    /// Ends the child and all that it started: end of file and SIGTERM first, SIGKILL after `grace`. Says how it
    /// ended.
    pub(crate) async fn end(mut self, grace: Duration) -> String {
        drop(self.stdin.take());
        if self.child.id().is_some() {
            self.signal(Signal::TERM);
        }
        let ended = timeout(grace, self.child.wait()).await;
        // Also for what a child that has ended left behind: its group's number is not reused while it has members.
        self.signal(Signal::KILL);
        let ended = match ended {
            Ok(status) => status,
            Err(_) => self.child.wait().await,
        };
        for mut output in std::mem::take(&mut self.output) {
            if timeout(OUTPUT_REST, &mut output).await.is_err() {
                output.abort();
            }
        }
        describe(ended)
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            match kill_process_group(group, signal) {
                // Nobody is left, which is what was wanted.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => tracing::warn!("cannot signal the process group of a plugin: {error}"),
            }
        }
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    status.map_or_else(
        |error| format!("its end is unknown: {error}"),
        |status| status.to_string(),
    )
}

/// Bounds what the child may allocate. Set from outside right after its start: what it starts itself inherits it, and
/// memory that it has by then counts.
fn limit_memory(group: Option<Pid>, bytes: u64) {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    if let Err(error) = prlimit(group, Resource::Data, limit) {
        tracing::warn!("cannot limit the memory of a plugin to {bytes} bytes: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_is_too_deep_is_not_used() {
        let deep = Path::new("/tmp").join("x".repeat(SOCKET_PATH_LIMIT));
        let mut folder = RunFolder::create(&deep).unwrap();
        let socket = folder.next_socket();
        assert!(socket.as_os_str().len() <= SOCKET_PATH_LIMIT && socket.parent().unwrap().is_dir());
        assert_ne!(folder.next_socket(), socket);
        let path = folder.path.clone();
        drop(folder);
        assert!(!path.exists());
    }
}
