use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_core::controllers::{Controller, Verdict};
use rstest::rstest;

use super::*;
use bulkhead_core::election::Timing;

use crate::config::{AllowedPath, CertificateSource, Cidr, ElectionConfig};
use crate::telemetry::LogFormat;

/// What `bulkhead run` makes of `args`, in a Pod.
fn run(args: &[&str]) -> Result<Config, Stop> {
    let args = ["bulkhead", "run"].iter().chain(args).map(OsString::from);
    configure(args, |name| {
        (name == "KUBERNETES_SERVICE_HOST").then(|| "10.0.0.1".to_owned())
    })
}

fn with_plugin(args: &[&str]) -> Config {
    run(&[&["--plugin=unix:///p.sock"], args].concat()).unwrap()
}

fn count(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

#[test]
fn defaults_are_upstream_s_or_better() {
    let config = with_plugin(&[]);
    assert_eq!(config.cluster_name, "kubernetes");
    assert_eq!(config.api.rate, None);
    assert_eq!(config.api.writes_in_flight, count(32));
    assert_eq!(
        config.election,
        Some(ElectionConfig {
            name: "cloud-controller-manager".into(),
            namespace: "kube-system".into(),
            timing: Timing::default(),
        })
    );
    assert_eq!(config.controllers.node_workers, count(16));
    assert_eq!(config.controllers.service_workers, count(8));
    assert_eq!(config.controllers.node_refresh, Duration::from_mins(5));
    assert!(config.controllers.routes);
    assert_eq!(
        config.controllers.selection.verdict(Controller::CloudNode),
        Verdict::On
    );
    assert_eq!(config.shutdown_grace, Duration::from_secs(25));
    let admin = config.admin.unwrap();
    assert_eq!(admin.address.to_string(), "0.0.0.0:10258");
    assert_eq!(admin.certificate, CertificateSource::Memory);
    assert!(
        admin
            .access
            .always_allow
            .contains(&AllowedPath::Exact("/livez".into()))
    );
    assert_eq!(admin.access.token_ttl, Duration::from_secs(10));
    assert_eq!((config.log.format, config.log.verbosity), (LogFormat::Text, 0));
}

#[test]
fn what_is_given_arrives() {
    let config = with_plugin(&[
        "--leader_elect_lease_duration=1m0s",
        "--leader-elect-renew-deadline",
        "40s",
        "--leader-elect-resource-name=a_b",
        "--kube-api-qps=50",
        "--controllers",
        "-service,*",
        "--plugin-allowed-uid=7",
        "--plugin-allowed-uid=8",
        "--cluster-cidr=10.0.0.0/8,fd00::/48",
        "--cloud-provider=local",
        "--configure-cloud-routes=false",
        "--concurrent-node-syncs=1",
        "--concurrent-node-syncs=2",
        "-v=4",
        "--logging-format=json",
        "--tls-cert-file=/c",
        "--tls-private-key-file=/k",
        "--cert-dir=/d",
    ]);
    let election = config.election.unwrap();
    assert_eq!(election.timing.lease_duration(), Duration::from_mins(1));
    assert_eq!(election.timing.renew_deadline(), Duration::from_secs(40));
    assert_eq!(election.name, "a_b");
    assert!((config.api.rate.unwrap().per_second - 50.0).abs() < f64::EPSILON);
    assert_eq!(
        config.controllers.selection.verdict(Controller::ServiceLb),
        Verdict::Deselected
    );
    assert_eq!(config.plugins[0].allowed_uids, [7, 8]);
    assert_eq!(config.plugins[0].provider.as_deref(), Some("local"));
    assert_eq!(
        config.controllers.cluster_cidrs[1],
        Cidr {
            address: "fd00::".parse().unwrap(),
            prefix: 48
        }
    );
    assert!(!config.controllers.routes);
    assert_eq!(
        config.controllers.node_workers,
        count(2),
        "the last one counts, as in Go"
    );
    assert_eq!((config.log.format, config.log.verbosity), (LogFormat::Json, 4));
    assert_eq!(
        config.admin.unwrap().certificate,
        CertificateSource::Files {
            certificate: "/c".into(),
            key: "/k".into()
        }
    );
}

#[rstest]
#[case::alone(&["--leader-elect"], true)]
#[case::with_value(&["--leader-elect=false"], false)]
#[case::go_spelling(&["--leader-elect=F"], false)]
#[case::the_last_counts(&["--leader-elect=false", "--leader-elect"], true)]
fn booleans_need_no_value(#[case] args: &[&str], #[case] elects: bool) {
    assert_eq!(with_plugin(args).election.is_some(), elects);
}

#[rstest]
#[case::upstream(&[], Some("0.0.0.0:10258"))]
#[case::another(&["--secure-port=1", "--bind-address=::1"], Some("[::1]:1"))]
#[case::none(&["--secure-port=0"], None)]
#[case::none_with_a_file(&["--secure-port=0", "--secure-port-file=/f"], None)]
#[case::a_free_one(&["--secure-port-file=/f"], Some("0.0.0.0:0"))]
#[case::a_given_one_and_a_file(&["--secure-port-file=/f", "--secure-port=7"], Some("0.0.0.0:7"))]
fn the_port_is_given_free_or_none(#[case] args: &[&str], #[case] address: Option<&str>) {
    let admin = with_plugin(args).admin;
    assert_eq!(admin.map(|admin| admin.address.to_string()).as_deref(), address);
}

#[rstest]
#[case::unknown_flag(&["--bogus"], &["--bogus"])]
#[case::a_near_miss(&["--controller=x"], &["--controller", "--controllers"])]
#[case::stray_word(&["stray"], &["stray"])]
#[case::bad_duration(&["--shutdown-grace=5x"], &["--shutdown-grace", "5x", "unit"])]
#[case::bad_number(&["--concurrent-node-syncs=0"], &["--concurrent-node-syncs", "'0'"])]
#[case::bad_boolean(&["--leader-elect=maybe"], &["--leader-elect", "maybe"])]
#[case::bad_lock(&["--leader-elect-resource-lock=endpoints"], &["--leader-elect-resource-lock", "leases"])]
#[case::bad_controller(&["--controllers=bogus"], &["--controllers", "\"bogus\"", "service-lb-controller"])]
#[case::unbuilt_controller(&["--controllers=*,route"], &["--controllers", "node-route-controller", "not built"])]
#[case::half_a_pair(&["--tls-cert-file=/c"], &["--tls-private-key-file"])]
#[case::lease_shorter(&["--leader-elect-lease-duration=5s"], &["--leader-elect-renew-deadline"])]
#[case::lease_in_fractions(&["--leader-elect-lease-duration=15500ms"], &["--leader-elect-lease-duration", "whole"])]
#[case::retry_too_long(&["--leader-elect-retry-period=9s"], &["--leader-elect-retry-period"])]
#[case::two_ranges_of_a_family(&["--cluster-cidr=10.0.0.0/8,11.0.0.0/8"], &["--cluster-cidr", "family"])]
#[case::missing_kubeconfig(&["--kubeconfig=/nowhere/k"], &["--kubeconfig /nowhere/k"])]
#[case::missing_review_kubeconfig(&["--authorization-kubeconfig=/nowhere/k"], &["--authorization-kubeconfig /nowhere/k"])]
#[case::bad_path(&["--authorization-always-allow-paths=x"], &["--authorization-always-allow-paths", "begins with /"])]
#[case::bad_port(&["--secure-port=70000"], &["--secure-port", "70000"])]
fn a_mistake_is_one_line_that_names_it(#[case] args: &[&str], #[case] named: &[&str]) {
    let stop = run(&[&["--plugin=unix:///p.sock"], args].concat()).unwrap_err();
    assert_eq!(stop.exit, Exit::Usage);
    assert_eq!(stop.text.lines().count(), 1, "{}", stop.text);
    for part in named {
        assert!(stop.text.contains(part), "no {part:?} in {:?}", stop.text);
    }
}

#[rstest]
#[case::missing(&[], "--plugin <ENDPOINT>")]
#[case::neither_form(&["--plugin=/run/x.sock"], "is no endpoint")]
#[case::relative(&["--plugin=unix://x.sock"], "relative")]
fn a_plugin_must_be_named(#[case] args: &[&str], #[case] part: &str) {
    let stop = run(args).unwrap_err();
    assert!(
        stop.exit == Exit::Usage && stop.text.contains(part),
        "{}",
        stop.text
    );
    assert_eq!(stop.text.lines().count(), 1, "{}", stop.text);
}

#[test]
fn a_broken_kubeconfig_is_named_with_its_fault() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "clusters: 7").unwrap();
    let path = file.path().to_str().unwrap();
    let stop = run(&["--plugin=unix:///p.sock", "--kubeconfig", path]).unwrap_err();
    assert!(
        stop.exit == Exit::Usage && stop.text.contains(path),
        "{}",
        stop.text
    );
    assert_eq!(stop.text.lines().count(), 1, "{}", stop.text);
}

