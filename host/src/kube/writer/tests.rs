use std::sync::Mutex;

use axum::body::Body as Answer;
use bulkhead_core::node::view::AddressType;
use http::{Response, Uri};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::config::RateConfig;
use crate::kube::fake::{self, Sent};

type Counts = Arc<Mutex<Vec<(&'static str, &'static str)>>>;

fn writer(client: Client) -> (Writer, Counts) {
    writer_at(client, None)
}

fn writer_at(client: Client, pace: Option<Pace>) -> (Writer, Counts) {
    let counts = Counts::default();
    let counted = Arc::clone(&counts);
    let count = move |row, result| counted.lock().unwrap().push((row, result));
    let url = Uri::from_static("http://api");
    let connection = Connection { client, url, pace };
    (
        Writer::new(&connection, NonZeroUsize::new(2).unwrap(), count),
        counts,
    )
}

async fn written<V: View>(write: Write<V>) -> Result<V, ApiError> {
    write.place().await?.send().await
}

/// One turn, and the next ones too late for anybody.
fn one_turn() -> Pace {
    Pace::new(RateConfig {
        per_second: 0.001,
        burst: NonZeroUsize::MIN,
    })
}

fn node_answer(_: &Sent) -> Response<Answer> {
    fake::json_answer(
        200,
        &json!({ "metadata": { "name": "a", "uid": "u-1", "resourceVersion": "18", "managedFields": [{}] } }),
    )
}

fn service_answer(_: &Sent) -> Response<Answer> {
    fake::json_answer(
        200,
        &json!({ "metadata": { "namespace": "ns", "name": "s", "resourceVersion": "18" } }),
    )
}

fn guard() -> Guard {
    Guard {
        uid: Uid("u-1".into()),
        resource_version: "17".into(),
    }
}

fn node() -> NodeName {
    NodeName("a".into())
}

fn service() -> ServiceKey {
    ServiceKey {
        namespace: "ns".into(),
        name: "s".into(),
    }
}

fn sent(line: &str, content_type: &str, body: Value) -> Vec<Sent> {
    vec![Sent {
        line: line.into(),
        content_type: Some(content_type.into()),
        body,
    }]
}

#[tokio::test]
async fn addresses_go_to_the_status_as_a_json_merge_patch() {
    let (client, log) = fake::client(node_answer);
    let (writer, counts) = writer(client);
    let addresses = [NodeAddress {
        kind: AddressType::InternalIp,
        address: "10.0.0.1".into(),
    }];
    let view = written(writer.patch_node_addresses(&node(), &guard().uid, &addresses))
        .await
        .unwrap();
    assert_eq!((view.name, view.resource_version.as_str()), (node(), "18"));
    let body = json!({ "metadata": { "uid": "u-1" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }] } });
    let line = "PATCH /api/v1/nodes/a/status?&fieldManager=bulkhead";
    assert_eq!(log.all(), sent(line, "application/merge-patch+json", body));
    assert_eq!(*counts.lock().unwrap(), [("patch-node-addresses", "ok")]);
}

#[tokio::test]
async fn a_node_is_changed_by_a_json_merge_patch() {
    let (client, log) = fake::client(node_answer);
    let changes = NodePatch {
        provider_id: Some("a://1".into()),
        ..NodePatch::default()
    };
    let (writer, _) = writer(client);
    written(writer.patch_node(&node(), &guard(), &changes))
        .await
        .unwrap();
    let body =
        json!({ "metadata": { "uid": "u-1", "resourceVersion": "17" }, "spec": { "providerID": "a://1" } });
    let line = "PATCH /api/v1/nodes/a?&fieldManager=bulkhead";
    assert_eq!(log.all(), sent(line, "application/merge-patch+json", body));
}

#[tokio::test]
async fn finalizers_go_to_the_status_as_a_json_merge_patch() {
    let (client, log) = fake::client(service_answer);
    let (writer, _) = writer(client);
    let view = written(writer.patch_service_finalizers(&service(), &guard(), &["f".into()]))
        .await
        .unwrap();
    assert_eq!(view.key, service());
    let body = json!({ "metadata": { "uid": "u-1", "resourceVersion": "17", "finalizers": ["f"] } });
    let line = "PATCH /api/v1/namespaces/ns/services/s/status?&fieldManager=bulkhead";
    assert_eq!(log.all(), sent(line, "application/merge-patch+json", body));
}

