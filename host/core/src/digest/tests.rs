//! The vectors of `proto/SPEC.md` section 7, which `proto/vectors/check.py` computes a second time, and the laws of
//! the canonical form.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::Value;

use super::{Canonical, Digest, fingerprint, is_declared};
use crate::cloud::{Description, KeySet};
use crate::fixtures::description;
use crate::ids::{NodeName, Uid};
use crate::node::view::{AddressType, NodeAddress};
use crate::service::node_set::{Member, NodeSet};
use crate::service::spec::{IpFamily, IpFamilyPolicy, Port, Protocol, Spec, TrafficPolicy};

fn vectors(group: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(include_str!("../../../../proto/vectors/digests.json"))
        .expect("digests.json is JSON");
    document[group].as_array().expect("the group is a list").clone()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_default()
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn texts<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    items(value, field)
        .iter()
        .map(|item| item.as_str().expect("the list holds texts"))
}

fn map(value: &Value, field: &str) -> BTreeMap<String, String> {
    value[field].as_object().map_or_else(BTreeMap::new, |entries| {
        let owned =
            |(key, value): (&String, &Value)| (key.clone(), value.as_str().expect("a text").to_owned());
        entries.iter().map(owned).collect()
    })
}

fn strings(value: &Value, field: &str) -> Vec<String> {
    texts(value, field).map(str::to_owned).collect()
}

/// A plugin that reads the labels and annotations that the vector says.
fn reads(vector: &Value) -> Description {
    Description {
        label_keys: KeySet(strings(vector, "label_keys")),
        annotation_keys: KeySet(strings(vector, "annotation_keys")),
        ..description()
    }
}

/// By the type that the host digests, so that its fields and their order are checked too.
fn node_set(vector: &Value) -> Digest {
    let plugin = reads(vector);
    let member = |node: &Value| Member {
        name: NodeName(text(node, "name").to_owned()),
        uid: Uid(text(node, "uid").to_owned()),
        provider_id: text(node, "provider_id").to_owned(),
        addresses: items(node, "addresses").iter().map(node_address).collect(),
        zone: text(node, "zone").to_owned(),
        labels: plugin.label_keys.of(&map(node, "labels")),
    };
    NodeSet::of(items(vector, "nodes").iter().map(member).collect()).digest
}

fn node_address(value: &Value) -> NodeAddress {
    let kind = match number(value, "type") {
        1 => AddressType::Hostname,
        2 => AddressType::InternalIp,
        3 => AddressType::ExternalIp,
        4 => AddressType::InternalDns,
        5 => AddressType::ExternalDns,
        other => panic!("no address type {other}"),
    };
    NodeAddress {
        kind,
        address: text(value, "address").to_owned(),
    }
}

fn of_fingerprint(vector: &Value) -> Digest {
    fingerprint(
        &Digest::received(text(vector, "spec_digest")),
        text(vector, "behaviour_digest"),
    )
}

fn small<T: TryFrom<i64>>(value: &Value, field: &str) -> Option<T> {
    value[field].as_i64().and_then(|number| T::try_from(number).ok())
}

fn policy(value: &Value, field: &str) -> TrafficPolicy {
    match number(value, field) {
        1 => TrafficPolicy::Cluster,
        2 => TrafficPolicy::Local,
        other => panic!("no traffic policy {other}"),
    }
}

fn port(value: &Value) -> Port {
    let protocol = match number(value, "protocol") {
        1 => Protocol::Tcp,
        2 => Protocol::Udp,
        3 => Protocol::Sctp,
        other => panic!("no protocol {other}"),
    };
    Port {
        name: text(value, "name").to_owned(),
        protocol,
        port: small(value, "port").unwrap(),
        node_port: small(value, "node_port"),
        target_port: text(value, "target_port").to_owned(),
        app_protocol: text(value, "app_protocol").to_owned(),
    }
}

