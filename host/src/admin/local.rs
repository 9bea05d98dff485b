//! The admin socket: how this host is, for the commands of its own user and of root on this machine.
//!
//! It is a help, and never a reason for a host to fail or to disturb another one. Who holds the lock beside the socket owns
//! the socket; the kernel takes the lock from a process that ends, however it ends, so what a dead host left is replaced.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rustix::fs::{FlockOperation, OFlags, flock};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::{ACCEPT_PAUSE, serve_http};
use crate::config::SocketConfig;
use crate::status::{self, Source};
use crate::tasks::Tasks;
use crate::telemetry::Chain;

/// Connections at once; the commands of a person or two.
const CONNECTIONS: usize = 16;
/// How often it is looked whether another host has left the place.
const RETRY: Duration = Duration::from_secs(10);
/// How long somebody who listens may take to take a connection.
const PROBE: Duration = Duration::from_secs(1);
/// Permission bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Why there is no admin socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process has it.
    #[error("another host has the admin socket {}", .0.display())]
    Taken(PathBuf),
    /// A file, folder or link that is in the way.
    #[error("--admin-socket {}: there is something else than a socket", .0.display())]
    NoSocket(PathBuf),
    /// The folder is not this user's alone.
    #[error(
        "--admin-socket: others than this user may change {}; name a folder that does not exist yet, and it is made",
        .0.display()
    )]
    SharedFolder(PathBuf),
    /// The file system refuses.
    #[error("--admin-socket: cannot {what} {}", path.display())]
    Io {
        /// Which step.
        what: &'static str,
        /// What it is done to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A socket that is this host's; removed when dropped.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Held as long as the socket is.
    _lock: File,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Nobody is told: the place is looked after by the next host.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Serves `source` at the place of `config` until `tasks` is stopped. Where another host has the place, it is taken once
/// that ends.
///
/// # Errors
/// The place was named by the user and can never be used.
pub async fn start(config: &SocketConfig, source: Source, tasks: &Tasks) -> Result<(), SocketError> {
    let mut why_not = None;
    for path in config.places() {
        let socket = match take(path).await {
            Ok(socket) => Some(socket),
            Err(error @ SocketError::Taken(_)) => {
                tracing::warn!(
                    "{error}: bulkhead status asks that one; give this one another --admin-socket"
                );
                None
            }
            Err(error) if config.is_given() => return Err(error),
            Err(error) => {
                why_not = Some(error);
                continue;
            }
        };
        tasks.spawn(
            "admin socket",
            serve(path.clone(), socket, router(source), tasks.clone()),
        );
        return Ok(());
    }
    if let Some(error) = why_not {
        tracing::info!(
            "no admin socket, so bulkhead status finds no host here: {}",
            Chain(&error)
        );
    }
    Ok(())
}

/// Makes the socket at `path`, and its folder if need be.
pub(super) async fn take(path: &Path) -> Result<Socket, SocketError> {
    let failed = |what| {
        move |source| SocketError::Io {
            what,
            path: path.to_owned(),
            source,
        }
    };
    prepare_folder(
        path.parent()
            .filter(|it| !it.as_os_str().is_empty())
            .unwrap_or_else(|| Path::new(".")),
    )?;
    let lock = lock(path)?;
    match path.symlink_metadata() {
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) if is_served(path).await => return Err(SocketError::Taken(path.to_owned())),
        Ok(_) => std::fs::remove_file(path).map_err(failed("replace the dead"))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("look at")(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed("listen on"))?;
    let socket = Socket {
        listener,
        path: path.to_owned(),
        _lock: lock,
    };
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(failed("protect"))?;
    Ok(socket)
}

/// Makes the folder, or sees to it that nobody else may put another socket there.
fn prepare_folder(folder: &Path) -> Result<(), SocketError> {
    let failed = |what| {
        move |source| SocketError::Io {
            what,
            path: folder.to_owned(),
            source,
        }
    };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make the folder")(error));
        }
        Ok(()) | Err(_) => {}
    }
    let found = folder.symlink_metadata().map_err(failed("look at"))?;
    let is_ours = is_trusted(found.uid()) && found.mode() & OTHERS_WRITE == 0;
    if found.is_dir() && is_ours {
        Ok(())
    } else {
        Err(SocketError::SharedFolder(folder.to_owned()))
    }
}

/// The lock of the socket at `path`. Its file stays: a lock on a file that may be removed locks nothing.
fn lock(path: &Path) -> Result<File, SocketError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let lock = path.with_file_name(name);
    let failed = |source| SocketError::Io {
        what: "lock",
        path: lock.clone(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&lock)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SocketError::Taken(path.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Whether somebody listens there, who need not know of the lock. Only a refusal says that nobody does.
async fn is_served(path: &Path) -> bool {
    match timeout(PROBE, UnixStream::connect(path)).await {
        Ok(Err(error)) => error.kind() != io::ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => true,
    }
}

/// The users whom this host answers: its own, and root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn router(source: Source) -> Router {
    Router::new().route(status::PATH, get(answer)).with_state(source)
}

async fn answer(State(source): State<Source>) -> Response {
    match serde_json::to_string_pretty(&source.status()) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], format!("{text}\n")).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode the status");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn serve(path: PathBuf, mut socket: Option<Socket>, pages: Router, tasks: Tasks) {
    let stop = tasks.stop_token().clone();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let work = async {
        let socket = loop {
            if let Some(socket) = socket.take() {
                break socket;
            }
            sleep(RETRY).await;
            socket = take(&path).await.ok();
        };
        tracing::info!(path = %path.display(), "serving the admin socket");
        loop {
            // The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            let stream = match socket.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the admin socket");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if !stream.peer_cred().is_ok_and(|peer| is_trusted(peer.uid())) {
                tracing::debug!("a connection of another user to the admin socket is refused");
                continue;
            }
            let connection = Box::pin(serve_http(stream, pages.clone(), stop.clone()));
            drop(tasks.spawn_finite("admin-socket-connection", async move {
                connection.await;
                drop(place);
            }));
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

#[cfg(test)]
mod tests;
