//! The plugin's folder and socket: made, guarded by modes, given back.
//!
//! Whoever can replace the socket can pose as the plugin, and whoever can connect can write to the cloud. So the folder
//! is the plugin's own (0750), the socket is for owner and group (0660), and each client's uid is checked.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::either::Either;

use crate::stream::SessionStream;

const FOLDER_MODE: u32 = 0o750;
const SOCKET_MODE: u32 = 0o660;
/// Write bits of group and others: with either, somebody else may replace the socket.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Kept on folders below a root with a common group.
const SET_GROUP_ID: u32 = 0o2000;
/// How long another process may hold the folder while it takes its own socket.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(20);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a process that listens may take to take our connection.
const PROBE: Duration = Duration::from_secs(1);

/// Why the socket cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The folder above the plugin's folder is not ours to make.
    #[error("cannot make the folder {path:?}: {source}; the folder above it must exist and be writable")]
    MakeFolder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder or the path of the socket cannot be looked at.
    #[error("cannot read {path:?}: {source}")]
    Inspect {
        /// The folder or socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A link may point into a place that others own.
    #[error("{path:?} is a symbolic link: use a real folder and socket")]
    SymbolicLink {
        /// The link.
        path: PathBuf,
    },
    /// The path of the folder names something else.
    #[error("{path:?} is no folder")]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else could replace the socket.
    #[error(
        "the folder {path:?} has mode {mode:04o}, so that others may write there: use one of mode 0750 for this plugin alone"
    )]
    FolderMode {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else could replace the socket.
    #[error("the folder {path:?} belongs to uid {uid}: it must belong to the plugin's user")]
    FolderOwner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Not removed: it is not ours.
    #[error("{path:?} exists and is no socket: remove it or use another path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Not removed: somebody answers on it.
    #[error("another process listens on {path:?}: end it or use another path")]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// Several processes start at once.
    #[error("another process holds the folder {path:?} while it takes its socket")]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The last step failed.
    #[error("cannot listen on {path:?}: {source}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// How often the socket's file is looked at.
const WATCH: Duration = Duration::from_secs(1);

/// A bound socket. Its file is removed at the end, unless another process has taken the path meanwhile.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    allowed_uids: Vec<u32>,
    file: (u64, u64),
    sessions: Arc<watch::Sender<usize>>,
    replaced: Arc<watch::Sender<bool>>,
}

impl Socket {
    /// Makes the folder, removes a socket that a crash left behind, listens.
    pub(crate) async fn bind(path: &Path, allowed_uids: &[u32]) -> Result<Self, SocketError> {
        let (listener, file) = listen(path).await?;
        Ok(Self {
            listener,
            file,
            path: path.to_owned(),
            allowed_uids: allowed_uids.to_owned(),
            sessions: Arc::new(watch::Sender::new(0)),
            replaced: Arc::new(watch::Sender::new(false)),
        })
    }

    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another process has taken the path: nobody new finds this one.
    pub(crate) fn replaced(&self) -> watch::Receiver<bool> {
        self.replaced.subscribe()
    }

