//! Plugins that the host starts itself. The child is this test program, told to run the one test that plays it.

use std::io::Read as _;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::*;

/// Plays the plugin when a host spawned this program; as a test of its own it does nothing.
#[test]
#[ignore = "is run by other tests, as a child"]
fn plays_the_plugin() {
    let (Some(endpoint), Some(_)) = (
        std::env::var_os("BULKHEAD_ENDPOINT"),
        std::env::var_os("BULKHEAD_SPAWNED"),
    ) else {
        return;
    };
    let endpoint = endpoint.into_string().unwrap();
    let plugin = Scripted::new(|script| script.describe.instance_id = std::process::id().to_string());
    let _server = Server::start(Path::new(endpoint.strip_prefix("unix://").unwrap()), plugin);
    // The end of the host is the end of its stdin.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn this_program() -> Endpoint {
    Endpoint::Spawn {
        program: std::env::current_exe().unwrap().to_str().unwrap().to_owned(),
        args: [
            "--ignored",
            "--exact",
            "--nocapture",
            "plugin::tests::children::plays_the_plugin",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}

fn shell(script: &str) -> Endpoint {
    Endpoint::Spawn {
        program: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
    }
}

fn pid_of(view: &SessionView) -> Pid {
    let id = view.description.as_ref().unwrap().instance_id.parse().unwrap();
    Pid::from_raw(id).unwrap()
}

fn is_running(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

/// A host with a root of its own for private folders.
fn host(endpoint: Endpoint) -> (Host, TempDir) {
    let root = TempDir::new().unwrap();
    let host = Host::start(endpoint, Standing::Leading(term(1)), |settings| {
        root.path().clone_into(&mut settings.run_root);
    });
    (host, root)
}

#[tokio::test]
async fn a_killed_child_is_started_again_and_is_a_new_session() {
    let (host, _root) = host(this_program());
    let first = pid_of(&host.is(SessionState::Active).await);
    kill_process(first, Signal::KILL).unwrap();
    let view = host
        .sees(|view| view.session == 2 && view.state == SessionState::Active)
        .await;
    assert_ne!(pid_of(&view), first);
    host.tasks.stop(SOON).await.unwrap();
    assert_eq!(
        host.plugin.subscribe().borrow().led.until(),
        None,
        "a dead child writes nothing"
    );
}

#[tokio::test]
async fn stopping_the_host_ends_the_child_and_removes_its_folder() {
    let (host, root) = host(this_program());
    let pid = pid_of(&host.is(SessionState::Active).await);
    let folders: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
    assert_eq!(folders.len(), 1);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &folders[0].as_ref().unwrap().metadata().unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o700);
    host.tasks.stop(SOON).await.unwrap();
    assert!(!is_running(pid));
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_child_that_does_not_end_is_killed_with_all_that_it_started() {
    let notes = TempDir::new().unwrap();
    let note = notes.path().join("pid");
    let script = format!(
        "trap '' TERM; sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait; wait",
        note.display()
    );
    let (host, _root) = host(shell(&script));
    let grandchild = eventually(|| std::fs::read_to_string(&note).ok()).await;
    let grandchild = Pid::from_raw(grandchild.trim().parse().unwrap()).unwrap();
    assert!(is_running(grandchild));
    host.tasks.stop(SOON).await.unwrap();
    // Whoever reaps orphans may take a moment to reap this one.
    eventually(|| (!is_running(grandchild) || is_zombie(grandchild)).then_some(())).await;
}

fn is_zombie(pid: Pid) -> bool {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && line.contains('Z'))
}

#[tokio::test]
async fn a_child_that_ends_at_once_is_told_with_its_status() {
    let (host, _root) = host(shell("exit 3"));
    let view = host.sees(|view| view.reason.contains("exit status")).await;
    assert_eq!(view.reason, "its process ended (exit status: 3)");
    host.tasks.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    let endpoint = Endpoint::Spawn {
        program: "/no/such/program".to_owned(),
        args: Vec::new(),
    };
    let (host, _root) = host(endpoint);
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert!(
        view.reason
            .starts_with("cannot run /no/such/program: No such file"),
        "{}",
        view.reason
    );
    host.tasks.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_child_that_never_listens_is_started_anew() {
    let endpoint = shell("exec sleep 1000");
    let host = Host::start(endpoint, Standing::Standby, |settings| {
        settings.timing.start_limit = Duration::from_millis(100);
    });
    let view = host.sees(|view| view.reason.contains("did not begin")).await;
    assert_eq!(view.reason, "its process did not begin a session within 100ms");
    host.tasks.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_child_that_takes_more_memory_than_it_may_is_refused_it_and_nobody_else_is() {
    let endpoint = shell(
        "until [ $(ulimit -d) = 65536 ]; do :; done; head -c 1000000000 /dev/zero | tail -c 900000000 > /dev/null",
    );
    let root = TempDir::new().unwrap();
    let host = Host::start(endpoint, Standing::Standby, |settings| {
        root.path().clone_into(&mut settings.run_root);
        settings.memory_limit = Some(64 << 20);
    });
    let view = host.sees(|view| view.reason.contains("exit status")).await;
    assert_eq!(
        view.reason, "its process ended (exit status: 1)",
        "tail had no memory"
    );
    host.tasks.stop(SOON).await.unwrap();
}

/// Waits for what no channel tells.
async fn eventually<T>(probe: impl Fn() -> Option<T>) -> T {
    let wait = async {
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        loop {
            tick.tick().await;
            if let Some(value) = probe() {
                return value;
            }
        }
    };
    timeout(SOON, wait).await.expect("in vain")
}