/// By the type that the host digests, so that its fields and their order are checked too.
fn spec(vector: &Value) -> Digest {
    let spec = &vector["spec"];
    let family = |number: &Value| if number == 1 { IpFamily::V4 } else { IpFamily::V6 };
    let affinity = &spec["session_affinity_timeout"];
    let spec = Spec {
        name: text(spec, "name").to_owned(),
        class: text(spec, "class").to_owned(),
        labels: map(spec, "labels"),
        annotations: map(spec, "annotations"),
        ports: items(spec, "ports").iter().map(port).collect(),
        ip_families: items(spec, "ip_families").iter().map(family).collect(),
        ip_family_policy: match number(spec, "ip_family_policy") {
            1 => Some(IpFamilyPolicy::SingleStack),
            2 => Some(IpFamilyPolicy::PreferDualStack),
            3 => Some(IpFamilyPolicy::RequireDualStack),
            _ => None,
        },
        cluster_ips: strings(spec, "cluster_ips"),
        external_ips: strings(spec, "external_ips"),
        requested_addresses: strings(spec, "requested_addresses"),
        source_ranges: strings(spec, "source_ranges"),
        client_ip_affinity: affinity
            .is_object()
            .then(|| Duration::from_secs(small(affinity, "seconds").unwrap_or(0))),
        external_traffic_policy: policy(spec, "external_traffic_policy"),
        internal_traffic_policy: policy(spec, "internal_traffic_policy"),
        traffic_distribution: text(spec, "traffic_distribution").to_owned(),
        publish_not_ready_addresses: number(spec, "publish_not_ready_addresses") == 1,
        health_check_node_port: small(&spec["health_check"], "node_port"),
        allocate_node_ports: number(spec, "allocate_node_ports") == 1,
    };
    spec.digest(&reads(vector))
}

#[rstest]
#[case::node_sets("node_sets", node_set)]
#[case::specs("specs", spec)]
#[case::fingerprints("fingerprints", of_fingerprint)]
fn digests_equal_the_vectors(#[case] group: &str, #[case] digest: fn(&Value) -> Digest) {
    let vectors = vectors(group);
    assert!(vectors.len() >= 2);
    // A Spec of the host always has its traffic policies; the vector without is for those who read the wire.
    let expressible =
        |vector: &&Value| vector["spec"].is_null() || number(&vector["spec"], "external_traffic_policy") != 0;
    for vector in vectors.iter().filter(expressible) {
        assert_eq!(
            digest(vector).as_str(),
            text(vector, "sha256"),
            "{}",
            text(vector, "name")
        );
    }
}

#[rstest]
#[case::exact("a.example/x", &["a.example/x"], true)]
#[case::exact_is_no_prefix("a.example/xy", &["a.example/x"], false)]
#[case::slash_is_a_prefix("a.example/xy", &["a.example/"], true)]
#[case::star_is_a_prefix("a.example/lb-size", &["a.example/lb-*"], true)]
#[case::another_prefix("b.example/lb-size", &["a.example/lb-*"], false)]
#[case::star_alone_is_all("anything", &["*"], true)]
#[case::any_of_several("b", &["a", "b"], true)]
#[case::nothing_declared("a", &[], false)]
fn a_key_counts_only_if_declared(#[case] key: &str, #[case] keys: &[&str], #[case] expected: bool) {
    assert_eq!(is_declared(key, keys.iter().copied()), expected);
}

fn of_list(items: &[String]) -> Digest {
    let mut canonical = Canonical::new();
    canonical.list(items, |canonical, item| canonical.string(item));
    canonical.finish()
}

fn of_map(entries: &[(String, String)]) -> Digest {
    let mut canonical = Canonical::new();
    canonical.map(entries.iter().map(|(key, value)| (key, value)));
    canonical.finish()
}

proptest! {
    #[test]
    fn lists_have_equal_digests_only_if_equal(
        one in prop::collection::vec("[a1:e]{0,3}", 0..4),
        two in prop::collection::vec("[a1:e]{0,3}", 0..4),
    ) {
        prop_assert_eq!(of_list(&one) == of_list(&two), one == two);
    }

    #[test]
    fn the_order_in_which_a_map_is_given_changes_nothing(entries in prop::collection::btree_map(".{0,4}", ".{0,4}", 0..6)) {
        let forward: Vec<_> = entries.into_iter().collect();
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        prop_assert_eq!(of_map(&forward), of_map(&backward));
    }
}
