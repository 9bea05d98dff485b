use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::node::view::{AddressType, ConditionStatus, NodeAddress, NodeCondition, Taint};
use bulkhead_core::service::spec::{
    Circumstances, IpFamily, IpFamilyPolicy, Port, Protocol, Spec, TrafficPolicy,
};
use bulkhead_core::service::view::{CLEANUP_FINALIZER, Ingress, IngressAddress, IpMode, PortStatus};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn node(object: &Value) -> NodeView {
    serde_json::from_str::<Watched<NodeView>>(&object.to_string())
        .unwrap()
        .view
}

fn service(object: &Value) -> ServiceView {
    serde_json::from_str::<Watched<ServiceView>>(&object.to_string())
        .unwrap()
        .view
}

fn load_balancer(spec: &Value) -> ServiceView {
    let mut spec = spec.clone();
    spec["type"] = json!("LoadBalancer");
    service(&json!({ "metadata": { "name": "s", "namespace": "ns" }, "spec": spec }))
}

#[rstest]
#[case::empty(json!({}))]
#[case::nulls(json!({ "metadata": null, "spec": null, "status": null }))]
#[case::null_fields(json!({
    "metadata": { "name": null, "labels": null, "annotations": null, "creationTimestamp": null, "deletionTimestamp": null },
    "spec": { "providerID": null, "taints": null, "podCIDRs": null, "unschedulable": null },
    "status": { "addresses": null, "conditions": null, "nodeInfo": null },
}))]
#[case::wrong_types(json!({
    "metadata": { "name": 1, "labels": [], "annotations": 7, "creationTimestamp": "yesterday" },
    "spec": { "providerID": {}, "taints": "x", "podCIDRs": {}, "unschedulable": "no" },
    "status": { "addresses": 1, "conditions": {}, "nodeInfo": { "systemUUID": 5 } },
}))]
fn a_node_without_anything_to_understand_is_an_empty_view(#[case] object: Value) {
    let empty = NodeView {
        name: NodeName(String::new()),
        uid: Uid(String::new()),
        resource_version: String::new(),
        created_at: Timestamp(0),
        deleting: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        provider_id: None,
        taints: vec![],
        pod_cidrs: vec![],
        unschedulable: false,
        addresses: vec![],
        conditions: vec![],
        system_uuid: String::new(),
    };
    assert_eq!(node(&object), empty);
}

#[test]
fn odd_elements_are_left_out_and_the_others_stay() {
    let view = node(&json!({
        "metadata": { "labels": { "good": "1", "bad": 2 }, "deletionTimestamp": "odd" },
        "spec": { "taints": [{ "key": 1 }, { "key": "k", "effect": "NoSchedule", "new": true }], "podCIDRs": [3, "10.0.0.0/24"] },
        "status": {
            "addresses": [
                { "type": "InternalIP" },
                { "type": "InternalIP", "address": "10.0.0.1" },
            ],
            "conditions": [
                { "type": "Odd", "status": "Perhaps" },
                { "type": "Ready", "status": "Unknown", "lastHeartbeatTime": "2026-01-01T00:00:00Z" },
            ],
        },
    }));
    assert!(view.deleting);
    assert_eq!(view.labels, BTreeMap::from([("good".into(), "1".into())]));
    assert_eq!(
        view.taints,
        [Taint {
            key: "k".into(),
            value: None,
            effect: "NoSchedule".into(),
            time_added: None
        }]
    );
    assert_eq!(view.pod_cidrs, ["10.0.0.0/24"]);
    assert_eq!(
        view.addresses,
        [NodeAddress {
            kind: AddressType::InternalIp,
            address: "10.0.0.1".into()
        }]
    );
    assert_eq!(
        view.conditions,
        [NodeCondition {
            kind: "Ready".into(),
            status: ConditionStatus::Unknown
        }]
    );
}

#[test]
fn an_address_of_an_unknown_type_is_counted_and_left_out() {
    let before = unknown_address_types();
    let view = node(&json!({ "status": { "addresses": [
        { "type": "Carrier", "address": "pigeon" },
        { "type": 3, "address": "three" },
        { "type": "Hostname", "address": "a" },
    ] } }));
    assert_eq!(
        view.addresses,
        [NodeAddress {
            kind: AddressType::Hostname,
            address: "a".into()
        }]
    );
    assert_eq!(unknown_address_types() - before, 2);
}

