use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::super::fixture::{balancer, node_port, shared};
use super::super::{Limits, Listener, Losses, Others, Shared, bind};
use super::*;
use crate::balancer::{Balancer, Protocol};
use crate::cidr::Family;
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

/// A target at an address, on the port that all targets of a test share; it ends with the returned set.
async fn target_at(address: &str, port: u16, name: u8, manner: Manner) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((address, port)).await.unwrap();
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

/// A target on a free port.
async fn target(name: u8, manner: Manner) -> (SocketAddr, JoinSet<()>) {
    target_at("127.0.20.1", 0, name, manner).await
}

/// A second target, on the port of the first.
async fn second(first: SocketAddr, name: u8) -> (SocketAddr, JoinSet<()>) {
    target_at("127.0.20.2", first.port(), name, Manner::NameThenEcho).await
}

struct Bench {
    listener: Listener,
    shared: Arc<Shared>,
}

fn forwarding(targets: &[SocketAddr], limits: Limits) -> Bench {
    forwarding_from("127.0.10.201:0", targets, limits)
}

fn forwarding_from(at: &str, targets: &[SocketAddr], limits: Limits) -> Bench {
    let shared = shared(limits);
    for family in Family::ALL {
        let its = targets.iter().filter(|target| Family::of(target.ip()) == family);
        shared
            .rotation(family)
            .replace(its.map(|at| (at.ip(), None)).collect(), Others::AtWorst);
    }
    let at = at.parse().unwrap();
    let listener = Listener::open(Protocol::Tcp, at, node_port(targets), Arc::clone(&shared)).unwrap();
    Bench { listener, shared }
}

