use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;

use super::{EXCLUDE_LABEL, Exclusion, exclusion, explain_empty, matters, select};
use crate::cloud::{Description, KeySet, TargetKind};
use crate::fixtures::{address, description, initialised_node, node, territory};
use crate::node::view::{AddressType, ConditionStatus, NodeCondition, NodeView, Taint};

fn good() -> NodeView {
    initialised_node("n1", "10.0.0.1")
}

fn with(change: impl FnOnce(&mut NodeView)) -> NodeView {
    let mut node = good();
    change(&mut node);
    node
}

fn taint(key: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: None,
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

fn label(value: &str) -> NodeView {
    with(|node| drop(node.labels.insert(EXCLUDE_LABEL.to_owned(), value.to_owned())))
}

fn condition(kind: &str, status: ConditionStatus) -> NodeCondition {
    NodeCondition {
        kind: kind.to_owned(),
        status,
    }
}

#[rstest]
#[case::initialised(good(), None)]
#[case::cordon_does_not_matter(with(|node| node.unschedulable = true), None)]
#[case::notready_targets_stay(with(|node| node.conditions = vec![condition("Ready", ConditionStatus::Unknown)]), None)]
#[case::no_network_stays(with(|node| node.conditions = vec![condition("NetworkUnavailable", ConditionStatus::True)]), None)]
#[case::notready_added_only_when_initialised(node("n1"), Some(Exclusion::Uninitialized))]
#[case::exclude_label_true(label("true"), Some(Exclusion::Label))]
#[case::exclude_label_false(label("false"), None)]
#[case::exclude_label_empty(label(""), Some(Exclusion::Label))]
#[case::exclude_label_unparsable(label("maybe"), Some(Exclusion::Label))]
#[case::autoscaler(with(|node| node.taints = vec![taint("ToBeDeletedByClusterAutoscaler")]), Some(Exclusion::Autoscaler))]
#[case::deleting(with(|node| node.deleting = true), Some(Exclusion::Deleting))]
#[case::no_provider_id(with(|node| node.provider_id = None), Some(Exclusion::NoProviderId))]
#[case::lb_unknown_prefix(with(|node| node.provider_id = Some("aws:///eu/i-2".to_owned())), Some(Exclusion::Foreign))]
#[case::no_address(with(|node| node.addresses = vec![address(AddressType::Hostname, "n1")]), Some(Exclusion::NoAddress))]
fn a_node_is_a_target(#[case] node: NodeView, #[case] wanted: Option<Exclusion>) {
    assert_eq!(exclusion(&node, &description(), &territory()), wanted);
}

#[test]
fn a_plugin_that_targets_instances_needs_no_addresses() {
    let node = with(|node| node.addresses.clear());
    let plugin = Description {
        targets: TargetKind::Instance,
        ..description()
    };
    assert_eq!(exclusion(&node, &plugin, &territory()), None);
}

#[rstest]
#[case::heartbeat(with(|node| node.resource_version = "9".to_owned()), false)]
#[case::readiness(with(|node| node.conditions = vec![condition("Ready", ConditionStatus::False)]), false)]
#[case::undeclared_label(with(|node| drop(node.labels.insert("x".to_owned(), "y".to_owned()))), false)]
#[case::declared_label(with(|node| drop(node.labels.insert("rack".to_owned(), "y".to_owned()))), true)]
#[case::autoscaler_comes_with_the_next(with(|node| node.taints = vec![taint("ToBeDeletedByClusterAutoscaler")]), false)]
#[case::deletion_comes_with_the_next(with(|node| node.deleting = true), false)]
#[case::address(with(|node| node.addresses = vec![address(AddressType::InternalIp, "10.0.0.2")]), true)]
#[case::provider_id(with(|node| node.provider_id = Some("local://i-2".to_owned())), true)]
#[case::excluded(label("true"), true)]
#[case::tainted_again(node("n1"), true)]
fn a_change_of_a_node_reaches_the_load_balancers(#[case] new: NodeView, #[case] wanted: bool) {
    let plugin = Description {
        label_keys: KeySet(vec!["rack".to_owned()]),
        ..description()
    };
    assert_eq!(matters(Some(&good()), Some(&new), &plugin, &territory()), wanted);
}

#[test]
fn a_target_that_goes_matters_and_a_non_target_does_not() {
    assert!(matters(Some(&good()), None, &description(), &territory()));
    assert!(!matters(Some(&node("n1")), None, &description(), &territory()));
    assert!(!matters(None, Some(&node("n1")), &description(), &territory()));
}

#[test]
fn cp_only_says_why_there_is_no_target() {
    let nodes: Vec<Arc<NodeView>> = (0..3)
        .map(|_| Arc::new(label("")))
        .chain([Arc::new(node("n9"))])
        .collect();
    let selection = select(&nodes, &description(), &territory());
    assert!(selection.set.members.is_empty());
    assert_eq!(
        explain_empty(&selection),
        "of 4 nodes, 3 excluded by label node.kubernetes.io/exclude-from-external-load-balancers, 1 not yet initialised"
    );
}

proptest! {
    /// The digest depends on the members alone, in whatever order the store gives them.
    #[test]
    fn the_order_of_nodes_does_not_change_the_digest(mut names in proptest::collection::btree_set("[a-z]{1,6}", 0..8)
        .prop_map(|names| names.into_iter().collect::<Vec<_>>()).prop_shuffle()) {
        let nodes = |names: &[String]| -> Vec<Arc<NodeView>> {
            names.iter().map(|name| Arc::new(initialised_node(name, "10.0.0.1"))).collect()
        };
        let one = select(&nodes(&names), &description(), &territory()).set;
        names.sort();
        let other = select(&nodes(&names), &description(), &territory()).set;
        prop_assert_eq!(&one.digest, &other.digest);
        let fewer = select(&nodes(names.get(1..).unwrap_or_default()), &description(), &territory()).set;
        prop_assert_eq!(names.is_empty(), fewer.digest == other.digest);
    }
}
