use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body as Answer;
use http::Response;
use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::kube::fake::{self, Log};

fn regarding() -> Regarding {
    Regarding::node(&NodeName("a".into()), &Uid("u-1".into()))
}

fn spec(note: &str) -> EventSpec {
    let notice = Notice::warning("Failed", note);
    EventSpec::from_notice(regarding(), "Ensuring", notice)
}

struct Setup {
    recorder: EventRecorder,
    writer: EventWriter,
    log: Log,
    dropped: Arc<AtomicUsize>,
}

/// The answers in turn, then as if everything were created.
fn setup(answers: Vec<Response<Answer>>) -> Setup {
    let answers = Mutex::new(VecDeque::from(answers));
    let created = || fake::json_answer(201, &json!({ "metadata": {}, "eventTime": null }));
    let (client, log) = fake::client(move |_| answers.lock().unwrap().pop_front().unwrap_or_else(created));
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dropped);
    let (recorder, writer) = events(client, "host_1", move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    Setup {
        recorder: recorder.with_component(component::NODE),
        writer,
        log,
        dropped,
    }
}

/// Emits these, writes all there is, and returns what was sent and how many were dropped.
async fn write(setup: Setup, specs: Vec<EventSpec>) -> (Log, usize) {
    for spec in specs {
        setup.recorder.emit(spec);
    }
    drop(setup.recorder);
    setup.writer.run().await;
    (setup.log, setup.dropped.load(Ordering::Relaxed))
}

/// `POST` or `PATCH` of each request.
fn verbs(log: &Log) -> Vec<String> {
    log.lines()
        .iter()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn an_event_has_everything_that_the_api_asks_for() {
    let (log, dropped) = write(setup(vec![]), vec![spec("it broke")]).await;
    let sent = log.all();
    assert_eq!(
        sent[0].line,
        "POST /apis/events.k8s.io/v1/namespaces/default/events?"
    );
    let mut body = sent[0].body.clone();
    let name = body["metadata"]["name"].take();
    assert!(name.as_str().unwrap().starts_with("a."), "{name}");
    assert!(
        body["eventTime"]
            .take()
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .is_ok()
    );
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": null, "namespace": "default" },
        "eventTime": null,
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u-1" },
        "type": "Warning", "reason": "Failed", "action": "Ensuring", "note": "it broke",
        "reportingController": "cloud-node-controller", "reportingInstance": "host_1",
    });
    assert_eq!((body, dropped), (expected, 0));
}

#[tokio::test]
async fn an_event_about_a_service_lives_in_its_namespace() {
    let key = ServiceKey {
        namespace: "ns".into(),
        name: "s".into(),
    };
    let spec = EventSpec {
        regarding: Regarding::service(&key, &Uid("u".into())),
        ..spec("x")
    };
    let (log, _) = write(setup(vec![]), vec![spec]).await;
    assert_eq!(log.lines(), ["POST /apis/events.k8s.io/v1/namespaces/ns/events?"]);
    assert_eq!(log.all()[0].body["regarding"]["namespace"], "ns");
}

#[tokio::test]
async fn repeats_raise_the_count_and_another_note_is_another_event() {
    let (log, _) = write(setup(vec![]), vec![spec("x"), spec("x"), spec("y"), spec("x")]).await;
    assert_eq!(verbs(&log), ["POST", "PATCH", "POST", "PATCH"]);
    let sent = log.all();
    let counts: Vec<&Value> = sent.iter().map(|sent| &sent.body["series"]["count"]).collect();
    assert_eq!(counts, [&Value::Null, &json!(2), &Value::Null, &json!(3)]);
    let name = sent[0].body["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        sent[1].line,
        format!("PATCH /apis/events.k8s.io/v1/namespaces/default/events/{name}?")
    );
    assert_eq!(
        sent[1].content_type.as_deref(),
        Some("application/merge-patch+json")
    );
}

#[tokio::test]
async fn a_repeat_of_an_event_that_the_cluster_forgot_is_new() {
    let answers = vec![
        fake::json_answer(201, &json!({ "metadata": {}, "eventTime": null })),
        fake::refusal(404, "NotFound", &json!({})),
    ];
    let (log, dropped) = write(setup(answers), vec![spec("x"), spec("x"), spec("x")]).await;
    assert_eq!(
        (verbs(&log).join(" ").as_str(), dropped),
        ("POST PATCH POST PATCH", 0)
    );
    assert_eq!(log.all()[3].body["series"]["count"], 2);
}

#[rstest]
#[case::away_for_a_moment(503, 2, 0)]
#[case::not_allowed(403, 1, 1)]
#[case::refused(422, 1, 1)]
#[tokio::test(start_paused = true)]
async fn an_event_is_tried_again_where_that_may_help(
    #[case] code: u16,
    #[case] tries: usize,
    #[case] dropped: usize,
) {
    let (log, counted) = write(setup(vec![fake::refusal(code, "x", &json!({}))]), vec![spec("x")]).await;
    assert_eq!((log.all().len(), counted), (tries, dropped));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_stays_away_costs_four_attempts() {
    let answers = (0..9)
        .map(|_| fake::refusal(500, "InternalError", &json!({})))
        .collect();
    let (log, dropped) = write(setup(answers), vec![spec("x")]).await;
    assert_eq!((log.all().len(), dropped), (4, 1));
}

#[tokio::test]
async fn the_queue_is_bounded_and_never_blocks() {
    let setup = setup(vec![]);
    for _ in 0..QUEUE + 3 {
        setup.recorder.emit(spec("x"));
    }
    assert_eq!(setup.dropped.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn one_object_does_not_flood_the_cluster() {
    let specs = (0..40).map(|index| spec(&format!("note {index}"))).collect();
    let (log, dropped) = write(setup(vec![]), specs).await;
    assert_eq!((log.all().len(), dropped), (25, 15));
}

#[rstest]
#[case::short("ab", 3, "ab")]
#[case::exact("abc", 3, "abc")]
#[case::long("abcd", 3, "abc")]
#[case::inside_a_character("a\u{e4}\u{e4}", 4, "a\u{e4}")]
fn texts_are_cut_between_characters(#[case] text: &str, #[case] bytes: usize, #[case] expected: &str) {
    assert_eq!(cut(text, bytes), expected);
}

#[test]
fn the_name_of_an_event_about_a_long_name_is_legal() {
    let object = format!("{}.{}", "a".repeat(229), "b".repeat(20));
    let name = event_name(&object, i128::from(i64::MAX));
    assert!(name.len() <= 253 && !name.contains(".."), "{name}");
}