#[test]
fn outside_of_a_pod_a_kubeconfig_or_master_is_needed() {
    let args = |more: &[&str]| -> Vec<OsString> {
        ["bulkhead", "run", "--plugin=unix:///p"]
            .iter()
            .chain(more)
            .map(OsString::from)
            .collect()
    };
    let stop = configure(args(&[]), |_| None).unwrap_err();
    assert!(stop.text.contains("--kubeconfig"), "{}", stop.text);
    let config = configure(args(&["--master=http://127.0.0.1:1"]), |_| None).unwrap();
    assert_eq!(config.api.kubeconfig, None::<PathBuf>);
}

#[rstest]
#[case::of_the_program(&["--help"], "run")]
#[case::of_run(&["run", "--help"], "--leader-elect-lease-duration")]
#[case::with_exit_codes(&["run", "--help"], "Exit codes:")]
#[case::version(&["--version"], env!("CARGO_PKG_VERSION"))]
#[case::version_of_run(&["run", "--version"], env!("CARGO_PKG_VERSION"))]
fn help_and_version_are_no_failure(#[case] args: &[&str], #[case] part: &str) {
    let args = ["bulkhead"].iter().chain(args).map(OsString::from);
    let stop = configure(args, |_| None).unwrap_err();
    assert!(
        stop.exit == Exit::Done && stop.text.contains(part),
        "{}",
        stop.text
    );
}

