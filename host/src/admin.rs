//! The admin server: health, plugins' states and metrics over HTTPS, as upstream serves them on port 10258.
//!
//! The port is bound before anything else starts, so that a second host on one machine fails at once and by
//! name. Everything a caller can hold is bounded: connections, handshakes, heads, lifetimes, reviews.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config::{AccessConfig, AdminConfig};
use crate::exit::Exit;
use crate::readiness::Health;
use crate::tasks::Tasks;
use crate::telemetry::Chain;

mod access;
mod certificate;
pub mod local;
mod pages;
mod ttl_cache;

pub use access::Reviewers;
pub use certificate::CertificateError;

use access::Gate;
use certificate::Certificates;

/// Connections at once. Each holds some 50 KiB; scrapers and probes need a handful.
const CONNECTIONS: usize = 128;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Upstream's; it also bounds the idle time between requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(32);
const HEAD_LIMIT: usize = 64 * 1024;
/// After this a connection ends with its current answer: a client that does not read must not keep its place.
const CONNECTION_LIFETIME: Duration = Duration::from_mins(5);
const LAST_ANSWER_DEADLINE: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Why the admin server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}; choose another --secure-port or --bind-address, or 0 for no server")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The port's number cannot be written.
    #[error("cannot write --secure-port-file {}", path.display())]
    PortFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl AdminError {
    /// How the process ends because of it.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Bind { .. } => Exit::Bind,
            Self::Certificate(_) | Self::PortFile { .. } => Exit::Usage,
        }
    }
}

/// What the pages show.
#[derive(Clone, Debug)]
pub struct Sources {
    /// For `/livez`, `/readyz` and `/readyz/plugins`.
    pub health: Health,
    /// For `/metrics`.
    pub registry: Arc<Registry>,
}

/// A bound port that nobody serves yet: callers wait in its backlog.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    certificates: Certificates,
    access: AccessConfig,
}

/// Binds the port, reads or makes the certificate, and writes the port file.
///
/// # Errors
/// See [`AdminError`].
pub async fn bind(config: AdminConfig) -> Result<Listener, AdminError> {
    let refused = |source| AdminError::Bind {
        address: config.address,
        source,
    };
    let socket = TcpListener::bind(config.address).await.map_err(refused)?;
    let address = socket.local_addr().map_err(refused)?;
    let certificates = Certificates::load(config.certificate, clock::now())?;
    if let Some(path) = config.port_file {
        write_atomically(&path, format!("{}\n", address.port()).as_bytes(), 0o644)
            .map_err(|source| AdminError::PortFile { path, source })?;
    }
    Ok(Listener {
        socket,
        address,
        certificates,
        access: config.access,
    })
}

impl Listener {
    /// The bound address, with the port's real number.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `tasks` is stopped.
    pub fn serve(self, sources: Sources, reviewers: Reviewers, tasks: &Tasks) {
        let gate = Gate::new(self.access, reviewers);
        let server = Server {
            socket: self.socket,
            certificates: self.certificates,
            pages: pages::router(sources, gate),
            tasks: tasks.clone(),
        };
        tracing::info!(address = %self.address, "serving health and metrics");
        tasks.spawn("admin", server.run());
    }
}

struct Server {
    socket: TcpListener,
    certificates: Certificates,
    pages: Router,
    tasks: Tasks,
}

impl Server {
    async fn run(mut self) {
        let stop = self.tasks.stop_token().clone();
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let next = async {
                // The semaphore is never closed.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, self.socket.accept().await)
            };
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => return,
                next = next => next,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: trying again at once would only spin.
                    tracing::warn!(%error, "cannot accept a connection to the admin server");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let tls = TlsAcceptor::from(self.certificates.current(clock::now()).await);
            let connection = Box::pin(serve_connection(stream, tls, self.pages.clone(), stop.clone()));
            drop(self.tasks.spawn_finite("admin-connection", async move {
                connection.await;
                drop(place);
            }));
        }
    }
}

async fn serve_connection(stream: TcpStream, tls: TlsAcceptor, pages: Router, stop: CancellationToken) {
    let stream = match tokio::time::timeout(HANDSHAKE_DEADLINE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake with the admin server failed"),
        Err(_) => return tracing::debug!("a TLS handshake with the admin server took too long"),
    };
    serve_http(stream, pages, stop).await;
}

/// Serves one connection until it ends, is too old, or `stop`.
async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    pages: Router,
    stop: CancellationToken,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = tokio::time::sleep(CONNECTION_LIFETIME) => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        connection.as_mut().graceful_shutdown();
        tokio::time::timeout(LAST_ANSWER_DEADLINE, connection)
            .await
            .unwrap_or(Ok(()))
    };
    if let Err(error) = ended {
        tracing::debug!(error = %Chain(&error), "a connection to the admin server broke");
    }
}

/// Replaces the file as a whole: a reader sees the old content or the new one.
fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)?
        .write_all(content)?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests;
