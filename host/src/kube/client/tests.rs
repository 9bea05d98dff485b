use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::kube::fake;

fn with_provider() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', CLUSTER}}]
users: [{name: u, user: {USER}}]
";

fn kubeconfig(cluster: &str, user: &str) -> String {
    KUBECONFIG.replace("CLUSTER", cluster).replace("USER", user)
}

async fn connect_with(content: Option<&str>) -> (PathBuf, Result<Connection, ConnectError>) {
    with_provider();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    if let Some(content) = content {
        std::fs::write(&path, content).unwrap();
    }
    let options = KubeOptions {
        kubeconfig: Some(path.clone()),
        user_agent: "test/1".into(),
        ..KubeOptions::default()
    };
    (path, connect(&options).await)
}

#[rstest]
#[case::missing(None, "there is no such file")]
#[case::empty(Some(String::new()), "no current-context")]
#[case::not_yaml(Some("a: [".into()), "it is no kubeconfig")]
#[case::another_yaml(Some("clusters: 5".into()), "it is no kubeconfig")]
#[case::no_context(Some(kubeconfig("", "").replace("current-context: c", "")), "no current-context")]
#[case::unknown_context(Some(kubeconfig("", "").replace("current-context: c", "current-context: d")), "current-context \"d\"")]
#[case::unknown_cluster(Some(kubeconfig("", "").replace("cluster: k,", "cluster: z,")), "cluster \"z\"")]
#[case::ca_file_missing(
    Some(kubeconfig("certificate-authority: /nowhere/ca.crt", "")),
    "/nowhere/ca.crt"
)]
#[case::ca_broken(
    Some(kubeconfig("certificate-authority-data: '%%'", "")),
    "certificate authority"
)]
#[case::key_file_missing(
    Some(kubeconfig("", "client-certificate: /nowhere/tls.crt, client-key: /nowhere/tls.key")),
    "/nowhere/tls."
)]
#[case::token_file_missing(Some(kubeconfig("", "tokenFile: /nowhere/token")), "/nowhere/token")]
#[tokio::test]
async fn a_kubeconfig_that_does_not_do_is_named_with_the_problem_on_one_line(
    #[case] content: Option<String>,
    #[case] problem: &str,
) {
    let (path, result) = connect_with(content.as_deref()).await;
    let message = result.unwrap_err().to_string();
    assert!(
        message.contains(&path.display().to_string()) && message.contains(problem),
        "{message}"
    );
    assert!(!message.contains('\n'), "{message}");
}

#[tokio::test]
async fn a_kubeconfig_that_does_is_a_way_to_its_server() {
    let (_, connection) = connect_with(Some(&kubeconfig("", ""))).await;
    assert_eq!(connection.unwrap().url, "https://127.0.0.1:1/");
}

#[tokio::test]
async fn a_url_of_its_own_wins_and_needs_no_kubeconfig() {
    with_provider();
    let master = Some(Uri::from_static("http://127.0.0.1:2"));
    let options = KubeOptions {
        master,
        ..KubeOptions::default()
    };
    assert_eq!(connect(&options).await.unwrap().url, "http://127.0.0.1:2/");
}

fn connection(client: Client) -> Connection {
    Connection {
        client,
        url: Uri::from_static("http://api"),
        pace: None,
    }
}

#[rstest]
#[case::serves(200)]
#[case::does_not_know_us(401)]
#[case::does_not_allow_it(403)]
#[tokio::test(start_paused = true)]
async fn an_api_server_that_answers_is_there(#[case] code: u16) {
    let (client, log) = fake::client(move |_| fake::refusal(code, "x", &json!({})));
    wait_for_api(&connection(client)).await;
    assert_eq!(log.lines(), ["GET /version"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_waited_for() {
    let tries = AtomicUsize::new(0);
    let (client, log) = fake::client(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0..3 => fake::refusal(503, "ServiceUnavailable", &json!({})),
        _ => fake::json_answer(200, &json!({})),
    });
    wait_for_api(&connection(client)).await;
    assert_eq!(log.all().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_accepts_and_says_nothing_is_away() {
    let connection = connection(fake::silent_client());
    let waited = tokio::time::timeout(Duration::from_mins(1), wait_for_api(&connection));
    assert!(waited.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_clusters_id_is_the_configured_one_or_the_uid_of_kube_system() {
    let tries = AtomicUsize::new(0);
    let (client, log) = fake::client(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => fake::refusal(403, "Forbidden", &json!({})),
        _ => fake::json_answer(
            200,
            &json!({ "metadata": { "name": "kube-system", "uid": "u-9" } }),
        ),
    });
    let connection = connection(client);
    assert_eq!(cluster_uid(&connection, Some("mine")).await, "mine");
    assert_eq!(cluster_uid(&connection, None).await, "u-9");
    assert_eq!(log.lines(), ["GET /api/v1/namespaces/kube-system"; 2]);
}
