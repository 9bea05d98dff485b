use std::collections::VecDeque;

use axum::body::Body as Answer;
use bulkhead_core::ids::{NodeName, ServiceKey};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::service::view::ServiceView;
use http::Response;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::kube::fake;

fn node_object(name: &str, version: u64) -> Value {
    json!({ "metadata": { "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string() } })
}

fn node(name: &str, version: u64) -> NodeView {
    serde_json::from_value::<Watched<NodeView>>(node_object(name, version))
        .unwrap()
        .view
}

fn other_node(name: &str, version: u64) -> NodeView {
    NodeView {
        uid: bulkhead_core::ids::Uid("another".into()),
        ..node(name, version)
    }
}

fn list(nodes: &[(&str, u64)]) -> BTreeMap<NodeName, NodeView> {
    nodes
        .iter()
        .map(|(name, version)| (NodeName((*name).into()), node(name, *version)))
        .collect()
}

/// A change as `name:old>new`, by versions.
fn told<V: View>(old: Option<&Arc<V>>, new: Option<&Arc<V>>) -> String {
    let version = |view: Option<&Arc<V>>| view.map_or("-", |view| view.resource_version()).to_owned();
    format!(
        "{}:{}>{}",
        old.or(new).unwrap().name(),
        version(old),
        version(new)
    )
}

fn tell(changes: impl IntoIterator<Item = Change<NodeView>>) -> Vec<String> {
    changes
        .into_iter()
        .map(|change| told(change.old.as_ref(), change.new.as_ref()))
        .collect()
}

/// Nodes a (10) and b (11), by the watch; a then by a write with version 20.
fn content() -> Content<NodeView> {
    let mut content = Content::default();
    content.relist(list(&[("a", 10), ("b", 11)]));
    assert_eq!(tell(content.absorb(node("a", 20))), ["a:10>20"]);
    content
}

#[rstest]
#[case::older_news_than_the_write(node("a", 15), &[])]
#[case::the_write_itself(node("a", 20), &[])]
#[case::newer_news(node("a", 21), &["a:20>21"])]
#[case::another_object(node("b", 12), &["b:11>12"])]
#[case::the_watch_may_go_back_in_time(node("b", 5), &["b:11>5"])]
#[case::a_new_object(node("c", 12), &["c:->12"])]
#[case::version_that_is_no_number(NodeView { resource_version: "x".into(), ..node("a", 0) }, &["a:20>x"])]
fn what_the_watch_says_counts_unless_a_write_knows_better(#[case] view: NodeView, #[case] expected: &[&str]) {
    assert_eq!(tell(content().apply(view)), expected);
}

#[test]
fn once_the_watch_has_caught_up_a_write_has_no_privilege() {
    let mut content = content();
    content.apply(node("a", 20));
    assert_eq!(tell(content.apply(node("a", 5))), ["a:20>5"]);
}

#[rstest]
#[case::older(node("a", 19), &[])]
#[case::same(node("a", 20), &[])]
#[case::newer(node("a", 21), &["a:20>21"])]
#[case::another_object_of_that_name(other_node("a", 21), &[])]
#[case::an_object_that_the_watch_has_not_seen_or_saw_deleted(node("c", 21), &[])]
fn a_writes_answer_counts_if_it_is_newer(#[case] view: NodeView, #[case] expected: &[&str]) {
    assert_eq!(tell(content().absorb(view)), expected);
}

#[rstest]
#[case::after_the_write(node("a", 21), &["a:20>-"])]
#[case::before_it_was_made_again(node("a", 15), &[])]
#[case::unknown(node("c", 15), &[])]
fn a_deletion_counts_unless_a_write_is_newer(#[case] view: NodeView, #[case] expected: &[&str]) {
    assert_eq!(tell(content().delete(&view)), expected);
}

#[rstest]
#[case::unchanged(&[("a", 20), ("b", 11)], &[], &[("a", 20), ("b", 11)])]
#[case::stale(&[("a", 15), ("b", 11)], &[], &[("a", 20), ("b", 11)])]
#[case::changed_and_gone(&[("a", 22), ("c", 23)], &["b:11>-", "a:20>22", "c:->23"], &[("a", 22), ("c", 23)])]
#[case::all_gone(&[], &["a:20>-", "b:11>-"], &[])]
#[case::database_restored(&[("b", 3)], &["a:20>-", "b:11>3"], &[("b", 3)])]
fn a_list_replaces_everything_but_newer_writes(
    #[case] new: &[(&str, u64)],
    #[case] expected: &[&str],
    #[case] left: &[(&str, u64)],
) {
    let mut content = content();
    assert_eq!(tell(content.relist(list(new))), expected);
    let views: Vec<NodeView> = content.views().map(|view| NodeView::clone(view)).collect();
    assert_eq!(views, list(left).into_values().collect::<Vec<_>>());
}

/// A client that gives these answers, one for each request, and then silent watches.
fn scripted(answers: Vec<Response<Answer>>) -> (Client, fake::Log) {
    let answers = Mutex::new(VecDeque::from(answers));
    fake::client(move |_| {
        answers
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| fake::watch_answer(&[]))
    })
}

fn event(kind: &str, object: &Value) -> Value {
    json!({ "type": kind, "object": object })
}

/// What ends the list at the beginning of a watch.
fn initial_end(version: u64) -> Value {
    let annotations = json!({ "k8s.io/initial-events-end": "true" });
    let metadata = json!({ "resourceVersion": version.to_string(), "annotations": annotations });
    event(
        "BOOKMARK",
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }),
    )
}

fn page(objects: &[Value], next: Option<&str>) -> Response<Answer> {
    fake::json_answer(
        200,
        &json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "30", "continue": next }, "items": objects }),
    )
}

