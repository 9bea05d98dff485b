use rstest::rstest;

use super::{AddressError, PROVIDED_NODE_IP, desired};
use crate::cloud::AddressSource;
use crate::fixtures::{address, instance, node};
use crate::node::view::{AddressType, NodeAddress};

/// `I:10.0.0.1 E:1.2.3.4 H:name` as addresses.
fn list(text: &str) -> Vec<NodeAddress> {
    text.split_whitespace()
        .map(|entry| {
            let (kind, value) = entry.split_once('=').unwrap();
            let kind = match kind {
                "I" => AddressType::InternalIp,
                "E" => AddressType::ExternalIp,
                "H" => AddressType::Hostname,
                "ID" => AddressType::InternalDns,
                "ED" => AddressType::ExternalDns,
                other => panic!("no such type: {other}"),
            };
            address(kind, value)
        })
        .collect()
}

#[rstest]
#[case::cloud_order_is_kept("I=10.0.0.1 E=1.2.3.4 H=vm", None, "I=10.0.0.1 E=1.2.3.4 H=vm")]
#[case::own_hostname_is_kept_where_the_cloud_has_none("I=10.0.0.1", None, "I=10.0.0.1 H=n1")]
#[case::repeats_go("I=10.0.0.1 I=10.0.0.1 H=vm", None, "I=10.0.0.1 H=vm")]
#[case::same_text_of_two_types_stays("I=10.0.0.1 E=10.0.0.1 H=vm", None, "I=10.0.0.1 E=10.0.0.1 H=vm")]
#[case::dual_stack_keeps_both("I=10.0.0.1 I=fd00::1 H=vm", None, "I=10.0.0.1 I=fd00::1 H=vm")]
#[case::pin_drops_others_of_its_type(
    "I=10.0.0.1 I=10.0.0.2 E=1.2.3.4 H=vm",
    Some("10.0.0.2"),
    "I=10.0.0.2 E=1.2.3.4 H=vm"
)]
#[case::pin_of_one_family_drops_the_other("I=10.0.0.1 I=fd00::1 H=vm", Some("10.0.0.1"), "I=10.0.0.1 H=vm")]
#[case::pin_of_both_keeps_both_in_asked_order(
    "I=10.0.0.1 I=fd00::1 H=vm",
    Some("fd00::1,10.0.0.1"),
    "I=fd00::1 I=10.0.0.1 H=vm"
)]
#[case::pin_of_two_types_drops_the_rest_of_both(
    "I=10.0.0.1 I=10.0.0.2 E=1.2.3.4 E=fd00::2 H=vm",
    Some("10.0.0.1,fd00::2"),
    "I=10.0.0.1 E=fd00::2 H=vm"
)]
#[case::pin_compares_addresses_not_spellings(
    "I=fd00:0:0::1 I=10.0.0.1 H=vm",
    Some("fd00::1"),
    "I=fd00:0:0::1 H=vm"
)]
#[case::pin_matching_two_types_pins_both(
    "I=1.2.3.4 E=1.2.3.4 E=5.6.7.8 H=vm",
    Some("1.2.3.4"),
    "I=1.2.3.4 E=1.2.3.4 H=vm"
)]
#[case::names_survive_a_pin(
    "I=10.0.0.1 ID=a.internal ED=a.example H=vm",
    Some("10.0.0.1"),
    "I=10.0.0.1 ID=a.internal ED=a.example H=vm"
)]
fn a_node_shows(#[case] cloud: &str, #[case] annotation: Option<&str>, #[case] wanted: &str) {
    let mut node = node("n1");
    if let Some(value) = annotation {
        node.annotations
            .insert(PROVIDED_NODE_IP.to_owned(), value.to_owned());
    }
    let mut instance = instance("n1");
    instance.addresses = list(cloud);
    assert_eq!(desired(&node, &instance), Ok(Some(list(wanted))));
}

#[rstest]
#[case::white_space("10.0.0.1, fd00::1")]
#[case::same_family_twice("10.0.0.1,10.0.0.2")]
#[case::three("10.0.0.1,fd00::1,10.0.0.2")]
#[case::unspecified_in_a_pair("0.0.0.0,fd00::1")]
#[case::a_name("n1")]
#[case::empty("")]
fn an_annotation_that_makes_no_sense_is_an_error(#[case] value: &str) {
    let mut node = node("n1");
    node.annotations
        .insert(PROVIDED_NODE_IP.to_owned(), value.to_owned());
    assert_eq!(
        desired(&node, &instance("n1")),
        Err(AddressError::Annotation {
            value: value.to_owned()
        })
    );
}

#[test]
fn provided_ip_that_the_cloud_does_not_know_is_an_error_that_names_both_sides() {
    let mut node = node("n1");
    node.annotations
        .insert(PROVIDED_NODE_IP.to_owned(), "172.25.100.3".to_owned());
    let mut instance = instance("n1");
    instance.addresses = list("I=10.0.0.5");
    let text = desired(&node, &instance).unwrap_err().to_string();
    assert!(
        text.contains("172.25.100.3") && text.contains("10.0.0.5"),
        "{text}"
    );
}

#[test]
fn addr_lost_an_empty_list_never_replaces_a_good_one() {
    let mut instance = instance("n1");
    instance.addresses.clear();
    assert_eq!(desired(&node("n1"), &instance), Err(AddressError::Empty));
}

#[test]
fn a_provider_without_a_say_leaves_the_kubelets_addresses() {
    let mut instance = instance("n1");
    instance.address_source = AddressSource::Node;
    instance.addresses.clear();
    assert_eq!(desired(&node("n1"), &instance), Ok(None));
}
