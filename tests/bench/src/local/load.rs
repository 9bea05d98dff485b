//! The load: what clients do for a while, and how it went.

use std::net::SocketAddrV4;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_harness::Stopwatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::backend::{CHUNK, ECHO, ECHOED, ONCE, SEND, TAKE};

/// Clients at once that connect again and again.
const CONNECTING: usize = 64;
/// Connections at once that ask and wait.
const ASKING: usize = 64;
/// Connections at once that are as fast as they can.
const BULK: usize = 8;
/// Sockets at once that send a datagram and wait for it.
const SENDING: usize = 256;
/// Bytes of a small request, of its answer, and of a datagram.
const SMALL: usize = 128;
/// A datagram that is not back after so long is lost: a hundred times the usual.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// For anything that must happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Room for the latencies of one client in one run, so that measuring does not allocate.
const ROOM: usize = 1 << 14;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Connect, ask for one byte, get it, read the end, close.
    Connects,
    /// Small requests and answers on held connections.
    Requests,
    /// From backends to clients.
    Download,
    /// From clients to backends.
    Upload,
    /// Echoed datagrams of many clients.
    Datagrams,
}

/// How one run went.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Operations; for bulk bytes.
    pub(crate) done: u64,
    /// Microseconds of each operation; none for bulk.
    pub(crate) latencies: Vec<u32>,
    /// Datagrams that did not come back.
    pub(crate) lost: u64,
    /// The whole run.
    pub(crate) took: Duration,
}

impl Load {
    pub(crate) const ALL: [Self; 5] = [
        Self::Connects,
        Self::Requests,
        Self::Download,
        Self::Upload,
        Self::Datagrams,
    ];

    /// Puts this load on a balancer for so long. Over TCP every operation must succeed.
    pub(crate) async fn put_on(self, at: SocketAddrV4, lasting: Duration) -> Result<Run> {
        let watch = Stopwatch::start();
        let mut clients = JoinSet::new();
        let number = match self {
            Self::Connects => CONNECTING,
            Self::Requests => ASKING,
            Self::Download | Self::Upload => BULK,
            Self::Datagrams => SENDING,
        };
        for _ in 0..number {
            clients.spawn(async move {
                match self {
                    Self::Connects => connects(at, watch, lasting).await,
                    Self::Requests => requests(at, watch, lasting).await,
                    Self::Download => download(at, watch, lasting).await,
                    Self::Upload => upload(at, watch, lasting).await,
                    Self::Datagrams => datagrams(at, watch, lasting).await,
                }
            });
        }
        let mut all = Run::default();
        let ended = async {
            while let Some(client) = clients.join_next().await {
                let one = client.context("a client")??;
                all.done += one.done;
                all.lost += one.lost;
                all.latencies.extend(one.latencies);
            }
            anyhow::Ok(())
        };
        timeout(lasting + PATIENCE, ended)
            .await
            .context("clients wait in vain")??;
        all.took = watch.elapsed();
        Ok(all)
    }
}

impl Run {
    fn with_room() -> Self {
        Self {
            latencies: Vec::with_capacity(ROOM),
            ..Self::default()
        }
    }

    fn one(&mut self, watch: Stopwatch) {
        self.done += 1;
        let micros = u32::try_from(watch.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.latencies.push(micros);
    }
}

async fn connects(at: SocketAddrV4, watch: Stopwatch, lasting: Duration) -> Result<Run> {
    let mut run = Run::with_room();
    while watch.elapsed() < lasting {
        let one = Stopwatch::start();
        connect_once(at).await?;
        run.one(one);
    }
    Ok(run)
}

async fn connect_once(at: SocketAddrV4) -> Result<()> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(&[ONCE]).await?;
    let mut answer = [0; 2];
    let length = stream.read(&mut answer).await?;
    ensure!(length == 1 && answer.first() == Some(&ONCE), "a wrong answer");
    ensure!(stream.read(&mut answer).await? == 0, "no end");
    Ok(())
}

/// A connection that has been told what it is for.
async fn opened(at: SocketAddrV4, manner: u8) -> Result<TcpStream> {
    let open = async {
        let mut stream = TcpStream::connect(at).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&[manner]).await?;
        anyhow::Ok(stream)
    };
    timeout(PATIENCE, open).await.context("no connection")?
}

async fn requests(at: SocketAddrV4, watch: Stopwatch, lasting: Duration) -> Result<Run> {
    let mut stream = opened(at, ECHO).await?;
    let mut run = Run::with_room();
    let (request, mut answer) = ([7; SMALL], [0; SMALL]);
    while watch.elapsed() < lasting {
        let one = Stopwatch::start();
        stream.write_all(&request).await?;
        stream.read_exact(&mut answer).await?;
        run.one(one);
    }
    ensure!(answer == request, "a wrong answer");
    Ok(run)
}

async fn download(at: SocketAddrV4, watch: Stopwatch, lasting: Duration) -> Result<Run> {
    let mut stream = opened(at, SEND).await?;
    let mut run = Run::default();
    let mut buffer = vec![0; CHUNK];
    while watch.elapsed() < lasting {
        let length = stream.read(&mut buffer).await?;
        ensure!(length > 0, "the stream ended");
        run.done += u64::try_from(length)?;
    }
    Ok(run)
}

async fn upload(at: SocketAddrV4, watch: Stopwatch, lasting: Duration) -> Result<Run> {
    let mut stream = opened(at, TAKE).await?;
    let mut run = Run::default();
    let buffer = vec![0; CHUNK];
    while watch.elapsed() < lasting {
        run.done += u64::try_from(stream.write(&buffer).await?)?;
    }
    Ok(run)
}

async fn datagrams(at: SocketAddrV4, watch: Stopwatch, lasting: Duration) -> Result<Run> {
    let socket = UdpSocket::bind((at.ip().to_owned(), 0)).await?;
    socket.connect(at).await?;
    let mut run = Run::with_room();
    let (datagram, mut answer) = ([7; SMALL], [0; SMALL]);
    while watch.elapsed() < lasting {
        let one = Stopwatch::start();
        socket.send(&datagram).await?;
        match timeout(LOST_AFTER, socket.recv(&mut answer)).await {
            Ok(length) => {
                ensure!(length? == SMALL && answer == datagram, "a wrong answer");
                run.one(one);
            }
            Err(_) => run.lost += 1,
        }
    }
    Ok(run)
}

/// Connections that have each sent and got some bytes, and are held.
pub(crate) async fn hold(at: SocketAddrV4, number: usize) -> Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(number);
    let (request, mut answer) = (vec![7; ECHOED], vec![0; ECHOED]);
    for _ in 0..number {
        let mut stream = opened(at, ECHO).await?;
        let exchange = async {
            stream.write_all(&request).await?;
            stream.read_exact(&mut answer).await
        };
        timeout(PATIENCE, exchange).await.context("no answer")??;
        held.push(stream);
    }
    Ok(held)
}
