//! A port on a network: whoever connects proves by a certificate that it is a host, and is in nobody's way until then.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use crate::stream::SessionStream;
use crate::tls::{Credentials, TlsError, TlsFiles};

/// How long a handshake may take; hosts give up after as long.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at once. One more makes the oldest end: hosts need milliseconds, and whoever holds a place longer has had
/// its chance.
const HANDSHAKES: usize = 64;
/// How long, and for how many bytes, a peer that is refused is listened to, so that it can read why.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: u64 = 64 << 10;
/// How often the files are looked at while nobody connects, so that what is wrong with them is said before it matters.
const LOOK: Duration = Duration::from_secs(1);
/// Lines about refused peers between two looks: anybody on the network can cause one.
const LINES: u32 = 5;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the port cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The kernel refused.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Address and port.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The files are of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A port that listens.
#[derive(Debug)]
pub(crate) struct Port {
    listener: TcpListener,
    address: SocketAddr,
    credentials: Credentials,
    handshakes: Handshakes,
    refused: Refused,
    look: Interval,
    sessions: Arc<watch::Sender<usize>>,
}

impl Port {
    /// Reads the files, listens. Port 0 is a free one.
    pub(crate) async fn bind(address: SocketAddr, files: TlsFiles) -> Result<Self, PortError> {
        let credentials = Credentials::load(files).await?;
        let bind = |source| PortError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            listener,
            address,
            credentials,
            handshakes: Handshakes::default(),
            refused: Refused::default(),
            look,
            sessions: Arc::new(watch::Sender::new(0)),
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many sessions are open.
    pub(crate) fn sessions(&self) -> watch::Receiver<usize> {
        self.sessions.subscribe()
    }

    /// The next connection of a host that has proved itself.
    pub(crate) async fn accept(&mut self) -> SessionStream {
        loop {
            tokio::select! {
                Some(ended) = self.handshakes.running.next() => {
                    if let Some(stream) = self.ended(ended) {
                        return SessionStream::new(Either::Right(Box::new(stream)), &self.sessions);
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let config = self.credentials.current().await;
                        self.handshakes.begin(stream, peer, config);
                    }
                    Err(error) => {
                        // Most likely no file descriptor is free; asking again at once would only burn the processor.
                        tracing::warn!(%error, "cannot take a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = self.look.tick() => {
                    self.credentials.current().await;
                    self.refused.tell_rest();
                }
            }
        }
    }

    fn ended(&mut self, ended: Ended) -> Option<TlsStream<TcpStream>> {
        let Ended { number, peer, result } = ended;
        self.handshakes.open.remove(&number);
        match result {
            Ok(stream) => {
                tracing::info!(%peer, names = names(&stream), "a host has proved itself");
                Some(stream)
            }
            Err(refusal) => {
                self.refused.tell(peer, &refusal);
                None
            }
        }
    }
}

/// Why a peer is not let in.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("its handshake took longer than {HANDSHAKE:?}")]
    Late,
    #[error("there are more than {HANDSHAKES} handshakes at once, and its was the oldest")]
    Displaced,
    #[error("{0}")]
    Tls(io::Error),
}

struct Ended {
    number: u64,
    peer: SocketAddr,
    result: Result<TlsStream<TcpStream>, Refusal>,
}

/// Peers that have yet to prove themselves.
#[derive(Debug, Default)]
struct Handshakes {
    running: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// Ends each of them; the oldest is the first.
    open: BTreeMap<u64, CancellationToken>,
    next: u64,
}

impl Handshakes {
    fn begin(&mut self, stream: TcpStream, peer: SocketAddr, config: Arc<ServerConfig>) {
        if self.open.len() >= HANDSHAKES
            && let Some((_, oldest)) = self.open.pop_first()
        {
            oldest.cancel();
        }
        let number = self.next;
        self.next += 1;
        let displaced = CancellationToken::new();
        self.open.insert(number, displaced.clone());
        self.running.push(Box::pin(async move {
            let result = tokio::select! {
                result = timeout(HANDSHAKE, shake_hands(stream, config)) => {
                    result.unwrap_or(Err(Refusal::Late))
                }
                () = displaced.cancelled() => Err(Refusal::Displaced),
            };
            Ended { number, peer, result }
        }));
    }
}

async fn shake_hands(stream: TcpStream, config: Arc<ServerConfig>) -> Result<TlsStream<TcpStream>, Refusal> {
    stream.set_nodelay(true).map_err(Refusal::Tls)?;
    let shaken = TlsAcceptor::from(config).accept(stream).into_fallible().await;
    match shaken {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            drop(timeout(FAREWELL, read_out(stream)).await);
            Err(Refusal::Tls(error))
        }
    }
}

/// Closes a connection on which has been said why. With bytes unread it would be reset, and the peer not get to read it.
async fn read_out(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let rest = &mut stream.take(FAREWELL_BYTES);
    tokio::io::copy(rest, &mut tokio::io::sink()).await.map(drop)
}

/// By what names a host's certificate calls it; without any, its serial number.
fn names(stream: &TlsStream<TcpStream>) -> String {
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates
        .and_then(<[_]>::first)
        .and_then(|first| webpki::EndEntityCert::try_from(first).ok());
    let Some(certificate) = certificate else {
        return String::new();
    };
    let names = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        let serial = certificate.serial().iter();
        return serial.fold("serial ".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    }
    names.join(", ")
}

/// Lines about refused peers, and how many have had none.
#[derive(Debug, Default)]
struct Refused {
    lines: u32,
    untold: u64,
}

impl Refused {
    fn tell(&mut self, peer: SocketAddr, refusal: &Refusal) {
        if let Refusal::Tls(error) = refusal
            && matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            )
        {
            // Probes connect and say nothing.
            tracing::debug!(%peer, %error, "a peer left before it had proved itself");
        } else if self.lines < LINES {
            self.lines += 1;
            tracing::warn!(%peer, error = %refusal, "refused a peer");
        } else {
            self.untold += 1;
        }
    }

    fn tell_rest(&mut self) {
        if self.untold > 0 {
            tracing::warn!(peers = self.untold, "refused more peers");
        }
        *self = Self::default();
    }
}
