use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::balancer::{HealthCheck, Protocol, ProxyProtocol};
use crate::forward::Limits;
use crate::pool::{Need, Wish};

mod addresses;

const SOON: Duration = Duration::from_secs(10);

/// A machine: a state directory, a pool of its own, and targets that say their names.
struct Machine {
    dir: tempfile::TempDir,
    /// Ranges, separated by spaces.
    pool: &'static str,
    excluded: Option<&'static str>,
    targets: JoinSet<()>,
}

impl Machine {
    /// Each test has a pool of its own, as tests run side by side.
    fn new(pool: &'static str) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            pool,
            excluded: None,
            targets: JoinSet::new(),
        }
    }

    fn settings(&self) -> Settings {
        let ranges = self.pool.split(' ').map(|range| range.parse().unwrap());
        let pool = Pool::new(ranges, self.excluded.map(|address| address.parse().unwrap())).unwrap();
        Settings {
            state_dir: self.dir.path().to_owned(),
            machine: crate::forward::Machine::new(Limits::default(), 10_000, pool.ranges()),
            pool,
        }
    }

    async fn open(&self) -> World {
        let (phase, _) = watch::channel(Phase::Starting);
        timeout(SOON, World::open(self.settings(), &phase))
            .await
            .expect("the lock is free")
            .unwrap()
    }

    /// A target on a free port of `address`; returns the port.
    async fn target(&mut self, address: &str, name: u8) -> NonZeroU16 {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        self.targets.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // Health checks hang up before they are greeted.
                stream.write_all(&[name]).await.ok();
            }
        });
        NonZeroU16::new(port).unwrap()
    }

    fn state_file(&self) -> PathBuf {
        self.dir.path().join("balancers.json")
    }

    /// Replacing a file gives it another inode.
    fn inode(&self) -> u64 {
        std::fs::metadata(self.state_file()).unwrap().ino()
    }
}

fn tcp(port: u16) -> Listen {
    Listen {
        protocol: Protocol::Tcp,
        port: NonZeroU16::new(port).unwrap(),
    }
}

fn wanted(name: &str, ports: &[(Listen, NonZeroU16)], targets: &[(&str, &str)]) -> Wanted {
    Wanted {
        mark: format!("bh-{name}"),
        cluster: "c".to_owned(),
        service: ServiceKey {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        },
        spec_digest: "1".to_owned(),
        wish: wish(&[Family::V4], Need::Every, None, None),
        ports: ports.iter().copied().collect(),
        targets: targets
            .iter()
            .map(|(node, address)| ((*node).to_owned(), address_of(address)))
            .collect(),
        sources: BTreeSet::new(),
        health_check: None,
        affinity: None,
        proxy_protocol: ProxyProtocol::Off,
    }
}

fn address_of(text: &str) -> crate::balancer::NodeAddresses {
    text.parse::<IpAddr>().unwrap().into()
}

fn wish(families: &[Family], need: Need, requested: Option<&str>, preferred: Option<&str>) -> Wish {
    let all = |text: Option<&str>| text.iter().map(|text| text.parse().unwrap()).collect();
    Wish {
        families: families.to_vec(),
        need,
        requested: all(requested),
        preferred: all(preferred),
    }
}

fn node_port() -> NonZeroU16 {
    NonZeroU16::new(30080).unwrap()
}

/// The name of the target that answers there; none if nothing does.
async fn answer(at: SocketAddr) -> Option<u8> {
    let ask = async { TcpStream::connect(at).await.ok()?.read_u8().await.ok() };
    timeout(SOON, ask).await.expect("an answer or a refusal in time")
}

fn at(seen: &Seen, port: u16) -> SocketAddr {
    SocketAddr::new(seen.balancer.addresses[0], port)
}

