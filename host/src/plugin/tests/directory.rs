//! The plugins directory, on a root that is open to all.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};

use tokio::sync::mpsc;

use super::super::directory::{Appeared, watch as follow};
use super::*;

struct Directory {
    root: TempDir,
    news: mpsc::Receiver<Appeared>,
}

impl Directory {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        chmod(root.path(), 0o777);
        let (sender, news) = mpsc::channel(4);
        let (tasks, path) = (Tasks::new(), root.path().to_owned());
        drop(tasks.spawn_finite("watch", follow(path, Vec::new(), sender)));
        Self { root, news }
    }

    /// A plugin's folder.
    fn folder(&self, name: &str, mode: u32) -> PathBuf {
        let folder = self.root.path().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        chmod(&folder, mode);
        folder
    }

    async fn appears(&mut self) -> Appeared {
        timeout(SOON, self.news.recv()).await.expect("in vain").unwrap()
    }
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn process(name: &str) -> Scripted {
    Scripted::new(|script| script.describe.instance_id = name.to_owned())
}

#[tokio::test]
async fn a_socket_that_appears_is_a_plugin_and_a_second_one_beside_it_its_successor() {
    let mut directory = Directory::new();
    let folder = directory.folder("alpha", 0o750);
    let first = Server::start(&folder.join("1.sock"), process("first"));
    chmod(&first.socket, 0o660);
    let appeared = directory.appears().await;
    assert_eq!(appeared.name, "alpha");
    let (sockets, endpoint) = (appeared.sockets.clone(), Endpoint::Unix(folder.clone()));
    let host = Host::start_at(
        endpoint,
        Some(appeared.sockets),
        Standing::Leading(term(1)),
        |_| {},
    );
    host.is(SessionState::Active).await;
    let second = Server::start(&folder.join("2.sock"), process("second"));
    chmod(&second.socket, 0o660);
    host.sees(|view| {
        let description = view.description.as_ref();
        view.state == SessionState::Active && description.is_some_and(|it| it.instance_id == "second")
    })
    .await;
    drop((first, second));
    host.is(SessionState::Gone).await;
    assert!(folder.join("1.sock").exists(), "the host removes nothing");
    std::fs::remove_dir_all(&folder).unwrap();
    timeout(SOON, sockets.vanished()).await.expect("in vain");
}

#[tokio::test]
async fn what_others_may_write_is_no_plugin_until_that_is_mended() {
    let mut directory = Directory::new();
    let elsewhere = TempDir::new().unwrap();
    let _far = Server::start(&elsewhere.path().join("1.sock"), process("far"));
    symlink(elsewhere.path(), directory.root.path().join("link")).unwrap();
    let open = directory.folder("open", 0o770);
    let _open = Server::start(&open.join("1.sock"), process("open"));
    let odd = directory.folder("Odd_Name", 0o750);
    let _odd = Server::start(&odd.join("1.sock"), process("odd"));
    let _empty = directory.folder("empty", 0o750);
    let good = directory.folder("zeta", 0o750);
    let server = Server::start(&good.join("1.sock"), process("good"));
    chmod(&server.socket, 0o660);
    assert_eq!(directory.appears().await.name, "zeta");
    chmod(&open, 0o750);
    assert_eq!(directory.appears().await.name, "open");
}
