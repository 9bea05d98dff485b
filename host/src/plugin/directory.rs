//! The plugins directory: `<root>/<plugin>/<any>.sock`. A socket that appears is a plugin.
//!
//! The root is looked through every second. A folder is a plugin of its name; each socket in it is a process of that
//! plugin, and two of them are an upgrade. Nothing is ever removed here: a socket that nobody listens on is tried
//! again now and then, and skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::convert::text::{clean, is_dns_label};
use super::place::{Address, Place, Places, RESCAN, Stamp};
use super::socket_guard::{File, Folder, Refusal, folder_of, judge_folder, judge_socket};

/// Most plugins of one directory.
pub const PLUGINS_MAX: usize = 64;
/// Most sockets of one plugin.
const SOCKETS_MAX: usize = 8;
/// Most entries of a folder that are looked at: it may be open to all.
const ENTRIES_MAX: usize = 1024;

/// A plugin of the directory. Its end is the end of `sockets`' sender, which comes when its folder is gone.
#[derive(Debug)]
pub struct Appeared {
    /// The folder's name, a DNS label.
    pub name: String,
    /// Where its processes listen; for [`start_found`](super::start_found).
    pub sockets: Sockets,
}

/// The sockets of one plugin, now and in future.
#[derive(Clone, Debug)]
pub struct Sockets(pub(crate) Places);

impl Sockets {
    /// Of a plugin that is nowhere.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(watch::Sender::new(BTreeSet::new()).subscribe())
    }

    /// Resolves when the plugin's folder, or its last socket, is gone.
    pub async fn vanished(&self) {
        let mut places = self.0.clone();
        while places.changed().await.is_ok() {}
    }
}

/// What is refused, and why.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Guard(#[from] Refusal),
    #[error("cannot look at {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is no name of a plugin: use a-z, 0-9 and -, at most 63 characters", clean(&path.display().to_string()))]
    Name { path: PathBuf },
    #[error("{} is one too many: {PLUGINS_MAX} plugins are the most", path.display())]
    TooManyPlugins { path: PathBuf },
    #[error("{} is one too many: {SOCKETS_MAX} sockets of one plugin are the most", path.display())]
    TooManySockets { path: PathBuf },
    #[error("{} has more than {ENTRIES_MAX} entries; only the first ones are looked at", path.display())]
    TooManyEntries { path: PathBuf },
}

/// Follows the directory at `root` until nobody listens to `news`. `allowed` are the users, beside the host's own and
/// 0, whose folders are taken; whether a peer may speak for the plugin is checked when it is connected.
pub async fn watch(root: PathBuf, allowed: Vec<u32>, news: mpsc::Sender<Appeared>) {
    let mut uids = allowed;
    uids.extend([0, rustix::process::geteuid().as_raw()]);
    let mut watcher = Watcher {
        root,
        uids,
        plugins: BTreeMap::new(),
        told: BTreeSet::new(),
    };
    loop {
        for appeared in watcher.look().await {
            if news.send(appeared).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sleep(RESCAN) => {}
            () = news.closed() => return,
        }
    }
}

struct Watcher {
    root: PathBuf,
    uids: Vec<u32>,
    plugins: BTreeMap<String, watch::Sender<BTreeSet<Place>>>,
    /// What was refused the last time: said once.
    told: BTreeSet<String>,
}

impl Watcher {
    async fn look(&mut self) -> Vec<Appeared> {
        let mut refused = Vec::new();
        let found = self.scan(&mut refused).await;
        let refused: BTreeSet<String> = refused.iter().map(ToString::to_string).collect();
        for why in refused.difference(&self.told) {
            tracing::warn!("plugins directory: {why}");
        }
        self.told = refused;
        // The receivers learn the end from the sender's.
        self.plugins.retain(|name, _| found.contains_key(name));
        let mut appeared = Vec::new();
        for (name, places) in found {
            if let Some(known) = self.plugins.get(&name) {
                known.send_if_modified(|before| {
                    let is_new = *before != places;
                    *before = places;
                    is_new
                });
            } else {
                let sender = watch::Sender::new(places);
                appeared.push(Appeared {
                    name: name.clone(),
                    sockets: Sockets(sender.subscribe()),
                });
                self.plugins.insert(name, sender);
            }
        }
        appeared
    }