#[tokio::test]
async fn a_balancer_forwards_and_is_back_at_the_same_address_after_a_restart() {
    let mut machine = Machine::new("127.0.20.16/29");
    let port = machine.target("127.0.20.1", 7).await;
    let world = machine.open().await;
    world
        .ensure(wanted("first", &[(tcp(8080), port)], &[]))
        .await
        .unwrap();
    let seen = world
        .ensure(wanted("a", &[(tcp(8080), port)], &[("n1", "127.0.20.1")]))
        .await
        .unwrap();
    assert_eq!(answer(at(&seen, 8080)).await, Some(7));

    world.close().await;
    assert_eq!(
        answer(at(&seen, 8080)).await,
        None,
        "it listens only while it holds the lock"
    );

    let again = machine.open().await;
    assert_eq!(answer(at(&seen, 8080)).await, Some(7), "before anybody asks");
    assert_eq!(again.get("bh-a").await.unwrap().balancer, seen.balancer);
    let next = again.ensure(wanted("b", &[], &[])).await.unwrap();
    assert_ne!(next.balancer.addresses, seen.balancer.addresses);
}

#[tokio::test]
async fn an_identical_ensure_writes_nothing() {
    let machine = Machine::new("127.0.20.24/29");
    let world = machine.open().await;
    let first = world
        .ensure(wanted("a", &[(tcp(8080), node_port())], &[("n1", "10.0.0.1")]))
        .await
        .unwrap();
    let inode = machine.inode();
    let second = world
        .ensure(wanted("a", &[(tcp(8080), node_port())], &[("n1", "10.0.0.1")]))
        .await
        .unwrap();
    assert_eq!((machine.inode(), &second), (inode, &first));

    let targets = BTreeMap::from([("n1".to_owned(), address_of("10.0.0.1"))]);
    world
        .update_targets(BTreeMap::from([("bh-a".to_owned(), targets)]))
        .await
        .unwrap();
    assert_eq!(machine.inode(), inode, "equal targets are no change");
}

#[tokio::test]
async fn a_changed_port_leaves_the_connections_of_others_alone() {
    let mut machine = Machine::new("127.0.20.32/29");
    let port = machine.target("127.0.20.1", 7).await;
    let keeper = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let kept = NonZeroU16::new(keeper.local_addr().unwrap().port()).unwrap();
    let world = machine.open().await;
    let ports = [(tcp(8080), kept), (tcp(8081), port)];
    let seen = world
        .ensure(wanted("a", &ports, &[("n1", "127.0.20.1")]))
        .await
        .unwrap();
    let mut client = TcpStream::connect(at(&seen, 8080)).await.unwrap();
    client.write_all(b"x").await.unwrap();
    // Health checks come in too; the connection of interest is the one that says something.
    let mut server = loop {
        let (mut stream, _) = timeout(SOON, keeper.accept()).await.unwrap().unwrap();
        if stream.read_u8().await.is_ok() {
            break stream;
        }
    };

    let seen = world
        .ensure(wanted(
            "a",
            &[(tcp(8080), kept), (tcp(8082), port)],
            &[("n1", "127.0.20.1")],
        ))
        .await
        .unwrap();
    assert_eq!(answer(at(&seen, 8081)).await, None);
    assert_eq!(answer(at(&seen, 8082)).await, Some(7));
    server.write_all(b"y").await.unwrap();
    assert_eq!(timeout(SOON, client.read_u8()).await.unwrap().unwrap(), b'y');
}

#[tokio::test]
async fn traffic_follows_the_targets() {
    let mut machine = Machine::new("127.0.20.40/29");
    let port = machine.target("127.0.20.1", 1).await;
    let other = TcpListener::bind(("127.0.20.2", port.get())).await.unwrap();
    machine.targets.spawn(async move {
        loop {
            other.accept().await.unwrap().0.write_all(&[2]).await.ok();
        }
    });
    let world = machine.open().await;
    let seen = world
        .ensure(wanted("a", &[(tcp(8080), port)], &[("n1", "127.0.20.1")]))
        .await
        .unwrap();
    assert_eq!(answer(at(&seen, 8080)).await, Some(1));
    let targets = BTreeMap::from([("n2".to_owned(), address_of("127.0.20.2"))]);
    let updates = BTreeMap::from([
        ("bh-a".to_owned(), targets),
        ("bh-none".to_owned(), Targets::new()),
    ]);
    let results = world.update_targets(updates).await.unwrap();
    assert_eq!(answer(at(&seen, 8080)).await, Some(2));
    assert!(results.get("bh-a").unwrap().is_some());
    assert_eq!(results.get("bh-none"), Some(&None));
}

