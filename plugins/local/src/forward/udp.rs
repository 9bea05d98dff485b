//! UDP: one flow per client address, each with a connected socket of its own to one target.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, SendFlags};
use tokio::net::UdpSocket;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::counters::{Open, count_bytes};
use super::{Activity, Endpoint, Way, count, drained};
use crate::health::Standing;

#[cfg(test)]
mod tests;

/// No datagram is longer.
const LARGEST_DATAGRAM: usize = 65_535;

/// After a receive that failed for want of memory.
const RECEIVE_PAUSE: Duration = Duration::from_millis(100);

/// Datagrams that one socket may pass on before others have their turn.
const AT_ONCE: usize = 64;

thread_local! {
    /// Every datagram passes through one buffer of its thread: thousands of listeners and flows must
    /// not have 64 KiB each.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; LARGEST_DATAGRAM]);
}

/// Forwards until `closing`; the socket is closed then, and all flows have ended.
pub(super) async fn forward(socket: UdpSocket, way: Arc<Way>, closing: CancellationToken) {
    let mut flows = Flows::new(Arc::new(socket), way);
    loop {
        let readable = tokio::select! {
            // A flow may be in the middle of an answer, for which it needs the socket.
            () = closing.cancelled() => return flows.tasks.shutdown().await,
            readable = flows.socket.readable() => readable,
            Some(ended) = flows.tasks.join_next() => {
                if let Ok((client, serial)) = ended {
                    flows.forget(client, serial);
                }
                continue;
            }
        };
        if let Err(error) = readable.and_then(|()| flows.pass_some()) {
            tracing::warn!(%error, at = %flows.way.at, "cannot receive a datagram");
            sleep(RECEIVE_PAUSE).await;
        }
    }
}