#[test]
fn the_command_line_is_consistent() {
    command().debug_assert();
}

/// A configuration file of these lines, which begin in its third.
fn file_of(lines: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let head = "apiVersion: host.bulkhead.dev/v1alpha1\nkind: HostConfiguration\n";
    std::fs::write(file.path(), format!("{head}{lines}")).unwrap();
    file
}

/// What `bulkhead run` makes of such a file, and of `args`.
fn with_file(lines: &str, args: &[&str]) -> Result<Config, Stop> {
    let file = file_of(lines);
    let flag = format!("--config={}", file.path().display());
    run(&[&[flag.as_str()], args].concat())
}

const WHOLE_FILE: &str = r"
plugins:
- name: a
  endpoint: unix:///a
pluginsDirectory: /plugins
clientConnection: { master: 'https://m:1', qps: 7, burst: 9, maxWritesInFlight: 3 }
cluster: { name: c, id: i, cidrs: [10.0.0.0/8] }
controllers:
  enabled: [service]
  concurrentNodeSyncs: 5
  concurrentServiceSyncs: 6
  nodeStatusUpdateFrequency: 1m
  configureCloudRoutes: false
leaderElection:
  leaseDuration: 30s
  renewDeadline: 20s
  retryPeriod: 4s
  resourceName: n
  resourceNamespace: ns
