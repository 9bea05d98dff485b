//! TCP: one task per connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Endpoint, Rotation, Shared, count};

mod relay;

#[cfg(test)]
mod tests;

/// Connections that wait to be accepted; Linux' own default maximum is higher since 5.4.
const BACKLOG: u32 = 1024;

/// For one target: longer than the first retransmission of a lost SYN (1 s).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// For all targets together; clients give up soon after.
const CONNECT_BUDGET: Duration = Duration::from_secs(10);

/// After an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket. `SO_REUSEADDR`: connections of a process that was killed linger in
/// `TIME_WAIT` and must not keep its successor from listening (two listeners stay impossible).
pub(super) fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = if at.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// Accepts for ever; all connections end when this is dropped.
pub(super) async fn accept(listener: TcpListener, rotation: Arc<Rotation>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (client, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !shared.admits(from.ip()) {
            reset(&client);
            continue;
        }
        let Ok(slot) = Arc::clone(&shared.connections).try_acquire_owned() else {
            count(&shared.counters.refused_full);
            reset(&client);
            continue;
        };
        let (rotation, shared) = (Arc::clone(&rotation), Arc::clone(&shared));
        connections.spawn(async move {
            serve(client, &rotation, &shared).await;
            drop(slot);
        });
    }
}

async fn serve(client: TcpStream, rotation: &Rotation, shared: &Shared) {
    let Ok(Some((upstream, endpoint))) = timeout(CONNECT_BUDGET, connect(rotation)).await else {
        count(&shared.counters.no_target);
        return reset(&client);
    };
    relay::relay(
        client,
        upstream,
        endpoint.leaving(),
        shared.limits.connection_idle,
    )
    .await;
}

/// Connects to the target whose turn it is, or to the next ones while that fails.
async fn connect(rotation: &Rotation) -> Option<(TcpStream, Endpoint)> {
    let turn = rotation.turn();
    let mut tried = Vec::new();
    loop {
        let endpoint = rotation.pick(turn, &tried)?;
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(endpoint.address())).await {
            Ok(Ok(stream)) => {
                endpoint.hint_success();
                return Some((stream, endpoint));
            }
            Ok(Err(error)) => {
                tracing::debug!(target = %endpoint.address(), %error, "cannot connect to a target");
            }
            Err(_) => tracing::debug!(target = %endpoint.address(), "a target does not answer"),
        }
        endpoint.hint_failure();
        tried.push(endpoint.address());
    }
}

/// Makes the close that follows a reset: the peer must not take a cut for a proper end.
fn reset(stream: &TcpStream) {
    // Fails only on a socket that is gone already.
    stream.set_zero_linger().ok();
}
