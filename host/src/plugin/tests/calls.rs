//! Verbs, and what failures of them come to.

use std::collections::BTreeMap;

use bulkhead_core::cloud::{
    Certainty, Ensured, Failure, InstanceAnswer, LoadBalancerAnswer, Outcome, Reason, TargetsAnswer,
};
use bulkhead_core::digest::Digest;
use bulkhead_core::ids::{NodeName, Uid};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::service::node_set::{Member, NodeSet};
use bulkhead_core::service::request::{Intent, IntentReason};
use bulkhead_core::service::spec::Spec;
use bulkhead_proto::v1;
use rstest::rstest;
use tonic::{Code, Status};

use super::fixtures::{balancer, node, service};
use super::scripted::{all_found, at_once, done, never, refusal};
use super::*;
use crate::plugin::call::Wire;
use crate::plugin::connect::Connection;

fn nodes(count: usize) -> Vec<Arc<NodeView>> {
    (0..count).map(|number| node(&format!("n{number}"))).collect()
}

fn set(members: usize) -> Arc<NodeSet> {
    let member = |number| Member {
        name: NodeName(format!("n{number}")),
        uid: Uid(format!("uid-n{number}")),
        provider_id: format!("scripted://n{number}"),
        addresses: Vec::new(),
        zone: String::new(),
        labels: BTreeMap::new(),
    };
    Arc::new(NodeSet {
        members: (0..members).map(member).collect(),
        digest: Digest::received(format!("digest-of-{members}")),
    })
}

const ALL: [Aspect; 3] = [Aspect::Existence, Aspect::Power, Aspect::Metadata];

async fn ask(host: &Host, count: usize) -> Result<Vec<InstanceAnswer>, Failure> {
    host.plugin
        .get_instances(&nodes(count), &ALL, Duration::ZERO)
        .await
}

async fn ensure_with(
    plugin: &PluginHandle,
    set: &Arc<NodeSet>,
    cancel: &CancellationToken,
) -> Result<Ensured, Failure> {
    let intent = Intent {
        request_id: "request-1".to_owned(),
        reason: IntentReason::Changed,
    };
    let spec = Spec {
        name: "web".to_owned(),
        ..Spec::default()
    };
    let (balancer, epoch, spec_digest) = (balancer(), epoch(1), Digest::received("digest"));
    let what = Ensure {
        balancer: &balancer,
        spec: &spec,
        spec_digest: &spec_digest,
        targets: set,
    };
    plugin
        .ensure(
            what,
            Right {
                intent: &intent,
                epoch: &epoch,
                cancel,
            },
        )
        .await
}

pub(super) async fn ensure(host: &Host, members: usize) -> Result<Ensured, Failure> {
    ensure_with(&host.plugin, &set(members), &CancellationToken::new()).await
}

fn kinds(answers: &[InstanceAnswer]) -> Vec<&'static str> {
    let kind = |answer: &InstanceAnswer| match answer {
        InstanceAnswer::Found(_) => "found",
        InstanceAnswer::Absent(_) => "absent",
        InstanceAnswer::NotMine { .. } => "not mine",
        InstanceAnswer::Pending { .. } => "pending",
        InstanceAnswer::Failed(_) => "failed",
    };
    answers.iter().map(kind).collect()
}

#[tokio::test]
async fn nodes_are_asked_about_in_batches_of_the_plugins_size() {
    let (host, server, _folder) = active(|script| {
        script.describe.limits = Some(v1::Limits {
            max_batch_nodes: Some(2),
            ..v1::Limits::default()
        });
    })
    .await;
    let answers = ask(&host, 5).await.unwrap();
    assert_eq!(kinds(&answers), ["found"; 5]);
    let mut batches = server.plugin.seen().batches;
    batches.sort_unstable();
    assert_eq!(batches, [1, 2, 2]);
    assert!(matches!(&answers[4], InstanceAnswer::Found(found) if found.instance_id == "n4"));
}