#[rstest]
#[case::load_balancer(json!({ "type": "LoadBalancer" }), &[], true)]
#[case::foreign_class_is_the_controllers_business(json!({ "type": "LoadBalancer", "loadBalancerClass": "x" }), &[], true)]
#[case::cluster_ip(json!({ "type": "ClusterIP" }), &[], false)]
#[case::cluster_ip_with_a_foreign_finalizer(json!({ "type": "ClusterIP" }), &["example.com/x"], false)]
#[case::no_longer_with_upstreams_finalizer(json!({ "type": "NodePort" }), &[CLEANUP_FINALIZER], true)]
#[case::no_longer_with_our_finalizer(json!({ "type": "NodePort" }), &["x", "any.bulkhead.dev/load-balancer"], true)]
#[case::no_type(json!({}), &[], false)]
fn a_service_matters_by_type_or_finalizer(
    #[case] spec: Value,
    #[case] finalizers: &[&str],
    #[case] matters: bool,
) {
    let view = service(&json!({ "metadata": { "name": "s", "finalizers": finalizers }, "spec": spec }));
    assert_eq!(view.matters(), matters);
}

#[rstest]
#[case::neither(json!({}), json!(null), &[])]
#[case::field(json!({}), json!("192.0.2.1"), &["192.0.2.1"])]
#[case::annotation_wins(json!({ REQUESTED: " 192.0.2.2, 2001:db8::1 ,," }), json!("192.0.2.1"), &["192.0.2.2", "2001:db8::1"])]
#[case::empty_annotation(json!({ REQUESTED: " " }), json!("192.0.2.1"), &["192.0.2.1"])]
fn addresses_are_requested_by_annotation_or_field(
    #[case] annotations: Value,
    #[case] field: Value,
    #[case] expected: &[&str],
) {
    let object = json!({ "metadata": { "annotations": annotations }, "spec": { "loadBalancerIP": field } });
    assert_eq!(service(&object).spec.requested_addresses, expected);
}

const REQUESTED: &str = "bulkhead.dev/load-balancer-ips";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

#[rstest]
#[case::everybody(json!({}), json!(null), &[])]
#[case::field(json!({ RANGES: "10.0.0.0/8" }), json!(["192.0.2.0/24"]), &["192.0.2.0/24"])]
#[case::annotation(json!({ RANGES: "10.0.0.0/8, 11.0.0.0/8" }), json!([]), &["10.0.0.0/8", "11.0.0.0/8"])]
fn source_ranges_come_from_the_field_or_the_annotation(
    #[case] annotations: Value,
    #[case] field: Value,
    #[case] expected: &[&str],
) {
    let object =
        json!({ "metadata": { "annotations": annotations }, "spec": { "loadBalancerSourceRanges": field } });
    assert_eq!(service(&object).spec.source_ranges, expected);
}

#[rstest]
#[case::local(json!({ "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000 }), Some(30000))]
#[case::local_without(json!({ "externalTrafficPolicy": "Local" }), None)]
#[case::left_over_from_local(json!({ "externalTrafficPolicy": "Cluster", "healthCheckNodePort": 30000 }), None)]
fn the_health_check_port_counts_with_policy_local(#[case] spec: Value, #[case] expected: Option<u16>) {
    assert_eq!(load_balancer(&spec).spec.health_check_node_port, expected);
}

#[rstest]
#[case::none(json!({ "sessionAffinity": "None" }), None)]
#[case::default_timeout(json!({ "sessionAffinity": "ClientIP" }), Some(10_800))]
#[case::timeout(
    json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } } }),
    Some(60)
)]
#[case::odd_config(json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": 3 }), Some(10_800))]
fn affinity_has_a_timeout(#[case] spec: Value, #[case] seconds: Option<u64>) {
    assert_eq!(
        load_balancer(&spec).spec.client_ip_affinity,
        seconds.map(Duration::from_secs)
    );
}

