use std::os::unix::net::UnixListener as StdListener;

use rstest::rstest;

use super::*;
use crate::status::{HostStatus, LeadershipState, Output};

const DEADLINE: Duration = Duration::from_secs(20);

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

async fn asked(path: &Path, output: Output) -> Result<String, status::AskError> {
    let places = vec![path.to_owned()];
    tokio::task::spawn_blocking(move || status::answer(&places, output))
        .await
        .unwrap()
}

fn given(path: &Path) -> SocketConfig {
    SocketConfig::new(Some(path.to_owned()), |_| None)
}

#[tokio::test]
async fn a_served_socket_is_answered_private_and_gone_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/admin.sock");
    let tasks = Tasks::new();
    start(&given(&path), Source::new(), &tasks).await.unwrap();
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&path), 0o600);
    let text = asked(&path, Output::Json).await.unwrap();
    let status: HostStatus = serde_json::from_str(&text).unwrap();
    assert_eq!(status.leadership.state, LeadershipState::Starting);
    assert_eq!(status.host.pid, std::process::id());
    let table = asked(&path, Output::Table).await.unwrap();
    assert!(
        table.contains("Leadership: none yet: waiting for the API server"),
        "{table}"
    );
    assert_eq!(tasks.stop(DEADLINE).await, Ok(()));
    assert!(!path.exists(), "the socket is left behind");
}

#[tokio::test]
async fn a_socket_that_a_dead_host_left_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/admin.sock");
    drop(take(&path).await.unwrap());
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists());
    let socket = take(&path).await.unwrap();
    assert!(is_served(&path).await);
    drop(socket);
}

#[rstest]
#[case::a_host_s(false)]
#[case::one_that_knows_no_lock(true)]
#[tokio::test]
async fn a_live_socket_of_somebody_else_is_left_alone(#[case] is_lockless: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/admin.sock");
    let held = if is_lockless {
        drop(take(&path).await.unwrap());
        let listener = StdListener::bind(&path).unwrap();
        (None, Some(listener))
    } else {
        (Some(take(&path).await.unwrap()), None)
    };
    let error = take(&path).await.unwrap_err();
    assert!(matches!(error, SocketError::Taken(_)), "{error}");
    assert!(is_served(&path).await);
    let tasks = Tasks::new();
    start(&given(&path), Source::new(), &tasks)
        .await
        .expect("another host is no reason to fail");
    assert_eq!(tasks.stop(DEADLINE).await, Ok(()));
    assert!(path.exists(), "the other's socket is gone");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_place_is_taken_once_the_other_host_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/admin.sock");
    let other = take(&path).await.unwrap();
    let tasks = Tasks::new();
    start(&given(&path), Source::new(), &tasks).await.unwrap();
    drop(other);
    assert!(!path.exists());
    sleep(RETRY * 2).await;
    assert!(path.exists());
    assert_eq!(tasks.stop(DEADLINE).await, Ok(()));
}

#[tokio::test]
async fn what_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let error = take(&path).await.unwrap_err();
    assert!(matches!(error, SocketError::NoSocket(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

#[tokio::test]
async fn a_folder_that_others_may_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o777)).unwrap();
    let error = take(&shared.join("admin.sock")).await.unwrap_err();
    assert!(matches!(error, SocketError::SharedFolder(_)), "{error}");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    let error = take(&link.join("admin.sock")).await.unwrap_err();
    assert!(matches!(error, SocketError::SharedFolder(_)), "{error}");
}

#[tokio::test]
async fn a_place_that_was_named_must_be_usable_and_a_usual_one_need_not() {
    let tasks = Tasks::new();
    let nowhere = Path::new("/nowhere/at/all/admin.sock");
    let error = start(&given(nowhere), Source::new(), &tasks).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bulkhead");
    std::fs::write(&file, "in the way").unwrap();
    let usual = SocketConfig::new(None, |_| folder.path().to_str().map(str::to_owned));
    let [first, ..] = usual.places() else { panic!() };
    assert!(take(first).await.is_err());
}

#[rstest]
#[case::with_a_folder_of_its_own(Some("/run/user/7"), &["/run/user/7/bulkhead/admin.sock", "/run/bulkhead/admin.sock"])]
#[case::without(None, &["/run/bulkhead/admin.sock"])]
#[case::a_relative_one_is_none(Some("run"), &["/run/bulkhead/admin.sock"])]
fn usual_places(#[case] xdg: Option<&str>, #[case] expected: &[&str]) {
    let config = SocketConfig::new(None, |_| xdg.map(str::to_owned));
    let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
    assert_eq!(config.places(), expected);
}

#[test]
fn only_the_own_user_and_root_are_answered() {
    let own = rustix::process::geteuid().as_raw();
    assert!(is_trusted(own) && is_trusted(0));
    assert!(!is_trusted(own + 12_345));
}
