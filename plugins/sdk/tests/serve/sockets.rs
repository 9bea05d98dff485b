//! Folder and socket: modes, stale files, other people's.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use bulkhead_plugin::socket::SocketError;
use bulkhead_plugin::{ServeError, serve_until};
use tokio::net::UnixStream;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::cloud::CountingProvider;
use crate::fixture::{Plugin, eventually, options};

/// Serves until at once: what is left is whether the socket could be taken.
async fn take(path: &Path) -> Result<(), ServeError> {
    serve_until(CountingProvider::default(), options(path), async {}).await
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[tokio::test]
async fn folder_and_socket_are_for_owner_and_group_and_the_socket_goes_at_the_end() {
    let mut plugin = Plugin::start().await;
    assert_eq!(mode(plugin.path.parent().unwrap()), 0o750);
    assert_eq!(mode(&plugin.path), 0o660);
    let path = plugin.path.clone();
    let root = std::mem::replace(&mut plugin.folder, tempfile::tempdir().unwrap());
    plugin.ask_to_end();
    plugin.ended().await.expect("ends well");
    assert!(!path.exists());
    assert!(root.path().exists());
}

#[tokio::test]
async fn a_socket_that_a_crash_left_behind_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plugin.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "closing a socket leaves its file");
    take(&path).await.expect("takes it");
}

#[tokio::test]
async fn a_socket_on_which_somebody_answers_is_left_alone() {
    let plugin = Plugin::start().await;
    let error = take(&plugin.path).await.expect_err("refused");
    assert!(
        matches!(error, ServeError::Socket(SocketError::Live { .. })),
        "{error}"
    );
    assert_eq!(plugin.connect().await.serving("").await, ServingStatus::Serving);
}

#[tokio::test]
async fn a_socket_that_somebody_deletes_is_made_anew() {
    let plugin = Plugin::start().await;
    let before = plugin.led().await;
    std::fs::remove_file(&plugin.path).unwrap();
    eventually("it listens again", async || {
        UnixStream::connect(&plugin.path).await.is_ok()
    })
    .await;
    assert_eq!(mode(&plugin.path), 0o660);
    assert!(before.is_ready().await, "sessions go on");
}

#[tokio::test]
async fn a_process_whose_path_another_one_took_works_on_and_ends_with_its_last_session() {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let other = plugin.folder.path().join("other.sock");
    let _other = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, &plugin.path).unwrap();
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    // Longer than it takes to notice.
    for _ in 0..20 {
        looks.tick().await;
        assert!(host.is_ready().await, "it works on");
    }
    drop(host);
    plugin.ended().await.expect("ends well");
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plugin.sock");
    std::fs::write(&path, "precious").unwrap();
    let error = take(&path).await.expect_err("refused");
    assert!(
        matches!(error, ServeError::Socket(SocketError::NotASocket { .. })),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[rstest::rstest]
#[case::writable_by_all(0o777)]
#[case::writable_by_the_group(0o770)]
#[tokio::test]
async fn a_folder_that_others_may_write_is_refused_and_not_changed(#[case] wrong: u32) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("counting");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(wrong)).unwrap();
    let error = take(&folder.join("plugin.sock")).await.expect_err("refused");
    assert!(
        matches!(error, ServeError::Socket(SocketError::FolderMode { .. })),
        "{error}"
    );
    assert!(error.to_string().contains(&format!("{wrong:04o}")), "{error}");
    assert_eq!(mode(&folder), wrong);
}

#[tokio::test]
async fn links_are_refused_for_folder_and_socket() {
    let root = tempfile::tempdir().unwrap();
    let real = root.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::fs::set_permissions(&real, Permissions::from_mode(0o750)).unwrap();
    symlink(&real, root.path().join("link")).unwrap();
    symlink("elsewhere.sock", real.join("plugin.sock")).unwrap();
    for path in [root.path().join("link/other.sock"), real.join("plugin.sock")] {
        let error = take(&path).await.expect_err("refused");
        assert!(
            matches!(error, ServeError::Socket(SocketError::SymbolicLink { .. })),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_missing_root_is_named() {
    let root = tempfile::tempdir().unwrap();
    let error = take(&root.path().join("no/such/plugin.sock"))
        .await
        .expect_err("refused");
    assert!(
        matches!(error, ServeError::Socket(SocketError::MakeFolder { .. })),
        "{error}"
    );
}
