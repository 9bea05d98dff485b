use std::collections::{BTreeMap, BTreeSet};

use tokio::time::timeout;

use super::super::fixture::{balancer, node_port, shared};
use super::super::{Limits, Listener, Losses, Others, Shared, bind};
use super::*;
use crate::balancer::{Balancer, Protocol};
use crate::cidr::Family;
use crate::health::{Board, Probe};

const SOON: Duration = Duration::from_secs(10);

async fn target(name: u8) -> (SocketAddr, JoinSet<()>) {
    target_at("127.0.20.1", 0, name).await
}

/// A second target, on the port of the first.
async fn second(first: SocketAddr, name: u8) -> (SocketAddr, JoinSet<()>) {
    target_at("127.0.20.2", first.port(), name).await
}

/// Answers every datagram with its own name followed by what it got.
async fn target_at(address: &str, port: u16, name: u8) -> (SocketAddr, JoinSet<()>) {
    let socket = UdpSocket::bind((address, port)).await.unwrap();
    let at = socket.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut buffer = vec![0; LARGEST_DATAGRAM];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let answer = [&[name], &buffer[..length]].concat();
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (at, tasks)
}

fn forwarding(targets: &[SocketAddr], limits: Limits) -> (Listener, Arc<Shared>) {
    let shared = shared(limits);
    retarget(&shared, targets);
    let at = "127.0.10.203:0".parse().unwrap();
    let listener = Listener::open(Protocol::Udp, at, node_port(targets), Arc::clone(&shared)).unwrap();
    (listener, shared)
}

fn retarget(shared: &Shared, targets: &[SocketAddr]) {
    let targets = targets.iter().map(|at| (at.ip(), None));
    shared
        .rotation(Family::V4)
        .replace(targets.collect(), Others::AtWorst);
}

fn losses(shared: &Shared) -> Losses {
    shared.counters().losses()
}

async fn client(of: &Listener) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(of.at()).await.unwrap();
    socket
}

/// Sends and returns the answer: the target's name and the datagram.
async fn ask(client: &UdpSocket, datagram: &[u8]) -> (u8, Vec<u8>) {
    client.send(datagram).await.unwrap();
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    let length = timeout(SOON, client.recv(&mut buffer))
        .await
        .expect("an answer in time")
        .unwrap();
    (buffer[0], buffer[1..length].to_vec())
}

#[tokio::test]
async fn a_client_stays_with_its_target_and_clients_go_round() {
    let (one, _one) = target(1).await;
    let (two, _two) = second(one, 2).await;
    let (listener, _) = forwarding(&[one, two], Limits::default());
    let (a, b) = (client(&listener).await, client(&listener).await);
    let first = ask(&a, b"x").await.0;
    assert_ne!(ask(&b, b"x").await.0, first);
    for _ in 0..5 {
        assert_eq!(ask(&a, b"y").await, (first, b"y".to_vec()));
    }
}

/// A flow in the middle of an answer holds the socket too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_port_is_free_once_its_listener_is_closed_however_busy_it_is() {
    let (one, flood) = {
        let socket = UdpSocket::bind("127.0.20.3:0").await.unwrap();
        let at = socket.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut buffer = vec![0; LARGEST_DATAGRAM];
            loop {
                let (_, from) = socket.recv_from(&mut buffer).await.unwrap();
                for _ in 0..500 {
                    // Nobody may be there any more.
                    drop(socket.try_send_to(&[1; 1000], from));
                }
            }
        });
        (at, tasks)
    };
    for round in 0..100 {
        let (listener, _) = forwarding(&[one], Limits::default());
        let at = listener.at();
        for _ in 0..4 {
            ask(&client(&listener).await, b"x").await;
        }
        listener.close().await;
        assert!(bind::udp(at).is_ok(), "round {round}");
    }
    drop(flood);
}

#[tokio::test]
async fn a_large_datagram_passes_whole() {
    let (one, _one) = target(1).await;
    let (listener, _) = forwarding(&[one], Limits::default());
    let datagram = vec![7; 60_000];
    assert_eq!(ask(&client(&listener).await, &datagram).await, (1, datagram));
}

