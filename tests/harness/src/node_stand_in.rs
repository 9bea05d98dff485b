//! What stands behind a node port: answers with the node's name.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use rustix::net::{Shutdown, shutdown};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::eventually;

const FREE_WITHIN: Duration = Duration::from_secs(2);
/// Bounds how long a client may take, and so how many connections are open.
const CLIENT_WITHIN: Duration = Duration::from_secs(5);
const CLIENTS_AT_ONCE: usize = 1024;
/// After a failed accept, as when file descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);
const DATAGRAM_MAX: usize = 64 * 1024;

/// A machine with an address of its own that serves node ports, TCP and UDP, until it is dropped.
#[derive(Debug)]
pub struct NodeStandIn {
    name: Arc<str>,
    address: IpAddr,
    ports: BTreeMap<u16, JoinSet<()>>,
}

impl NodeStandIn {
    /// A machine that serves nothing yet. The address must be one of this machine, as
    /// [`crate::Workspace::loopback`] gives.
    pub fn new(name: &str, address: impl Into<IpAddr>) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            ports: BTreeMap::new(),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address it serves at.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Serves a port: a TCP client gets the name and a line feed, then the end; a datagram gets the name.
    ///
    /// # Errors
    ///
    /// If the port is served already or cannot be bound.
    pub async fn listen(&mut self, port: u16) -> Result<()> {
        ensure!(
            !self.ports.contains_key(&port),
            "{} serves port {port} already",
            self.name
        );
        let address = SocketAddr::new(self.address, port);
        let what = format!("{address} to be free for TCP and UDP");
        // A process that is being started holds all our sockets for a moment, also those just closed.
        let (tcp, udp) = eventually(FREE_WITHIN, &what, async || {
            Ok((TcpListener::bind(address).await?, UdpSocket::bind(address).await?))
        })
        .await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_tcp(Listening(tcp), Arc::clone(&self.name)));
        tasks.spawn(serve_udp(udp, Arc::clone(&self.name)));
        self.ports.insert(port, tasks);
        Ok(())
    }

    /// Stops serving a port; when it returns, clients are refused. A port not served is no error.
    pub async fn close(&mut self, port: u16) {
        if let Some(mut tasks) = self.ports.remove(&port) {
            tasks.shutdown().await;
        }
    }
}

/// Refuses clients from its drop on. A close alone would not do, as a process that is being started holds a copy
/// of the socket until it runs its program.
struct Listening(TcpListener);

impl Drop for Listening {
    fn drop(&mut self) {
        shutdown(&self.0, Shutdown::Both).ok();
    }
}

#[expect(clippy::infinite_loop, reason = "a server's task ends by being aborted")]
async fn serve_tcp(listener: Listening, name: Arc<str>) {
    let mut clients = JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        if clients.len() >= CLIENTS_AT_ONCE {
            clients.join_next().await;
        }
        match listener.0.accept().await {
            Ok((stream, _)) => {
                let answer = timeout(CLIENT_WITHIN, answer(stream, Arc::clone(&name)));
                // A client that went away has no use for an answer.
                clients.spawn(async { drop(answer.await) });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Reads to the end before it closes: a close with unread data resets the connection, and a reset takes the
/// answer with it.
async fn answer(mut stream: TcpStream, name: Arc<str>) -> io::Result<()> {
    stream.write_all(format!("{name}\n").as_bytes()).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

#[expect(clippy::infinite_loop, reason = "a server's task ends by being aborted")]
async fn serve_udp(socket: UdpSocket, name: Arc<str>) {
    let mut ignored = vec![0; DATAGRAM_MAX];
    loop {
        match socket.recv_from(&mut ignored).await {
            // A reply that cannot be sent is a lost datagram, as on any network.
            Ok((_, client)) => drop(socket.send_to(name.as_bytes(), client).await),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Workspace;

    async fn ask_tcp(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"who is there?").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn both_protocols_answer_with_the_name_until_the_port_is_closed() {
        let workspace = Workspace::new("stand_in").unwrap();
        let mut node = NodeStandIn::new("node-1", workspace.loopback(1));
        node.listen(30_080).await.unwrap();
        let address = SocketAddr::new(node.address(), 30_080);

        assert_eq!(ask_tcp(address).await.unwrap(), "node-1\n");
        let client = UdpSocket::bind((workspace.loopback(2), 0)).await.unwrap();
        client.send_to(b"who is there?", address).await.unwrap();
        let mut answer = [0; 32];
        let length = timeout(CLIENT_WITHIN, client.recv(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer[..length], b"node-1");

        node.close(30_080).await;
        assert_eq!(
            ask_tcp(address).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        node.listen(30_080).await.unwrap();
        assert_eq!(ask_tcp(address).await.unwrap(), "node-1\n");
    }
}
