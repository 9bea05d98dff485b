use rstest::rstest;

use super::*;

fn port(protocol: v1::Protocol, port: u32, node_port: Option<u32>) -> v1::Port {
    v1::Port {
        protocol: protocol.into(),
        port,
        node_port,
        ..v1::Port::default()
    }
}

fn spec() -> v1::Spec {
    v1::Spec {
        ports: vec![port(v1::Protocol::Tcp, 80, Some(30080))],
        ..v1::Spec::default()
    }
}

fn read(spec: &v1::Spec) -> Result<Wanted> {
    let service = ServiceKey {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "u".to_owned(),
    };
    wanted(
        "c",
        Reference {
            service,
            mark: "bh-a".to_owned(),
        },
        spec,
        "digest",
    )
}

#[test]
fn a_whole_spec_is_read() {
    let ingress = v1::Ingress {
        address: Some(v1::ingress::Address::Ip("127.0.10.9".to_owned())),
        ..v1::Ingress::default()
    };
    let spec = v1::Spec {
        ports: vec![
            port(v1::Protocol::Tcp, 80, Some(30080)),
            port(v1::Protocol::Udp, 80, Some(30081)),
        ],
        source_ranges: vec!["10.0.0.7/8".to_owned()],
        requested_addresses: vec!["127.0.10.7".to_owned(), "::1".to_owned()],
        ip_families: vec![v1::IpFamily::Ipv6.into(), v1::IpFamily::Ipv4.into()],
        ip_family_policy: v1::IpFamilyPolicy::RequireDualStack.into(),
        session_affinity: v1::SessionAffinity::ClientIp.into(),
        session_affinity_timeout: Some(Duration::from_secs(90).try_into().unwrap()),
        annotations: [(PROXY_PROTOCOL.to_owned(), "v2".to_owned())].into(),
        health_check: Some(v1::HealthCheck {
            node_port: 30999,
            path: "/healthz".to_owned(),
        }),
        current_status: Some(v1::LoadBalancerStatus {
            ingress: vec![ingress],
        }),
        ..v1::Spec::default()
    };
    let wanted = read(&spec).unwrap();
    let ports: Vec<String> = wanted.ports.iter().map(|(at, to)| format!("{at}>{to}")).collect();
    assert_eq!(ports, ["tcp/80>30080", "udp/80>30081"]);
    let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let wish = Wish {
        families: vec![Family::V6, Family::V4],
        need: Need::Every,
        requested: ips(&["127.0.10.7", "::1"]),
        preferred: ips(&["127.0.10.9"]),
    };
    assert_eq!(wanted.wish, wish);
    assert_eq!(wanted.affinity, Some(Duration::from_secs(90)));
    assert_eq!(wanted.proxy_protocol, ProxyProtocol::V2);
    assert_eq!(
        wanted.sources,
        BTreeSet::from(["10.0.0.0/8".parse().unwrap()]),
        "as Kubernetes reads it"
    );
    assert_eq!(wanted.health_check.unwrap().node_port.get(), 30999);
}

#[rstest]
#[case::no_ports(v1::Spec { ports: vec![], ..spec() }, "spec.ports: is empty")]
#[case::sctp(v1::Spec { ports: vec![port(v1::Protocol::Sctp, 80, Some(30080))], ..spec() }, "spec.ports[0].protocol: SCTP is not served: use TCP or UDP, or make the Service anew with another .spec.loadBalancerClass")]
#[case::no_protocol(v1::Spec { ports: vec![port(v1::Protocol::Unspecified, 80, Some(30080))], ..spec() }, "spec.ports[0].protocol: is missing")]
#[case::no_node_port(v1::Spec { ports: vec![port(v1::Protocol::Tcp, 80, None)], ..spec() }, "spec.ports[0].node_port: is missing: this plugin forwards to node ports")]
#[case::node_port_zero(v1::Spec { ports: vec![port(v1::Protocol::Tcp, 80, Some(0))], ..spec() }, "spec.ports[0].node_port: is missing: this plugin forwards to node ports")]
#[case::port_too_large(v1::Spec { ports: vec![port(v1::Protocol::Tcp, 65536, Some(1))], ..spec() }, "spec.ports[0].port: is not between 1 and 65535")]
#[case::port_twice(v1::Spec { ports: vec![port(v1::Protocol::Tcp, 80, Some(1)), port(v1::Protocol::Tcp, 80, Some(2))], ..spec() }, "spec.ports[1].port: is listed twice with this protocol")]
#[case::one_family_of_two(v1::Spec { ip_family_policy: v1::IpFamilyPolicy::RequireDualStack.into(), ..spec() }, "spec.ip_families: has one family, and spec.ip_family_policy requires two")]
#[case::affinity_for_no_time(v1::Spec { session_affinity: v1::SessionAffinity::ClientIp.into(), session_affinity_timeout: Some(Duration::ZERO.try_into().unwrap()), ..spec() }, "spec.session_affinity_timeout: is less than a second")]
#[case::another_proxy_protocol(v1::Spec { annotations: [(PROXY_PROTOCOL.to_owned(), "v1".to_owned())].into(), ..spec() }, "spec.annotations[local.bulkhead.dev/proxy-protocol]: \"v1\" is not served: use \"v2\", or remove the annotation")]
#[case::address(v1::Spec { requested_addresses: vec!["x".to_owned()], ..spec() }, "spec.requested_addresses[0]: \"x\" is not an IP address: ask for one, or for none to be given a free one")]
#[case::address_of_another_family(v1::Spec { requested_addresses: vec!["::1".to_owned()], ..spec() }, "spec.requested_addresses[0]: ::1 is IPv6, which the Service is not")]
#[case::two_addresses(v1::Spec { requested_addresses: vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()], ..spec() }, "spec.requested_addresses[1]: 10.0.0.2 is a second IPv4 address: one is served")]
#[case::range(v1::Spec { source_ranges: vec!["10.0.0.0/8".to_owned(), "x".to_owned()], ..spec() }, "spec.source_ranges[1]: \"x\" is not an IP address or a CIDR such as 127.0.10.0/24")]
#[case::a_path_that_ends_the_line(v1::Spec { health_check: Some(v1::HealthCheck { node_port: 1, path: "/\r\nx: y".to_owned() }), ..spec() }, "spec.health_check.path: is not a path such as /healthz")]
fn refuses(#[case] spec: v1::Spec, #[case] message: &str) {
    assert_eq!(read(&spec).unwrap_err().message(), message);
}

