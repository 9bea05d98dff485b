use std::ffi::OsString;
use std::time::Duration;

use rstest::rstest;

use super::{Change, changes};
use crate::cli::configure;
use crate::config::Config;

/// A configuration of a file with these lines.
fn config(lines: &str) -> Config {
    let file = tempfile::NamedTempFile::new().unwrap();
    let head = "apiVersion: host.bulkhead.dev/v1alpha1\nkind: HostConfiguration\n";
    std::fs::write(file.path(), format!("{head}{lines}")).unwrap();
    let args = ["bulkhead", "run", "--master=http://127.0.0.1:1", "--config"].map(OsString::from);
    configure(args.into_iter().chain([file.path().into()]), |_| None).unwrap()
}

const ONE: &str = "plugins:\n- name: a\n  endpoint: unix:///a\n";

/// [`ONE`] with more about the plugin.
fn one(more: &str) -> String {
    format!("{ONE}  {more}\n")
}

#[rstest]
#[case::nothing(ONE.to_owned(), &[])]
#[case::claims(one("schemes: [x]"), &["plugin a changes: schemes"])]
#[case::patterns(one("providerIDs: ['x://*']"), &["plugin a changes: providerIDs"])]
#[case::nodes(one("nodes: { matchLabels: { a: b } }"), &["plugin a changes: nodes"])]
#[case::classes(one("classes: ['']"), &["plugin a changes: classes"])]
#[case::budget(one("budget: { callsInFlight: 1 }"), &["plugin a changes: budget (a new session begins)"])]
#[case::deadlines(one("deadlines: { read: 1s }"), &["plugin a changes: deadlines (a new session begins)"])]
#[case::provider(one("provider: x"), &["plugin a changes: provider (a new session begins)"])]
#[case::uids(one("allowedUIDs: [1]"), &["plugin a changes: allowedUIDs (a new session begins)"])]
#[case::endpoint(
    "plugins:\n- name: a\n  spawn: [x]\n  memoryLimit: 1Mi\n".to_owned(),
    &["plugin a changes: endpoint, memoryLimit (a new session begins)"]
)]
#[case::another(
    "plugins:\n- name: b\n  endpoint: unix:///a\n".to_owned(),
    &["plugin a is removed: what it owned is left alone", "plugin b is added"]
)]
#[case::directory(format!("{ONE}pluginsDirectory: /d\n"), &["pluginsDirectory changes"])]
#[case::refresh(
    format!("{ONE}controllers: {{ nodeStatusUpdateFrequency: 1m }}\n"),
    &["controllers.nodeStatusUpdateFrequency is now 60s"]
)]
#[case::verbosity(format!("{ONE}logging: {{ verbosity: 3 }}\n"), &["logging.verbosity is now 3"])]
fn what_can_change_changes(#[case] lines: String, #[case] said: &[&str]) {
    let new = config(&lines);
    let reload = changes(&config(ONE), &new);
    let texts: Vec<String> = reload.apply.iter().map(ToString::to_string).collect();
    assert_eq!(texts, said);
    assert_eq!(reload.refused, [""; 0]);
    // Nothing is left to change then.
    let again = changes(&reload.config, &new);
    assert_eq!(
        (again.apply.as_slice(), again.refused.as_slice()),
        (&[][..], &[][..])
    );
}

#[rstest]
#[case::client("clientConnection: { qps: 5 }", "clientConnection")]
#[case::name("cluster: { name: x }", "cluster.name")]
#[case::id("cluster: { id: x }", "cluster.id")]
#[case::cidrs("cluster: { cidrs: [10.0.0.0/8] }", "cluster.cidrs")]
#[case::controllers("controllers: { enabled: [service] }", "controllers.enabled")]
#[case::node_workers("controllers: { concurrentNodeSyncs: 1 }", "controllers.concurrentNodeSyncs")]
#[case::service_workers(
    "controllers: { concurrentServiceSyncs: 1 }",
    "controllers.concurrentServiceSyncs"
)]
#[case::routes(
    "controllers: { configureCloudRoutes: false }",
    "controllers.configureCloudRoutes"
)]
#[case::election("leaderElection: { resourceName: x }", "leaderElection")]
#[case::serving("serving: { certDir: /d }", "serving")]
#[case::access("access: { tokenTTL: 1s }", "access")]
#[case::format("logging: { format: json }", "logging.format")]
#[case::grace("shutdownGrace: 1s", "shutdownGrace")]
fn what_cannot_change_is_named_and_stays(#[case] line: &str, #[case] field: &str) {
    let old = config(ONE);
    let reload = changes(&old, &config(&format!("{ONE}{line}\n")));
    assert_eq!(
        (reload.apply.as_slice(), reload.refused.as_slice()),
        (&[][..], &[field][..])
    );
    assert_eq!(reload.config, old);
}

#[test]
fn what_can_change_does_so_although_something_else_cannot() {
    let new = format!("{ONE}cluster: {{ name: x }}\ncontrollers: {{ nodeStatusUpdateFrequency: 1m }}\n");
    let reload = changes(&config(ONE), &config(&new));
    assert_eq!(reload.apply, [Change::NodeRefresh(Duration::from_mins(1))]);
    assert_eq!(reload.refused, ["cluster.name"]);
    assert_eq!(reload.config.cluster_name, "kubernetes");
    assert_eq!(reload.config.controllers.node_refresh, Duration::from_mins(1));
}

#[test]
fn with_a_log_filter_of_its_own_the_verbosity_is_of_no_effect() {
    let mut old = config(ONE);
    old.log.filter = Some("debug".to_owned());
    let mut new = config(&format!("{ONE}logging: {{ verbosity: 3 }}\n"));
    new.log.filter.clone_from(&old.log.filter);
    assert_eq!(changes(&old, &new).apply, []);
}
