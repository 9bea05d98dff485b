//! User-space forwarding: one [`Listener`] per (address, protocol, port).
//!
//! A listener is open exactly as long as its value lives, and everything it accepted ends with it.
//! What it forwards to is a [`Rotation`] of its load balancer's [`Shared`], which may change under it at
//! any time.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::balancer::{Balancer, Protocol, ProxyProtocol};
use crate::cidr::{Cidr, Family};
use crate::clock;
use crate::health::{Board, CHECK_TIMEOUT};

mod affinity;
mod bind;
mod counters;
#[cfg(test)]
mod fixture;
mod proxy;
mod rotation;
mod tcp;
mod udp;

use affinity::{Affinity, Bound};
pub use bind::BindError;
use counters::count;
pub use counters::{Counters, Losses, Traffic};
pub use rotation::{Endpoint, Others, Rotation};

/// How long a client may wait until it is known which targets serve: for the first checks of a load
/// balancer, after which those whose check has not ended are used too.
const FIRST_CHECKS: Duration = CHECK_TIMEOUT.saturating_mul(2);

/// What bounds one load balancer. The defaults are those of [`Limits::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, all TCP listeners together. Each costs two file descriptors, and 32 KiB of
    /// buffers while bytes wait in both directions.
    pub connections: usize,
    /// UDP flows (one per client address and port) at once, per listener.
    pub flows: usize,
    /// Clients remembered for session affinity.
    pub clients: usize,
    /// A connection without a byte in either direction for so long is closed.
    pub connection_idle: Duration,
    /// A flow without a datagram in either direction for so long is forgotten.
    pub flow_idle: Duration,
    /// How long connections and flows to a target go on after its removal.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            flows: 1024,
            clients: 16 * 1024,
            connection_idle: Duration::from_mins(10),
            flow_idle: Duration::from_mins(1),
            drain: Duration::from_secs(30),
        }
    }
}

/// What all load balancers of this process share.
#[derive(Debug, Clone)]
pub struct Machine {
    limits: Limits,
    /// File descriptors that connections and flows may have together.
    descriptors: Arc<Semaphore>,
    ranges: Arc<[Cidr]>,
}

impl Machine {
    /// `descriptors` are those that connections and flows may have; `ranges` is the pool, for messages.
    pub fn new(limits: Limits, descriptors: usize, ranges: &[Cidr]) -> Self {
        Self {
            limits,
            descriptors: Arc::new(Semaphore::new(descriptors.min(Semaphore::MAX_PERMITS))),
            ranges: ranges.into(),
        }
    }
}

/// What all listeners of one load balancer share.
#[derive(Debug)]
pub struct Shared {
    machine: Machine,
    connections: Arc<Semaphore>,
    manners: RwLock<Manners>,
    affinity: Mutex<Affinity>,
    board: Arc<Board>,
    v4: Rotation,
    v6: Rotation,
    counters: Counters,
}

/// How new clients are treated.
#[derive(Debug, Clone, Default)]
struct Manners {
    sources: BTreeSet<Cidr>,
    affinity: bool,
    proxy_protocol: ProxyProtocol,
}

impl Shared {
    /// For one load balancer that has no targets yet, whose targets' health is on `board`.
    pub fn new(machine: Machine, board: Arc<Board>) -> Self {
        let connections = machine.limits.connections.min(Semaphore::MAX_PERMITS);
        Self {
            connections: Arc::new(Semaphore::new(connections)),
            manners: RwLock::default(),
            affinity: Mutex::new(Affinity::new(None, machine.limits.clients)),
            machine,
            board,
            v4: Rotation::default(),
            v6: Rotation::default(),
            counters: Counters::default(),
        }
    }

    /// Treats new clients as this load balancer says. Connections that exist go on.
    pub fn turn_into(&self, balancer: &Balancer) {
        *self.manners.write().unwrap_or_else(PoisonError::into_inner) = Manners {
            sources: balancer.sources.clone(),
            affinity: balancer.affinity.is_some(),
            proxy_protocol: balancer.proxy_protocol,
        };
        let mut affinity = self.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        affinity.keep_for(balancer.affinity);
    }

    /// The targets of one family.
    pub fn rotation(&self, family: Family) -> &Rotation {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// What was forwarded, refused and lost.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn limits(&self) -> &Limits {
        &self.machine.limits
    }