serving: { bindAddress: 127.0.0.1, port: 77, portFile: /f, certDir: /d }
access: { tokenTTL: 1s, authorizedTTL: 2s, unauthorizedTTL: 3s, alwaysAllowPaths: [/x] }
logging: { format: json, verbosity: 2 }
shutdownGrace: 9s
";

#[test]
fn everything_in_the_file_arrives() {
    let config = with_file(WHOLE_FILE, &[]).unwrap();
    assert_eq!(config.plugins[0].name, "a");
    assert_eq!(config.plugins_directory, Some("/plugins".into()));
    assert_eq!(config.api.master.unwrap().host(), Some("m"));
    assert_eq!(
        (config.api.rate.unwrap().burst, config.api.writes_in_flight),
        (count(9), count(3))
    );
    assert_eq!(
        (config.cluster_name.as_str(), config.cluster_id.as_deref()),
        ("c", Some("i"))
    );
    let controllers = config.controllers;
    assert_eq!(
        controllers.selection.verdict(Controller::CloudNode),
        Verdict::Deselected
    );
    assert_eq!(
        (controllers.node_workers, controllers.service_workers),
        (count(5), count(6))
    );
    assert_eq!(
        (controllers.node_refresh, controllers.routes),
        (Duration::from_mins(1), false)
    );
    assert_eq!(controllers.cluster_cidrs.len(), 1);
    let election = config.election.unwrap();
    assert_eq!((election.name.as_str(), election.namespace.as_str()), ("n", "ns"));
    assert_eq!(election.timing.lease_duration(), Duration::from_secs(30));
    let admin = config.admin.unwrap();
    assert_eq!(
        (admin.address.to_string().as_str(), admin.port_file),
        ("127.0.0.1:77", Some("/f".into()))
    );
    assert_eq!(admin.certificate, CertificateSource::Folder("/d".into()));
    assert_eq!(admin.access.token_ttl, Duration::from_secs(1));
    assert_eq!(admin.access.always_allow, [AllowedPath::Exact("/x".into())]);
    assert_eq!((config.log.format, config.log.verbosity), (LogFormat::Json, 2));
    assert_eq!(config.shutdown_grace, Duration::from_secs(9));
}

#[test]
fn a_flag_that_is_given_wins_over_the_file_also_with_its_default() {
    let config = with_file(
        WHOLE_FILE,
        &[
            "--plugin=unix:///p",
            "--cloud-provider=p",
            "--plugins-directory=/q",
            "--kube_api_qps=0",
            "--cluster-name=kubernetes",
            "--controllers=*",
            "--concurrent-node-syncs=16",
            "--leader-elect-resource-name=x",
            "--secure-port=10258",
            "--tls-cert-file=/c",
            "--tls-private-key-file=/k",
            "-v=0",
            "--shutdown-grace=25s",
        ],
    )
    .unwrap();
    let names: Vec<&str> = config.plugins.iter().map(|it| it.name.as_str()).collect();
    assert_eq!((names, config.plugins_directory), (vec!["p"], Some("/q".into())));
    assert_eq!(
        (config.api.rate, config.cluster_name.as_str()),
        (None, "kubernetes")
    );
    assert_eq!(
        config.controllers.selection.verdict(Controller::CloudNode),
        Verdict::On
    );
    assert_eq!(config.controllers.node_workers, count(16));
    let election = config.election.unwrap();
    assert_eq!((election.name.as_str(), election.namespace.as_str()), ("x", "ns"));
    let admin = config.admin.unwrap();
    assert_eq!(admin.address.port(), 10258);
    assert!(matches!(admin.certificate, CertificateSource::Files { .. }));
    assert_eq!(
        (config.log.verbosity, config.shutdown_grace),
        (0, Duration::from_secs(25))
    );
}