/// Runs a store against these answers until it has told `count` changes.
async fn changes<V: View>(
    answers: Vec<Response<Answer>>,
    count: usize,
) -> (Store<V>, Vec<String>, Vec<String>) {
    let (client, log) = scripted(answers);
    let store = Store::<V>::new();
    let (sender, mut receiver) = mpsc::channel(100);
    let _told = store.on_change(move |old, new| sender.try_send(told(old, new)).unwrap());
    let collect = async {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(receiver.recv().await.unwrap());
        }
        store.ready().wait_for(|ready| *ready).await.unwrap();
        all
    };
    let told = tokio::select! {
        () = store.clone().run(client, CancellationToken::new()) => panic!("the store stopped"),
        told = timeout(Duration::from_mins(10), collect) => told.expect("too few changes"),
    };
    (store, told, log.lines())
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_and_what_follows_it_reach_the_handlers_in_order() {
    let watch = fake::watch_answer(&[
        event("ADDED", &node_object("a", 10)),
        event("ADDED", &node_object("b", 11)),
        initial_end(12),
        event("MODIFIED", &node_object("a", 13)),
        event("DELETED", &node_object("b", 14)),
    ]);
    let (store, told, lines) = changes::<NodeView>(vec![watch], 4).await;
    assert_eq!(told, ["a:->10", "b:->11", "a:10>13", "b:11>-"]);
    assert_eq!(
        store
            .snapshot()
            .iter()
            .map(|view| view.name.0.as_str())
            .collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(store.get(&NodeName("a".into())).unwrap().resource_version, "13");
    assert!(
        lines[0].contains("watch=true") && lines[0].contains("sendInitialEvents=true"),
        "{}",
        lines[0]
    );
}

#[rstest]
#[case::gate_off(fake::refusal(422, "Invalid", &json!({ "causes": [{ "field": "sendInitialEvents" }] })))]
#[case::never_heard_of(fake::refusal(400, "BadRequest", &json!({})))]
#[case::a_list_that_never_ends(fake::watch_answer(&[event("ADDED", &node_object("x", 1))]))]
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_stream_lists_is_asked_for_pages(#[case] first: Response<Answer>) {
    let answers = vec![
        first,
        page(&[node_object("a", 10)], Some("more")),
        page(&[node_object("b", 11)], None),
        fake::watch_answer(&[event("MODIFIED", &node_object("b", 31))]),
    ];
    let (store, told, lines) = changes::<NodeView>(answers, 3).await;
    assert_eq!(told, ["a:->10", "b:->11", "b:11>31"]);
    assert_eq!(store.len(), 2);
    let asked: Vec<_> = lines[1..]
        .iter()
        .map(|line| (line.contains("limit=100"), line.contains("continue=more")))
        .collect();
    assert_eq!(asked, [(true, false), (true, true), (false, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_too_old_is_followed_by_a_list_that_removes_what_is_gone() {
    let expired =
        json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version" });
    let answers = vec![
        fake::watch_answer(&[
            event("ADDED", &node_object("a", 10)),
            event("ADDED", &node_object("b", 11)),
            initial_end(12),
            event("ERROR", &expired),
        ]),
        fake::refusal(503, "ServiceUnavailable", &json!({})),
        fake::watch_answer(&[event("ADDED", &node_object("b", 20)), initial_end(21)]),
    ];
    let (store, told, _) = changes::<NodeView>(answers, 4).await;
    assert_eq!(told, ["a:->10", "b:->11", "a:10>-", "b:11>20"]);
    assert_eq!(store.len(), 1);
}

fn service_object(version: u64, kind: &str, finalizers: &[&str]) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": "s", "uid": "u", "resourceVersion": version.to_string(), "finalizers": finalizers,
        },
        "spec": { "type": kind },
    })
}

#[tokio::test(start_paused = true)]
async fn a_service_is_held_from_when_it_matters_until_it_no_longer_does() {
    let finalizer = "service.kubernetes.io/load-balancer-cleanup";
    let watch = fake::watch_answer(&[
        event("ADDED", &service_object(1, "ClusterIP", &[])),
        initial_end(2),
        event("MODIFIED", &service_object(3, "ClusterIP", &["foreign"])),
        event("MODIFIED", &service_object(4, "LoadBalancer", &[])),
        event("MODIFIED", &service_object(5, "ClusterIP", &[finalizer])),
        event("MODIFIED", &service_object(6, "ClusterIP", &[])),
    ]);
    let (store, told, _) = changes::<ServiceView>(vec![watch], 3).await;
    assert_eq!(told, ["s:->4", "s:4>5", "s:5>-"]);
    assert!(store.is_empty());
}

#[test]
fn an_answer_by_which_a_service_no_longer_matters_is_not_undone_by_older_news() {
    let service = |version, kind| {
        serde_json::from_value::<Watched<ServiceView>>(service_object(version, kind, &[]))
            .unwrap()
            .view
    };
    let key = ServiceKey {
        namespace: "ns".into(),
        name: "s".into(),
    };
    let mut content = Content::default();
    content.apply(service(1, "LoadBalancer"));
    content.absorb(service(5, "ClusterIP"));
    assert!(content.apply(service(4, "LoadBalancer")).is_none());
    assert!(!content.get(&key).unwrap().is_load_balancer);
    content.apply(service(5, "ClusterIP"));
    assert!(content.get(&key).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_store_ends_and_keeps_what_it_has() {
    let (client, _) = scripted(vec![]);
    let stop = CancellationToken::new();
    stop.cancel();
    Store::<NodeView>::new().run(client, stop).await;
}
