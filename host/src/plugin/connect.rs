//! Connecting to a socket: checked before, checked after, and used once.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::Settings;
use super::place::{Address, Stamp};
use super::socket_guard::{self, File, Folder, Refusal};
use super::tls::{self, TlsError};

/// What clients send as `:authority` on unix sockets.
const ORIGIN: &str = "http://localhost";
/// Statuses with long texts and details travel in headers.
const MAX_HEADER_LIST_BYTES: u32 = 256 << 10;

/// How often a connection over a network is tried while nothing is said, and how long that may take.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no socket, or nobody accepts on it.
    #[error("nothing listens there")]
    Away,
    /// Somebody could pose as the plugin there.
    #[error(transparent)]
    Refused(#[from] Refusal),
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
    /// The port cannot be reached.
    #[error("cannot connect to {address}")]
    Network {
        /// Where to.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The two do not trust each other.
    #[error(transparent)]
    Tls(#[from] TlsError),
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
    /// Which file it was connected by.
    pub(crate) stamp: Option<Stamp>,
    /// By what the plugin refused this host's certificate, if it did.
    pub(crate) refusal: Arc<OnceLock<AlertDescription>>,
}

/// Connects to `address`, refusing files that others may replace and peers of other users than this process's, 0 and
/// the allowed ones.
pub(crate) async fn connect(settings: &Settings, address: &Address) -> Result<Connection, ConnectError> {
    let open = async {
        match address {
            Address::Socket(socket) => {
                let stamp = inspect(socket).await?;
                let stream = UnixStream::connect(socket)
                    .await
                    .map_err(|source| io_error("connect to", socket, source))?;
                check_peer(&stream, &settings.allowed_uids, socket)?;
                let endpoint = Endpoint::from_static(ORIGIN);
                open_channel(stream, endpoint, Some(stamp)).await
            }
            Address::Network { host, port } => Box::pin(dial(settings, host, *port, address)).await,
        }
    };
    timeout(settings.timing.handshake, open)
        .await
        .map_err(|_| ConnectError::Deadline)?
}

/// Connects to a port, by TLS unless the configuration says plaintext.
async fn dial(
    settings: &Settings,
    host: &str,
    port: u16,
    address: &Address,
) -> Result<Connection, ConnectError> {
    let network = |source: io::Error| {
        if source.kind() == io::ErrorKind::ConnectionRefused {
            return ConnectError::Away;
        }
        ConnectError::Network {
            address: address.to_string(),
            source,
        }
    };
    let stream = TcpStream::connect((host, port)).await.map_err(network)?;
    stream.set_nodelay(true).map_err(network)?;
    // Only a network loses a connection without saying so. TLS is underneath: HTTP/2 itself is spoken as it is.
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(ConnectError::Transport)?
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_PATIENCE)
        .keep_alive_while_idle(true);
    match &settings.tls {
        Some(tls) => {
            let stream = tls::connect(stream, host, tls).await?;
            Box::pin(open_channel(stream, endpoint, None)).await
        }
        None => open_channel(stream, endpoint, None).await,
    }
}

/// Judges a socket and its folder; which file the socket is.
async fn inspect(socket: &Path) -> Result<Stamp, ConnectError> {
    let folder = socket_guard::folder_of(socket)?;
    let (file, _) = look(folder).await?;
    socket_guard::judge_folder(folder, file, Folder::Configured)?;
    let (file, stamp) = look(socket).await?;
    socket_guard::judge_socket(socket, file)?;
    Ok(stamp)
}

async fn look(path: &Path) -> Result<(File, Stamp), ConnectError> {
    let metadata = tokio::fs::symlink_metadata(path)
        .await
        .map_err(|source| io_error("inspect", path, source))?;
    Ok((File::of(&metadata), Stamp::of(&metadata)))
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
    if socket_guard::may_speak(uid, own, allowed) {
        Ok(())
    } else {
        Err(ConnectError::ForeignPeer { uid })
    }
}

/// A channel over `stream`. The channel would connect again by itself; it gets the stream once and no other.
async fn open_channel<S>(
    stream: S,
    endpoint: Endpoint,
    stamp: Option<Stamp>,
) -> Result<Connection, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let gone = CancellationToken::new();
    let refusal = Arc::new(OnceLock::new());
    let mut once = Some(TokioIo::new(Watched {
        stream,
        refusal: Arc::clone(&refusal),
        _gone: gone.clone().drop_guard(),
    }));
    let connector = service_fn(move |_| {
        let stream = once
            .take()
            .ok_or_else(|| io::Error::other("the session's connection has ended"));
        async move { stream }
    });
    let channel = endpoint
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .connect_with_connector(connector)
        .await
        .map_err(ConnectError::Transport)?;
    Ok(Connection {
        channel,
        gone,
        stamp,
        refusal,
    })
}

/// A stream that tells when it is dropped, which HTTP/2 does as soon as either side ends it, and what HTTP/2 does not: by
/// what it was refused.
#[derive(Debug)]
struct Watched<S> {
    stream: S,
    refusal: Arc<OnceLock<AlertDescription>>,
    _gone: DropGuard,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read
            && let Some(refusal) = tls::refusal(error)
        {
            self.refusal.get_or_init(|| refusal);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