#[tokio::test]
async fn a_node_whose_health_check_does_not_answer_gets_no_traffic() {
    let mut machine = Machine::new("127.0.20.120/29");
    let port = machine.target("127.0.20.1", 1).await;
    let other = TcpListener::bind(("127.0.20.2", port.get())).await.unwrap();
    let health = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let health_port = NonZeroU16::new(health.local_addr().unwrap().port()).unwrap();
    machine.targets.spawn(async move {
        loop {
            other.accept().await.unwrap().0.write_all(&[2]).await.ok();
        }
    });
    machine.targets.spawn(async move {
        loop {
            let (mut stream, _) = health.accept().await.unwrap();
            let mut request = [0; 22];
            stream.read_exact(&mut request).await.unwrap();
            assert_eq!(&request, b"GET /healthz HTTP/1.1\r");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
        }
    });
    let world = machine.open().await;
    let check = HealthCheck {
        node_port: health_port,
        path: "/healthz".to_owned(),
    };
    let wanted = Wanted {
        health_check: Some(check),
        ..wanted(
            "a",
            &[(tcp(8080), port)],
            &[("n1", "127.0.20.1"), ("n2", "127.0.20.2")],
        )
    };
    let seen = world.ensure(wanted).await.unwrap();
    let healthy = async {
        while answer(at(&seen, 8080)).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, healthy)
        .await
        .expect("the first node is seen to answer");
    for _ in 0..6 {
        assert_eq!(answer(at(&seen, 8080)).await, Some(1));
    }
}

