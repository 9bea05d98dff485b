//! What is balanced to: every backend does what a connection's first byte asks for, and echoes datagrams.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// Answer with this byte and close, as a server of short connections does.
pub(crate) const ONCE: u8 = b'1';
/// Echo all that follows.
pub(crate) const ECHO: u8 = b'e';
/// Send for ever.
pub(crate) const SEND: u8 = b's';
/// Take everything.
pub(crate) const TAKE: u8 = b't';

/// How much one write of bulk has.
pub(crate) const CHUNK: usize = 128 * 1024;

/// The most that is echoed at once; what clients ask for is shorter.
pub(crate) const ECHOED: usize = 4096;

const BACKLOG: u32 = 4096;

/// All backends; they end with it.
#[derive(Debug)]
pub(crate) struct Backends {
    _tasks: JoinSet<()>,
}

impl Backends {
    /// Listens on `port` of all addresses, with both protocols.
    pub(crate) async fn serve(addresses: &[Ipv4Addr], port: u16) -> Result<Self> {
        let chunk: Arc<[u8]> = vec![0; CHUNK].into();
        let mut tasks = JoinSet::new();
        for address in addresses {
            let at = SocketAddrV4::new(*address, port);
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket
                .bind(at.into())
                .with_context(|| format!("listen on TCP {at}"))?;
            tasks.spawn(accept(socket.listen(BACKLOG)?, Arc::clone(&chunk)));
            let datagrams = UdpSocket::bind(at)
                .await
                .with_context(|| format!("listen on UDP {at}"))?;
            tasks.spawn(echo_datagrams(datagrams));
        }
        Ok(Self { _tasks: tasks })
    }
}

async fn accept(listener: TcpListener, chunk: Arc<[u8]>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let chunk = Arc::clone(&chunk);
                // A connection that breaks is the client's to report.
                connections.spawn(async move { serve(stream, &chunk).await.ok(); });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(mut stream: TcpStream, chunk: &[u8]) -> Result<()> {
    stream.set_nodelay(true)?;
    match stream.read_u8().await? {
        ONCE => stream.write_all(&[ONCE]).await?,
        SEND => loop {
            stream.write_all(chunk).await?;
        },
        TAKE => {
            let mut buffer = vec![0; CHUNK];
            while stream.read(&mut buffer).await? > 0 {}
        }
        // ECHO; health checks have hung up before.
        _ => {
            let mut buffer = vec![0; ECHOED];
            loop {
                let length = stream.read(&mut buffer).await?;
                if length == 0 {
                    break;
                }
                stream.write_all(buffer.get(..length).unwrap_or_default()).await?;
            }
        }
    }
    Ok(())
}

async fn echo_datagrams(socket: UdpSocket) {
    let mut buffer = vec![0; ECHOED];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        // What cannot be sent is lost, as datagrams are: clients count it.
        socket
            .send_to(buffer.get(..length).unwrap_or_default(), from)
            .await
            .ok();
    }
}