#[tokio::test]
async fn a_full_table_forgets_the_flow_that_idled_longest() {
    let (one, _one) = target(1).await;
    let (listener, shared) = forwarding(
        &[one],
        Limits {
            flows: 2,
            ..Limits::default()
        },
    );
    let (a, b, c) = (
        client(&listener).await,
        client(&listener).await,
        client(&listener).await,
    );
    ask(&a, b"a").await;
    ask(&b, b"b").await;
    // Let the clock tell the two apart, then make the older one the fresher one.
    let start = crate::clock::now();
    while crate::clock::now() - start < Duration::from_millis(5) {
        ask(&a, b"a").await;
    }
    ask(&c, b"c").await;
    assert_eq!(losses(&shared).evicted_flows, 1);
    ask(&a, b"a").await;
    assert_eq!(losses(&shared).evicted_flows, 1, "the busy flow was kept");
    ask(&b, b"b").await;
    assert_eq!(
        losses(&shared).evicted_flows,
        2,
        "the idle one had gone, and came back"
    );
}

#[tokio::test]
async fn a_flow_moves_when_its_target_is_down_and_another_is_up() {
    let (one, _one) = target(1).await;
    let (two, _two) = second(one, 2).await;
    let (listener, shared) = forwarding(&[one], Limits::default());
    let board = Board::default();
    let probe = Probe::Connect { port: one.port() };
    board.watch(&BTreeSet::from([one.ip()]), Some(&probe));
    let pulse = board.pulse(one.ip()).unwrap();
    let rotation = shared.rotation(Family::V4);
    rotation.replace(BTreeMap::from([(one.ip(), Some(pulse.clone()))]), Others::AtWorst);
    let a = client(&listener).await;
    assert_eq!(ask(&a, b"x").await.0, 1);
    pulse.hint_failure(one.port());
    assert_eq!(ask(&a, b"x").await.0, 1, "nowhere better to go");
    rotation.replace(
        BTreeMap::from([(one.ip(), Some(pulse)), (two.ip(), None)]),
        Others::AtWorst,
    );
    assert_eq!(ask(&a, b"x").await.0, 2);
}

#[tokio::test]
async fn a_flow_whose_target_is_gone_starts_again_elsewhere() {
    let (one, first) = target(1).await;
    let (listener, shared) = forwarding(&[one], Limits::default());
    let a = client(&listener).await;
    assert_eq!(ask(&a, b"x").await.0, 1);
    drop(first);
    let (two, _two) = second(one, 2).await;
    retarget(&shared, &[one, two]);
    // Until the refusal is noticed datagrams are lost, as on any network.
    let moved = async {
        let mut answer = [0; 2];
        loop {
            a.send(b"x").await.unwrap();
            if let Ok(received) = timeout(Duration::from_millis(20), a.recv(&mut answer)).await {
                received.unwrap();
                return answer[0];
            }
        }
    };
    assert_eq!(timeout(SOON, moved).await.expect("the flow moves"), 2);
}

#[tokio::test]
async fn without_a_target_datagrams_are_dropped_and_counted() {
    let (listener, shared) = forwarding(&[], Limits::default());
    client(&listener).await.send(b"x").await.unwrap();
    let counted = async {
        while losses(&shared).no_target == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, counted).await.expect("the datagram is counted");
}

#[tokio::test]
async fn closing_frees_the_port_and_a_second_listener_is_refused_before() {
    let (listener, shared) = forwarding(&[], Limits::default());
    let at = listener.at();
    let second = Listener::open(Protocol::Udp, at, node_port(&[]), shared).unwrap_err();
    assert_eq!(second.at(), at);
    listener.close().await;
    assert!(bind::udp(at).is_ok());
}

#[tokio::test]
async fn flows_of_one_client_stay_with_its_node() {
    let (one, _one) = target(1).await;
    let (two, _two) = second(one, 2).await;
    let (listener, shared) = forwarding(&[one, two], Limits::default());
    shared.turn_into(&Balancer {
        affinity: Some(SOON),
        ..balancer()
    });
    let first = ask(&client(&listener).await, b"x").await.0;
    for _ in 0..4 {
        assert_eq!(ask(&client(&listener).await, b"x").await.0, first);
    }
    assert_eq!(shared.counters().traffic().flows, 5);
}

#[tokio::test]
async fn a_flow_without_a_datagram_is_forgotten_after_the_idle_time() {
    let (one, _one) = target(1).await;
    let limits = Limits {
        flow_idle: Duration::from_millis(50),
        ..Limits::default()
    };
    let (listener, shared) = forwarding(&[one], limits);
    ask(&client(&listener).await, b"x").await;
    let forgotten = async {
        while shared.counters().traffic().open_flows > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, forgotten).await.expect("it is forgotten");
    assert_eq!(shared.machine.descriptors.available_permits(), 10_000);
}
