use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;

use super::{is_free, legal_value, lost, owned, to_initialise};
use crate::fixtures::instance;

#[test]
fn six_labels_come_from_type_zone_and_region() {
    let keys: Vec<String> = owned(&instance("n1")).into_keys().collect();
    assert_eq!(
        keys,
        [
            "beta.kubernetes.io/instance-type",
            "failure-domain.beta.kubernetes.io/region",
            "failure-domain.beta.kubernetes.io/zone",
            "node.kubernetes.io/instance-type",
            "topology.kubernetes.io/region",
            "topology.kubernetes.io/zone",
        ]
    );
}

#[rstest]
#[case::trademark("Dell-PowerEdge\u{2122}-R660", "Dell-PowerEdge--R660")]
#[case::space("Default Group", "Default-Group")]
#[case::colons("XXX:PHX-AD-1", "XXX-PHX-AD-1")]
#[case::ends("-_x_-", "x")]
#[case::nothing_legal("::", "")]
fn label_illegal_values_are_made_legal(#[case] value: &str, #[case] wanted: &str) {
    assert_eq!(legal_value(value), wanted);
}

#[test]
fn label_illegal_length_is_cut() {
    assert_eq!(legal_value(&"a".repeat(70)).len(), 63);
}

#[rstest]
#[case::own_prefix("example.com/rack", true)]
#[case::no_prefix("rack", true)]
#[case::kubernetes("kubernetes.io/role", false)]
#[case::below_kubernetes("node.kubernetes.io/x", false)]
#[case::k8s("k8s.io/x", false)]
#[case::below_k8s("x.k8s.io/y", false)]
#[case::merely_similar("notkubernetes.io/x", true)]
#[case::no_name("example.com/", false)]
#[case::bad_name("example.com/a b", false)]
#[case::bad_prefix("Example.com/x", false)]
#[case::second_slash("a/b/c", false)]
fn a_provider_may_set(#[case] key: &str, #[case] free: bool) {
    assert_eq!(is_free(key), free);
}

#[test]
fn extra_labels_never_overwrite_and_owned_ones_do() {
    let mut instance = instance("n1");
    instance.extra_labels = BTreeMap::from([
        ("example.com/rack".to_owned(), "from cloud".to_owned()),
        ("example.com/row".to_owned(), "7".to_owned()),
    ]);
    let present = BTreeMap::from([
        ("example.com/rack".to_owned(), "users".to_owned()),
        ("topology.kubernetes.io/zone".to_owned(), "old".to_owned()),
    ]);
    let written = to_initialise(&present, &instance);
    assert_eq!(written.get("example.com/rack"), None);
    assert_eq!(written.get("example.com/row").map(String::as_str), Some("7"));
    assert_eq!(
        written.get("topology.kubernetes.io/zone").map(String::as_str),
        Some("z1")
    );
}

#[test]
fn label_lost_comes_back_and_label_move_is_left_alone() {
    let instance = instance("n1");
    let mut present = owned(&instance);
    present.remove("topology.kubernetes.io/zone");
    present.insert("topology.kubernetes.io/region".to_owned(), "elsewhere".to_owned());
    let written = lost(&present, &instance);
    assert_eq!(
        written,
        BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), "z1".to_owned())])
    );
}

proptest! {
    #[test]
    fn whatever_the_cloud_says_a_label_value_is_legal(text in ".*") {
        let value = legal_value(&text);
        let ends = |c: char| c.is_ascii_alphanumeric();
        prop_assert!(value.len() <= 63);
        prop_assert!(value.is_empty() || value.starts_with(ends) && value.ends_with(ends));
        prop_assert!(value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
        prop_assert_eq!(legal_value(&value), value);
    }
}
