use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn listen(text: &str) -> Listen {
    text.parse().unwrap()
}

/// `ports` as `tcp/80>30080`, `targets` as `node@address`.
fn balancer(ports: &[&str], targets: &[&str]) -> Balancer {
    let ports = ports.iter().map(|text| text.split_once('>').unwrap());
    let targets = targets.iter().map(|text| text.split_once('@').unwrap());
    Balancer {
        mark: "bh-a".to_owned(),
        cluster: "c".to_owned(),
        service: ServiceKey {
            namespace: "d".to_owned(),
            name: "s".to_owned(),
            uid: "u".to_owned(),
        },
        spec_digest: "1".to_owned(),
        addresses: vec!["127.0.10.1".parse().unwrap()],
        ports: ports
            .map(|(at, node_port)| (listen(at), node_port.parse().unwrap()))
            .collect(),
        targets: targets
            .map(|(node, address)| (node.to_owned(), address.parse::<IpAddr>().unwrap().into()))
            .collect::<Targets>()
            .into(),
        sources: BTreeSet::new(),
        health_check: None,
        affinity: None,
        proxy_protocol: ProxyProtocol::Off,
    }
}

/// The plan in one line: `+` open or add, `-` close or remove, `~` retarget.
fn told(plan: &Plan) -> String {
    let mut words: Vec<String> = plan.close.iter().map(|at| format!("-{at}")).collect();
    words.extend(plan.open.iter().map(|(at, to)| format!("+{at}>{to}")));
    words.extend(plan.retarget.iter().map(|(at, to)| format!("~{at}>{to}")));
    words.extend(plan.remove.iter().map(|node| format!("-{node}")));
    words.extend(
        plan.add
            .iter()
            .map(|(node, addresses)| format!("+{node}@{}", addresses.v4.unwrap())),
    );
    words.join(" ")
}

const ONE: &[&str] = &["tcp/80>30080"];
const A: &[&str] = &["a@10.0.0.1"];

#[rstest]
#[case::equal_needs_nothing(balancer(ONE, A), balancer(ONE, A), "")]
#[case::a_port_more(balancer(ONE, A), balancer(&["tcp/80>30080", "tcp/81>30081"], A), "+tcp/81>30081")]
#[case::a_port_less(balancer(&["tcp/80>30080", "tcp/81>30081"], A), balancer(ONE, A), "-tcp/81")]
#[case::a_port_moved(balancer(ONE, A), balancer(&["tcp/81>30080"], A), "-tcp/80 +tcp/81>30080")]
#[case::tcp_and_udp_are_two_listeners(balancer(ONE, A), balancer(&["udp/80>30080"], A), "-tcp/80 +udp/80>30080")]
#[case::a_node_port_keeps_the_listener(balancer(ONE, A), balancer(&["tcp/80>30099"], A), "~tcp/80>30099")]
#[case::a_node_more(balancer(ONE, A), balancer(ONE, &["a@10.0.0.1", "b@10.0.0.2"]), "+b@10.0.0.2")]
#[case::a_node_less(balancer(ONE, A), balancer(ONE, &[]), "-a")]
#[case::a_node_moved(balancer(ONE, A), balancer(ONE, &["a@10.0.0.9"]), "+a@10.0.0.9")]
fn plans(#[case] current: Balancer, #[case] desired: Balancer, #[case] want: &str) {
    assert_eq!(told(&plan(&current, &desired)), want);
}

#[test]
fn a_new_digest_alone_is_stored_and_touches_no_listener() {
    let current = balancer(ONE, A);
    let desired = Balancer {
        spec_digest: "2".to_owned(),
        ..current.clone()
    };
    assert_eq!(
        plan(&current, &desired),
        Plan {
            spec_digest: Some("2".to_owned()),
            ..Plan::default()
        }
    );
}

#[rstest]
#[case::no_slash("tcp80")]
#[case::no_protocol("sctp/80")]
#[case::no_port("tcp/")]
#[case::port_zero("tcp/0")]
fn is_nothing_to_listen_on(#[case] text: &str) {
    assert!(text.parse::<Listen>().is_err());
}

#[rstest]
#[case::the_lowest_tcp_port(&["udp/53>30053", "tcp/90>30090", "tcp/80>30080"], Some(30080))]
#[case::udp_alone_is_taken_as_healthy(&["udp/53>30053"], None)]
fn health_comes_from(#[case] ports: &[&str], #[case] want: Option<u16>) {
    let want = want.map(|port| Probe::Connect { port });
    assert_eq!(balancer(ports, A).probe(), want);
}

