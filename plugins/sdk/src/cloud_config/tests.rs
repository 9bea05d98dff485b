use std::collections::BTreeMap;

use rstest::rstest;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Config {
    global: Global,
    #[serde(default)]
    service_override: BTreeMap<String, Override>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Global {
    zone: String,
    #[serde(default)]
    disable_strict_check: bool,
    retries: Option<u32>,
    #[serde(default)]
    node_tags: Vec<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Override {
    service: String,
    url: String,
}

fn read(name: &str, text: &str) -> Result<Config, CloudConfigError> {
    parse(Path::new(name), text)
}

const INI: &str = r#"
# an old friend
[Global]
Zone = "eu-1 ; a" ; the zone
DisableStrictCheck
retries=3
node-tags = one
node-tags = two # another

[ServiceOverride "1"]
Service = s3
URL = https://s3.example:8443/?a=b
[ServiceOverride "2"]
Service = ec2
URL = https://ec2.example
"#;

#[test]
fn ini_with_sections_names_lists_quotes_and_comments_is_read() {
    let config = read("cloud.conf", INI).expect("legal");
    assert_eq!(config.global.zone, "eu-1 ; a");
    assert!(config.global.disable_strict_check);
    assert_eq!(config.global.retries, Some(3));
    assert_eq!(config.global.node_tags, ["one", "two"]);
    assert_eq!(config.service_override["1"].url, "https://s3.example:8443/?a=b");
    assert_eq!(config.service_override["2"].service, "ec2");
}

#[test]
fn yaml_is_read_into_the_same_type() {
    let yaml = "global:\n  zone: eu-1\n  retries: 3\n";
    let config = read("cloud.yaml", yaml).expect("legal");
    assert_eq!(
        config,
        read("cloud.ini", "[global]\nzone=eu-1\nretries=3\n").expect("legal")
    );
}

#[rstest]
#[case::by_ending("a.yaml", "[Global]", Form::Yaml)]
#[case::by_other_ending("a.ini", "global: {}", Form::Ini)]
#[case::by_first_line("a.conf", "; c\n\n[Global]\nzone=1", Form::Ini)]
#[case::by_first_line_with_a_name("a", "[ServiceOverride \"1\"]", Form::Ini)]
#[case::yaml_without_ending("cloud-config", "# c\nglobal:\n", Form::Yaml)]
#[case::yaml_flow_list("cloud-config", "[1, 2]", Form::Yaml)]
#[case::empty("cloud-config", "", Form::Yaml)]
fn the_form_is_found(#[case] name: &str, #[case] text: &str, #[case] want: Form) {
    assert_eq!(Form::of(Path::new(name), text), want);
}

#[rstest]
#[case::no_section("Zone = 1", "line 1: this key belongs to no section")]
#[case::broken_header("[Global", "line 1: a section is written")]
#[case::no_assignment("[Global]\nwhat is this", "line 2: this is no key = value")]
#[case::open_quote("[Global]\n\nzone = \"a", "line 3: the quotes")]
#[case::bad_escape("[Global]\nzone = a\\qb", "line 2: only")]
#[case::wrong_type(
    "[Global]\nzone = a\nretries = s3cr3t",
    "line 3: retries must be a whole number from 0"
)]
#[case::wrong_bool(
    "[Global]\nzone = a\ndisable-strict-check = s3cr3t",
    "line 3: disable-strict-check must be true or false"
)]
#[case::missing("[Global]\nretries = 1", "line 1, section \"Global\": missing field `zone`")]
#[case::unknown(
    "\n[Global]\nzone = a\nzome = s3cr3t",
    "line 2, section \"Global\": unknown field `zome`"
)]
#[case::a_section_for_a_value("[Global \"zone\"]\na = 1", "line 1: zone must be text")]
fn what_is_wrong_is_named_with_file_and_line(#[case] text: &str, #[case] want: &str) {
    let error = read("/etc/cloud.ini", text).expect_err("illegal").to_string();
    assert!(error.contains("/etc/cloud.ini"), "{error}");
    assert!(error.contains(want), "{error}");
    assert!(!error.contains("s3cr3t"), "values stay out of errors: {error}");
}

#[test]
fn wrong_yaml_is_named_with_its_line_and_without_its_text() {
    let yaml = "global:\n  zone: eu-1\n  retries: many\n  password: s3cr3t\n";
    let error = read("/etc/cloud.yaml", yaml).expect_err("illegal");
    let text = error.to_string();
    assert!(matches!(error, CloudConfigError::Yaml { line: 3, .. }), "{text}");
    assert!(!text.contains("s3cr3t"), "{text}");
}

#[test]
fn a_missing_file_is_named() {
    let error = load::<Config>(Path::new("/nowhere/cloud.conf")).expect_err("missing");
    assert!(error.to_string().contains("/nowhere/cloud.conf"), "{error}");
}
