use std::collections::{BTreeMap, BTreeSet};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::super::{Limits, Listener, Others, Shared};
use super::*;
use crate::balancer::Protocol;
use crate::health::{Board, Probe, Standing};

const SOON: Duration = Duration::from_secs(10);

/// What a target does with one connection.
#[derive(Clone, Copy)]
enum Manner {
    /// Says its name, reads to the end, sends back what it read, closes.
    NameThenEcho,
    /// Reads one byte, then resets.
    Reset,
}

/// A target on a free port; it ends with the returned set.
async fn target(name: u8, manner: Manner) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections.spawn(async move {
                match manner {
                    Manner::NameThenEcho => {
                        stream.write_all(&[name]).await.unwrap();
                        let mut all = Vec::new();
                        if stream.read_to_end(&mut all).await.is_ok() {
                            stream.write_all(&all).await.unwrap();
                        }
                    }
                    Manner::Reset => {
                        stream.read_u8().await.unwrap();
                        stream.set_zero_linger().unwrap();
                    }
                }
            });
        }
    });
    (at, tasks)
}

struct Bench {
    listener: Listener,
    shared: Arc<Shared>,
}

fn forwarding(targets: &[SocketAddr], limits: Limits) -> Bench {
    let shared = Arc::new(Shared::new(limits, BTreeSet::new()));
    let rotation = Arc::new(Rotation::default());
    rotation.replace(targets.iter().map(|at| (*at, None)).collect(), Others::AtWorst);
    let at = "127.0.10.201:0".parse().unwrap();
    let listener = Listener::open(Protocol::Tcp, at, rotation, Arc::clone(&shared)).unwrap();
    Bench { listener, shared }
}

impl Bench {
    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.listener.at()).await.unwrap()
    }
}

/// The first byte, which is the target's name; none if the connection ends without.
async fn name(client: &mut TcpStream) -> Option<u8> {
    timeout(SOON, client.read_u8())
        .await
        .expect("an answer or an end in time")
        .ok()
}

#[tokio::test]
async fn connections_go_round_the_targets() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let (two, _two) = target(2, Manner::NameThenEcho).await;
    let bench = forwarding(&[one, two], Limits::default());
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(name(&mut bench.client().await).await.unwrap());
    }
    assert!(seen == [1, 2, 1, 2] || seen == [2, 1, 2, 1], "{seen:?}");
}

#[tokio::test]
async fn a_megabyte_passes_both_ways_and_a_half_close_keeps_the_way_back() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(&[one], Limits::default());
    let client = bench.client().await;
    let sent: Vec<u8> = (0..1_048_576_u32)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect();
    let (mut from, mut to) = client.into_split();
    let mut back = Vec::new();
    let all_of_it = async {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(all_of_it, from.read_to_end(&mut back)) };
    timeout(SOON, both).await.unwrap().1.unwrap();
    assert!(
        back.split_first() == Some((&1, &sent[..])),
        "{} bytes came back",
        back.len()
    );
}

#[tokio::test]
async fn a_target_that_refuses_is_passed_over_and_its_health_suffers() {
    let refused = {
        let gone = TcpListener::bind("127.0.20.1:0").await.unwrap();
        gone.local_addr().unwrap()
    };
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(&[], Limits::default());
    let board = Board::default();
    board.watch(&BTreeSet::from([refused, one]), &Probe::Connect);
    bench.listener.rotation().replace(
        [refused, one].iter().map(|at| (*at, board.pulse(*at))).collect(),
        Others::AtWorst,
    );
    for _ in 0..6 {
        assert_eq!(name(&mut bench.client().await).await, Some(1));
    }
    assert_eq!(board.pulse(refused).unwrap().standing(), Standing::Down);
}

#[tokio::test]
async fn without_any_target_the_client_is_reset_and_counted() {
    let bench = forwarding(&[], Limits::default());
    assert_eq!(name(&mut bench.client().await).await, None);
    assert_eq!(bench.shared.counters().read().no_target, 1);
}

