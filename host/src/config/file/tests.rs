use std::path::Path;

use bulkhead_core::endpoint::Endpoint;
use rstest::rstest;

use super::{HostConfiguration, schema};
use crate::config::PluginConfig;

const HEAD: &str = "apiVersion: host.bulkhead.dev/v1alpha1\nkind: HostConfiguration\n";

/// A file with the usual head, in its third line.
fn parse(rest: &str) -> Result<HostConfiguration, String> {
    HostConfiguration::parse(Path::new("f.yaml"), &format!("{HEAD}{rest}")).map_err(|error| error.to_string())
}

/// A plugin of these lines, which begin in line 5.
fn plugin(lines: &str) -> Result<PluginConfig, String> {
    let lines: Vec<String> = lines.lines().map(|line| format!("  {line}")).collect();
    let mut file = parse(&format!("plugins:\n- name: a\n{}\n", lines.join("\n")))?;
    Ok(file.plugins.remove(0).0)
}

const AT: &str = "endpoint: unix:///p.sock\n";

#[rstest]
#[case::unknown_section("clusters: {}\n", "f.yaml:3:1: clusters: unknown field `clusters`")]
#[case::unknown_field("cluster:\n  nam: x\n", "f.yaml:4:3: cluster.nam: unknown field `nam`")]
#[case::wrong_type(
    "controllers:\n  concurrentNodeSyncs: many\n",
    "f.yaml:4:24: controllers.concurrentNodeSyncs: "
)]
#[case::zero(
    "controllers:\n  concurrentNodeSyncs: 0\n",
    "f.yaml:4:3: controllers.concurrentNodeSyncs: "
)]
#[case::a_list("logging: [x]\n", "f.yaml:3:10: logging: ")]
#[case::duration("shutdownGrace: 5\n", "f.yaml:3:16: shutdownGrace: \"5\" ")]
#[case::no_span(
    "controllers:\n  nodeStatusUpdateFrequency: 0s\n",
    "f.yaml:4:30: controllers.nodeStatusUpdateFrequency: \"0s\" must be longer than 0"
)]
#[case::cidr(
    "cluster:\n  cidrs: [10.0.0.0/8, x]\n",
    "f.yaml:4:23: cluster.cidrs[1]: \"x\" is no address range"
)]
#[case::log_format("logging:\n  format: xml\n", "f.yaml:4:11: logging.format: ")]
#[case::twice("cluster: {}\ncluster: {}\n", "f.yaml:4:1: ")]
#[case::no_yaml("plugins: [\n", "f.yaml:")]
fn a_mistake_is_one_line_with_line_column_and_path(#[case] rest: &str, #[case] said: &str) {
    let error = parse(rest).unwrap_err();
    assert!(error.starts_with(said), "{error}");
    assert_eq!(
        (error.lines().count(), error.matches("line ").count()),
        (1, 0),
        "{error}"
    );
}

#[rstest]
#[case::no_name("plugins:\n- endpoint: unix:///p\n", "plugins[0]: missing field `name`")]
#[case::bad_name("plugins:\n- name: A B\n", "f.yaml:4:9: plugins[0].name: \"A B\" is no name")]
fn a_plugin_needs_a_name(#[case] rest: &str, #[case] said: &str) {
    let error = parse(rest).unwrap_err();
    assert!(error.contains(said), "{error}");
}