#[rstest]
#[case::defaults(json!({ "port": 80 }), "", Protocol::Tcp, None, "80")]
#[case::named_target(json!({ "port": 80, "targetPort": "web", "name": "http" }), "http", Protocol::Tcp, None, "web")]
#[case::full(
    json!({ "port": 53, "targetPort": 5353, "protocol": "UDP", "nodePort": 30053 }), "", Protocol::Udp, Some(30053), "5353"
)]
#[case::zeros_are_none(json!({ "port": 80, "targetPort": 0, "nodePort": 0 }), "", Protocol::Tcp, None, "80")]
fn a_port_has_kubernetes_defaults(
    #[case] object: Value,
    #[case] name: &str,
    #[case] protocol: Protocol,
    #[case] node_port: Option<u16>,
    #[case] target: &str,
) {
    let spec =
        load_balancer(&json!({ "ports": [object, { "port": 70_000 }, { "port": 1, "protocol": "ICMP" }] }))
            .spec;
    let Ok([port]) = <[Port; 1]>::try_from(spec.ports) else {
        panic!("odd ports must be left out")
    };
    let port = (port.name, port.protocol, port.node_port, port.target_port);
    assert_eq!(port, (name.into(), protocol, node_port, target.into()));
}

#[rstest]
#[case::address(json!({ "ip": "192.0.2.1" }), Some(IngressAddress::Ip([192, 0, 2, 1].into(), IpMode::Vip)))]
#[case::proxy(
    json!({ "ip": "192.0.2.1", "ipMode": "Proxy" }),
    Some(IngressAddress::Ip([192, 0, 2, 1].into(), IpMode::Proxy))
)]
#[case::name(json!({ "hostname": "lb" }), Some(IngressAddress::Hostname("lb".into())))]
#[case::odd_address_with_name(json!({ "ip": "1.2.3", "hostname": "lb" }), Some(IngressAddress::Hostname("lb".into())))]
#[case::nothing(json!({ "ipMode": "VIP" }), None)]
fn an_ingress_is_an_address_or_a_name(#[case] entry: Value, #[case] expected: Option<IngressAddress>) {
    let view = service(&json!({ "status": { "loadBalancer": { "ingress": [entry] } } }));
    let addresses: Vec<_> = view.ingress.into_iter().map(|ingress| ingress.address).collect();
    assert_eq!(addresses, Vec::from_iter(expected));
}

#[test]
fn a_service_that_is_being_deleted_says_so_even_if_the_time_is_odd() {
    for time in [json!("2026-01-02T03:04:05Z"), json!("odd"), json!(5)] {
        assert!(service(&json!({ "metadata": { "deletionTimestamp": time } })).is_deleting());
    }
    assert!(!service(&json!({ "metadata": { "deletionTimestamp": null } })).is_deleting());
}

#[test]
fn kubectls_copy_of_the_object_is_no_annotation_for_plugins() {
    let annotations = json!({ "kubectl.kubernetes.io/last-applied-configuration": "{}", "x": "y" });
    let view = service(&json!({ "metadata": { "annotations": annotations } }));
    assert_eq!(view.spec.annotations, BTreeMap::from([("x".into(), "y".into())]));
}

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-z./]{1,12}", "\\PC{0,12}", 0..5)
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0_i64..4_000_000_000).prop_map(|seconds| Timestamp(seconds * 1_000_000))
}

fn rfc3339(time: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(time.0).unwrap().to_string()
}

fn address_type() -> impl Strategy<Value = AddressType> {
    prop::sample::select(vec![
        AddressType::Hostname,
        AddressType::InternalIp,
        AddressType::ExternalIp,
        AddressType::InternalDns,
        AddressType::ExternalDns,
    ])
}

prop_compose! {
    fn any_node()(
        (name, uid, version) in ("[a-z0-9.-]{1,20}", "[a-f0-9-]{36}", 1_u64..),
        created_at in time(),
        deleting in any::<bool>(),
        (labels, annotations) in (texts(), texts()),
        provider_id in option::of("[a-z]{1,5}://\\PC{1,20}"),
        taints in vec(("[a-z./]{1,12}", option::of("[a-z]{1,5}"), "No(Schedule|Execute)", option::of("\\PC{1,20}")), 0..4),
        pod_cidrs in vec("[0-9./]{1,18}", 0..3),
        unschedulable in any::<bool>(),
        addresses in vec((address_type(), "\\PC{1,20}"), 0..6),
        conditions in vec(
            ("[A-Za-z]{1,12}", prop::sample::select(vec![ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown])),
            0..5,
        ),
        system_uuid in "[a-f0-9-]{0,36}",
    ) -> NodeView {
        NodeView {
            name: NodeName(name),
            uid: Uid(uid),
            resource_version: version.to_string(),
            created_at, deleting, labels, annotations, provider_id,
            taints: taints.into_iter().map(|(key, value, effect, time_added)| Taint { key, value, effect, time_added }).collect(),
            pod_cidrs, unschedulable,
            addresses: addresses.into_iter().map(|(kind, address)| NodeAddress { kind, address }).collect(),
            conditions: conditions.into_iter().map(|(kind, status)| NodeCondition { kind, status }).collect(),
            system_uuid,
        }
    }
}

