//! The proxy's modes, between real sockets.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{Address, Mode, TcpProxy, Workspace, eventually};
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::JoinSet,
    time::{Instant, timeout},
};

/// Long enough for any byte on loopback.
const SOON: Duration = Duration::from_secs(5);
/// Long enough to see that nothing comes.
const SILENCE: Duration = Duration::from_millis(200);

/// Sends every byte back until its client ends.
struct Echo {
    address: SocketAddr,
    _task: JoinSet<()>,
}

async fn echo() -> Result<Echo> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut clients = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            clients.spawn(async move {
                let (mut from, mut to) = client.split();
                tokio::io::copy(&mut from, &mut to).await.ok();
                to.shutdown().await.ok();
            });
        }
    });
    Ok(Echo { address, _task: task })
}

async fn dial(proxy: &TcpProxy) -> Result<TcpStream> {
    Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()?)).await?)
}

/// Sends four bytes, reads them back, and returns how long that took.
async fn round_trip(client: &mut TcpStream) -> Result<Duration> {
    let begun = now();
    client.write_all(b"ping").await?;
    let mut answer = [0; 4];
    timeout(SOON, client.read_exact(&mut answer)).await??;
    ensure!(&answer == b"ping", "{answer:?}");
    Ok(begun.elapsed())
}

/// Waits for the connection to end: by an end of file or an error, but no byte.
async fn ends(client: &mut TcpStream) -> Result<()> {
    let end = timeout(SOON, client.read_u8())
        .await
        .context("the connection stays open")?;
    ensure!(end.is_err(), "a byte came");
    Ok(())
}

#[tokio::test]
async fn bytes_pass_both_ways_and_so_does_the_end() {
    let echo = echo().await.unwrap();
    let proxy = TcpProxy::tcp(Address::Tcp(echo.address)).await.unwrap();
    let mut client = dial(&proxy).await.unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_be_bytes).collect();
    let (mut from, mut to) = client.split();
    let mut received = Vec::new();
    let write = async {
        to.write_all(&sent).await?;
        to.shutdown().await
    };
    tokio::try_join!(write, from.read_to_end(&mut received)).unwrap();
    assert!(received == sent);
    assert_eq!(proxy.accepted(), 1);
}

#[rstest]
#[case::up(Duration::from_millis(300), Duration::ZERO)]
#[case::down(Duration::ZERO, Duration::from_millis(300))]
#[case::both_ways(Duration::from_millis(150), Duration::from_millis(150))]
#[tokio::test]
async fn a_delay_adds_to_the_round_trip(#[case] up: Duration, #[case] down: Duration) {
    let echo = echo().await.unwrap();
    let proxy = TcpProxy::tcp(Address::Tcp(echo.address)).await.unwrap();
    let mut client = dial(&proxy).await.unwrap();
    round_trip(&mut client).await.unwrap();

    proxy.set(Mode::Delay { up, down }).await.unwrap();
    let slow = round_trip(&mut client).await.unwrap();
    assert!(slow >= up + down, "{slow:?}");

    proxy.set(Mode::Pass).await.unwrap();
    let quick = round_trip(&mut client).await.unwrap();
    assert!(quick < up + down, "{quick:?}");
}

#[tokio::test]
async fn a_delay_does_not_narrow_the_wire() {
    let echo = echo().await.unwrap();
    let proxy = TcpProxy::tcp(Address::Tcp(echo.address)).await.unwrap();
    let delay = Duration::from_millis(200);
    proxy
        .set(Mode::Delay {
            up: delay,
            down: Duration::ZERO,
        })
        .await
        .unwrap();
    let mut client = dial(&proxy).await.unwrap();
    let begun = now();
    let mut answers = [0; 10];
    // Ten writes, each of which is on the wire while the ones before still are.
    for _ in 0..10 {
        client.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    timeout(SOON, client.read_exact(&mut answers))
        .await
        .unwrap()
        .unwrap();
    assert!(
        (delay..delay * 5).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_stall_keeps_connections_and_their_bytes() {
    let echo = echo().await.unwrap();
    let proxy = TcpProxy::tcp(Address::Tcp(echo.address)).await.unwrap();
    let mut old = dial(&proxy).await.unwrap();
    round_trip(&mut old).await.unwrap();

    proxy.set(Mode::Stall).await.unwrap();
    let mut new = dial(&proxy).await.unwrap();
    let mut answer = [0; 4];
    for client in [&mut old, &mut new] {
        client.write_all(b"wait").await.unwrap();
        assert!(timeout(SILENCE, client.read_exact(&mut answer)).await.is_err());
    }

    proxy.set(Mode::Pass).await.unwrap();
    for client in [&mut old, &mut new] {
        timeout(SOON, client.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"wait");
    }
}

#[rstest]
#[case::passing(Mode::Pass)]
#[case::stalled(Mode::Stall)]
#[tokio::test]
async fn a_cut_ends_what_is_open_and_what_is_new_until_bytes_may_pass_again(#[case] before: Mode) {
    let echo = echo().await.unwrap();
    let proxy = TcpProxy::tcp(Address::Tcp(echo.address)).await.unwrap();
    let mut old = dial(&proxy).await.unwrap();
    round_trip(&mut old).await.unwrap();
    proxy.set(before).await.unwrap();

    proxy.set(Mode::Cut).await.unwrap();
    ends(&mut old).await.unwrap();
    ends(&mut dial(&proxy).await.unwrap()).await.unwrap();

    proxy.set(Mode::Pass).await.unwrap();
    round_trip(&mut dial(&proxy).await.unwrap()).await.unwrap();
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn a_target_that_is_away_ends_the_connection() {
    let nowhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let target = Address::Tcp(nowhere.local_addr().unwrap());
    drop(nowhere);
    let proxy = TcpProxy::tcp(target).await.unwrap();
    ends(&mut dial(&proxy).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn unix_sockets_are_proxied_too() {
    let workspace = Workspace::new("unix_proxy").unwrap();
    let target = workspace.join("target.sock");
    let listener = UnixListener::bind(&target).unwrap();
    let path = workspace.join("plugins/proxied/plugin.sock");
    let proxy = TcpProxy::unix(&path, Address::Unix(target)).unwrap();

    let mut client = UnixStream::connect(&path).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    client.write_all(b"ping").await.unwrap();
    let mut received = [0; 4];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"ping");

    drop(proxy);
    let end = eventually(SOON, "the connection to end", async || {
        Ok(client.read_u8().await.unwrap_err())
    })
    .await;
    assert_eq!(end.unwrap().kind(), io::ErrorKind::UnexpectedEof);
}

#[expect(clippy::disallowed_methods, reason = "these tests measure real time")]
fn now() -> Instant {
    Instant::now()
}