    fn manners<T>(&self, read: impl FnOnce(&Manners) -> T) -> T {
        read(&self.manners.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let admitted = self.manners(|manners| {
            let mut sources = manners.sources.iter();
            manners.sources.is_empty() || sources.any(|source| source.contains(client))
        });
        if !admitted {
            count(&self.counters.refused_source);
        }
        admitted
    }

    /// Where the client went before, if that is kept.
    fn favourite(&self, client: IpAddr) -> Option<IpAddr> {
        if !self.manners(|manners| manners.affinity) {
            return None;
        }
        let affinity = self.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        affinity.target(client.to_canonical(), clock::now())
    }

    /// Keeps where the client went, if that is to be kept.
    fn remember(&self, client: IpAddr, endpoint: &Endpoint) {
        if !self.manners(|manners| manners.affinity) {
            return;
        }
        let mut affinity = self.affinity.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = affinity.bind(client.to_canonical(), endpoint.address(), clock::now());
        if bound == Bound::Evicted {
            count(&self.counters.evicted_clients);
        }
    }

    /// Returns once it is known which targets of a family serve, or too much time has passed.
    async fn decided(&self, family: Family) {
        let rotation = self.rotation(family);
        if rotation.is_undecided() {
            let decided = self.board.until(|| !rotation.is_undecided());
            timeout(FIRST_CHECKS, decided).await.ok();
        }
    }
}

/// What one listener forwards to.
#[derive(Debug)]
struct Way {
    shared: Arc<Shared>,
    at: SocketAddr,
    node_port: AtomicU16,
    turn: AtomicUsize,
}

impl Way {
    fn family(&self) -> Family {
        Family::of(self.at.ip())
    }

    fn rotation(&self) -> &Rotation {
        self.shared.rotation(self.family())
    }

    fn node_port(&self) -> u16 {
        self.node_port.load(Ordering::Relaxed)
    }

    /// A new turn, for one connection or flow.
    fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}

/// An open listener.
#[derive(Debug)]
pub struct Listener {
    tasks: JoinSet<()>,
    closing: CancellationToken,
    way: Arc<Way>,
}

impl Listener {
    /// Binds and starts forwarding to `node_port` of the targets. Must be called inside a runtime.
    pub fn open(
        protocol: Protocol,
        at: SocketAddr,
        node_port: NonZeroU16,
        shared: Arc<Shared>,
    ) -> Result<Self, BindError> {
        let ranges = Arc::clone(&shared.machine.ranges);
        let failed = |source| BindError::new(protocol, at, &ranges, &source);
        let way = |at| {
            Arc::new(Way {
                shared,
                at,
                node_port: AtomicU16::new(node_port.get()),
                turn: AtomicUsize::new(0),
            })
        };
        let (mut tasks, closing) = (JoinSet::new(), CancellationToken::new());
        let way = match protocol {
            Protocol::Tcp => {
                let socket = bind::tcp(at).map_err(failed)?;
                let way = way(socket.local_addr().map_err(failed)?);
                tasks.spawn(tcp::accept(socket, Arc::clone(&way), closing.clone()));
                way
            }
            Protocol::Udp => {
                let socket = bind::udp(at).map_err(failed)?;
                let way = way(socket.local_addr().map_err(failed)?);
                tasks.spawn(udp::forward(socket, Arc::clone(&way), closing.clone()));
                way
            }
        };
        Ok(Self { tasks, closing, way })
    }

    /// Where it listens.
    pub fn at(&self) -> SocketAddr {
        self.way.at
    }

    /// Forwards new clients to this port of the targets.
    pub fn forward_to(&self, node_port: NonZeroU16) {
        self.way.node_port.store(node_port.get(), Ordering::Relaxed);
    }

    /// Closes it and everything it accepted; its port is free when this returns. (Dropping does the
    /// same a moment later.)
    pub async fn close(mut self) {
        self.closing.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// When something last happened, in whole milliseconds: enough for timeouts of seconds.
#[derive(Debug)]
struct Activity {
    start: Instant,
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            start: clock::now(),
            last: AtomicU64::new(0),
        }
    }

    fn touch(&self) {
        let elapsed = clock::now().duration_since(self.start);
        self.last.store(
            u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }

    /// Returns once nothing has happened for `limit`.
    async fn idle_for(&self, limit: Duration) {
        loop {
            let end = self.last() + limit;
            if end <= clock::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// Returns when the time after a target's removal is over.
async fn drained(leaving: &CancellationToken, within: Duration) {
    leaving.cancelled().await;
    sleep(within).await;
}