#[tokio::test]
async fn large_nodes_are_asked_about_apart() {
    let (host, server, _folder) = active(|_| {}).await;
    let large = |name: &str| {
        let mut node = NodeView::clone(&node(name));
        node.annotations.insert("a".to_owned(), "x".repeat(2 << 20));
        Arc::new(node)
    };
    let nodes = [large("n0"), large("n1"), node("n2")];
    let answers = host
        .plugin
        .get_instances(&nodes, &ALL, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(kinds(&answers), ["found"; 3]);
    let mut batches = server.plugin.seen().batches;
    batches.sort_unstable();
    assert_eq!(batches, [1, 2]);
}

#[tokio::test]
async fn a_call_that_hangs_ends_at_its_deadline() {
    let (host, _server, _folder) = active(|script| script.get_instances = never()).await;
    let failure = ask(&host, 1).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::DeadlineExceeded), Certainty::Unknown)
    );
    assert_eq!(host.results("GetInstances"), ["deadline_exceeded"]);
    assert_eq!(host.plugin.subscribe().borrow().session, 1, "the session goes on");
}

#[rstest]
#[case::one_too_few(|answer: &mut v1::GetInstancesResponse| { answer.results.pop(); })]
#[case::one_too_many(|answer: &mut v1::GetInstancesResponse| answer.results.push(answer.results[0].clone()))]
#[case::another_order(|answer: &mut v1::GetInstancesResponse| answer.results.swap(0, 1))]
#[case::another_uid(|answer: &mut v1::GetInstancesResponse| answer.results[1].node_uid = "other".to_owned())]
#[tokio::test]
async fn results_that_do_not_fit_the_request_are_worth_nothing(
    #[case] spoil: fn(&mut v1::GetInstancesResponse),
) {
    let (host, _server, _folder) = active(|script| {
        script.get_instances = at_once(move |request| {
            let mut answer = all_found(&request);
            spoil(&mut answer);
            Ok(answer)
        });
    })
    .await;
    let failure = ask(&host, 3).await.unwrap_err();
    assert_eq!(
        failure.reason,
        Some(Reason::ProtocolViolation),
        "{}",
        failure.message
    );
    assert!(failure.message.contains("field results"), "{}", failure.message);
}

