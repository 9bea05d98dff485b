//! Families, protocols, and who has which address: alone, at once, after a restart, and many.

use super::*;

#[tokio::test]
async fn two_families_are_two_addresses_each_to_nodes_of_its_own_kind() {
    let mut machine = Machine::new("127.0.20.128/29 ::1");
    let port = machine.target("127.0.20.1", 4).await;
    let six = TcpListener::bind(("::1", port.get())).await.unwrap();
    machine.targets.spawn(async move {
        loop {
            six.accept().await.unwrap().0.write_all(&[6]).await.ok();
        }
    });
    let world = machine.open().await;
    let listen = tcp(free_port().await);
    let with = |families: &[Family]| Wanted {
        wish: wish(families, Need::Every, None, None),
        ..wanted("a", &[(listen, port)], &[("n4", "127.0.20.1"), ("n6", "::1")])
    };
    let seen = world.ensure(with(&[Family::V6, Family::V4])).await.unwrap();
    let addresses: Vec<String> = seen.balancer.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["::1", "127.0.20.129"]);
    let on = |address: usize| SocketAddr::new(seen.balancer.addresses[address], listen.port.get());
    assert_eq!(answer(on(0)).await, Some(6));
    assert_eq!(answer(on(1)).await, Some(4));

    world.close().await;
    let world = machine.open().await;
    assert_eq!(answer(on(0)).await, Some(6));
    let lost = world
        .ensure(Wanted {
            wish: wish(&[Family::V6], Need::Every, None, None),
            ..wanted("b", &[], &[])
        })
        .await;
    assert!(matches!(
        lost,
        Err(EnsureError::Pool(PoolError::Exhausted { .. }))
    ));

    let seen = world.ensure(with(&[Family::V4])).await.unwrap();
    assert_eq!(seen.balancer.addresses.len(), 1);
    assert_eq!(answer(at(&seen, listen.port.get())).await, Some(4));
    assert_eq!(answer(on(0)).await, None, "the other family has ended");
}

/// A port that is free on every address.
async fn free_port() -> u16 {
    let any = TcpListener::bind("[::]:0").await.unwrap();
    any.local_addr().unwrap().port()
}

#[tokio::test]
async fn an_ipv6_address_that_is_nobodys_names_the_command_that_makes_it_local() {
    let machine = Machine::new("fd00:dead:beef::/64");
    let world = machine.open().await;
    let error = world
        .ensure(Wanted {
            wish: wish(&[Family::V6], Need::Every, None, None),
            ..wanted("a", &[(tcp(8080), node_port())], &[])
        })
        .await
        .unwrap_err();
    let command = "`ip -6 route add local fd00:dead:beef::/64 dev lo`";
    assert!(error.to_string().contains(command), "{error}");
    assert_eq!(world.measures().await.addresses[1].2, 0, "no address is taken");
}

#[tokio::test]
async fn tcp_and_udp_share_a_port_number() {
    let mut machine = Machine::new("127.0.20.136/29");
    let port = machine.target("127.0.20.1", 7).await;
    let datagrams = tokio::net::UdpSocket::bind(("127.0.20.1", port.get()))
        .await
        .unwrap();
    machine.targets.spawn(async move {
        let mut buffer = [0; 8];
        loop {
            let (_, from) = datagrams.recv_from(&mut buffer).await.unwrap();
            datagrams.send_to(&[8], from).await.unwrap();
        }
    });
    let udp = Listen {
        protocol: Protocol::Udp,
        ..tcp(8080)
    };
    let world = machine.open().await;
    let both = wanted("a", &[(tcp(8080), port), (udp, port)], &[("n1", "127.0.20.1")]);
    let seen = world.ensure(both).await.unwrap();
    assert_eq!(answer(at(&seen, 8080)).await, Some(7));
    let client = tokio::net::UdpSocket::bind("127.0.20.1:0").await.unwrap();
    client.send_to(b"x", at(&seen, 8080)).await.unwrap();
    let mut buffer = [0; 8];
    let received = timeout(SOON, client.recv(&mut buffer)).await.expect("an answer");
    assert_eq!((received.unwrap(), buffer[0]), (1, 8));

    let only_udp = wanted("a", &[(udp, port)], &[("n1", "127.0.20.1")]);
    let seen = world.ensure(only_udp).await.unwrap();
    assert_eq!(answer(at(&seen, 8080)).await, None);
    client.send_to(b"x", at(&seen, 8080)).await.unwrap();
    timeout(SOON, client.recv(&mut buffer))
        .await
        .expect("UDP goes on")
        .unwrap();
}

