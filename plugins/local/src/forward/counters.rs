//! What was forwarded, refused and lost.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one load balancer. All only grow, but for the two that are open now.
#[derive(Debug, Default)]
pub struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) open_connections: AtomicU64,
    pub(super) flows: AtomicU64,
    pub(super) open_flows: AtomicU64,
    pub(super) from_clients: AtomicU64,
    pub(super) to_clients: AtomicU64,
    pub(super) refused_full: AtomicU64,
    pub(super) refused_process: AtomicU64,
    pub(super) refused_source: AtomicU64,
    pub(super) no_target: AtomicU64,
    pub(super) evicted_flows: AtomicU64,
    pub(super) evicted_clients: AtomicU64,
    pub(super) lost_datagrams: AtomicU64,
}

/// What was forwarded, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Connections that were let in.
    pub connections: u64,
    /// Connections that are open now.
    pub open_connections: u64,
    /// UDP flows that were begun.
    pub flows: u64,
    /// UDP flows that are open now.
    pub open_flows: u64,
    /// Bytes from clients to targets, of both protocols, without headers.
    pub from_clients: u64,
    /// Bytes from targets to clients.
    pub to_clients: u64,
}

/// What was refused and lost, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Connections refused because the load balancer had its maximum.
    pub refused_full: u64,
    /// Connections and flows refused because the process had as many open files as it may.
    pub refused_process: u64,
    /// Connections refused and datagrams dropped because of their source.
    pub refused_source: u64,
    /// Connections and datagrams for which no target could be reached.
    pub no_target: u64,
    /// Flows forgotten early to make room.
    pub evicted_flows: u64,
    /// Clients whose affinity was forgotten early to make room.
    pub evicted_clients: u64,
    /// Datagrams dropped because a socket would not take them.
    pub lost_datagrams: u64,
}

impl Counters {
    /// What was forwarded until now.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            connections: read(&self.connections),
            open_connections: read(&self.open_connections),
            flows: read(&self.flows),
            open_flows: read(&self.open_flows),
            from_clients: read(&self.from_clients),
            to_clients: read(&self.to_clients),
        }
    }

    /// What was refused and lost until now.
    pub fn losses(&self) -> Losses {
        Losses {
            refused_full: read(&self.refused_full),
            refused_process: read(&self.refused_process),
            refused_source: read(&self.refused_source),
            no_target: read(&self.no_target),
            evicted_flows: read(&self.evicted_flows),
            evicted_clients: read(&self.evicted_clients),
            lost_datagrams: read(&self.lost_datagrams),
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// `usize` has at most 64 bits wherever this runs.
pub(super) fn count_bytes(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Counts something as open for as long as this lives.
#[derive(Debug)]
pub(super) struct Open<'a>(&'a AtomicU64);

impl<'a> Open<'a> {
    pub(super) fn new(ever: &AtomicU64, now: &'a AtomicU64) -> Self {
        count(ever);
        count(now);
        Self(now)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