#[tokio::test]
async fn a_result_that_is_not_set_fails_its_own_node_only() {
    let (host, _server, _folder) = active(|script| {
        script.get_instances = at_once(|request| {
            let mut answer = all_found(&request);
            answer.results[1].result = None;
            Ok(answer)
        });
    })
    .await;
    let answers = ask(&host, 3).await.unwrap();
    assert_eq!(kinds(&answers), ["found", "failed", "found"]);
    let InstanceAnswer::Failed(failure) = &answers[1] else {
        panic!("{answers:?}")
    };
    assert_eq!(
        failure.message,
        "the plugin broke the protocol: field results[1].result is not set"
    );
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_asked_for_in_halves_once() {
    let (host, server, _folder) = active(|script| {
        script.get_instances = at_once(|request: v1::GetInstancesRequest| {
            let mut answer = all_found(&request);
            if request.nodes.len() > 2 {
                answer.results[0].node_name = "x".repeat(17 << 20);
            }
            Ok(answer)
        });
        script.describe.limits = Some(v1::Limits {
            max_batch_nodes: Some(200),
            ..v1::Limits::default()
        });
    })
    .await;
    assert_eq!(kinds(&ask(&host, 4).await.unwrap()), ["found"; 4]);
    assert_eq!(server.plugin.seen().batches, [4, 2, 2]);
}

#[tokio::test]
async fn an_unattributed_status_says_nothing_and_is_halved_once() {
    let (host, server, _folder) =
        active(|script| script.get_instances = at_once(|_| Err(Status::internal("h2\nprotocol error"))))
            .await;
    let failure = ask(&host, 4).await.unwrap_err();
    assert_eq!((failure.reason, failure.certainty), (None, Certainty::Unknown));
    assert!(
        failure.message.ends_with(": h2 protocol error"),
        "{}",
        failure.message
    );
    assert_eq!(
        server.plugin.seen().batches,
        [4, 2, 2],
        "halved once, not down to single nodes"
    );
    assert_eq!(host.results("GetInstances"), ["unattributed"; 3]);
}

#[tokio::test]
async fn a_made_up_not_found_is_no_absence() {
    let (host, server, _folder) =
        active(|script| script.get_instances = at_once(|_| Err(Status::not_found("no such thing")))).await;
    assert_eq!(ask(&host, 2).await.unwrap_err().reason, None);
    assert_eq!(server.plugin.seen().batches, [2]);
}

#[tokio::test]
async fn one_failed_batch_leaves_the_others_answers() {
    let (host, _server, _folder) = active(|script| {
        script.describe.limits = Some(v1::Limits {
            max_batch_nodes: Some(1),
            ..v1::Limits::default()
        });
        script.get_instances =
            at_once(
                |request: v1::GetInstancesRequest| match request.nodes[0].name.as_str() {
                    "n1" => Err(Status::unavailable("")),
                    _ => Ok(all_found(&request)),
                },
            );
    })
    .await;
    assert_eq!(kinds(&ask(&host, 3).await.unwrap()), ["found", "failed", "found"]);
}

#[tokio::test]
async fn a_plugin_that_does_not_answer_is_not_asked_batch_after_batch() {
    let (host, server, _folder) = active(|script| {
        script.describe.limits = Some(v1::Limits {
            max_batch_nodes: Some(1),
            ..v1::Limits::default()
        });
        script.get_instances = never();
    })
    .await;
    let begun = clock::now();
    let failure = ask(&host, 60).await.unwrap_err();
    assert_eq!(failure.reason, Some(Reason::DeadlineExceeded));
    assert!(clock::now().saturating_since(begun) < QUICK.read * 2);
    assert!(server.plugin.seen().batches.len() < 10);
}

#[tokio::test]
async fn a_slow_plugin_is_asked_no_longer_than_twice_the_deadline() {
    let (host, _server, _folder) = active(|script| {
        script.describe.limits = Some(v1::Limits {
            max_batch_nodes: Some(1),
            ..v1::Limits::default()
        });
        script.get_instances = Arc::new(|request| {
            Box::pin(async move {
                tokio::time::sleep(QUICK.read / 2).await;
                Ok(all_found(&request))
            })
        });
    })
    .await;
    let begun = clock::now();
    let answers = ask(&host, 60).await.unwrap();
    assert!(clock::now().saturating_since(begun) <= QUICK.read * 2);
    let (first, last) = (kinds(&answers)[0], kinds(&answers)[59]);
    assert_eq!((first, last), ("found", "failed"));
}

#[tokio::test]
async fn one_node_that_spoils_its_batch_does_not_cost_the_other_half() {
    let (host, server, _folder) = active(|script| {
        script.get_instances = at_once(|request: v1::GetInstancesRequest| {
            if request.nodes.iter().any(|node| node.name == "n3") {
                return Err(refusal(
                    Code::InvalidArgument,
                    "INVALID_SPEC",
                    "NOT_APPLIED",
                    None,
                ));
            }
            Ok(all_found(&request))
        });
    })
    .await;
    let answers = ask(&host, 4).await.unwrap();
    assert_eq!(kinds(&answers), ["found", "found", "failed", "failed"]);
    assert_eq!(server.plugin.seen().batches, [4, 2, 2]);
}

#[tokio::test]
async fn an_attributed_status_is_taken_at_its_word() {
    let (host, _server, _folder) = active(|script| {
        script.ensure = at_once(|_| {
            let wait = Some(Duration::from_secs(7));
            Err(refusal(
                Code::ResourceExhausted,
                "QUOTA_EXCEEDED",
                "NOT_APPLIED",
                wait,
            ))
        });
    })
    .await;
    let failure = ensure(&host, 1).await.unwrap_err();
    let expected = Failure {
        reason: Some(Reason::QuotaExceeded),
        certainty: Certainty::NotApplied,
        message: "no way (cloud code E42)".to_owned(),
        retry_after: Some(Duration::from_secs(7)),
    };
    assert_eq!(failure, expected);
    assert_eq!(host.results("EnsureLoadBalancer"), ["quota_exceeded"]);
}

#[rstest]
#[case::a_reason_of_another_code(refusal(Code::NotFound, "CLOUD_UNAVAILABLE", "NOT_APPLIED", None))]
#[case::a_reason_that_does_not_exist(refusal(Code::Unavailable, "WHATEVER", "NOT_APPLIED", None))]
#[case::no_details(Status::permission_denied("no"))]
#[case::garbage_for_details(Status::with_details(Code::Unavailable, "x", vec![0xff; 64].into()))]
#[tokio::test]
async fn other_statuses_are_unattributed(#[case] status: Status) {
    let (host, _server, _folder) =
        active(|script| script.ensure = at_once(move |_| Err(status.clone()))).await;
    let failure = ensure(&host, 1).await.unwrap_err();
    assert_eq!((failure.reason, failure.certainty), (None, Certainty::Unknown));
}

#[rstest]
#[case::that_fit(200 << 10, Some(Reason::ProviderError))]
#[case::over_the_limit(300 << 10, None)]
#[tokio::test]
async fn a_status_with_long_headers_costs_its_call_alone(
    #[case] bytes: usize,
    #[case] reason: Option<Reason>,
) {
    let (host, server, _folder) = active(|script| {
        script.ensure = at_once(move |_| {
            let mut status = refusal(Code::Unknown, "PROVIDER_ERROR", "NOT_APPLIED", None);
            let long = "x".repeat(bytes).parse().unwrap();
            status.metadata_mut().insert("x-long", long);
            Err(status)
        });
    })
    .await;
    assert_eq!(ensure(&host, 1).await.unwrap_err().reason, reason);
    assert_eq!(kinds(&ask(&host, 1).await.unwrap()), ["found"]);
    assert_eq!(host.plugin.subscribe().borrow().session, 1);
    drop(server);
}

#[tokio::test]
async fn a_write_carries_epoch_request_id_and_slice() {
    let (host, server, _folder) = active(|_| {}).await;
    let ensured = ensure(&host, 1).await.unwrap();
    assert_eq!(
        (ensured.outcome, ensured.spec_digest.as_str()),
        (Outcome::Done, "digest")
    );
    assert_eq!(ensured.ingress.unwrap().len(), 1);
    let request = server.plugin.seen().ensures.pop().unwrap();
    let intent = request.intent.unwrap();
    assert_eq!(
        (intent.request_id.as_str(), intent.epoch.unwrap().transitions),
        ("request-1", 1)
    );
    let slice = intent.soft_deadline.unwrap();
    assert!((3..=4).contains(&slice.seconds), "{slice:?}");
    assert_eq!(request.r#ref.unwrap().mark, "bh-mark");
}

#[tokio::test]
async fn done_without_a_status_is_refused() {
    let (host, _server, _folder) = active(|script| {
        script.ensure = at_once(|request| {
            Ok(v1::EnsureLoadBalancerResponse {
                status: None,
                ..done(&request)
            })
        });
    })
    .await;
    let failure = ensure(&host, 1).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::ProtocolViolation), Certainty::Unknown)
    );
    assert!(
        failure.message.contains("field status is not set"),
        "{}",
        failure.message
    );
}