#[tokio::test]
async fn ip_dup_restart_a_service_that_waits_does_not_get_an_address_in_use() {
    let machine = Machine::new("127.0.20.144/32");
    let world = machine.open().await;
    let first = wanted("s1", &[(tcp(8080), node_port())], &[]);
    let second = wanted("s2", &[(tcp(8080), node_port())], &[]);
    let seen = world.ensure(first.clone()).await.unwrap();
    world.ensure(second.clone()).await.unwrap_err();
    world.close().await;

    let world = machine.open().await;
    let full = world.ensure(second).await.unwrap_err();
    assert!(
        matches!(full, EnsureError::Pool(PoolError::Exhausted { .. })),
        "{full}"
    );
    assert_eq!(world.ensure(first).await.unwrap(), seen);
}

#[tokio::test]
async fn ip_dup_conc_five_services_at_once_have_five_addresses_and_none_is_reserved() {
    const RESERVED: &str = "127.0.20.153";
    let mut machine = Machine::new("127.0.20.152/29");
    machine.excluded = Some(RESERVED);
    let world = Arc::new(machine.open().await);
    let mut workers = JoinSet::new();
    for name in ["s1", "s2", "s3", "s4", "s5"] {
        let world = Arc::clone(&world);
        workers.spawn(async move {
            let wanted = wanted(name, &[(tcp(8080), node_port())], &[]);
            world.ensure(wanted).await.unwrap().balancer.addresses[0]
        });
    }
    let mut given = BTreeSet::new();
    while let Some(address) = workers.join_next().await {
        given.insert(address.unwrap());
    }
    assert_eq!(given.len(), 5);
    assert!(!given.contains(&RESERVED.parse().unwrap()));
}

#[tokio::test]
async fn two_hundred_services_with_twenty_ports_leave_no_listener_and_no_address() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let machine = Machine::new("127.0.21.0/24");
    let world = machine.open().await;
    let nodes: Targets = (0..300_u16)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            (format!("node-{number}"), IpAddr::from([10, 99, high, low]).into())
        })
        .collect();
    let ports: Vec<(Listen, NonZeroU16)> = (8000..8020).map(|port| (tcp(port), node_port())).collect();
    for number in 0..200 {
        let wanted = Wanted {
            targets: nodes.clone(),
            ..wanted(&number.to_string(), &ports, &[])
        };
        world.ensure(wanted).await.unwrap();
    }
    let size = std::fs::metadata(machine.state_file()).unwrap().len();
    assert!(size < 250_000, "the state has {size} bytes");
    assert_eq!(listeners(), 4_000);
    let fewer: Targets = nodes.into_iter().skip(1).collect();
    let all = (0..200).map(|number| (format!("bh-{number}"), fewer.clone()));
    world.update_targets(all.collect()).await.unwrap();
    for number in 0..200 {
        assert!(world.delete(&format!("bh-{number}")).await.unwrap());
    }
    assert_eq!(listeners(), 0);
    assert_eq!(world.measures().await.addresses[0].2, 0);
}

/// How many sockets listen on 127.0.21.0/24: state 0A in a table that has addresses in reverse.
fn listeners() -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = table
        .lines()
        .filter(|line| line.contains("15007F:") && line.contains(" 0A "));
    listening.count()
}