/// Passes on what is there to read, up to a bound.
fn drain(mut one: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let passed = BUFFER.with_borrow_mut(|buffer| {
        (0..AT_ONCE).try_for_each(|_| match one(buffer) {
            Ok(()) => ControlFlow::Continue(()),
            Err(end) => ControlFlow::Break(end),
        })
    });
    match passed {
        ControlFlow::Break(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        ControlFlow::Break(_) | ControlFlow::Continue(()) => Ok(()),
    }
}

/// The flows of one listener.
struct Flows {
    socket: Arc<UdpSocket>,
    way: Arc<Way>,
    table: HashMap<SocketAddr, Flow>,
    tasks: JoinSet<(SocketAddr, u64)>,
    serial: u64,
}

/// One client's.
struct Flow {
    /// Tells this flow from an earlier one of the same client whose end is still to be noticed.
    serial: u64,
    endpoint: Endpoint,
    upstream: Arc<UdpSocket>,
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl Flows {
    fn new(socket: Arc<UdpSocket>, way: Arc<Way>) -> Self {
        let (table, tasks) = (HashMap::new(), JoinSet::new());
        Self {
            socket,
            way,
            table,
            tasks,
            serial: 0,
        }
    }

    fn pass_some(&mut self) -> io::Result<()> {
        let socket = Arc::clone(&self.socket);
        drain(|buffer| {
            let (length, client) = socket.try_recv_from(buffer)?;
            self.pass(client, buffer.get(..length).unwrap_or_default());
            Ok(())
        })
    }

    /// Passes one datagram of a client on to its target. A send that fails tells that the datagram
    /// before was refused by the target's machine: the flow starts again, maybe elsewhere.
    fn pass(&mut self, client: SocketAddr, datagram: &[u8]) {
        let way = Arc::clone(&self.way);
        let counters = &way.shared.counters;
        for _ in 0..2 {
            if !self.table.get(&client).is_some_and(|flow| self.serves(flow)) {
                self.end(client);
                if !way.shared.admits(client.ip()) {
                    return;
                }
                self.begin(client);
            }
            // Why there is none has been counted.
            let Some(flow) = self.table.get(&client) else {
                return;
            };
            flow.activity.touch();
            // Past the runtime, which believes a new socket to be full until it has heard of it.
            match net::send(&flow.upstream, datagram, SendFlags::empty()) {
                Ok(sent) => return count_bytes(&counters.from_clients, sent),
                // Waiting would hold up the datagrams of others.
                Err(Errno::AGAIN) => break,
                Err(_) => self.end(client),
            }
        }
        count(&counters.lost_datagrams);
    }

    /// Whether a flow's target may be kept: a datagram costs nothing to send elsewhere, so one whose
    /// target is down moves as soon as a better one is there.
    fn serves(&self, flow: &Flow) -> bool {
        flow.endpoint.standing() != Standing::Down
            || self
                .way
                .rotation()
                .pick(0, &[], None)
                .is_some_and(|best| best.standing() == Standing::Down)
    }

    fn begin(&mut self, client: SocketAddr) {
        let shared = &self.way.shared;
        if self.table.len() >= shared.limits().flows {
            self.evict();
        }
        let shared = &self.way.shared;
        let Ok(descriptor) = Arc::clone(&shared.machine.descriptors).try_acquire_owned() else {
            return count(&shared.counters.refused_process);
        };
        let favourite = shared.favourite(client.ip());
        let Some(endpoint) = self.way.rotation().pick(self.way.turn(), &[], favourite) else {
            return count(&shared.counters.no_target);
        };
        let target = SocketAddr::new(endpoint.address(), self.way.node_port());
        let upstream = match connected(target) {
            Ok(upstream) => Arc::new(upstream),
            Err(error) => {
                tracing::debug!(%target, %error, "cannot open a flow");
                return count(&shared.counters.no_target);
            }
        };
        shared.remember(client.ip(), &endpoint);
        self.serial += 1;
        let serial = self.serial;
        let answers = Answers {
            upstream: Arc::clone(&upstream),
            socket: Arc::clone(&self.socket),
            client,
            activity: Arc::new(Activity::new()),
            way: Arc::clone(&self.way),
            _descriptor: descriptor,
        };
        let (activity, leaving) = (Arc::clone(&answers.activity), endpoint.leaving().clone());
        let task = self.tasks.spawn(async move {
            let (counters, limits) = (&answers.way.shared.counters, answers.way.shared.limits());
            let _open = Open::new(&counters.flows, &counters.open_flows);
            tokio::select! {
                () = answers.pass() => {}
                () = answers.activity.idle_for(limits.flow_idle) => {}
                () = drained(&leaving, limits.drain) => {}
            }
            (client, serial)
        });
        let flow = Flow {
            serial,
            endpoint,
            upstream,
            activity,
            task,
        };
        self.table.insert(client, flow);
    }

    /// Makes room: the flow that has been idle longest goes.
    fn evict(&mut self) {
        let oldest = self.table.iter().min_by_key(|(_, flow)| flow.activity.last());
        if let Some(client) = oldest.map(|(client, _)| *client) {
            count(&self.way.shared.counters.evicted_flows);
            self.end(client);
        }
    }

    fn end(&mut self, client: SocketAddr) {
        if let Some(flow) = self.table.remove(&client) {
            flow.task.abort();
        }
    }

    fn forget(&mut self, client: SocketAddr, serial: u64) {
        if self.table.get(&client).is_some_and(|flow| flow.serial == serial) {
            self.table.remove(&client);
        }
    }
}

fn connected(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// The way back of one flow.
struct Answers {
    upstream: Arc<UdpSocket>,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    activity: Arc<Activity>,
    way: Arc<Way>,
    _descriptor: OwnedSemaphorePermit,
}

impl Answers {
    /// Passes answers back until the socket fails.
    async fn pass(&self) {
        let counters = &self.way.shared.counters;
        while self.upstream.readable().await.is_ok() {
            let drained = drain(|buffer| {
                let length = self.upstream.try_recv(buffer)?;
                self.activity.touch();
                let answer = buffer.get(..length).unwrap_or_default();
                match net::sendto(&self.socket, answer, SendFlags::empty(), &self.client) {
                    Ok(sent) => count_bytes(&counters.to_clients, sent),
                    Err(_) => count(&counters.lost_datagrams),
                }
                Ok(())
            });
            if drained.is_err() {
                return;
            }
        }
    }
}
