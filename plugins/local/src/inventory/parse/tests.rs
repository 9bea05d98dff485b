use rstest::rstest;

use super::*;

const FULL: &str = "
instances:
  - id: i-1
    name: node-1
    addresses:
      - 10.0.0.1
      - {type: ExternalIP, address: 192.0.2.1}
      - {type: Hostname, address: node-1}
      - fd00::1
    instanceType: small
    zone: west-a
    region: west
    power: stopped
    labels: {rack: r1}
  - {id: i-2, name: node-2}
";

#[test]
fn every_field_is_read() {
    let inventory = parse(FULL).unwrap();
    let address = |kind, value: &str| Address {
        kind,
        value: value.to_owned(),
    };
    let want = Instance {
        id: "i-1".to_owned(),
        name: "node-1".to_owned(),
        addresses: vec![
            address(AddressKind::InternalIP, "10.0.0.1"),
            address(AddressKind::ExternalIP, "192.0.2.1"),
            address(AddressKind::Hostname, "node-1"),
            address(AddressKind::InternalIP, "fd00::1"),
        ],
        instance_type: "small".to_owned(),
        zone: "west-a".to_owned(),
        region: "west".to_owned(),
        power: Power::Stopped,
        labels: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
    };
    assert_eq!(inventory.by_id("i-1"), Some(&want));
    assert_eq!(inventory.by_id("i-2").unwrap().power, Power::Running);
    assert_eq!(inventory.len(), 2);
}

#[test]
fn json_is_read_too() {
    let text = r#"{"instances": [{"id": "i-1", "name": "n", "addresses": ["10.0.0.1", {"type": "ExternalIP", "address": "192.0.2.1"}]}]}"#;
    assert_eq!(parse(text).unwrap().by_id("i-1").unwrap().addresses.len(), 2);
}

#[test]
fn an_empty_list_is_a_valid_inventory_and_an_empty_file_is_not() {
    assert!(parse("instances: []").unwrap().is_empty());
    assert!(matches!(parse(""), Err(ParseError::Syntax(_))));
}

#[rstest]
#[case::duplicate_id(
    "instances:\n- {id: i-1, name: a}\n- {id: i-1, name: b}\n",
    "line 3: id \"i-1\" is already that of the instance in line 2"
)]
#[case::duplicate_name_in_another_case(
    "instances:\n- {id: i-1, name: pool-a}\n- {id: i-2, name: Pool-A}\n",
    "line 3: name \"Pool-A\" is already that of the instance in line 2"
)]
#[case::duplicate_address(
    "instances:\n- {id: i-1, name: a, addresses: [10.0.0.1]}\n- id: i-2\n  name: b\n  addresses:\n  - {type: ExternalIP, address: 10.0.0.1}\n",
    "line 6: address \"10.0.0.1\" is already that of the instance in line 2"
)]
#[case::address_listed_twice(
    "instances:\n- {id: i-1, name: a, addresses: [10.0.0.1, 10.0.0.1]}\n",
    "line 2: address \"10.0.0.1\" is listed twice"
)]
#[case::not_an_ip(
    "instances:\n- {id: i-1, name: a, addresses: [node-a]}\n",
    "line 2: address \"node-a\" is not an IP address"
)]
#[case::not_a_host_name(
    "instances:\n- {id: i-1, name: a, addresses: [{type: Hostname, address: a_b}]}\n",
    "line 2: address \"a_b\" is not a DNS name"
)]
#[case::id_with_a_slash(
    "instances:\n- {id: a/b, name: a}\n",
    "line 2: id \"a/b\" is not 1 to 253 of the characters A-Z a-z 0-9 . _ -"
)]
#[case::empty_name(
    "instances:\n- {id: i-1, name: ''}\n",
    "line 2: name \"\" is not a node name (letters, digits, '-' and '.', at most 253)"
)]
fn refuses(#[case] text: &str, #[case] message: &str) {
    assert_eq!(parse(text).unwrap_err().to_string(), message);
}

#[rstest]
#[case::no_id("instances:\n- name: a\n", &["id", "line 2"])]
#[case::unknown_field("instances:\n- id: i-1\n  name: a\n  zoen: west\n", &["zoen", "line 4"])]
#[case::unknown_top_field("instances: []\nnodes: []\n", &["nodes", "line 2"])]
#[case::unknown_power("instances:\n- id: i-1\n  name: a\n  power: on-fire\n", &["on-fire", "line 4"])]
#[case::unknown_address_type(
    "instances:\n- id: i-1\n  name: a\n  addresses:\n  - {type: PublicIP, address: 10.0.0.1}\n", &["PublicIP", "line 5"]
)]
#[case::field_twice("instances:\n- id: i-1\n  id: i-2\n  name: a\n", &["id", "line 3"])]
#[case::not_yaml("instances: [\n", &["line"])]
fn syntax_errors_name_line_and_field(#[case] text: &str, #[case] parts: &[&str]) {
    let message = parse(text).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}