#[tokio::test]
async fn a_failed_ensure_of_a_new_balancer_leaves_nothing_behind() {
    let machine = Machine::new("127.0.20.48/32");
    let _taken = TcpListener::bind("127.0.20.48:8081").await.unwrap();
    let world = machine.open().await;
    let ports = [(tcp(8080), node_port()), (tcp(8081), node_port())];
    let error = world.ensure(wanted("a", &ports, &[])).await.unwrap_err();
    let start = "TCP 127.0.20.48:8081 is in use by another process of the machine where bulkhead-local runs: stop that one";
    assert!(error.to_string().starts_with(start), "{error}");
    assert_eq!(world.get("bh-a").await, None);
    let free = async {
        while TcpListener::bind("127.0.20.48:8080").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, free).await.expect("no listener is left");
    let seen = world
        .ensure(wanted("b", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap();
    assert_eq!(
        seen.balancer.addresses[0].to_string(),
        "127.0.20.48",
        "the only address is free again"
    );
}

#[tokio::test]
async fn a_failed_change_leaves_the_old_one_as_it_was() {
    let mut machine = Machine::new("127.0.20.56/32");
    let port = machine.target("127.0.20.1", 7).await;
    let _taken = TcpListener::bind("127.0.20.56:8081").await.unwrap();
    let world = machine.open().await;
    let seen = world
        .ensure(wanted("a", &[(tcp(8080), port)], &[("n1", "127.0.20.1")]))
        .await
        .unwrap();
    let inode = machine.inode();
    world
        .ensure(wanted("a", &[(tcp(8081), port)], &[("n1", "127.0.20.1")]))
        .await
        .unwrap_err();
    assert_eq!(answer(at(&seen, 8080)).await, Some(7));
    assert_eq!((world.get("bh-a").await, machine.inode()), (Some(seen), inode));
}

#[tokio::test]
async fn a_state_that_cannot_be_written_is_an_error_and_no_listener_stays() {
    let machine = Machine::new("127.0.20.57/32");
    let world = machine.open().await;
    // A directory in the way of the temporary file: works for root too.
    std::fs::create_dir(machine.dir.path().join(".balancers.json.tmp")).unwrap();
    let error = world
        .ensure(wanted("a", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot store the load balancers in"),
        "{error}"
    );
    assert_eq!(answer("127.0.20.57:8080".parse().unwrap()).await, None);
    assert_eq!(world.get("bh-a").await, None);
}

#[tokio::test]
async fn a_deleted_balancer_gives_back_address_and_ports_and_stays_deleted() {
    let machine = Machine::new("127.0.20.64/32");
    let world = machine.open().await;
    world
        .ensure(wanted("a", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap();
    let full = world
        .ensure(wanted("b", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap_err();
    assert!(matches!(full, EnsureError::Pool(PoolError::Exhausted { .. })));
    assert!(world.delete("bh-a").await.unwrap());
    assert!(!world.delete("bh-a").await.unwrap());
    world
        .ensure(wanted("b", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap();
    world.close().await;
    assert_eq!(machine.open().await.get("bh-a").await, None);
}

#[tokio::test]
async fn addresses_requested_moved_and_preferred() {
    let machine = Machine::new("127.0.20.72/29");
    let world = machine.open().await;
    let with = |name: &str, request: Option<&str>, preferred: Option<&str>| Wanted {
        wish: wish(&[Family::V4], Need::Every, request, preferred),
        ..wanted(name, &[(tcp(8080), node_port())], &[])
    };
    let seen = world.ensure(with("a", Some("127.0.20.75"), None)).await.unwrap();
    assert_eq!(seen.balancer.addresses[0].to_string(), "127.0.20.75");
    let taken = world
        .ensure(with("b", Some("127.0.20.75"), None))
        .await
        .unwrap_err();
    assert_eq!(
        taken.to_string(),
        "requested address 127.0.20.75 is taken by Service shop/a: ask for another one of the address pool 127.0.20.72/29, or for none to be given a free one"
    );
    let preferred = world.ensure(with("b", None, Some("127.0.20.76"))).await.unwrap();
    assert_eq!(preferred.balancer.addresses[0].to_string(), "127.0.20.76");

    world.ensure(with("a", None, None)).await.unwrap();
    assert_eq!(
        world.get("bh-a").await.unwrap().balancer.addresses[0].to_string(),
        "127.0.20.75"
    );
    let moved = world.ensure(with("a", Some("127.0.20.77"), None)).await.unwrap();
    assert_eq!(moved.balancer.addresses[0].to_string(), "127.0.20.77");
    assert_eq!(answer("127.0.20.75:8080".parse().unwrap()).await, None);
    world.ensure(with("c", Some("127.0.20.75"), None)).await.unwrap();
}

#[tokio::test]
async fn another_services_mark_is_refused() {
    let machine = Machine::new("127.0.20.80/29");
    let world = machine.open().await;
    world.ensure(wanted("a", &[], &[])).await.unwrap();
    let mut thief = wanted("b", &[], &[]);
    "bh-a".clone_into(&mut thief.mark);
    assert!(matches!(
        world.ensure(thief).await,
        Err(EnsureError::ForeignOwner { .. })
    ));
}

#[tokio::test]
async fn a_port_that_cannot_be_had_at_a_restart_comes_back_when_it_is_free() {
    let mut machine = Machine::new("127.0.20.88/32");
    let port = machine.target("127.0.20.1", 7).await;
    let world = machine.open().await;
    let ports = [(tcp(8080), port), (tcp(8081), port)];
    let seen = world
        .ensure(wanted("a", &ports, &[("n1", "127.0.20.1")]))
        .await
        .unwrap();
    world.close().await;
    let taken = TcpListener::bind("127.0.20.88:8081").await.unwrap();
    let world = machine.open().await;
    assert_eq!(answer(at(&seen, 8080)).await, Some(7), "the other port is served");
    let unbound = world.get("bh-a").await.unwrap().unbound;
    assert!(matches!(
        unbound.get(&(seen.balancer.addresses[0], tcp(8081))),
        Some(BindError::InUse { .. })
    ));
    drop(taken);
    let back = async {
        while !world.get("bh-a").await.unwrap().unbound.is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, back).await.expect("it is tried again");
    assert_eq!(answer(at(&seen, 8081)).await, Some(7));
}

async fn until(phases: &mut watch::Receiver<Phase>, wanted: impl FnMut(&Phase) -> bool) -> Phase {
    timeout(SOON, phases.wait_for(wanted))
        .await
        .expect("the phase comes")
        .unwrap()
        .clone()
}

#[tokio::test]
async fn a_second_process_waits_for_the_lock_and_names_its_holder() {
    let machine = Machine::new("127.0.20.96/29");
    let first = machine.open().await;
    let seen = first
        .ensure(wanted("a", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap();
    let (phase, mut phases) = watch::channel(Phase::Starting);
    let mut second = JoinSet::new();
    let settings = machine.settings();
    second.spawn(async move { World::open(settings, &phase).await });
    let waiting = until(&mut phases, |phase| matches!(phase, Phase::Waiting(_))).await;
    let Phase::Waiting(holder) = waiting else {
        panic!("{waiting:?}")
    };
    assert_eq!(holder.pid(), Some(std::process::id()));

    first.close().await;
    let second = timeout(SOON, second.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(
        second.get("bh-a").await,
        Some(seen),
        "every listener is open at once"
    );
}

#[tokio::test]
async fn a_corrupt_state_serves_nothing_until_it_is_repaired() {
    let machine = Machine::new("127.0.20.104/29");
    let world = machine.open().await;
    let seen = world
        .ensure(wanted("a", &[(tcp(8080), node_port())], &[]))
        .await
        .unwrap();
    world.close().await;
    let good = std::fs::read(machine.state_file()).unwrap();
    std::fs::write(machine.state_file(), b"{").unwrap();

    let (phase, mut phases) = watch::channel(Phase::Starting);
    let mut opening = JoinSet::new();
    let settings = machine.settings();
    opening.spawn(async move { World::open(settings, &phase).await });
    let problem = until(&mut phases, |phase| matches!(phase, Phase::Unreadable(_))).await;
    let Phase::Unreadable(text) = problem else {
        panic!("{problem:?}")
    };
    assert!(text.contains("balancers.json is corrupt"), "{text}");
    assert!(Path::new(&machine.dir.path().join("balancers.json.corrupt-1")).exists());

    std::fs::write(machine.state_file(), good).unwrap();
    let world = timeout(SOON, opening.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(world.get("bh-a").await, Some(seen));
}

#[tokio::test]
async fn clusters_see_their_own_balancers() {
    let machine = Machine::new("127.0.20.112/29");
    let world = machine.open().await;
    world.ensure(wanted("a", &[], &[])).await.unwrap();
    world
        .ensure(Wanted {
            cluster: "other".to_owned(),
            ..wanted("b", &[], &[])
        })
        .await
        .unwrap();
    let marks = |seen: Vec<Seen>| {
        seen.into_iter()
            .map(|seen| seen.balancer.mark)
            .collect::<Vec<_>>()
    };
    assert_eq!(marks(world.list("c").await), ["bh-a"]);
    assert_eq!(marks(world.list("other").await), ["bh-b"]);
}

#[tokio::test]
async fn after_a_restart_clients_wait_for_the_first_health_check_and_are_not_reset() {
    let mut machine = Machine::new("127.0.20.160/29");
    let port = machine.target("127.0.20.1", 1).await;
    let health = TcpListener::bind("127.0.20.1:0").await.unwrap();
    let check = HealthCheck {
        node_port: NonZeroU16::new(health.local_addr().unwrap().port()).unwrap(),
        path: "/healthz".to_owned(),
    };
    machine.targets.spawn(async move {
        loop {
            let (mut stream, _) = health.accept().await.unwrap();
            sleep(Duration::from_millis(100)).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok();
        }
    });
    let wanted = Wanted {
        health_check: Some(check),
        ..wanted("a", &[(tcp(8080), port)], &[("n1", "127.0.20.1")])
    };
    let world = machine.open().await;
    let seen = world.ensure(wanted).await.unwrap();
    assert_eq!(answer(at(&seen, 8080)).await, Some(1));
    world.close().await;
    let _world = machine.open().await;
    assert_eq!(answer(at(&seen, 8080)).await, Some(1));
}
