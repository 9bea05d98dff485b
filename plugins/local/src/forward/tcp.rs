//! TCP: one task per connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::counters::Open;
use super::{Endpoint, Way, count, proxy};
use crate::balancer::ProxyProtocol;

mod relay;

#[cfg(test)]
mod tests;

/// For one target: longer than the first retransmission of a lost SYN (1 s).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// For all targets together; clients give up soon after.
const CONNECT_BUDGET: Duration = Duration::from_secs(10);

/// After an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Of one connection: its own and its target's.
const DESCRIPTORS: u32 = 2;

/// Accepts until `closing`; all connections have ended then.
pub(super) async fn accept(listener: TcpListener, way: Arc<Way>, closing: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => {
                drop(listener);
                return connections.shutdown().await;
            }
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (client, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, at = %way.at, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = admit(&way, from) else {
            reset(&client);
            continue;
        };
        let way = Arc::clone(&way);
        connections.spawn(async move {
            serve(client, from, &way).await;
            drop(place);
        });
    }
}

/// What a connection holds as long as it is open.
struct Place {
    _of_balancer: OwnedSemaphorePermit,
    _of_process: OwnedSemaphorePermit,
}

/// A place for a client, if it may have one and there is one.
fn admit(way: &Way, from: SocketAddr) -> Option<Place> {
    let shared = &way.shared;
    if !shared.admits(from.ip()) {
        return None;
    }
    let Ok(of_balancer) = Arc::clone(&shared.connections).try_acquire_owned() else {
        count(&shared.counters.refused_full);
        return None;
    };
    let descriptors = Arc::clone(&shared.machine.descriptors);
    let Ok(of_process) = descriptors.try_acquire_many_owned(DESCRIPTORS) else {
        count(&shared.counters.refused_process);
        return None;
    };
    Some(Place {
        _of_balancer: of_balancer,
        _of_process: of_process,
    })
}

async fn serve(client: TcpStream, from: SocketAddr, way: &Way) {
    let counters = &way.shared.counters;
    let _open = Open::new(&counters.connections, &counters.open_connections);
    let Ok(Some((upstream, endpoint))) = timeout(CONNECT_BUDGET, connect(from, way)).await else {
        count(&counters.no_target);
        return reset(&client);
    };
    relay::relay(client, upstream, endpoint.leaving(), &way.shared).await;
}

/// Connects to the target whose turn it is, or to the next ones while that fails.
async fn connect(from: SocketAddr, way: &Way) -> Option<(TcpStream, Endpoint)> {
    let shared = &way.shared;
    shared.decided(way.family()).await;
    let (turn, port) = (way.turn(), way.node_port());
    let favourite = shared.favourite(from.ip());
    let mut tried = Vec::new();
    loop {
        let endpoint = way.rotation().pick(turn, &tried, favourite)?;
        let target = SocketAddr::new(endpoint.address(), port);
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
            Ok(Ok(mut stream)) => {
                endpoint.hint_success();
                shared.remember(from.ip(), &endpoint);
                greet(&mut stream, from, way).await;
                return Some((stream, endpoint));
            }
            Ok(Err(error)) => tracing::debug!(%target, %error, "cannot connect to a target"),
            Err(_) => tracing::debug!(%target, "a target does not answer"),
        }
        endpoint.hint_failure(port);
        tried.push(endpoint.address());
    }
}

/// Tells the target who its client is, if it is to be told. A target that has gone already is noticed
/// when bytes are to be moved.
async fn greet(upstream: &mut TcpStream, client: SocketAddr, way: &Way) {
    match way.shared.manners(|manners| manners.proxy_protocol) {
        ProxyProtocol::Off => {}
        ProxyProtocol::V2 => {
            let header = proxy::header(client, way.at);
            upstream.write_all(&header).await.ok();
        }
    }
}

/// Makes the close that follows a reset: the peer must not take a cut for a proper end.
fn reset(stream: &TcpStream) {
    // Fails only on a socket that is gone already.
    stream.set_zero_linger().ok();
}