    /// The plugins that are there, each with at least one socket.
    async fn scan(&self, refused: &mut Vec<Refused>) -> BTreeMap<String, BTreeSet<Place>> {
        let mut found: BTreeMap<String, BTreeSet<Place>> = BTreeMap::new();
        let mut folders = entries(&self.root, refused).await;
        // Whoever was here first stays: a flood of folders takes nobody's place.
        folders.sort_by_key(|path| (!self.is_known(path), path.clone()));
        for folder in folders {
            match self.plugin(&folder, refused).await {
                Ok(Some((_, places))) if places.is_empty() => {}
                Ok(Some(_)) if found.len() >= PLUGINS_MAX => {
                    refused.push(Refused::TooManyPlugins { path: folder });
                }
                Ok(Some((name, places))) => drop(found.insert(name, places)),
                Ok(None) => {}
                Err(why) => refused.push(why),
            }
        }
        found
    }

    fn is_known(&self, folder: &Path) -> bool {
        let name = folder.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| self.plugins.contains_key(name))
    }

    async fn plugin(
        &self,
        folder: &Path,
        refused: &mut Vec<Refused>,
    ) -> Result<Option<(String, BTreeSet<Place>)>, Refused> {
        let Some((file, _)) = inspect(folder).await? else {
            return Ok(None);
        };
        judge_folder(folder, file, Folder::Found(&self.uids))?;
        let name = folder.file_name().and_then(OsStr::to_str);
        let name = name
            .filter(|name| is_dns_label(name))
            .ok_or_else(|| Refused::Name {
                path: folder.to_owned(),
            })?;
        let mut places = BTreeSet::new();
        for socket in entries(folder, refused).await {
            if socket.extension() != Some(OsStr::new("sock")) {
                continue;
            }
            match stamp(&socket).await {
                Ok(None) => {}
                Ok(Some(_)) if places.len() >= SOCKETS_MAX => {
                    refused.push(Refused::TooManySockets { path: socket });
                }
                Ok(Some(stamp)) => drop(places.insert(Place {
                    address: Address::Socket(socket),
                    stamp: Some(stamp),
                })),
                Err(why) => refused.push(why),
            }
        }
        Ok(Some((name.to_owned(), places)))
    }
}

async fn stamp(socket: &Path) -> Result<Option<Stamp>, Refused> {
    folder_of(socket)?;
    let Some((file, stamp)) = inspect(socket).await? else {
        return Ok(None);
    };
    judge_socket(socket, file)?;
    Ok(Some(stamp))
}

/// What a file is; `None`: it is gone.
async fn inspect(path: &Path) -> Result<Option<(File, Stamp)>, Refused> {
    match tokio::fs::symlink_metadata(path).await {
        Ok(metadata) => Ok(Some((File::of(&metadata), Stamp::of(&metadata)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Refused::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// The paths in a folder.
async fn entries(folder: &Path, refused: &mut Vec<Refused>) -> Vec<PathBuf> {
    let io = |source| Refused::Io {
        path: folder.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    let mut entries = match tokio::fs::read_dir(folder).await {
        Ok(entries) => entries,
        Err(error) => {
            refused.push(io(error));
            return paths;
        }
    };
    loop {
        match entries.next_entry().await {
            Ok(Some(_)) if paths.len() >= ENTRIES_MAX => {
                refused.push(Refused::TooManyEntries {
                    path: folder.to_owned(),
                });
                return paths;
            }
            Ok(Some(entry)) => paths.push(entry.path()),
            Ok(None) => return paths,
            Err(error) => {
                refused.push(io(error));
                return paths;
            }
        }
    }
}
