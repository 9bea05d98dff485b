use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal as Number, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Means, follow};
use crate::cli::{Stop, configure};
use crate::config::Config;
use crate::tasks::Tasks;
use crate::telemetry::Detail;

const PATIENCE: Duration = Duration::from_secs(20);

fn text(plugins: &[&str]) -> String {
    let head = "apiVersion: host.bulkhead.dev/v1alpha1\nkind: HostConfiguration\nplugins:\n";
    let plugins = plugins.iter().map(|name| {
        format!("- name: {name}\n  endpoint: unix:///{name}\n  nodes: {{ matchLabels: {{ of: {name} }} }}\n")
    });
    format!("{head}{}", plugins.collect::<String>())
}

fn load(path: &Path) -> Result<Config, Stop> {
    let args = ["bulkhead", "run", "--master=http://127.0.0.1:1", "--config"].map(OsString::from);
    configure(args.into_iter().chain([path.into()]), |_| None)
}

fn names(config: &Config) -> Vec<&str> {
    config.plugins.iter().map(|plugin| plugin.name.as_str()).collect()
}

/// A file in a folder, and what follows it.
struct Followed {
    folder: tempfile::TempDir,
    config: watch::Receiver<Arc<Config>>,
    tasks: Tasks,
}

impl Followed {
    fn path(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("host.yaml")
    }

    fn start(prepare: impl FnOnce(&tempfile::TempDir)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(&folder);
        let path = Self::path(&folder);
        let tasks = Tasks::new();
        let hangups = signal(SignalKind::hangup()).unwrap();
        let first = load(&path).unwrap();
        let load = Box::new(move || load(&path));
        let config = follow(
            first,
            Means {
                load,
                detail: Detail::fixed(),
                hangups,
            },
            &tasks,
        );
        Self {
            folder,
            config,
            tasks,
        }
    }

    async fn becomes(&mut self, wanted: &[&str]) {
        let now = self.config.wait_for(|config| names(config) == wanted);
        timeout(PATIENCE, now).await.expect("in time").unwrap();
    }

    async fn end(self) {
        self.tasks.stop(PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn a_changed_file_counts_and_a_broken_one_does_not() {
    let write =
        |folder: &tempfile::TempDir, text: &str| std::fs::write(Followed::path(folder), text).unwrap();
    let mut followed = Followed::start(|folder| write(folder, &text(&["a"])));
    write(&followed.folder, &text(&["a", "b"]));
    followed.becomes(&["a", "b"]).await;
    write(&followed.folder, "plugins: [");
    kill_process(getpid(), Number::HUP).unwrap();
    // Two plugins of one name: read, and refused.
    write(&followed.folder, &text(&["a", "a"]));
    kill_process(getpid(), Number::HUP).unwrap();
    std::fs::remove_file(Followed::path(&followed.folder)).unwrap();
    write(&followed.folder, &text(&["c"]));
    followed.becomes(&["c"]).await;
    followed.end().await;
}

#[tokio::test]
async fn a_mounted_config_map_is_followed_through_its_links() {
    use std::os::unix::fs::symlink;
    let mut followed = Followed::start(|folder| {
        for (name, plugins) in [("1", &["a"][..]), ("2", &["b"])] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("host.yaml"), text(plugins)).unwrap();
        }
        symlink("1", folder.path().join("..data")).unwrap();
        symlink("..data/host.yaml", Followed::path(folder)).unwrap();
    });
    symlink("2", followed.folder.path().join("..data_tmp")).unwrap();
    std::fs::rename(
        followed.folder.path().join("..data_tmp"),
        followed.folder.path().join("..data"),
    )
    .unwrap();
    followed.becomes(&["b"]).await;
    followed.end().await;
}
