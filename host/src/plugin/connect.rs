//! Connecting to a socket: checked before, checked after, and used once.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_core::endpoint::SOCKET_PATH_LIMIT;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// What clients send as `:authority` on unix sockets.
const ORIGIN: &str = "http://localhost";
/// Statuses with long texts and details travel in headers.
const MAX_HEADER_LIST_BYTES: u32 = 256 << 10;
/// The mode bit that lets anybody write.
const OTHERS_WRITE: u32 = 0o002;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no socket, or nobody accepts on it.
    #[error("nothing listens there")]
    Away,
    /// The path does not fit the kernel's address.
    #[error("the socket's path has {length} bytes, {SOCKET_PATH_LIMIT} is the most that a unix socket takes")]
    LongPath {
        /// The path's length in bytes.
        length: usize,
    },
    /// The path has no folder.
    #[error("{} is no path of a socket", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// The socket or its folder is a symlink.
    #[error("{} is a symlink; name the real path", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} is no {expected}", path.display())]
    WrongType {
        /// What is there.
        path: PathBuf,
        /// What should be.
        expected: &'static str,
    },
    /// Anybody could put a socket of his own there.
    #[error("{} has mode {mode:04o}: others may write to it; take that right away (chmod o-w)", path.display())]
    OthersWrite {
        /// The socket or its folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The peer runs under a user that is not allowed.
    #[error("it runs as uid {uid}; allow that with --plugin-allowed-uid={uid} if it is meant to")]
    ForeignPeer {
        /// The peer's user id.
        uid: u32,
    },
    /// The kernel refused.
    #[error("{operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// HTTP/2 could not be set up.
    #[error("cannot speak HTTP/2 to it")]
    Transport(#[source] tonic::transport::Error),
    /// It took too long.
    #[error("it did not accept the connection in time")]
    Deadline,
}

/// One connection, to be used as long as its stream lives.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Sends calls over the stream, and over no other.
    pub(crate) channel: Channel,
    /// Cancelled when the stream has ended.
    pub(crate) gone: CancellationToken,
}

/// Connects to `socket` within `deadline`, refusing files that others may replace and peers of other users than
/// this process's, 0 and `allowed`.
pub(crate) async fn connect(
    socket: &Path,
    allowed: &[u32],
    deadline: Duration,
) -> Result<Connection, ConnectError> {
    let open = async {
        inspect(socket).await?;
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|source| io_error("connect to", socket, source))?;
        check_peer(&stream, allowed, socket)?;
        open_channel(stream).await
    };
    timeout(deadline, open)
        .await
        .map_err(|_| ConnectError::Deadline)?
}

async fn inspect(socket: &Path) -> Result<(), ConnectError> {
    let length = socket.as_os_str().len();
    if length > SOCKET_PATH_LIMIT {
        return Err(ConnectError::LongPath { length });
    }
    let folder = socket.parent().ok_or_else(|| ConnectError::NoFolder {
        path: socket.to_owned(),
    })?;
    inspect_file(folder, "folder", std::fs::FileType::is_dir).await?;
    inspect_file(socket, "socket", std::fs::FileType::is_socket).await
}

async fn inspect_file(
    path: &Path,
    expected: &'static str,
    is_expected: fn(&std::fs::FileType) -> bool,
) -> Result<(), ConnectError> {
    let metadata = tokio::fs::symlink_metadata(path)
        .await
        .map_err(|source| io_error("inspect", path, source))?;
    let (path, mode) = (path.to_owned(), metadata.mode() & 0o7777);
    if metadata.file_type().is_symlink() {
        return Err(ConnectError::Symlink { path });
    }
    if !is_expected(&metadata.file_type()) {
        return Err(ConnectError::WrongType { path, expected });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(ConnectError::OthersWrite { path, mode });
    }
    Ok(())
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> ConnectError {
    if matches!(
        source.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    ) {
        return ConnectError::Away;
    }
    ConnectError::Io {
        operation,
        path: path.to_owned(),
        source,
    }
}

fn check_peer(stream: &UnixStream, allowed: &[u32], socket: &Path) -> Result<(), ConnectError> {
    let peer = stream
        .peer_cred()
        .map_err(|source| io_error("ask the kernel for the peer of", socket, source))?;
    let uid = peer.uid();
    let own = rustix::process::geteuid().as_raw();
    if uid == 0 || uid == own || allowed.contains(&uid) {
        Ok(())
    } else {
        Err(ConnectError::ForeignPeer { uid })
    }
}

/// A channel over `stream`. The channel would connect again by itself; it gets the stream once and no other.
async fn open_channel(stream: UnixStream) -> Result<Connection, ConnectError> {
    let gone = CancellationToken::new();
    let mut once = Some(TokioIo::new(Watched {
        stream,
        _gone: gone.clone().drop_guard(),
    }));
    let connector = service_fn(move |_| {
        let stream = once
            .take()
            .ok_or_else(|| io::Error::other("the session's connection has ended"));
        async move { stream }
    });
    let channel = Endpoint::from_static(ORIGIN)
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .connect_with_connector(connector)
        .await
        .map_err(ConnectError::Transport)?;
    Ok(Connection { channel, gone })
}

/// A stream that tells when it is dropped, which HTTP/2 does as soon as either side ends it.
#[derive(Debug)]
struct Watched {
    stream: UnixStream,
    _gone: DropGuard,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