fn with_node_sets(script: &mut scripted::Script) {
    script
        .describe
        .capabilities
        .push(v1::Capability::LbNodesets.into());
}

fn is_inline(request: &v1::EnsureLoadBalancerRequest) -> bool {
    matches!(
        request.node_set.as_ref().unwrap().set,
        Some(v1::node_set_ref::Set::Inline(_))
    )
}

#[rstest]
#[case::small_sets_go_along(true, 8, true)]
#[case::large_sets_go_once(true, 9, false)]
#[case::a_plugin_without_the_capability_gets_them_in_full(false, 9, true)]
#[tokio::test]
async fn a_node_set_goes(#[case] capable: bool, #[case] members: usize, #[case] inline: bool) {
    let (host, server, _folder) = active(|script| {
        if capable {
            with_node_sets(script);
        }
    })
    .await;
    for _ in 0..2 {
        ensure(&host, members).await.unwrap();
    }
    let seen = server.plugin.seen();
    assert_eq!(
        seen.ensures.iter().map(is_inline).collect::<Vec<_>>(),
        [inline; 2]
    );
    assert_eq!(
        seen.put,
        if inline {
            Vec::new()
        } else {
            vec![format!("digest-of-{members}")]
        }
    );
}

#[tokio::test]
async fn a_forgotten_node_set_is_resent_in_full_at_once() {
    let (host, server, _folder) = active(|script| {
        with_node_sets(script);
        script.ensure = at_once(|request| {
            if is_inline(&request) {
                return Ok(done(&request));
            }
            Err(refusal(
                Code::FailedPrecondition,
                "NODE_SET_UNKNOWN",
                "NOT_APPLIED",
                None,
            ))
        });
    })
    .await;
    assert_eq!(ensure(&host, 9).await.unwrap().outcome, Outcome::Done);
    assert_eq!(
        server
            .plugin
            .seen()
            .ensures
            .iter()
            .map(is_inline)
            .collect::<Vec<_>>(),
        [false, true]
    );
}

