//! Clients of load balancers.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use bulkhead_harness::eventually;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use crate::SOON;

const ANSWER: Duration = Duration::from_secs(2);
/// Clients that are asked for a picture of who answers.
const CLIENTS: usize = 12;

/// The name of the node that answers one TCP client.
///
/// # Errors
///
/// If nobody answers.
pub async fn tcp(front: SocketAddr) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(front).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer.trim().to_owned())
    };
    let answer = timeout(ANSWER, exchange).await??;
    ensure!(
        !answer.is_empty(),
        "{front} closed the connection without an answer"
    );
    Ok(answer)
}

/// The name of the node that answers one datagram.
///
/// # Errors
///
/// If nobody answers.
pub async fn udp(front: SocketAddr) -> Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(front).await?;
    socket.send(b"who is there?").await?;
    let mut answer = [0; 256];
    let length = timeout(ANSWER, socket.recv(&mut answer)).await??;
    Ok(String::from_utf8_lossy(answer.get(..length).unwrap_or_default()).into_owned())
}

/// Waits until TCP clients are answered by exactly these nodes.
///
/// # Errors
///
/// If they are not soon.
pub async fn answered_by(front: SocketAddr, nodes: &[&str]) -> Result<()> {
    let wanted: BTreeSet<String> = nodes.iter().map(|&name| name.to_owned()).collect();
    eventually(
        SOON,
        &format!("{front} to be answered by {nodes:?}"),
        async || {
            let mut seen = BTreeSet::new();
            for _ in 0..CLIENTS {
                seen.insert(tcp(front).await?);
            }
            ensure!(seen == wanted, "answered by {seen:?}");
            Ok(())
        },
    )
    .await
}

/// Waits until nobody listens there.
///
/// # Errors
///
/// If somebody does still.
pub async fn refused(front: SocketAddr) -> Result<()> {
    eventually(
        SOON,
        &format!("{front} to refuse clients"),
        async || match TcpStream::connect(front).await {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
            result => bail!("{:?}", result.map(drop)),
        },
    )
    .await
}
