use std::ffi::OsString;

use bulkhead_core::controllers::Controller;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::cli;
use crate::kube::fake::{self, Sent};

fn config(arguments: &[&str]) -> Config {
    let common = ["bulkhead", "run", "--plugin=unix:///p.sock"];
    let arguments = common.iter().chain(arguments).map(OsString::from);
    cli::configure(arguments, |name| {
        (name == "KUBERNETES_SERVICE_HOST").then(|| "10.0.0.1".to_owned())
    })
    .unwrap()
}

/// `NAMESPACE/resource/subresource NAME verb` of a review.
fn asked(sent: &Sent) -> String {
    let of = |field: &str| {
        let value = &sent.body["spec"]["resourceAttributes"][field];
        value.as_str().unwrap_or_default().to_owned()
    };
    format!(
        "{}/{}/{} {} {}",
        of("namespace"),
        of("resource"),
        of("subresource"),
        of("name"),
        of("verb")
    )
}

/// The lines about what `config` needs, where the API server denies what `is_denied` says; and what was asked.
async fn lines(config: &Config, is_denied: fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
    let (client, log) = fake::client(move |sent| {
        fake::json_answer(
            201,
            &json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {},
                "status": { "allowed": !is_denied(&asked(sent)) },
            }),
        )
    });
    let lines = missing(&client, &needs(config)).await.unwrap();
    (lines, log.all().iter().map(asked).collect())
}

#[tokio::test]
async fn each_right_that_is_missing_is_one_line() {
    let config = config(&["--controllers=service"]);
    let (none, asked) = lines(&config, |_| false).await;
    assert_eq!(none, Vec::<String>::new());
    assert_eq!(asked.len(), 1 + 2 + 2 + 4 + 6);
    let (lines, _) = lines(&config, |asked| {
        asked.ends_with("patch") || ["/services/  list", "/services/  watch"].contains(&asked)
    })
    .await;
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(lines[0].contains("may not patch events"), "{lines:#?}");
    assert!(
        lines[1].contains("may not patch leases in namespace kube-system"),
        "{lines:#?}"
    );
    assert!(lines[2].contains("may not list, watch services,"), "{lines:#?}");
    assert!(lines[3].contains("may not patch services/status,"), "{lines:#?}");
}

#[rstest]
#[case::controllers_that_are_off(
    &["--controllers=cloud-node"], Purpose::Controller(Controller::ServiceLb), false)]
#[case::controllers_that_are_on(
    &["--controllers=cloud-node"], Purpose::Controller(Controller::CloudNode), true)]
#[case::no_election(&["--leader-elect=false"], Purpose::Election, false)]
#[case::election(&[], Purpose::Election, true)]
#[case::a_cluster_id_of_its_own(&["--cluster-id=mine"], Purpose::ClusterId, false)]
#[case::the_cluster_s_id(&[], Purpose::ClusterId, true)]
#[case::nobody_can_ask(&["--secure-port=0"], Purpose::Reviews, false)]
#[case::who_asks_is_reviewed(&[], Purpose::Reviews, true)]
fn only_what_the_configuration_needs_is_asked_for(
    #[case] arguments: &[&str],
    #[case] purpose: Purpose,
    #[case] expected: bool,
) {
    let config = config(arguments);
    let is_asked = needs(&config).iter().any(|need| need.right.purpose == purpose);
    assert_eq!(is_asked, expected);
}

#[tokio::test]
async fn the_lease_asked_for_is_the_configured_one() {
    let config = config(&[
        "--leader-elect-resource-name=mine",
        "--leader-elect-resource-namespace=here",
    ]);
    let (_, asked) = lines(&config, |_| false).await;
    assert!(asked.contains(&"here/leases/ mine patch".to_owned()), "{asked:?}");
    assert!(asked.contains(&"here/leases/  create".to_owned()), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_reviews_or_says_nothing_is_not_waited_for() {
    let (client, log) = fake::client(|_| fake::refusal(403, "Forbidden", &json!({})));
    report_missing(&client, &config(&[])).await;
    assert!(!log.all().is_empty());
    let (silent, config) = (fake::silent_client(), config(&[]));
    let waited = tokio::time::timeout(DEADLINE * 2, report_missing(&silent, &config));
    assert!(waited.await.is_ok());
}