/// The object as an API server writes it, with much that no view keeps.
fn node_object(view: &NodeView) -> Value {
    let conditions: Vec<_> = view.conditions.iter().map(|condition| json!({
        "type": condition.kind, "status": condition.status, "reason": "r", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    })).collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": view.name, "uid": view.uid, "resourceVersion": view.resource_version,
            "creationTimestamp": rfc3339(view.created_at),
            "deletionTimestamp": view.deleting.then_some("2026-01-01T00:00:00Z"),
            "labels": view.labels, "annotations": view.annotations,
            "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }],
        },
        "spec": {
            "providerID": view.provider_id, "taints": view.taints, "podCIDRs": view.pod_cidrs,
            "podCIDR": view.pod_cidrs.first(), "unschedulable": view.unschedulable,
        },
        "status": {
            "addresses": view.addresses, "conditions": conditions, "capacity": { "cpu": "2" },
            "nodeInfo": { "systemUUID": view.system_uuid, "machineID": "m" },
            "images": [{ "names": ["a"], "sizeBytes": 1 }],
        },
    })
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop::sample::select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn any_port() -> impl Strategy<Value = Port> {
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    (
        "[a-z]{0,5}",
        protocol,
        1_u16..,
        option::of(1_u16..),
        "[a-z]{1,5}|[1-9][0-9]{0,3}",
        "[a-z]{0,5}",
    )
        .prop_map(
            |(name, protocol, port, node_port, target_port, app_protocol)| Port {
                name,
                protocol,
                port,
                node_port,
                target_port,
                app_protocol,
            },
        )
}

fn any_ingress() -> impl Strategy<Value = Ingress> {
    let mode = prop::sample::select(vec![IpMode::Vip, IpMode::Proxy]);
    let address = prop_oneof![
        (any::<std::net::IpAddr>(), mode).prop_map(|(ip, mode)| IngressAddress::Ip(ip, mode)),
        "[a-z.]{1,20}".prop_map(IngressAddress::Hostname),
    ];
    let port = (any::<u16>(), option::of("[A-Z]{1,5}")).prop_map(|(port, error)| PortStatus {
        port,
        protocol: Protocol::Udp,
        error,
    });
    (address, vec(port, 0..3)).prop_map(|(address, ports)| Ingress { address, ports })
}

prop_compose! {
    fn any_spec()(
        class in "[a-z./]{0,12}",
        (labels, annotations) in (texts(), texts()),
        ports in vec(any_port(), 0..4),
        ip_families in vec(prop::sample::select(vec![IpFamily::V4, IpFamily::V6]), 0..3),
        ip_family_policy in option::of(prop::sample::select(vec![
            IpFamilyPolicy::SingleStack, IpFamilyPolicy::PreferDualStack, IpFamilyPolicy::RequireDualStack,
        ])),
        (cluster_ips, external_ips, source_ranges) in (vec("[0-9a-f.:]{1,9}", 0..3), vec("[0-9a-f.:]{1,9}", 0..3), vec("[0-9./]{1,9}", 0..3)),
        requested_addresses in vec("[0-9a-f.:]{1,9}", 0..2),
        affinity in option::of(1_u64..90_000),
        (external_traffic_policy, internal_traffic_policy) in (policy(), policy()),
        traffic_distribution in "[a-zA-Z]{0,12}",
        (publish_not_ready_addresses, allocate_node_ports) in any::<(bool, bool)>(),
        health in 1_u16..,
    ) -> Spec {
        Spec {
            name: "s".into(),
            class, labels, annotations, ports, ip_families, ip_family_policy, cluster_ips, external_ips, source_ranges,
            requested_addresses, external_traffic_policy, internal_traffic_policy, traffic_distribution,
            publish_not_ready_addresses, allocate_node_ports,
            client_ip_affinity: affinity.map(Duration::from_secs),
            health_check_node_port: (external_traffic_policy == TrafficPolicy::Local).then_some(health),
        }
    }
}

