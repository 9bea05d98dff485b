//! UDP: one flow per client address, each with a connected socket of its own to one target.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::{Activity, Endpoint, Rotation, Shared, count, drained};
use crate::health::Standing;

#[cfg(test)]
mod tests;

/// No datagram is longer.
const LARGEST_DATAGRAM: usize = 65_535;

/// After a receive that failed for want of memory.
const RECEIVE_PAUSE: Duration = Duration::from_millis(100);

/// A receiving socket. Without `SO_REUSEADDR`: it is not needed after a restart, and with it two
/// processes could share the port and steal each other's datagrams.
pub(super) fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Forwards for ever; all flows end when this is dropped.
pub(super) async fn forward(socket: UdpSocket, rotation: Arc<Rotation>, shared: Arc<Shared>) {
    let mut flows = Flows::new(Arc::new(socket), rotation, shared);
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        let received = tokio::select! {
            received = flows.socket.recv_from(&mut buffer) => received,
            Some(ended) = flows.tasks.join_next() => {
                if let Ok((client, serial)) = ended {
                    flows.forget(client, serial);
                }
                continue;
            }
        };
        match received {
            Ok((length, client)) => flows.pass(client, buffer.get(..length).unwrap_or_default()).await,
            Err(error) => {
                tracing::warn!(%error, "cannot receive a datagram");
                sleep(RECEIVE_PAUSE).await;
            }
        }
    }
}

/// The flows of one listener.
struct Flows {
    socket: Arc<UdpSocket>,
    rotation: Arc<Rotation>,
    shared: Arc<Shared>,
    table: HashMap<SocketAddr, Flow>,
    tasks: JoinSet<(SocketAddr, u64)>,
    /// All answers pass through one buffer: a thousand flows must not have 64 KiB each.
    answers: Arc<Mutex<Vec<u8>>>,
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
    fn new(socket: Arc<UdpSocket>, rotation: Arc<Rotation>, shared: Arc<Shared>) -> Self {
        let answers = Arc::new(Mutex::new(vec![0; LARGEST_DATAGRAM]));
        let (table, tasks) = (HashMap::new(), JoinSet::new());
        Self {
            socket,
            rotation,
            shared,
            table,
            tasks,
            answers,
            serial: 0,
        }
    }

    /// Passes one datagram of a client on to its target. A send that fails tells that the datagram
    /// before was refused by the target's machine: the flow starts again, maybe elsewhere.
    async fn pass(&mut self, client: SocketAddr, datagram: &[u8]) {
        for _ in 0..2 {
            if !self.table.get(&client).is_some_and(|flow| self.serves(flow)) {
                self.end(client);
                if !self.shared.admits(client.ip()) {
                    return;
                }
                if self.begin(client).await.is_none() {
                    return count(&self.shared.counters.no_target);
                }
            }
            let Some(flow) = self.table.get(&client) else {
                return;
            };
            flow.activity.touch();
            if flow.upstream.send(datagram).await.is_ok() {
                return;
            }
            self.end(client);
        }
        count(&self.shared.counters.lost_datagrams);
    }

    /// Whether a flow's target may be kept: a datagram costs nothing to send elsewhere, so one whose
    /// target is down moves as soon as a better one is there.
    fn serves(&self, flow: &Flow) -> bool {
        flow.endpoint.standing() != Standing::Down
            || self
                .rotation
                .pick(0, &[])
                .is_some_and(|best| best.standing() == Standing::Down)
    }

    async fn begin(&mut self, client: SocketAddr) -> Option<()> {
        if self.table.len() >= self.shared.limits.flows {
            self.evict();
        }
        let endpoint = self.rotation.pick(self.rotation.turn(), &[])?;
        let upstream = match connected(endpoint.address()).await {
            Ok(upstream) => Arc::new(upstream),
            Err(error) => {
                tracing::debug!(target = %endpoint.address(), %error, "cannot open a flow");
                return None;
            }
        };
        self.serial += 1;
        let (serial, activity) = (self.serial, Arc::new(Activity::new()));
        let answers = Answers {
            upstream: Arc::clone(&upstream),
            socket: Arc::clone(&self.socket),
            client,
            buffer: Arc::clone(&self.answers),
            activity: Arc::clone(&activity),
            shared: Arc::clone(&self.shared),
        };
        let leaving = endpoint.leaving().clone();
        let task = self.tasks.spawn(async move {
            tokio::select! {
                () = answers.pass() => {}
                () = answers.activity.idle_for(answers.shared.limits.flow_idle) => {}
                () = drained(&leaving) => {}
            }
            (client, serial)
        });
        self.table.insert(
            client,
            Flow {
                serial,
                endpoint,
                upstream,
                activity,
                task,
            },
        );
        Some(())
    }

    /// Makes room: the flow that has been idle longest goes.
    fn evict(&mut self) {
        let oldest = self.table.iter().min_by_key(|(_, flow)| flow.activity.last());
        if let Some(client) = oldest.map(|(client, _)| *client) {
            count(&self.shared.counters.evicted_flows);
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

async fn connected(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(target).await?;
    Ok(socket)
}

/// The way back of one flow.
struct Answers {
    upstream: Arc<UdpSocket>,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    buffer: Arc<Mutex<Vec<u8>>>,
    activity: Arc<Activity>,
    shared: Arc<Shared>,
}

impl Answers {
    /// Passes answers back until the socket fails.
    async fn pass(&self) {
        while self.upstream.readable().await.is_ok() {
            match self.one() {
                Ok(()) => self.activity.touch(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn one(&self) -> io::Result<()> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let length = self.upstream.try_recv(&mut buffer)?;
        let answer = buffer.get(..length).unwrap_or_default();
        if self.socket.try_send_to(answer, self.client).is_err() {
            count(&self.shared.counters.lost_datagrams);
        }
        Ok(())
    }
}
