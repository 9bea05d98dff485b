//! The vectors of `proto/SPEC.md` section 7, which `proto/vectors/check.py` computes a second time, and the laws of
//! the canonical form.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::Value;

use super::{Canonical, Digest, Record, fingerprint, is_declared};

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

/// The entries of `value[field]` that `vector[declared]` names.
fn declared(value: &Value, field: &str, vector: &Value, declared: &str) -> BTreeMap<String, String> {
    let mut entries = map(value, field);
    entries.retain(|key, _| is_declared(key, texts(vector, declared)));
    entries
}

fn node_set(vector: &Value) -> Digest {
    let mut nodes: Vec<&Value> = items(vector, "nodes").iter().collect();
    nodes.sort_by_key(|node| (text(node, "name"), text(node, "uid")));
    let mut canonical = Canonical::new();
    canonical.list(nodes, |canonical, node| {
        canonical.record(|record| write_node(record, node, vector));
    });
    canonical.finish()
}

fn of_fingerprint(vector: &Value) -> Digest {
    fingerprint(
        &Digest::received(text(vector, "spec_digest")),
        text(vector, "behaviour_digest"),
    )
}

fn write_node(record: &mut Record<'_>, node: &Value, vector: &Value) {
    record
        .string("name", text(node, "name"))
        .string("uid", text(node, "uid"))
        .map("labels", &declared(node, "labels", vector, "label_keys"))
        .string("provider_id", text(node, "provider_id"))
        .list("addresses", items(node, "addresses"), |canonical, address| {
            canonical.record(|record| {
                record
                    .integer("type", number(address, "type"))
                    .string("address", text(address, "address"));
            });
        })
        .string("zone", text(node, "zone"));
}

fn spec(vector: &Value) -> Digest {
    let spec = &vector["spec"];
    let strings = |canonical: &mut Canonical, item: &str| canonical.string(item);
    let mut canonical = Canonical::new();
    canonical.record(|record| {
        record
            .string("name", text(spec, "name"))
            .string("class", text(spec, "class"))
            .map("labels", &declared(spec, "labels", vector, "label_keys"))
            .map(
                "annotations",
                &declared(spec, "annotations", vector, "annotation_keys"),
            )
            .list("ports", items(spec, "ports"), |canonical, port| {
                canonical.record(|record| write_port(record, port));
            })
            .list("ip_families", items(spec, "ip_families"), |canonical, family| {
                canonical.integer(family.as_i64().expect("a family is a number"));
            })
            .integer("ip_family_policy", number(spec, "ip_family_policy"))
            .list("cluster_ips", texts(spec, "cluster_ips"), strings)
            .list("external_ips", texts(spec, "external_ips"), strings)
            .list("requested_addresses", texts(spec, "requested_addresses"), strings)
            .list("source_ranges", texts(spec, "source_ranges"), strings)
            .integer("session_affinity", number(spec, "session_affinity"));
        write_rest(record, spec);
    });
    canonical.finish()
}

fn write_rest(record: &mut Record<'_>, spec: &Value) {
    let timeout = spec
        .get("session_affinity_timeout")
        .map(|timeout| std::time::Duration::from_secs(timeout["seconds"].as_u64().unwrap_or_default()));
    record
        .duration("session_affinity_timeout", timeout)
        .integer("external_traffic_policy", number(spec, "external_traffic_policy"))
        .integer("internal_traffic_policy", number(spec, "internal_traffic_policy"))
        .string("traffic_distribution", text(spec, "traffic_distribution"))
        .boolean(
            "publish_not_ready_addresses",
            number(spec, "publish_not_ready_addresses") == 1,
        );
    if let Some(check) = spec.get("health_check") {
        record.record("health_check", |record| {
            record
                .integer("node_port", number(check, "node_port"))
                .string("path", text(check, "path"));
        });
    }
    record.optional_boolean(
        "allocate_node_ports",
        spec["allocate_node_ports"].as_i64().map(|value| value == 1),
    );
}

fn write_port(record: &mut Record<'_>, port: &Value) {
    record
        .string("name", text(port, "name"))
        .integer("protocol", number(port, "protocol"))
        .integer("port", number(port, "port"))
        .optional_integer("node_port", port["node_port"].as_i64())
        .string("target_port", text(port, "target_port"))
        .string("app_protocol", text(port, "app_protocol"));
}

#[rstest]
#[case::node_sets("node_sets", node_set)]
#[case::specs("specs", spec)]
#[case::fingerprints("fingerprints", of_fingerprint)]
fn digests_equal_the_vectors(#[case] group: &str, #[case] digest: fn(&Value) -> Digest) {
    let vectors = vectors(group);
    assert!(vectors.len() >= 2);
    for vector in &vectors {
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