    /// Looks whether the path still leads here. A file that somebody deleted is made anew; one that another process made
    /// is left alone.
    async fn look(&mut self) {
        let path = &self.path;
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match listen(path).await {
                Ok((listener, file)) => {
                    tracing::warn!(path = %path.display(), "somebody deleted the socket: made it anew");
                    (self.listener, self.file) = (listener, file);
                }
                Err(error) => {
                    tracing::warn!(%error, "somebody deleted the socket, and it cannot be made anew");
                }
            },
            Ok(metadata) if (metadata.dev(), metadata.ino()) != self.file => {
                if !self.replaced.send_replace(true) {
                    tracing::info!(path = %path.display(), "another process has taken the socket's path");
                }
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// How many sessions are open.
    pub(crate) fn sessions(&self) -> watch::Receiver<usize> {
        self.sessions.subscribe()
    }

    /// The next connection of a client that may connect.
    pub(crate) async fn accept(&mut self) -> SessionStream {
        let mut watch = tokio::time::interval(WATCH);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = watch.tick() => {
                    self.look().await;
                    continue;
                }
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely no file descriptor is free; asking again at once would only burn the processor.
                    tracing::warn!(%error, "cannot take a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred().map(|peer| peer.uid()) {
                Ok(uid) if self.allowed_uids.contains(&uid) => {
                    return SessionStream::new(Either::Left(stream), &self.sessions);
                }
                Ok(uid) => tracing::warn!(uid, "refused a client whose uid may not connect"),
                Err(error) => tracing::warn!(%error, "refused a client whose uid cannot be read"),
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let path = &self.path;
        let ours = std::fs::symlink_metadata(path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if ours && let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
        }
    }
}

/// Takes `path` and listens on it; which file that is.
async fn listen(path: &Path) -> Result<(UnixListener, (u64, u64)), SocketError> {
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    make_folder(folder)?;
    // Two processes that start at once must not both remove the stale file, and then one the other's socket.
    let lock = lock(folder).await?;
    remove_stale(path).await?;
    let bind_error = |source| SocketError::Bind {
        path: path.to_owned(),
        source,
    };
    let listener = UnixListener::bind(path).map_err(bind_error)?;
    std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(bind_error)?;
    let metadata = std::fs::symlink_metadata(path).map_err(bind_error)?;
    drop(lock);
    Ok((listener, (metadata.dev(), metadata.ino())))
}

fn make_folder(folder: &Path) -> Result<(), SocketError> {
    let path = || folder.to_owned();
    match std::fs::DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Ok(()) => widen(folder).map_err(|source| SocketError::MakeFolder { path: path(), source })?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(SocketError::MakeFolder { path: path(), source }),
    }
    let metadata =
        std::fs::symlink_metadata(folder).map_err(|source| SocketError::Inspect { path: path(), source })?;
    if metadata.is_symlink() {
        return Err(SocketError::SymbolicLink { path: path() });
    }
    if !metadata.is_dir() {
        return Err(SocketError::NotAFolder { path: path() });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(SocketError::FolderMode { path: path(), mode });
    }
    let uid = metadata.uid();
    if uid != rustix::process::geteuid().as_raw() && uid != 0 {
        return Err(SocketError::FolderOwner { path: path(), uid });
    }
    Ok(())
}

/// The umask may have taken the group's right to enter, which hosts under another uid need.
fn widen(folder: &Path) -> io::Result<()> {
    let kept = std::fs::symlink_metadata(folder)?.mode() & SET_GROUP_ID;
    std::fs::set_permissions(folder, Permissions::from_mode(kept | FOLDER_MODE))
}

async fn lock(folder: &Path) -> Result<std::fs::File, SocketError> {
    let path = || folder.to_owned();
    let file = std::fs::File::open(folder).map_err(|source| SocketError::Inspect { path: path(), source })?;
    let taken = tokio::time::timeout(LOCK_PATIENCE, async {
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            tokio::time::sleep(LOCK_POLL).await;
        }
    });
    match taken.await {
        Ok(()) => Ok(file),
        Err(_) => Err(SocketError::Locked { path: path() }),
    }
}

async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let owned = || path.to_owned();
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(SocketError::Inspect {
                path: owned(),
                source,
            });
        }
    };
    if metadata.is_symlink() {
        return Err(SocketError::SymbolicLink { path: owned() });
    }
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: owned() });
    }
    // Only a refused connection proves that nobody listens; a full backlog or a missing right does not.
    match tokio::time::timeout(PROBE, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "removed a socket that an ended process left behind");
            std::fs::remove_file(path).map_err(|source| SocketError::Bind {
                path: owned(),
                source,
            })
        }
        _ => Err(SocketError::Live { path: owned() }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn a_client_whose_uid_may_not_connect_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plugin.sock");
        let other = rustix::process::geteuid().as_raw().wrapping_add(1);
        let mut socket = Socket::bind(&path, &[other]).await.expect("bound");
        let mut client = UnixStream::connect(&path).await.expect("the kernel connects");
        let ended = async { client.read(&mut [0]).await };
        tokio::select! {
            _ = socket.accept() => panic!("accepted"),
            read = tokio::time::timeout(Duration::from_secs(10), ended) => {
                assert_eq!(read.expect("in time").expect("the end"), 0);
            }
        }
        assert_eq!(*socket.sessions().borrow(), 0);
    }
}
