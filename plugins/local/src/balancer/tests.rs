use proptest::collection::{btree_map, btree_set};
use proptest::option;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn listen(text: &str) -> Listen {
    let (protocol, number) = text.split_once('/').unwrap();
    let protocol = if protocol == "tcp" {
        Protocol::Tcp
    } else {
        Protocol::Udp
    };
    Listen {
        protocol,
        port: number.parse().unwrap(),
    }
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
        address: "127.0.10.1".parse().unwrap(),
        ports: ports
            .map(|(at, node_port)| (listen(at), node_port.parse().unwrap()))
            .collect(),
        targets: targets
            .map(|(node, address)| (node.to_owned(), address.parse().unwrap()))
            .collect(),
        sources: BTreeSet::new(),
        health_check: None,
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
            .map(|(node, address)| format!("+{node}@{address}")),
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
#[case::tcp_checks_itself(&["tcp/80>30080"], "tcp/80", Some(30080))]
#[case::udp_follows_the_lowest_tcp_port(&["udp/53>30053", "tcp/90>30090", "tcp/80>30080"], "udp/53", Some(30080))]
#[case::udp_alone_is_taken_as_healthy(&["udp/53>30053"], "udp/53", None)]
fn health_comes_from(#[case] ports: &[&str], #[case] of: &str, #[case] want: Option<u16>) {
    assert_eq!(balancer(ports, A).health_port(listen(of)), want.map(port));
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
    assert_eq!(checked.health_port(listen("tcp/80")), Some(port(30999)));
    assert_eq!(checked.health_port(listen("udp/53")), Some(port(30999)));
    assert_eq!(
        checked.checked(),
        BTreeSet::from(["10.0.0.1:30999".parse().unwrap()])
    );
}

#[test]
fn two_nodes_with_one_address_are_one_endpoint() {
    let shared = balancer(ONE, &["a@10.0.0.1", "b@10.0.0.1"]);
    assert_eq!(shared.endpoints(port(30080)).len(), 1);
}

/// What the executor must make of a plan.
fn applied(current: &Balancer, plan: &Plan) -> Balancer {
    let mut next = current.clone();
    next.ports.retain(|listen, _| !plan.close.contains(listen));
    next.ports
        .extend(plan.open.iter().chain(&plan.retarget).map(|(at, to)| (*at, *to)));
    next.targets.retain(|node, _| !plan.remove.contains(node));
    next.targets.extend(plan.add.clone());
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
        (1_u8..4).prop_map(|last| IpAddr::from([10, 0, 0, last])),
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
    let all = (ports, targets, sources, check, "[12]");
    all.prop_map(|(ports, targets, sources, health_check, spec_digest)| Balancer {
        spec_digest,
        ports,
        targets,
        sources,
        health_check,
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