impl Bench {
    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.listener.at()).await.unwrap()
    }

    /// A client with an address of its own.
    async fn client_from(&self, address: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        socket.connect(self.listener.at()).await.unwrap()
    }

    fn retarget(&self, targets: &[SocketAddr]) {
        let targets = targets.iter().map(|at| (at.ip(), None));
        self.shared
            .rotation(Family::V4)
            .replace(targets.collect(), Others::AtWorst);
    }

    fn losses(&self) -> Losses {
        self.shared.counters().losses()
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
    let (two, _two) = second(one, 2).await;
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
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let refused: IpAddr = "127.0.20.2".parse().unwrap();
    let bench = forwarding(&[one], Limits::default());
    let board = Board::default();
    let both = BTreeSet::from([refused, one.ip()]);
    board.watch(&both, Some(&Probe::Connect { port: one.port() }));
    bench.shared.rotation(Family::V4).replace(
        both.iter().map(|at| (*at, board.pulse(*at))).collect(),
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
    assert_eq!(bench.losses().no_target, 1);
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
    assert_eq!(bench.losses().refused_full, 1);
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
    let only = |range: &str| Balancer {
        sources: BTreeSet::from([range.parse().unwrap()]),
        ..balancer()
    };
    bench.shared.turn_into(&only("10.0.0.0/8"));
    assert_eq!(name(&mut bench.client().await).await, None);
    bench.shared.turn_into(&only("127.0.0.0/8"));
    assert_eq!(name(&mut bench.client().await).await, Some(1));
    assert_eq!(bench.losses().refused_source, 1);
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
    assert!(bind::tcp(at).is_ok());
}

#[tokio::test]
async fn a_removed_target_drains_and_gets_nothing_new() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let (two, _two) = second(one, 2).await;
    let bench = forwarding(&[one], Limits::default());
    let mut old = bench.client().await;
    assert_eq!(name(&mut old).await, Some(1));
    bench.retarget(&[two]);
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
    bench.retarget(&[]);
    assert!(drains.read_u8().await.is_err());
    let waited = crate::clock::now() - start;
    assert!(
        (Limits::default().drain..SOON * 6).contains(&waited),
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
    let error = Listener::open(Protocol::Tcp, at, node_port(&[]), shared(Limits::default())).unwrap_err();
    let start = format!(
        "TCP {at} is in use by another process of the machine where bulkhead-local runs: stop that one"
    );
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[tokio::test]
async fn clients_stay_with_their_node_while_it_serves() {
    let (one, first) = target(1, Manner::NameThenEcho).await;
    let (two, _two) = second(one, 2).await;
    let bench = forwarding(&[one, two], Limits::default());
    bench.shared.turn_into(&Balancer {
        affinity: Some(SOON),
        ..balancer()
    });
    let a = name(&mut bench.client_from("127.0.30.1").await).await;
    let b = name(&mut bench.client_from("127.0.30.2").await).await;
    assert_ne!(a, b);
    for _ in 0..3 {
        assert_eq!(name(&mut bench.client_from("127.0.30.1").await).await, a);
        assert_eq!(name(&mut bench.client_from("127.0.30.2").await).await, b);
    }
    drop(first);
    let free = async {
        while TcpListener::bind(one).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, free).await.unwrap();
    for from in ["127.0.30.1", "127.0.30.2"] {
        assert_eq!(name(&mut bench.client_from(from).await).await, Some(2));
    }
}

#[tokio::test]
async fn a_table_of_clients_that_is_full_forgets_the_oldest_and_counts_it() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let limits = Limits {
        clients: 1,
        ..Limits::default()
    };
    let bench = forwarding(&[one], limits);
    bench.shared.turn_into(&Balancer {
        affinity: Some(SOON),
        ..balancer()
    });
    for from in ["127.0.30.1", "127.0.30.1", "127.0.30.2", "127.0.30.3"] {
        assert_eq!(name(&mut bench.client_from(from).await).await, Some(1));
    }
    assert_eq!(bench.losses().evicted_clients, 2);
}

#[tokio::test]
async fn a_target_is_told_its_client_before_the_first_byte() {
    let listener = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let bench = forwarding(&[listener.local_addr().unwrap()], Limits::default());
    bench.shared.turn_into(&Balancer {
        proxy_protocol: ProxyProtocol::V2,
        ..balancer()
    });
    let mut client = bench.client_from("127.0.30.1").await;
    client.write_all(b"hello").await.unwrap();
    let (mut upstream, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    let mut got = [0; 16 + 12 + 5];
    timeout(SOON, upstream.read_exact(&mut got))
        .await
        .unwrap()
        .unwrap();
    let want = proxy::header(client.local_addr().unwrap(), bench.listener.at());
    assert_eq!((&got[..28], &got[28..]), (want.as_slice(), &b"hello"[..]));
}

#[tokio::test]
async fn ipv6_clients_reach_ipv6_targets_and_source_ranges_hold_for_each_family() {
    let (one, _one) = target(4, Manner::NameThenEcho).await;
    let (six, _tasks) = target_at("::1", one.port(), 6, Manner::NameThenEcho).await;
    let bench = forwarding_from("[::1]:0", &[one, six], Limits::default());
    assert_eq!(name(&mut bench.client().await).await, Some(6));
    for (range, want) in [("127.0.0.0/8", None), ("fd00::/8", None), ("::/64", Some(6))] {
        bench.shared.turn_into(&Balancer {
            sources: BTreeSet::from([range.parse().unwrap()]),
            ..balancer()
        });
        assert_eq!(name(&mut bench.client().await).await, want, "{range}");
    }
}

/// Writes until nothing is taken any more; returns how much was.
async fn fill(stream: &TcpStream) -> usize {
    let chunk = vec![0; 1 << 16];
    let mut written = 0;
    while timeout(Duration::from_millis(300), stream.writable())
        .await
        .is_ok()
    {
        written += stream.try_write(&chunk).unwrap_or(0);
    }
    written
}

#[tokio::test]
async fn a_slow_reader_slows_its_writer_down_and_gets_every_byte() {
    let listener = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let bench = forwarding(&[listener.local_addr().unwrap()], Limits::default());
    let mut client = bench.client().await;
    let (mut upstream, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    let written = timeout(SOON * 3, fill(&client))
        .await
        .expect("the writer is held up");
    assert!(written < 64 << 20, "{written} bytes are somewhere");
    let mut received = Vec::new();
    let reading = async {
        client.shutdown().await.unwrap();
        upstream.read_to_end(&mut received).await.unwrap()
    };
    assert_eq!(timeout(SOON * 3, reading).await.unwrap(), written);
    assert_eq!(bench.shared.counters().traffic().from_clients, written as u64);
}

#[tokio::test]
async fn a_client_waits_for_the_first_checks_where_nodes_say_themselves_whether_they_serve() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let (two, _two) = second(one, 2).await;
    let bench = forwarding(&[one, two], Limits::default());
    let board = &bench.shared.board;
    let both = BTreeSet::from([one.ip(), two.ip()]);
    let probe = Probe::Http {
        port: 1,
        path: "/".to_owned(),
    };
    board.watch(&both, Some(&probe));
    bench.shared.rotation(Family::V4).replace(
        both.iter().map(|at| (*at, board.pulse(*at))).collect(),
        Others::Unknown,
    );
    let mut client = bench.client().await;
    let early = timeout(Duration::from_millis(50), client.read_u8()).await;
    assert!(early.is_err(), "{early:?} before it is known who serves");
    let pulse = |at: SocketAddr| board.pulse(at.ip()).unwrap();
    pulse(one).conclude(false, crate::clock::now());
    pulse(two).conclude(true, crate::clock::now());
    assert_eq!(name(&mut client).await, Some(2));
    for _ in 0..4 {
        assert_eq!(name(&mut bench.client().await).await, Some(2));
    }
}

#[tokio::test]
async fn ten_thousand_connections_leave_nothing_open() {
    let (one, _one) = target(1, Manner::NameThenEcho).await;
    let bench = forwarding(&[one], Limits::default());
    let mut clients = JoinSet::new();
    for _ in 0..100 {
        let at = bench.listener.at();
        clients.spawn(async move {
            for _ in 0..100 {
                let mut client = TcpStream::connect(at).await.unwrap();
                assert_eq!(client.read_u8().await.unwrap(), 1);
            }
        });
    }
    while let Some(done) = timeout(SOON * 6, clients.join_next()).await.unwrap() {
        done.unwrap();
    }
    let traffic = || bench.shared.counters().traffic();
    let closed = async {
        while traffic().open_connections > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, closed).await.expect("all are closed");
    assert_eq!(traffic().connections, 10_000);
    assert_eq!(bench.losses(), Losses::default());
    let free = bench.shared.connections.available_permits();
    assert_eq!(free, Limits::default().connections);
}
