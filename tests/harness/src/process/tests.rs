use super::*;

const SOON: Duration = Duration::from_secs(5);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Whether a process with this id exists and is not merely waiting to be reaped.
fn lives(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

async fn until_gone(pid: &str) {
    crate::eventually(SOON, "the process to be gone", async || {
        anyhow::ensure!(!lives(pid), "process {pid} lives");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_exit_code_is_told_also_a_second_time() {
    let workspace = Workspace::new("exit_code").unwrap();
    let process = Process::spawn(&workspace, "seven", shell("exit 7")).unwrap();
    assert_eq!(process.wait(SOON).await.unwrap().code(), Some(7));
    assert_eq!(process.wait(SOON).await.unwrap().code(), Some(7));
    assert!(!process.is_running());
}

#[tokio::test]
async fn the_signal_that_ended_it_is_told() {
    let workspace = Workspace::new("signal").unwrap();
    let process = Process::spawn(&workspace, "sleeper", shell("sleep 60")).unwrap();
    assert!(process.is_running());
    process.kill().unwrap();
    assert_eq!(process.wait(SOON).await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn dropping_it_ends_what_it_started_too() {
    let workspace = Workspace::new("group").unwrap();
    let process = Process::spawn(&workspace, "parent", shell("sleep 60 & echo child $!; wait")).unwrap();
    let line = process.wait_for_log("child ", SOON).await.unwrap();
    let child = line.strip_prefix("child ").unwrap();
    assert!(lives(child));
    drop(process);
    until_gone(child).await;
}

#[tokio::test]
async fn the_guard_ends_the_group_when_its_pipe_closes() {
    let workspace = Workspace::new("guard").unwrap();
    let mut process = Process::spawn(&workspace, "guarded", shell("sleep 60")).unwrap();
    drop(process.guard.stdin.take());
    assert_eq!(process.wait(SOON).await.unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_restarted_process_has_a_log_of_its_own_in_the_same_file() {
    let workspace = Workspace::new("log").unwrap();
    let first = Process::spawn(&workspace, "echo", shell("echo first")).unwrap();
    first.wait(SOON).await.unwrap();
    let second = Process::spawn(&workspace, "echo", shell("echo second >&2")).unwrap();
    second.wait(SOON).await.unwrap();
    assert_eq!(
        (first.log_path(), second.log().unwrap().as_str()),
        (second.log_path(), "second\n")
    );
}

#[tokio::test]
async fn a_line_that_never_came_is_an_error_with_the_end_of_the_log() {
    let workspace = Workspace::new("silence").unwrap();
    let process = Process::spawn(&workspace, "terse", shell("echo good night; exit 3")).unwrap();
    let error = process
        .wait_for_log("good morning", SOON)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("exit status: 3") && error.ends_with("good night"),
        "{error}"
    );
}

#[tokio::test]
async fn memory_and_open_files_are_those_of_the_process() {
    let workspace = Workspace::new("figures").unwrap();
    let sleeper = |name, script: &str| {
        let command = shell(&format!("{script}; echo up; read -r _"));
        Process::spawn(&workspace, name, command).unwrap()
    };
    // What both inherit from the test runner is unknown, so one is measured by the other.
    let (plain, opener) = (
        sleeper("plain", ":"),
        sleeper("opener", "exec 7</dev/null 8</dev/null"),
    );
    plain.wait_for_log("up", SOON).await.unwrap();
    opener.wait_for_log("up", SOON).await.unwrap();
    assert_eq!(opener.open_files().unwrap(), plain.open_files().unwrap() + 2);
    let rss = plain.rss().unwrap();
    assert!((100_000..50_000_000).contains(&rss), "{rss}");
}