prop_compose! {
    fn any_service()(
        mut spec in any_spec(),
        (uid, version) in ("[a-f0-9-]{36}", 1_u64..),
        is_load_balancer in any::<bool>(),
        finalizers in vec("[a-z./]{1,12}", 0..3),
        (created_at, deleted_at) in (time(), option::of(time())),
        ingress in vec(any_ingress(), 0..3),
    ) -> ServiceView {
        // One address fits the field; two go by the annotation, which is an annotation as well.
        if spec.requested_addresses.len() > 1 {
            spec.annotations.insert(REQUESTED.into(), spec.requested_addresses.join(", "));
        }
        ServiceView {
            key: ServiceKey { namespace: "ns".into(), name: "s".into() },
            uid: Uid(uid),
            is_load_balancer, spec, ingress,
            circumstances: Circumstances { finalizers, created_at: Some(created_at), deleted_at, resource_version: version.to_string() },
        }
    }
}

fn service_object(view: &ServiceView) -> Value {
    let spec = &view.spec;
    let ports: Vec<_> = spec.ports.iter().map(|port| json!({
        "name": port.name, "protocol": port.protocol, "port": port.port, "nodePort": port.node_port,
        "targetPort": port.target_port.parse::<u16>().map_or_else(|_| json!(port.target_port), |number| json!(number)),
        "appProtocol": (!port.app_protocol.is_empty()).then_some(&port.app_protocol),
    })).collect();
    let ingress: Vec<_> = view.ingress.iter().map(|ingress| {
        let ports: Vec<_> = ingress.ports.iter().map(|port| json!({ "port": port.port, "protocol": port.protocol, "error": port.error })).collect();
        match &ingress.address {
            IngressAddress::Ip(ip, mode) => json!({ "ip": ip, "ipMode": if *mode == IpMode::Vip { "VIP" } else { "Proxy" }, "ports": ports }),
            IngressAddress::Hostname(name) => json!({ "hostname": name, "ports": ports }),
        }
    }).collect();
    json!({
        "metadata": {
            "namespace": "ns", "name": "s", "uid": view.uid, "resourceVersion": view.circumstances.resource_version,
            "creationTimestamp": view.circumstances.created_at.map(rfc3339),
            "deletionTimestamp": view.circumstances.deleted_at.map(rfc3339),
            "finalizers": view.circumstances.finalizers, "labels": spec.labels, "annotations": spec.annotations,
            "managedFields": [{ "manager": "kubectl" }],
        },
        "spec": {
            "type": if view.is_load_balancer { "LoadBalancer" } else { "ClusterIP" },
            "loadBalancerClass": (!spec.class.is_empty()).then_some(&spec.class),
            "ports": ports, "ipFamilies": spec.ip_families, "ipFamilyPolicy": spec.ip_family_policy,
            "clusterIPs": spec.cluster_ips, "clusterIP": spec.cluster_ips.first(), "externalIPs": spec.external_ips,
            "loadBalancerIP": spec.requested_addresses.first(), "loadBalancerSourceRanges": spec.source_ranges,
            "sessionAffinity": if spec.client_ip_affinity.is_some() { "ClientIP" } else { "None" },
            "sessionAffinityConfig": spec.client_ip_affinity.map(|time| json!({ "clientIP": { "timeoutSeconds": time.as_secs() } })),
            "externalTrafficPolicy": spec.external_traffic_policy, "internalTrafficPolicy": spec.internal_traffic_policy,
            "trafficDistribution": spec.traffic_distribution, "publishNotReadyAddresses": spec.publish_not_ready_addresses,
            "healthCheckNodePort": spec.health_check_node_port, "allocateLoadBalancerNodePorts": spec.allocate_node_ports,
            "selector": { "app": "x" },
        },
        "status": {
            "loadBalancer": { "ingress": ingress },
        },
    })
}

proptest! {
    #[test]
    fn every_field_of_a_node_that_is_kept_survives(view in any_node()) {
        prop_assert_eq!(node(&node_object(&view)), view);
    }

    #[test]
    fn every_field_of_a_service_that_is_kept_survives(view in any_service()) {
        prop_assert_eq!(service(&service_object(&view)), view);
    }
}