#[rstest]
#[case::none_said(&[], v1::IpFamilyPolicy::Unspecified, &[Family::V4], Need::Every)]
#[case::one(&[v1::IpFamily::Ipv6], v1::IpFamilyPolicy::SingleStack, &[Family::V6], Need::Every)]
#[case::two_preferred(&[v1::IpFamily::Ipv6, v1::IpFamily::Ipv4], v1::IpFamilyPolicy::PreferDualStack, &[Family::V6, Family::V4], Need::Any)]
fn reads_families(
    #[case] families: &[v1::IpFamily],
    #[case] policy: v1::IpFamilyPolicy,
    #[case] want: &[Family],
    #[case] need: Need,
) {
    let wanted = read(&v1::Spec {
        ip_families: families.iter().map(|family| (*family).into()).collect(),
        ip_family_policy: policy.into(),
        ..spec()
    });
    let wish = wanted.unwrap().wish;
    assert_eq!((wish.families.as_slice(), wish.need), (want, need));
}

fn node(name: &str, addresses: &[(v1::AddressType, &str)]) -> v1::Node {
    let address = |(kind, text): &(v1::AddressType, &str)| v1::Address {
        r#type: (*kind).into(),
        address: (*text).to_owned(),
    };
    v1::Node {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        addresses: addresses.iter().map(address).collect(),
        ..v1::Node::default()
    }
}

#[test]
fn a_node_without_an_address_is_a_problem_of_its_own() {
    use v1::AddressType::{ExternalIp, InternalIp};
    let nodes = vec![
        node(
            "a",
            &[
                (ExternalIp, "192.0.2.1"),
                (InternalIp, "fd00::1"),
                (InternalIp, "10.0.0.1"),
            ],
        ),
        node("b", &[(ExternalIp, "192.0.2.2")]),
        node("c", &[(InternalIp, "10.0.0.3")]),
        node("d", &[(InternalIp, "10.0.0.4")]),
    ];
    let nodes = v1::NodeSet {
        nodes,
        ..v1::NodeSet::default()
    };
    let told = |families: &[Family], limit| {
        let (targets, problems) = targets(&nodes, families, limit);
        let targets: Vec<String> = targets.into_keys().collect();
        let problem = |one: v1::TargetProblem| format!("{} {}", one.node_uid, one.reason);
        (targets, problems.into_iter().map(problem).collect::<Vec<_>>())
    };
    let (names, problems) = told(&[Family::V4], 2);
    assert_eq!(names, ["a", "c"]);
    assert_eq!(problems, ["uid-b NoAddress", "uid-d LimitReached"]);
    let (names, problems) = told(&[Family::V4, Family::V6], 9);
    assert_eq!(names, ["a", "c", "d"], "half a target is one");
    assert_eq!(
        problems,
        ["uid-b NoAddress", "uid-c NoAddress", "uid-d NoAddress"]
    );
    assert_eq!(
        internal_ips(&nodes.nodes[0]),
        NodeAddresses {
            v4: Some("10.0.0.1".parse().unwrap()),
            v6: Some("fd00::1".parse().unwrap())
        }
    );
}
