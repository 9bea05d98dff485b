//! A wire that can be slow, silent or cut.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::clock;

const CHUNK: usize = 16 * 1024;
/// How many chunks may be on a delayed wire; then its reader waits.
const CHUNKS_ON_THE_WIRE: usize = 256;
/// After a failed accept, as when file descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Where to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A unix socket's path.
    Unix(PathBuf),
}

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They pass at once.
    Pass,
    /// Each arrives so much later than it was sent; as many as before arrive per second.
    Delay {
        /// From the client to the target.
        up: Duration,
        /// From the target to the client.
        down: Duration,
    },
    /// They lie until the mode changes. Connections stay open, new ones are taken.
    Stall,
    /// There are no connections: open ones are closed, and new ones right after they are made.
    Cut,
}

/// Forwards connections to one address, as its mode says. Dropping it closes all.
#[derive(Debug)]
pub struct TcpProxy {
    address: Address,
    orders: mpsc::Sender<Order>,
    accepted: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Order {
    mode: Mode,
    done: oneshot::Sender<()>,
}

impl TcpProxy {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub async fn tcp(target: Address) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("bind the proxy")?;
        let address = Address::Tcp(listener.local_addr()?);
        Ok(Self::start(Listener::Tcp(listener), address, target))
    }

    /// Listens on a unix socket that only our user may use; makes its folder.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn unix(path: &Path, target: Address) -> Result<Self> {
        let context = || format!("bind the proxy to {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(context)?;
        }
        let listener = UnixListener::bind(path).with_context(context)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(context)?;
        Ok(Self::start(
            Listener::Unix(listener),
            Address::Unix(path.to_path_buf()),
            target,
        ))
    }

    fn start(listener: Listener, address: Address, target: Address) -> Self {
        let (orders, inbox) = mpsc::channel(1);
        let accepted = Arc::default();
        let mut task = JoinSet::new();
        let wire = Wire {
            target,
            mode: watch::Sender::new(Mode::Pass),
            accepted: Arc::clone(&accepted),
        };
        task.spawn(wire.serve(listener, inbox));
        Self {
            address,
            orders,
            accepted,
            _task: task,
        }
    }

    /// Where clients connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The TCP port where clients connect to.
    ///
    /// # Errors
    ///
    /// If it listens on a unix socket.
    pub fn port(&self) -> Result<u16> {
        match &self.address {
            Address::Tcp(address) => Ok(address.port()),
            Address::Unix(path) => Err(anyhow!("the proxy listens at {}", path.display())),
        }
    }

    /// How many connections it has taken so far, without those closed at once by [`Mode::Cut`].
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Changes the mode. When it returns, it is so: after [`Mode::Cut`] no connection is open.
    ///
    /// # Errors
    ///
    /// If the proxy's task has died.
    pub async fn set(&self, mode: Mode) -> Result<()> {
        let (done, confirmed) = oneshot::channel();
        let died = || anyhow!("the proxy's task has died");
        self.orders.send(Order { mode, done }).await.map_err(|_| died())?;
        confirmed.await.map_err(|_| died())
    }
}

/// The task that owns the connections.
struct Wire {
    target: Address,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicU64>,
}

impl Wire {
    async fn serve(self, listener: Listener, mut inbox: mpsc::Receiver<Order>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                order = inbox.recv() => {
                    let Some(order) = order else { return };
                    self.mode.send_replace(order.mode);
                    if order.mode == Mode::Cut {
                        connections.shutdown().await;
                    }
                    // Who gave the order may have stopped waiting.
                    order.done.send(()).ok();
                }
                client = listener.accept() => match client {
                    Ok(client) => self.take(client, &mut connections),
                    Err(_) => sleep(PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    fn take(&self, client: Box<dyn Stream>, connections: &mut JoinSet<()>) {
        if *self.mode.borrow() == Mode::Cut {
            return;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let (target, mode) = (self.target.clone(), self.mode.subscribe());
        connections.spawn(async move {
            // Either side's error ends the connection, which is how the other side learns of it.
            forward(client, &target, mode).await.ok();
        });
    }
}

async fn forward(
    client: Box<dyn Stream>,
    target: &Address,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    until_flowing(&mut mode).await?;
    let (from_target, to_target) = tokio::io::split(connect(target).await?);
    let (from_client, to_client) = tokio::io::split(client);
    tokio::try_join!(
        carry(from_client, to_target, mode.clone(), Way::Up),
        carry(from_target, to_client, mode, Way::Down),
    )?;
    Ok(())
}

#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// A chunk and when it is due at the other end.
type InFlight = (Instant, Bytes);

async fn carry(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    mode: watch::Receiver<Mode>,
    way: Way,
) -> io::Result<()> {
    let (wire, arriving) = mpsc::channel(CHUNKS_ON_THE_WIRE);
    tokio::try_join!(send(from, wire, mode.clone(), way), deliver(arriving, to, mode))?;
    Ok(())
}

async fn send(
    mut from: impl AsyncRead + Unpin,
    wire: mpsc::Sender<InFlight>,
    mut mode: watch::Receiver<Mode>,
    way: Way,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let current = until_flowing(&mut mode).await?;
        let length = tokio::select! {
            length = from.read(&mut chunk) => length?,
            changed = mode.changed() => {
                changed.map_err(|_| io::Error::from(ErrorKind::ConnectionReset))?;
                continue;
            }
        };
        let Some(bytes) = chunk.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        let due = clock::after(current.delay(way));
        wire.send((due, Bytes::copy_from_slice(bytes)))
            .await
            .map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
    }
}

async fn deliver(
    mut arriving: mpsc::Receiver<InFlight>,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    while let Some((due, bytes)) = arriving.recv().await {
        sleep_until(due).await;
        until_flowing(&mut mode).await?;
        to.write_all(&bytes).await?;
    }
    until_flowing(&mut mode).await?;
    to.shutdown().await
}

/// Waits out a stall and returns the mode after it.
async fn until_flowing(mode: &mut watch::Receiver<Mode>) -> io::Result<Mode> {
    match mode.wait_for(|mode| *mode != Mode::Stall).await {
        Ok(mode) => Ok(*mode),
        Err(_) => Err(ErrorKind::ConnectionReset.into()),
    }
}

impl Mode {
    fn delay(self, way: Way) -> Duration {
        match (self, way) {
            (Self::Delay { up, .. }, Way::Up) => up,
            (Self::Delay { down, .. }, Way::Down) => down,
            (Self::Pass | Self::Stall | Self::Cut, _) => Duration::ZERO,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => boxed(listener.accept().await?.0),
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

async fn connect(target: &Address) -> io::Result<Box<dyn Stream>> {
    match target {
        Address::Tcp(address) => boxed(TcpStream::connect(address).await?),
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}

/// Without Nagle's delay: the wire has no other than what the mode says.
fn boxed(stream: TcpStream) -> io::Result<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}