#[tokio::test]
async fn a_new_session_gets_its_node_sets_anew() {
    let (host, server, _folder) = active(with_node_sets).await;
    ensure(&host, 9).await.unwrap();
    let socket = server.socket.clone();
    drop(server);
    let server = Server::start(&socket, Scripted::new(with_node_sets));
    host.sees(|view| view.session == 2 && view.state == SessionState::Active)
        .await;
    ensure(&host, 9).await.unwrap();
    assert_eq!(server.plugin.seen().put.len(), 1);
}

#[tokio::test]
async fn a_cancelled_write_may_have_happened() {
    let (host, server, _folder) = active(|script| script.ensure = never()).await;
    let (plugin, cancel) = (host.plugin.clone(), CancellationToken::new());
    let token = cancel.clone();
    let call = host
        .tasks
        .spawn_finite("call", async move { ensure_with(&plugin, &set(1), &token).await });
    server.plugin.sees(|seen| seen.ensures.len() == 1).await;
    cancel.cancel();
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::Cancelled), Certainty::Unknown)
    );
}

#[tokio::test]
async fn a_write_cancelled_before_it_was_sent_did_not_happen() {
    let (host, server, _folder) = active(|_| {}).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let failure = ensure_with(&host.plugin, &set(1), &cancel).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::Cancelled), Certainty::NotApplied)
    );
    assert!(server.plugin.seen().ensures.is_empty());
}

#[tokio::test]
async fn a_write_cut_with_the_stream_may_have_happened() {
    let (host, server, _folder) = active(|script| script.ensure = never()).await;
    let plugin = host.plugin.clone();
    let call = host.tasks.spawn_finite("call", async move {
        ensure_with(&plugin, &set(1), &CancellationToken::new()).await
    });
    server.plugin.sees(|seen| seen.ensures.len() == 1).await;
    drop(server);
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::Disconnected), Certainty::Unknown)
    );
}

/// What is made of a call's end on this side, before its connection is seen to have ended, which it is after `after`.
#[rstest]
#[case::at_once(1, Some(Reason::Disconnected))]
#[case::much_later(1000, None)]
#[tokio::test(start_paused = true)]
async fn a_call_that_ends_just_before_its_connection_was_taken_along_by_it(
    #[case] after: u64,
    #[case] reason: Option<Reason>,
) {
    let connection = Connection {
        channel: tonic::transport::Endpoint::from_static("http://localhost").connect_lazy(),
        gone: CancellationToken::new(),
        stamp: None,
        refusal: Arc::default(),
    };
    let gone = connection.gone.clone();
    let wire = Wire::new(
        "p".into(),
        connection,
        Arc::new(Counts::default()),
        Arc::default(),
    );
    let broken = async { Err(Status::from_error("transport error".into())) };
    let (result, ()) = tokio::join!(wire.answer::<()>(broken), async {
        tokio::time::sleep(Duration::from_millis(after)).await;
        gone.cancel();
    });
    assert_eq!(result.unwrap_err().failure.reason, reason);
}