#[tokio::test]
async fn a_service_s_ingress_is_changed_by_a_strategic_merge_patch() {
    let (client, log) = fake::client(service_answer);
    let (writer, _) = writer(client);
    written(writer.patch_service_ingress(&service(), &guard().uid, &[]))
        .await
        .unwrap();
    let body = json!({ "metadata": { "uid": "u-1" }, "status": { "loadBalancer": { "ingress": null } } });
    let line = "PATCH /api/v1/namespaces/ns/services/s/status?&fieldManager=bulkhead";
    assert_eq!(
        log.all(),
        sent(line, "application/strategic-merge-patch+json", body)
    );
}

#[tokio::test]
async fn a_read_asks_the_database_and_knows_absence() {
    let not_found = || fake::refusal(404, "NotFound", &json!({}));
    let (client, log) = fake::client(move |sent| {
        if sent.line.contains("nodes") {
            node_answer(sent)
        } else {
            not_found()
        }
    });
    let (writer, counts) = writer(client);
    assert_eq!(writer.read_node(&node()).await.unwrap().unwrap().name, node());
    assert_eq!(writer.read_service(&service()).await, Ok(None));
    assert_eq!(
        log.lines(),
        ["GET /api/v1/nodes/a", "GET /api/v1/namespaces/ns/services/s"]
    );
    assert!(counts.lock().unwrap().is_empty());
}

fn plain(code: u16, body: &'static str) -> Response<Answer> {
    Response::builder()
        .status(code)
        .header("Retry-After", "4")
        .body(Answer::from(body))
        .unwrap()
}

#[rstest]
#[case::conflict(|_: &Sent| fake::refusal(409, "Conflict", &json!({})), ApiError::Conflict)]
#[case::another_object(
    |_: &Sent| fake::refusal(422, "Invalid", &json!({ "causes": [{ "field": "metadata.uid" }] })),
    ApiError::AnotherObject
)]
#[case::flow_control_answers_plain_text(
    |_: &Sent| plain(429, "Too many requests, please try again later."),
    ApiError::Throttled { retry_after: Some(Duration::from_secs(4)) }
)]
#[case::proxy(|_: &Sent| plain(502, "<html>"), ApiError::Refused { code: 502, message: String::new() })]
#[tokio::test]
async fn a_refused_write_is_sent_once_and_counted_by_its_kind(
    #[case] answer: fn(&Sent) -> Response<Answer>,
    #[case] expected: ApiError,
) {
    let (client, log) = fake::client(answer);
    let (writer, counts) = writer(client);
    let result = written(writer.patch_node(&node(), &guard(), &NodePatch::default())).await;
    assert_eq!(result, Err(expected.clone()));
    assert_eq!(*counts.lock().unwrap(), [("patch-node", expected.kind())]);
    assert_eq!(log.all().len(), 1);
}

#[tokio::test]
async fn an_answer_that_is_no_json_leaves_the_outcome_unknown() {
    let (client, _) = fake::client(|_| plain(200, "<html>"));
    let error = writer(client).0.read_node(&node()).await.unwrap_err();
    assert_eq!(error.kind(), "unreachable");
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_ends_at_its_deadline() {
    let (writer, counts) = writer(fake::silent_client());
    let error = written(writer.patch_node(&node(), &guard(), &NodePatch::default()))
        .await
        .unwrap_err();
    assert_eq!(error, ApiError::Deadline { after: DEADLINE });
    assert_eq!(*counts.lock().unwrap(), [("patch-node", "deadline")]);
}

#[tokio::test(start_paused = true)]
async fn no_more_writes_are_in_flight_than_there_are_places_and_a_place_is_waited_for_before_sending() {
    let (writer, counts) = writer(fake::silent_client());
    let (name, uid) = (node(), guard().uid);
    let place = || writer.patch_node_addresses(&name, &uid, &[]).place();
    let first = place().await.unwrap();
    let second = place().await.unwrap();
    let error = place().await.unwrap_err();
    assert_eq!(error, ApiError::NotSent { after: PATIENCE });
    assert_eq!(*counts.lock().unwrap(), [("patch-node-addresses", "not_sent")]);
    drop(first);
    drop(place().await.unwrap());
    second.send().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_its_turn_which_is_waited_for_outside_of_the_deadline() {
    let pace = one_turn();
    let (client, log) = fake::client(node_answer);
    let (writer, _) = writer_at(client, Some(pace));
    let (name, guard, changes) = (node(), guard(), NodePatch::default());
    let write = || writer.patch_node(&name, &guard, &changes);
    let placed = write().place().await.unwrap();
    assert_eq!(
        write().place().await.unwrap_err(),
        ApiError::NotSent { after: PATIENCE }
    );
    assert_eq!(
        writer.read_node(&node()).await,
        Err(ApiError::NotSent { after: PATIENCE })
    );
    assert!(log.all().is_empty());
    placed.send().await.unwrap();
    assert_eq!(log.all().len(), 1);
}
