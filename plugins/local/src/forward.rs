//! User-space forwarding: one [`Listener`] per (address, protocol, port).
//!
//! A listener is open exactly as long as its value lives, and everything it accepted ends with it.
//! What it forwards to is its [`Rotation`], which may change under it at any time.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::balancer::Protocol;
use crate::cidr::Cidr;
use crate::clock;

mod rotation;
mod tcp;
mod udp;

pub use rotation::{Endpoint, Others, Rotation};

/// How long connections and flows to a target go on after its removal.
const DRAIN: Duration = Duration::from_secs(30);

/// What bounds one load balancer. The defaults are those of [`Limits::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, all TCP listeners together. 1,024 of them cost 32 MiB of buffers and
    /// 2,048 file descriptors when all are busy.
    pub connections: usize,
    /// UDP flows (one per client address and port) at once, per listener.
    pub flows: usize,
    /// A connection without a byte in either direction for so long is closed.
    pub connection_idle: Duration,
    /// A flow without a datagram in either direction for so long is forgotten.
    pub flow_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            flows: 1024,
            connection_idle: Duration::from_mins(10),
            flow_idle: Duration::from_mins(1),
        }
    }
}

/// Why a listener cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another process has this address and port, or the port on all addresses.
    #[error("{protocol} {at} is in use by another process of this machine")]
    InUse {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
    },
    /// Ports under 1024 (by default) need a right that this process lacks.
    #[error("{protocol} {at} needs the right to bind low ports (CAP_NET_BIND_SERVICE)")]
    Privileged {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
    },
    /// No interface of this machine has the address.
    #[error("{protocol} {at}: no interface of this machine has this address")]
    NoSuchAddress {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
    },
    /// Anything else, such as too many open files.
    #[error("cannot listen on {protocol} {at}: {kind}")]
    Other {
        /// The protocol.
        protocol: Protocol,
        /// Address and port.
        at: SocketAddr,
        /// What the system said.
        kind: io::ErrorKind,
    },
}

impl BindError {
    fn new(protocol: Protocol, at: SocketAddr, source: &io::Error) -> Self {
        // One row per cause that a person can act on.
        if source.kind() == io::ErrorKind::AddrInUse {
            Self::InUse { protocol, at }
        } else if source.kind() == io::ErrorKind::PermissionDenied {
            Self::Privileged { protocol, at }
        } else if source.kind() == io::ErrorKind::AddrNotAvailable {
            Self::NoSuchAddress { protocol, at }
        } else {
            Self::Other {
                protocol,
                at,
                kind: source.kind(),
            }
        }
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::InUse { protocol, .. }
            | Self::Privileged { protocol, .. }
            | Self::NoSuchAddress { protocol, .. }
            | Self::Other { protocol, .. } => *protocol,
        }
    }

    /// Address and port that could not be had.
    pub fn at(&self) -> SocketAddr {
        match self {
            Self::InUse { at, .. }
            | Self::Privileged { at, .. }
            | Self::NoSuchAddress { at, .. }
            | Self::Other { at, .. } => *at,
        }
    }
}

/// How often something was refused or lost. Counts only grow.
#[derive(Debug, Default)]
pub struct Counters {
    refused_full: AtomicU64,
    refused_source: AtomicU64,
    no_target: AtomicU64,
    evicted_flows: AtomicU64,
    lost_datagrams: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections refused because the load balancer had its maximum.
    pub refused_full: u64,
    /// Connections refused and datagrams dropped because of their source.
    pub refused_source: u64,
    /// Connections and datagrams for which no target could be reached.
    pub no_target: u64,
    /// Flows forgotten early to make room.
    pub evicted_flows: u64,
    /// Datagrams dropped because a socket would not take them.
    pub lost_datagrams: u64,
}

impl Counters {
    /// The counts now.
    pub fn read(&self) -> Counts {
        Counts {
            refused_full: self.refused_full.load(Ordering::Relaxed),
            refused_source: self.refused_source.load(Ordering::Relaxed),
            no_target: self.no_target.load(Ordering::Relaxed),
            evicted_flows: self.evicted_flows.load(Ordering::Relaxed),
            lost_datagrams: self.lost_datagrams.load(Ordering::Relaxed),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What all listeners of one load balancer share.
#[derive(Debug)]
pub struct Shared {
    limits: Limits,
    connections: Arc<Semaphore>,
    sources: RwLock<BTreeSet<Cidr>>,
    counters: Counters,
}

impl Shared {
    /// For one load balancer.
    pub fn new(limits: Limits, sources: BTreeSet<Cidr>) -> Self {
        let connections = Arc::new(Semaphore::new(limits.connections));
        Self {
            limits,
            connections,
            sources: RwLock::new(sources),
            counters: Counters::default(),
        }
    }

    /// Lets new clients in from these networks only, from everywhere if empty. Connections that
    /// exist go on.
    pub fn allow(&self, sources: BTreeSet<Cidr>) {
        *self.sources.write().unwrap_or_else(PoisonError::into_inner) = sources;
    }

    /// What was refused and lost.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn admits(&self, client: IpAddr) -> bool {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        let admitted = sources.is_empty()
            || sources
                .iter()
                .any(|source| source.contains(client.to_canonical()));
        drop(sources);
        if !admitted {
            count(&self.counters.refused_source);
        }
        admitted
    }
}

/// An open listener.
#[derive(Debug)]
pub struct Listener {
    tasks: JoinSet<()>,
    rotation: Arc<Rotation>,
    at: SocketAddr,
}

impl Listener {
    /// Binds and starts forwarding. Must be called inside a runtime.
    pub fn open(
        protocol: Protocol,
        at: SocketAddr,
        rotation: Arc<Rotation>,
        shared: Arc<Shared>,
    ) -> Result<Self, BindError> {
        let failed = |source: io::Error| BindError::new(protocol, at, &source);
        let mut tasks = JoinSet::new();
        let bound = match protocol {
            Protocol::Tcp => {
                let socket = tcp::bind(at).map_err(failed)?;
                let bound = socket.local_addr().map_err(failed)?;
                tasks.spawn(tcp::accept(socket, Arc::clone(&rotation), shared));
                bound
            }
            Protocol::Udp => {
                let socket = udp::bind(at).map_err(failed)?;
                let bound = socket.local_addr().map_err(failed)?;
                tasks.spawn(udp::forward(socket, Arc::clone(&rotation), shared));
                bound
            }
        };
        Ok(Self {
            tasks,
            rotation,
            at: bound,
        })
    }

    /// Where it listens.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// What it forwards to.
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// Closes it and everything it accepted; its port is free when this returns. (Dropping does the
    /// same a moment later.)
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
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
async fn drained(leaving: &CancellationToken) {
    leaving.cancelled().await;
    sleep(DRAIN).await;
}