#[tokio::test]
async fn a_write_without_a_session_did_not_happen() {
    let folder = TempDir::new().unwrap();
    let host = Host::at(&folder.path().join("p.sock"), Standing::Leading(term(1)));
    let failure = ensure(&host, 1).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::Disconnected), Certainty::NotApplied)
    );
    assert_eq!(
        failure.message,
        "no EnsureLoadBalancer: plugin test is discovered"
    );
}

#[tokio::test]
async fn no_more_calls_are_in_flight_than_the_plugin_takes() {
    let (host, server, _folder) = active(|script| {
        script.describe.limits = Some(v1::Limits {
            max_calls_in_flight: Some(1),
            ..v1::Limits::default()
        });
        script.ensure = never();
    })
    .await;
    let (plugin, cancel) = (host.plugin.clone(), CancellationToken::new());
    let token = cancel.clone();
    let first = host
        .tasks
        .spawn_finite("call", async move { ensure_with(&plugin, &set(1), &token).await });
    server.plugin.sees(|seen| seen.ensures.len() == 1).await;
    // The second waits for room until its own deadline: it was never sent.
    let failure = ask(&host, 1).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::DeadlineExceeded), Certainty::NotApplied)
    );
    assert!(server.plugin.seen().batches.is_empty());
    assert_eq!(
        host.plugin.subscribe().borrow().state,
        SessionState::Active,
        "health checks need no room"
    );
    cancel.cancel();
    first.await.unwrap().unwrap_err();
    ask(&host, 1).await.unwrap();
}

#[tokio::test]
async fn a_write_that_waited_for_its_whole_slice_is_not_sent() {
    let folder = TempDir::new().unwrap();
    let script = Scripted::new(|script| {
        script.describe.limits = Some(v1::Limits {
            max_calls_in_flight: Some(1),
            ..v1::Limits::default()
        });
        script.ensure = never();
    });
    let server = Server::start(&folder.path().join("p.sock"), script);
    let endpoint = Endpoint::Unix(server.socket.clone());
    let host = Host::start(endpoint, Standing::Leading(term(1)), |settings| {
        settings.timing.write_soft = Duration::from_millis(100);
    });
    host.is(SessionState::Active).await;
    let (plugin, cancel) = (host.plugin.clone(), CancellationToken::new());
    let token = cancel.clone();
    let first = host
        .tasks
        .spawn_finite("call", async move { ensure_with(&plugin, &set(1), &token).await });
    server.plugin.sees(|seen| seen.ensures.len() == 1).await;
    let failure = ensure(&host, 1).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::OperationInProgress), Certainty::NotApplied)
    );
    cancel.cancel();
    first.await.unwrap().unwrap_err();
    assert_eq!(server.plugin.seen().ensures.len(), 1);
}

#[tokio::test]
async fn a_request_over_the_plugins_size_is_not_sent() {
    let (host, server, _folder) = active(|script| {
        script.describe.limits = Some(v1::Limits {
            max_message_bytes: Some(64),
            ..v1::Limits::default()
        });
    })
    .await;
    let failure = ensure(&host, 8).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::MessageTooLarge), Certainty::NotApplied)
    );
    assert!(server.plugin.seen().ensures.is_empty());
}

