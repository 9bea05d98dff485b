//! The example as a process: signals and stdin.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use bulkhead_plugin::v1::PluginConditionType;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::fixture::{PATIENCE, connect, eventually};

struct Process {
    child: Child,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// Cargo puts examples beside the folder of this test's binary.
pub(crate) fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().and_then(Path::parent).unwrap();
    let example = built.join("examples/minimal");
    assert!(
        example.exists(),
        "{} is missing; cargo build --examples makes it",
        example.display()
    );
    example
}

impl Process {
    async fn start(spawned: &str, stdin: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("example/plugin.sock");
        let child = Command::new(example())
            .arg("--endpoint")
            .arg(format!("unix://{}", path.display()))
            .env("BULKHEAD_SPAWNED", spawned)
            .stdin(stdin)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let process = Self {
            child,
            path,
            _folder: folder,
        };
        eventually("it listens", async || {
            UnixStream::connect(&process.path).await.is_ok()
        })
        .await;
        process
    }

    fn terminate(&self) {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.try_into().unwrap()))
            .expect("it runs");
        kill_process(pid, Signal::TERM).expect("signalled");
    }

    async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait());
        ended.await.expect("it ends").expect("waited for")
    }
}

#[tokio::test]
async fn sigterm_without_a_session_ends_the_process_at_once() {
    let mut process = Process::start("", Stdio::null()).await;
    process.terminate();
    assert!(process.ended().await.success());
    assert!(!process.path.exists());
}

#[tokio::test]
async fn sigterm_with_a_session_drains() {
    let mut process = Process::start("", Stdio::null()).await;
    let host = connect(&process.path).await;
    // A connection is a session once the process has taken it, which an answer shows.
    assert!(host.status().await.conditions.is_empty());
    process.terminate();
    let draining = async || {
        let conditions = host.status().await.conditions;
        conditions
            .iter()
            .any(|condition| condition.r#type() == PluginConditionType::Draining)
    };
    eventually("status says so", draining).await;
    assert!(process.child.try_wait().unwrap().is_none(), "it runs on");
    drop(host);
    assert!(process.ended().await.success());
}

#[tokio::test]
async fn the_end_of_stdin_ends_a_spawned_process() {
    let mut process = Process::start("1", Stdio::piped()).await;
    drop(process.child.stdin.take());
    assert!(process.ended().await.success());
}

#[tokio::test]
async fn the_end_of_stdin_says_nothing_to_a_container() {
    let mut process = Process::start("", Stdio::null()).await;
    let host = connect(&process.path).await;
    // Two answers after the stdin has ended; a process that watched it would be draining.
    assert!(host.status().await.conditions.is_empty());
    assert!(host.status().await.conditions.is_empty());
    process.terminate();
    drop(host);
    assert!(process.ended().await.success());
}