#[tokio::test]
async fn a_reset_of_the_target_is_a_reset_for_the_client_not_an_end() {
    let (one, _one) = target(1, Manner::Reset).await;
    let bench = forwarding(&[one], Limits::default());
    let mut client = bench.client().await;
    client.write_all(b"x").await.unwrap();
    let error = timeout(SOON, client.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_refused_and_counted_until_one_ends() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(
        &[one],
        Limits {
            connections: 1,
            ..Limits::default()
        },
    );
    let mut first = bench.client().await;
    assert_eq!(name(&mut first).await, Some(1));
    assert_eq!(name(&mut bench.client().await).await, None);
    assert_eq!(bench.shared.counters().read().refused_full, 1);
    drop(first);
    let again = async {
        while name(&mut bench.client().await).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, again)
        .await
        .expect("the slot of an ended connection is free again");
}

#[tokio::test]
async fn a_client_from_another_network_is_refused() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(&[one], Limits::default());
    bench
        .shared
        .allow(BTreeSet::from(["10.0.0.0/8".parse().unwrap()]));
    assert_eq!(name(&mut bench.client().await).await, None);
    bench
        .shared
        .allow(BTreeSet::from(["127.0.0.0/8".parse().unwrap()]));
    assert_eq!(name(&mut bench.client().await).await, Some(1));
    assert_eq!(bench.shared.counters().read().refused_source, 1);
}

#[tokio::test]
async fn closing_a_listener_cuts_its_connections_and_frees_its_port_at_once() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(&[one], Limits::default());
    let mut client = bench.client().await;
    assert_eq!(name(&mut client).await, Some(1));
    let at = bench.listener.at();
    bench.listener.close().await;
    assert_eq!(name(&mut client).await, None);
    assert!(bind(at).is_ok());
}

#[tokio::test]
async fn a_removed_target_drains_and_gets_nothing_new() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let (two, _two) = target(2, Manner::NameThenEcho).await;
    let bench = forwarding(&[one], Limits::default());
    let mut old = bench.client().await;
    assert_eq!(name(&mut old).await, Some(1));
    bench
        .listener
        .rotation()
        .replace(BTreeMap::from([(two, None)]), Others::AtWorst);
    assert_eq!(name(&mut bench.client().await).await, Some(2));

    old.write_all(b"still").await.unwrap();
    old.shutdown().await.unwrap();
    let mut back = Vec::new();
    timeout(SOON, old.read_to_end(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, b"still");
}

#[tokio::test]
async fn draining_ends_and_so_does_idling() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let idle = Limits {
        connection_idle: Duration::from_mins(10),
        ..Limits::default()
    };
    let bench = forwarding(&[one], idle);
    let (mut drains, mut idles) = (bench.client().await, bench.client().await);
    assert_eq!(name(&mut drains).await, Some(1));
    assert_eq!(name(&mut idles).await, Some(1));

    // Time stands still from here on and jumps whenever nobody has anything else to do.
    tokio::time::pause();
    let start = crate::clock::now();
    bench
        .listener
        .rotation()
        .replace(BTreeMap::new(), Others::AtWorst);
    assert!(drains.read_u8().await.is_err());
    let waited = crate::clock::now() - start;
    assert!(
        (super::super::DRAIN..SOON * 6).contains(&waited),
        "drained after {waited:?}"
    );
    drop(idles);
}

#[tokio::test]
async fn a_connection_without_a_byte_is_closed_after_the_idle_time() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(&[one], Limits::default());
    let mut client = bench.client().await;
    assert_eq!(name(&mut client).await, Some(1));
    tokio::time::pause();
    let start = crate::clock::now();
    assert!(client.read_u8().await.is_err());
    let waited = (crate::clock::now() - start).as_secs();
    assert!((595..=605).contains(&waited), "closed after {waited} s");
}

#[tokio::test]
async fn an_address_in_use_is_told_with_its_port() {
    let taken = TcpListener::bind("127.0.10.202:0").await.unwrap();
    let at = taken.local_addr().unwrap();
    let shared = Arc::new(Shared::new(Limits::default(), BTreeSet::new()));
    let error = Listener::open(Protocol::Tcp, at, Arc::default(), shared).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("TCP {at} is in use by another process of this machine")
    );
}