#[rstest]
#[case::done(
    v1::UpdateTargetsResult { outcome: v1::Outcome::Done.into(), ..v1::UpdateTargetsResult::default() },
    |answer: &TargetsAnswer| matches!(answer, TargetsAnswer::Outcome { outcome: Outcome::Done, .. })
)]
#[case::absent(
    v1::UpdateTargetsResult { absent: Some(proof()), ..v1::UpdateTargetsResult::default() },
    |answer: &TargetsAnswer| matches!(answer, TargetsAnswer::Absent(proof) if proof.complete)
)]
#[case::failed(
    v1::UpdateTargetsResult {
        error: Some(v1::Error { reason: v1::ErrorReason::Conflict.into(), ..v1::Error::default() }),
        ..v1::UpdateTargetsResult::default()
    },
    |answer: &TargetsAnswer| matches!(
        answer,
        TargetsAnswer::Failed(Failure { reason: Some(Reason::Conflict), certainty: Certainty::Unknown, .. })
    )
)]
#[tokio::test]
async fn targets_are_updated(
    #[case] result: v1::UpdateTargetsResult,
    #[case] is_expected: fn(&TargetsAnswer) -> bool,
) {
    let (host, _server, _folder) = active(|script| {
        script.update_targets = at_once(move |request: v1::UpdateTargetsRequest| {
            let service = request.items[0].r#ref.as_ref().unwrap().service.clone();
            Ok(v1::UpdateTargetsResponse {
                results: vec![v1::UpdateTargetsResult {
                    service,
                    ..result.clone()
                }],
            })
        });
    })
    .await;
    let intent = Intent {
        request_id: "r".to_owned(),
        reason: IntentReason::Changed,
    };
    let (balancer, epoch, set, cancel) = (balancer(), epoch(1), set(1), CancellationToken::new());
    let right = Right {
        intent: &intent,
        epoch: &epoch,
        cancel: &cancel,
    };
    let answers = host
        .plugin
        .update_targets(&[(&balancer, &set)], right)
        .await
        .unwrap();
    assert!(answers.len() == 1 && is_expected(&answers[0]), "{answers:?}");
}

fn proof() -> v1::AbsenceProof {
    let kind = v1::freshness::Kind::Direct(v1::freshness::Direct {});
    v1::AbsenceProof {
        complete: true,
        scopes_checked: vec!["here".to_owned()],
        freshness: Some(v1::Freshness { kind: Some(kind) }),
    }
}

#[rstest]
#[case::its_own(Some(service()), Ok(LoadBalancerAnswer::Unverified))]
#[case::another_service(
    Some(v1::ServiceKey { uid: "uid-old".to_owned(), ..service() }),
    Err(Some(Reason::ProtocolViolation))
)]
#[case::no_service(None, Err(Some(Reason::ProtocolViolation)))]
#[tokio::test]
async fn a_look_is_about_the_service_asked_for(
    #[case] service: Option<v1::ServiceKey>,
    #[case] expected: Result<LoadBalancerAnswer, Option<Reason>>,
) {
    use v1::load_balancer_observation::{Observation, Unverified};
    let (host, _server, _folder) = active(|script| {
        script.look = at_once(move |_| {
            let observation = v1::LoadBalancerObservation {
                service: service.clone(),
                observation: Some(Observation::Unverified(Unverified {})),
                ..v1::LoadBalancerObservation::default()
            };
            Ok(v1::GetLoadBalancersResponse {
                observations: vec![observation],
            })
        });
    })
    .await;
    let answer = host.plugin.look(&balancer(), "").await;
    assert_eq!(answer.map_err(|failure| failure.reason), expected);
}

#[tokio::test]
async fn a_delete_answers_what_remains() {
    let (host, _server, _folder) = active(|script| {
        script.delete = at_once(|request: v1::DeleteLoadBalancerRequest| {
            assert_eq!(request.policy(), v1::DeletePolicy::Delete);
            Ok(v1::DeleteLoadBalancerResponse {
                outcome: v1::Outcome::InProgress.into(),
                remaining: vec![v1::Resource {
                    id: "firewall-1".to_owned(),
                    origin: v1::ResourceOrigin::Created.into(),
                    ..v1::Resource::default()
                }],
                progress: "waits for\nthe cloud".to_owned(),
                ..v1::DeleteLoadBalancerResponse::default()
            })
        });
    })
    .await;
    let intent = Intent {
        request_id: "r".to_owned(),
        reason: IntentReason::Changed,
    };
    let (epoch, cancel) = (epoch(1), CancellationToken::new());
    let right = Right {
        intent: &intent,
        epoch: &epoch,
        cancel: &cancel,
    };
    let deleted = host.plugin.delete(&balancer(), right).await.unwrap();
    let progress = "waits for the cloud".to_owned();
    assert_eq!(
        deleted.outcome,
        Outcome::InProgress {
            progress,
            retry_after: None
        }
    );
    assert_eq!(deleted.remaining[0].id, "firewall-1");
}