#[rstest]
#[case::unknown("endpoin: x", "f.yaml:5:3: plugins[0].endpoin: unknown field `endpoin`")]
#[case::endpoint(
    "endpoint: /p.sock",
    "f.yaml:5:13: plugins[0].endpoint: \"/p.sock\" is no endpoint"
)]
#[case::uid("allowedUIDs: [me]", "f.yaml:5:17: plugins[0].allowedUIDs[0]: ")]
#[case::scheme(
    "schemes: ['aws://']",
    "f.yaml:5:13: plugins[0].schemes[0]: \"aws://\" is no scheme"
)]
#[case::pattern(
    "providerIDs: [x]",
    "f.yaml:5:17: plugins[0].providerIDs[0]: \"x\" matches no provider ID"
)]
#[case::selector(
    "nodes:\n  matchLables: {}",
    "f.yaml:6:5: plugins[0].nodes.matchLables: unknown field `matchLables`"
)]
#[case::label(
    "nodes:\n  matchLabels: { a b: c }",
    "plugins[0].nodes: \"a b\" is no key of a label"
)]
#[case::a_number_as_label("nodes:\n  matchLabels: { a: [1] }", "plugins[0].nodes.matchLabels.a: ")]
#[case::operator(
    "nodes:\n  matchExpressions:\n  - { key: a, operator: in, values: [b] }",
    "plugins[0].nodes.matchExpressions[0]: operator \"in\" is none of"
)]
#[case::memory(
    "memoryLimit: lots",
    "f.yaml:5:16: plugins[0].memoryLimit: \"lots\" is no amount of memory"
)]
#[case::deadline(
    "deadlines: { write: 0s }",
    "plugins[0].deadlines.write: \"0s\" must be longer"
)]
#[case::tls_half("tls: { caFile: /c }", "plugins[0].tls: missing field `certFile`")]
#[case::nowhere("provider: x", "plugins[0]: plugin a needs one of endpoint and spawn")]
#[case::twice(
    "endpoint: unix:///p\nspawn: [x]",
    "plugins[0]: plugin a needs one of endpoint and spawn"
)]
#[case::empty_spawn("spawn: []", "plugins[0]: plugin a: spawn names no program")]
#[case::no_tls("endpoint: https://h:1", "plugins[0]: plugin a: an https endpoint needs tls")]
#[case::insecure(
    "endpoint: https://h:1\ninsecure: true",
    "plugins[0]: plugin a: insecure is for loopback"
)]
#[case::insecure_socket(
    "endpoint: unix:///p\ninsecure: true",
    "plugin a: insecure is for https endpoints only"
)]
#[case::tls_on_a_socket(
    "endpoint: unix:///p\ntls: { caFile: /c, certFile: /d, keyFile: /k }",
    "plugin a: tls is for https endpoints only"
)]
#[case::both(
    "endpoint: https://localhost:1\ninsecure: true\ntls: { caFile: /c, certFile: /d, keyFile: /k }",
    "plugin a: tls and insecure exclude each other"
)]
#[case::limit(
    "endpoint: unix:///p\nmemoryLimit: 1Mi",
    "plugin a: memoryLimit is for spawn endpoints only"
)]
#[case::uids(
    "endpoint: https://[::1]:1\ninsecure: true\nallowedUIDs: [1]",
    "plugin a: allowedUIDs is for unix and spawn"
)]
#[case::rate(
    "endpoint: unix:///p\nbudget: { ratePerSecond: 0 }",
    "plugin a: budget.ratePerSecond must be"
)]
#[case::burst(
    "endpoint: unix:///p\nbudget: { burst: 3 }",
    "plugin a: budget.burst needs budget.ratePerSecond"
)]
fn a_mistake_in_a_plugin_names_it(#[case] lines: &str, #[case] said: &str) {
    let error = plugin(lines).unwrap_err();
    assert!(error.contains(said), "{error}");
    assert!(
        error.starts_with("f.yaml:") && !error.starts_with("f.yaml:0"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[rstest]
#[case::no_head("plugins: []\n", "missing field `apiVersion`")]
#[case::another_version(
    "apiVersion: host.bulkhead.dev/v9\nkind: HostConfiguration\n",
    "f.yaml:1:13: apiVersion: "
)]
#[case::another_kind("apiVersion: host.bulkhead.dev/v1alpha1\nkind: Pod\n", "f.yaml:2:7: kind: ")]
#[case::empty("", "f.yaml:")]
fn what_is_no_host_configuration_is_refused(#[case] text: &str, #[case] said: &str) {
    let error = HostConfiguration::parse(Path::new("f.yaml"), text)
        .unwrap_err()
        .to_string();
    assert!(error.contains(said), "{error}");
}

#[test]
fn secrets_in_the_text_are_not_shown() {
    let error = parse("cluster:\n  name: hunter2\n  nam: hunter2\n").unwrap_err();
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn everything_that_a_plugin_can_say_arrives() {
    let plugin = plugin(
        "spawn: [prog, --x=1, 'a b']\nprovider: p\nallowedUIDs: [7]\nmemoryLimit: 536870912\nschemes: [aws]\n\
         providerIDs: ['aws:///eu-*']\nclasses: ['', x]\nbudget: { callsInFlight: 3, ratePerSecond: 2.5 }\n\
         deadlines: { read: 7s }\nnodes:\n  matchLabels: { a: '1' }\n  matchExpressions:\n  - { key: b, operator: Exists }",
    )
    .unwrap();
    assert_eq!(
        plugin.endpoint,
        Endpoint::Spawn {
            program: "prog".into(),
            args: vec!["--x=1".into(), "a b".into()]
        }
    );
    assert_eq!(
        (plugin.memory_limit, plugin.provider.as_deref()),
        (Some(512 << 20), Some("p"))
    );
    assert_eq!(
        (
            plugin.allowed_uids.as_slice(),
            plugin.deadlines.read.map(|it| it.as_secs())
        ),
        (&[7][..], Some(7))
    );
    let rate = plugin.budget.rate.unwrap();
    assert!((rate.per_second - 2.5).abs() < f64::EPSILON);
    assert_eq!(
        (rate.burst.get(), plugin.budget.calls_in_flight.map(usize::from)),
        (3, Some(3))
    );
    let claims = plugin.claims;
    assert_eq!(
        (
            claims.schemes.unwrap().len(),
            claims.provider_ids.len(),
            claims.classes.unwrap().len()
        ),
        (1, 1, 2)
    );
    let labels = |pairs: &[(&str, &str)]| {
        claims.nodes.matches(
            &pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        )
    };
    assert!(labels(&[("a", "1"), ("b", "")]) && !labels(&[("a", "1")]));
}

#[rstest]
#[case::socket(AT)]
#[case::loopback("endpoint: https://127.0.0.1:1\ninsecure: true\n")]
#[case::tls("endpoint: https://h:1\ntls: { caFile: /c, certFile: /d, keyFile: /k, serverName: n }\n")]
#[case::command_line("endpoint: 'spawn:prog --x'\nmemoryLimit: 1Gi\n")]
fn plugins_are_reached_in_these_ways(#[case] lines: &str) {
    assert_eq!(plugin(lines).map(|plugin| plugin.name), Ok("a".to_owned()));
}

#[test]
fn the_schema_in_the_documents_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/hostconfiguration.schema.json");
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(
        committed == schema(),
        "run `cargo xtask gen` and commit the result"
    );
}

#[test]
fn the_example_in_the_documents_is_a_configuration() {
    let page = include_str!("../../../../docs/reference/config.md");
    let example = page
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let file = HostConfiguration::parse(Path::new("example"), example).unwrap();
    let plugins: Vec<PluginConfig> = file.plugins.into_iter().map(|it| it.0).collect();
    assert_eq!(plugins.len(), 3);
    crate::config::check(&plugins).unwrap();
}