#[test]
fn a_health_check_speaks_for_every_port() {
    let health_check = Some(HealthCheck {
        node_port: port(30999),
        path: "/healthz".to_owned(),
    });
    let checked = Balancer {
        health_check,
        ..balancer(&["tcp/80>30080", "udp/53>30053"], A)
    };
    let probe = Probe::Http {
        port: 30999,
        path: "/healthz".to_owned(),
    };
    assert_eq!(checked.probe(), Some(probe));
}

#[test]
fn endpoints_are_of_one_family_and_each_there_once() {
    let mut shared = balancer(ONE, &["a@10.0.0.1", "b@10.0.0.1"]);
    let targets = Arc::make_mut(&mut shared.targets);
    targets.get_mut("a").unwrap().v6 = Some("fd00::1".parse().unwrap());
    assert_eq!(
        shared.endpoints(Family::V4),
        BTreeSet::from(["10.0.0.1".parse().unwrap()])
    );
    assert_eq!(
        shared.endpoints(Family::V6),
        BTreeSet::from(["fd00::1".parse().unwrap()])
    );
}

/// What the executor must make of a plan.
fn applied(current: &Balancer, plan: &Plan) -> Balancer {
    let mut next = current.clone();
    next.ports.retain(|listen, _| !plan.close.contains(listen));
    next.ports
        .extend(plan.open.iter().chain(&plan.retarget).map(|(at, to)| (*at, *to)));
    let targets = Arc::make_mut(&mut next.targets);
    targets.retain(|node, _| !plan.remove.contains(node));
    targets.extend(plan.add.clone());
    next.addresses = plan.addresses.clone().unwrap_or(next.addresses);
    next.affinity = plan.affinity.unwrap_or(next.affinity);
    next.proxy_protocol = plan.proxy_protocol.unwrap_or(next.proxy_protocol);
    next.sources = plan.sources.clone().unwrap_or(next.sources);
    next.health_check = plan.health_check.clone().unwrap_or(next.health_check);
    next.spec_digest = plan.spec_digest.clone().unwrap_or(next.spec_digest);
    next
}

fn any_balancer() -> impl Strategy<Value = Balancer> {
    let listens =
        (prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)], 1_u16..5).prop_map(|(protocol, number)| {
            Listen {
                protocol,
                port: port(number),
            }
        });
    let ports = btree_map(listens, (1_u16..4).prop_map(port), 0..6);
    let targets = btree_map(
        "[a-d]",
        (1_u8..4).prop_map(|last| NodeAddresses::from(IpAddr::from([10, 0, 0, last]))),
        0..4,
    );
    let sources = btree_set(
        (0_u8..3).prop_map(|net| format!("10.{net}.0.0/16").parse().unwrap()),
        0..3,
    );
    let check = option::of((1_u16..3).prop_map(|number| HealthCheck {
        node_port: port(number),
        path: "/healthz".to_owned(),
    }));
    let addresses = vec((1_u8..3).prop_map(|last| IpAddr::from([127, 0, 10, last])), 0..2);
    let affinity = option::of((1_u64..3).prop_map(Duration::from_secs));
    let proxy_protocol = prop_oneof![Just(ProxyProtocol::Off), Just(ProxyProtocol::V2)];
    let treatment = (affinity, proxy_protocol, check, sources);
    let all = (addresses, ports, targets, treatment, "[12]");
    all.prop_map(|(addresses, ports, targets, treatment, spec_digest)| Balancer {
        spec_digest,
        addresses,
        ports,
        targets: targets.into(),
        affinity: treatment.0,
        proxy_protocol: treatment.1,
        health_check: treatment.2,
        sources: treatment.3,
        ..balancer(&[], &[])
    })
}

proptest! {
    #[test]
    fn applying_a_plan_reaches_what_was_desired(current in any_balancer(), desired in any_balancer()) {
        let reached = applied(&current, &plan(&current, &desired));
        prop_assert_eq!(&reached, &desired);
        prop_assert!(plan(&reached, &desired).is_empty());
    }

    #[test]
    fn a_plan_never_touches_a_listener_that_stays(current in any_balancer(), desired in any_balancer()) {
        let plan = plan(&current, &desired);
        for (at, to) in &current.ports {
            if desired.ports.get(at) == Some(to) {
                prop_assert!(!plan.close.contains(at) && !plan.open.contains_key(at) && !plan.retarget.contains_key(at));
            }
        }
    }
}
