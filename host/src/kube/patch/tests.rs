use bulkhead_core::node::view::{AddressType, Taint};
use bulkhead_core::service::spec::Protocol;
use bulkhead_core::service::view::PortStatus;
use rstest::rstest;

use super::*;

fn uid() -> Uid {
    Uid("u-1".into())
}

fn guard() -> Guard {
    Guard {
        uid: uid(),
        resource_version: "17".into(),
    }
}

fn taint(key: &str, value: Option<&str>, time_added: Option<&str>) -> Taint {
    Taint {
        key: key.into(),
        value: value.map(Into::into),
        effect: "NoSchedule".into(),
        time_added: time_added.map(Into::into),
    }
}

fn address(kind: AddressType, address: &str) -> NodeAddress {
    NodeAddress {
        kind,
        address: address.into(),
    }
}

#[rstest]
#[case::none(&[], json!([]))]
#[case::in_order_with_two_of_a_type(
    &[
        address(AddressType::InternalIp, "10.0.0.2"),
        address(AddressType::InternalIp, "10.0.0.1"),
        address(AddressType::ExternalDns, "a.example.com"),
    ],
    json!([
        { "type": "InternalIP", "address": "10.0.0.2" },
        { "type": "InternalIP", "address": "10.0.0.1" },
        { "type": "ExternalDNS", "address": "a.example.com" },
    ])
)]
fn addresses_are_sent_whole_under_the_uid(#[case] addresses: &[NodeAddress], #[case] expected: Value) {
    let body = json!({ "metadata": { "uid": "u-1" }, "status": { "addresses": expected } });
    assert_eq!(node_addresses(&uid(), addresses), body);
}

#[rstest]
#[case::all_at_once(
    NodePatch {
        provider_id: Some("aws:///a/i-1".into()),
        labels: [("zone".into(), Some("a".into())), ("old".into(), None)].into(),
        taints: Some(vec![taint("other", Some("v"), Some("2026-01-01T00:00:00Z")), taint("bare", None, None)]),
    },
    json!({
        "metadata": { "uid": "u-1", "resourceVersion": "17", "labels": { "zone": "a", "old": null } },
        "spec": {
            "providerID": "aws:///a/i-1",
            "taints": [
                { "key": "other", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z" },
                { "key": "bare", "effect": "NoSchedule" },
            ],
        },
    })
)]
#[case::labels_only(
    NodePatch { labels: [("zone".into(), Some("a".into()))].into(), ..NodePatch::default() },
    json!({ "metadata": { "uid": "u-1", "resourceVersion": "17", "labels": { "zone": "a" } } })
)]
#[case::last_taint_off(
    NodePatch { taints: Some(vec![]), ..NodePatch::default() },
    json!({ "metadata": { "uid": "u-1", "resourceVersion": "17" }, "spec": { "taints": [] } })
)]
fn a_node_is_patched_under_uid_and_version(#[case] patch: NodePatch, #[case] expected: Value) {
    assert_eq!(node(&guard(), &patch), expected);
}

#[rstest]
#[case::on(&["a.example.com/x", "bulkhead.dev/load-balancer"])]
#[case::all_off(&[])]
fn finalizers_are_sent_whole_under_uid_and_version(#[case] finalizers: &[&str]) {
    let list: Vec<String> = finalizers.iter().map(ToString::to_string).collect();
    let expected = json!({ "metadata": { "uid": "u-1", "resourceVersion": "17", "finalizers": finalizers } });
    assert_eq!(service_finalizers(&guard(), &list), expected);
}

fn ip(ip: &str, mode: IpMode) -> Ingress {
    Ingress {
        address: IngressAddress::Ip(ip.parse().unwrap(), mode),
        ports: vec![],
    }
}

fn with_ports() -> Ingress {
    let port = |port, error: Option<&str>| PortStatus {
        port,
        protocol: Protocol::Udp,
        error: error.map(Into::into),
    };
    Ingress {
        address: IngressAddress::Hostname("lb.example.com".into()),
        ports: vec![port(53, None), port(54, Some("PortTaken"))],
    }
}

#[rstest]
#[case::addresses_in_order(
    vec![ip("2001:db8::1", IpMode::Vip), ip("192.0.2.1", IpMode::Proxy)],
    json!([{ "ip": "2001:db8::1", "ipMode": "VIP" }, { "ip": "192.0.2.1", "ipMode": "Proxy" }])
)]
#[case::name_and_ports(
    vec![with_ports()],
    json!([{ "hostname": "lb.example.com", "ports": [
        { "port": 53, "protocol": "UDP" },
        { "port": 54, "protocol": "UDP", "error": "PortTaken" },
    ] }])
)]
#[case::emptied(vec![], json!(null))]
fn a_service_s_ingress_is_patched_under_the_uid(#[case] ingress: Vec<Ingress>, #[case] expected: Value) {
    assert_eq!(
        service_ingress(&uid(), &ingress),
        json!({ "metadata": { "uid": "u-1" }, "status": { "loadBalancer": { "ingress": expected } } })
    );
}
