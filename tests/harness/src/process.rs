//! Child processes that cannot be left behind.

use std::{
    fs::{self, OpenOptions},
    io::{Read, Seek, SeekFrom},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid};
use tokio::time::sleep;

use crate::{Workspace, clock, observed};

pub use rustix::process::Signal;

/// Between two looks at a process or its log.
const PAUSE: Duration = Duration::from_millis(10);

/// A child process in a process group of its own, its output in a log file of the workspace.
///
/// Dropping it kills the group. A guard process does so if we are killed ourselves, as long as this value
/// lives. The child is not reaped before: until then its pid, and the group's, can be nobody else's.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    child: Child,
    guard: Child,
    log: PathBuf,
    /// Where in the log this process begins: a restarted one appends.
    log_start: u64,
}

impl Process {
    /// Starts `command` with its standard input a pipe that we hold and its output in `logs/NAME.log`.
    ///
    /// # Errors
    ///
    /// If the program cannot be started, or its log not be opened.
    pub fn spawn(workspace: &Workspace, name: &str, mut command: Command) -> Result<Self> {
        let log = workspace.logs().join(format!("{name}.log"));
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .context("open the log")?;
        let log_start = output.metadata()?.len();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name} ({})", command.get_program().display()))?;
        let pid = pid_of(&child)?;
        let guard = spawn_guard(pid).inspect_err(|_| {
            end(&mut child, pid);
        })?;
        Ok(Self {
            name: name.to_owned(),
            pid,
            child,
            guard,
            log,
            log_start,
        })
    }

    /// The name that was given, also that of the log.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id; stays this process's own until the value is dropped.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process alone, not to its group.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("send {signal:?} to {}", self.name))
    }

    /// Ends the process as a crash would. What it started itself lives on until the drop.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// Closes our end of its standard input.
    pub fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Whether it has not ended yet. A stopped process is running.
    pub fn is_running(&self) -> bool {
        matches!(self.status(), Ok(None))
    }

    /// Waits for the process to end.
    ///
    /// # Errors
    ///
    /// If it runs still after `within`.
    pub async fn wait(&self, within: Duration) -> Result<ExitStatus> {
        let deadline = clock::after(within);
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            if clock::now() >= deadline {
                bail!("{} still runs after {within:?}", self.name);
            }
            sleep(PAUSE).await;
        }
    }

    /// What it has written so far. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn log(&self) -> Result<String> {
        let mut file = fs::File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.log_start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The path of its log.
    pub fn log_path(&self) -> &std::path::Path {
        &self.log
    }

    /// Waits for a line that contains `text`, and returns the first.
    ///
    /// # Errors
    ///
    /// If there is none after `within`, or the process ended without it; with the end of the log.
    pub async fn wait_for_log(&self, text: &str, within: Duration) -> Result<String> {
        let deadline = clock::after(within);
        loop {
            // In this order: what it wrote before its end counts.
            let ended = self.status()?;
            if let Some(line) = self.log()?.lines().find(|line| line.contains(text)) {
                return Ok(line.to_owned());
            }
            if let Some(status) = ended {
                bail!(
                    "{} ended ({status}) without saying '{text}'; its log ends:\n{}",
                    self.name,
                    self.tail()
                );
            }
            if clock::now() >= deadline {
                bail!(
                    "{} did not say '{text}' within {within:?}; its log ends:\n{}",
                    self.name,
                    self.tail()
                );
            }
            sleep(PAUSE).await;
        }
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    ///
    /// If the process has ended.
    pub fn rss(&self) -> Result<u64> {
        observed::resident_memory(self.pid()).with_context(|| format!("of {}", self.name))
    }

    /// How many file descriptors it has open.
    ///
    /// # Errors
    ///
    /// If the process has ended.
    pub fn open_files(&self) -> Result<usize> {
        observed::open_files(self.pid()).with_context(|| format!("of {}", self.name))
    }

    fn tail(&self) -> String {
        const LINES: usize = 20;
        let log = self
            .log()
            .unwrap_or_else(|error| format!("(unreadable: {error:#})"));
        let lines: Vec<_> = log.lines().collect();
        lines
            .get(lines.len().saturating_sub(LINES)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// The exit status once it has ended; leaves the process unreaped.
    fn status(&self) -> Result<Option<ExitStatus>> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), look).with_context(|| format!("look at {}", self.name))?;
        Ok(status.map(|status| ExitStatus::from_raw(raw(&status))))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guard goes between: while the child is unreaped the guard's target is still the right one.
        kill_process_group(self.pid, Signal::KILL).ok();
        self.guard.kill().ok();
        self.guard.wait().ok();
        self.child.wait().ok();
    }
}

/// As wait(2) encodes it, which is what [`ExitStatus`] holds.
fn raw(status: &WaitIdStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (code & 0xff) << 8,
        (None, Some(signal)) => signal,
        (None, None) => 0,
    }
}

fn pid_of(child: &Child) -> Result<Pid> {
    let number = i32::try_from(child.id())?;
    Pid::from_raw(number).ok_or_else(|| anyhow!("process id 0"))
}

/// A process that kills the group once its standard input ends, which is when we die, however.
fn spawn_guard(group: Pid) -> Result<Child> {
    Command::new("sh")
        .args([
            "-c",
            "read -r _; kill -KILL \"-$1\"",
            "guard",
            &group.as_raw_nonzero().to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("start the guard of a process (sh)")
}

fn end(child: &mut Child, group: Pid) {
    kill_process_group(group, Signal::KILL).ok();
    child.wait().ok();
}

#[cfg(test)]
mod tests;