#[rstest]
#[case::no_plugin("", &["no plugin: give --plugin"])]
#[case::one_name(
    "plugins: [{ name: a, endpoint: 'unix:///a' }, { name: a, endpoint: 'unix:///b' }]\n",
    &["plugins[0] and plugins[1] are both named a"]
)]
#[case::overlap(
    "plugins: [{ name: a, endpoint: 'unix:///a' }, { name: b, endpoint: 'unix:///b' }]\n",
    &["plugins a and b both select a new node without labels"]
)]
#[case::durations(
    "plugins: [{ name: a, endpoint: 'unix:///a' }]\nleaderElection: { leaseDuration: 5s }\n",
    &["--leader-elect-renew-deadline"]
)]
#[case::form("plugins: [{ name: a, endpoint: x }]\n", &[":3:32: plugins[0].endpoint: \"x\" is no endpoint"])]
fn a_mistake_in_the_file_is_one_line_that_names_the_file(#[case] lines: &str, #[case] parts: &[&str]) {
    let stop = with_file(lines, &[]).unwrap_err();
    assert_eq!(
        (stop.exit, stop.text.lines().count()),
        (Exit::Usage, 1),
        "{}",
        stop.text
    );
    for part in parts.iter().chain(&["/tmp"]) {
        assert!(stop.text.contains(part), "no {part:?} in {:?}", stop.text);
    }
}

#[rstest]
#[case::missing_file(&["--config=/nowhere/f"], "--config /nowhere/f: No such file")]
#[case::provider_without_plugin(&["--plugins-directory=/d", "--cloud-provider=x"], "--plugin <ENDPOINT>")]
#[case::https(&["--plugin=https://localhost:1"], "takes no https:// endpoint")]
#[case::no_name(&["--plugin=unix:///p", "--cloud-provider=A"], "is no name")]
fn flags_and_file_must_fit(#[case] args: &[&str], #[case] part: &str) {
    let stop = run(args).unwrap_err();
    assert!(
        stop.exit == Exit::Usage && stop.text.contains(part),
        "{}",
        stop.text
    );
}

#[test]
fn a_plugins_directory_alone_is_enough() {
    let config = run(&["--plugins-directory=/d"]).unwrap();
    assert_eq!(
        (config.plugins.len(), config.plugins_directory),
        (0, Some("/d".into()))
    );
}

#[test]
fn the_schema_is_printed() {
    let stop = configure(["bulkhead", "schema"].map(OsString::from), |_| None).unwrap_err();
    assert_eq!(stop.exit, Exit::Done);
    assert!(stop.text.contains("\"HostConfiguration\"") && stop.text.contains("matchLabels"));
}

#[test]
fn status_without_a_host_is_one_line_and_a_failure() {
    let args = [
        "bulkhead",
        "status",
        "--admin_socket=/nowhere/admin.sock",
        "-o",
        "json",
    ];
    let stop = configure(args.map(OsString::from), |_| None).unwrap_err();
    assert_eq!(stop.exit, Exit::Failure);
    assert!(
        stop.text
            .starts_with("bulkhead: no host at /nowhere/admin.sock: "),
        "{}",
        stop.text
    );
    assert_eq!(stop.text.lines().count(), 1);
}

#[test]
fn the_form_of_a_status_is_checked() {
    let args = ["bulkhead", "status", "-o", "yaml"];
    let stop = configure(args.map(OsString::from), |_| None).unwrap_err();
    assert_eq!(stop.exit, Exit::Usage);
    assert!(stop.text.contains("table, json"), "{}", stop.text);
}

#[test]
fn the_admin_socket_is_where_the_user_says() {
    let config = with_plugin(&["--admin-socket=/run/x/a.sock"]);
    assert!(config.admin_socket.is_given());
    assert_eq!(config.admin_socket.places(), [PathBuf::from("/run/x/a.sock")]);
    assert!(!with_plugin(&[]).admin_socket.is_given());
}
