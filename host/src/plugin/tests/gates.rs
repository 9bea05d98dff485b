//! What failures shut, and what opens again.

use std::collections::HashSet;

use bulkhead_core::cloud::{Certainty, Failure, InstanceAnswer, Reason};
use bulkhead_core::digest::Digest;
use bulkhead_core::gate::GateView;
use bulkhead_core::ids::{ServiceKey, Uid};
use bulkhead_core::service::node_set::NodeSet;
use bulkhead_core::service::request::{BalancerRef, Intent, IntentReason};
use bulkhead_core::service::spec::Spec;
use bulkhead_proto::v1;
use rstest::rstest;
use tonic::{Code, Status};

use super::fixtures::{balancer, node};
use super::scripted::{all_found, at_once, done, never, refusal};
use super::*;

const LB: Capability = Capability::Lb;
const INSTANCES: Capability = Capability::Instances;

/// Ensures the load balancer of Service `name`.
async fn ensure(host: &Host, name: &str) -> Result<(), Failure> {
    let intent = Intent {
        request_id: "request-1".to_owned(),
        reason: IntentReason::Changed,
    };
    let balancer = BalancerRef {
        service: ServiceKey {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        },
        uid: Uid(format!("uid-{name}")),
        ..balancer()
    };
    let targets = Arc::new(NodeSet {
        members: Vec::new(),
        digest: Digest::received("nobody".to_owned()),
    });
    let (epoch, cancel) = (epoch(1), CancellationToken::new());
    let what = Ensure {
        balancer: &balancer,
        spec: &Spec::default(),
        spec_digest: &Digest::received("digest"),
        targets: &targets,
    };
    let right = Right {
        intent: &intent,
        epoch: &epoch,
        cancel: &cancel,
    };
    host.plugin.ensure(what, right).await.map(|_| ())
}

/// Reads the instance of node `name`.
async fn read(host: &Host, name: &str) -> Result<Vec<InstanceAnswer>, Failure> {
    host.plugin
        .get_instances(&[node(name)], &[Aspect::Existence], Duration::ZERO)
        .await
}

fn reason<T>(result: &Result<T, Failure>) -> Option<Reason> {
    result.as_ref().err().and_then(|failure| failure.reason)
}

impl Host {
    /// Waits until the gates are as `expected` says.
    async fn gates(&self, expected: impl Fn(&GateView) -> bool) -> GateView {
        let mut view = self.plugin.gates();
        let seen = timeout(SOON, view.wait_for(|view| expected(view))).await;
        let in_vain = || panic!("in vain: {:?}", self.plugin.gates().borrow());
        seen.unwrap_or_else(|_| in_vain()).unwrap().clone()
    }

    async fn opens(&self, capability: Capability) {
        self.gates(|view| view.of(capability) == Gate::Open).await;
    }

    fn shut(&self, capability: Capability) -> Option<Why> {
        let gate = self.plugin.gates().borrow().of(capability);
        match gate {
            Gate::Shut { why, .. } => Some(why),
            Gate::Open | Gate::Trial { .. } => None,
        }
    }
}

fn unavailable() -> Status {
    refusal(Code::Unavailable, "CLOUD_UNAVAILABLE", "UNKNOWN", None)
}

/// Answers `GetInstances` and `EnsureLoadBalancer` well.
fn heal(script: &mut scripted::Script) {
    script.get_instances = at_once(|request| Ok(all_found(&request)));
    script.ensure = at_once(|request| Ok(done(&request)));
}

#[rstest]
#[case::cloud_unavailable(unavailable())]
#[case::a_status_of_nobody(Status::internal("h2 protocol error"))]
#[case::a_method_that_nobody_serves(Status::unimplemented(""))]
#[tokio::test]
async fn a_storm_of_failures_opens_the_breaker_of_its_capability_only_and_one_success_closes_it(
    #[case] status: Status,
) {
    let (host, server, _folder) =
        active(|script| script.ensure = at_once(move |_| Err(status.clone()))).await;
    for service in ["a", "b", "c", "a", "b"] {
        assert_eq!(host.shut(LB), None);
        ensure(&host, service).await.unwrap_err();
    }
    assert_eq!(
        (host.shut(LB), host.shut(INSTANCES)),
        (Some(Why::Unreached), None)
    );
    assert_eq!(host.results("lb"), ["unreached"], "the opening is counted");

    let failure = ensure(&host, "d").await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.certainty),
        (Some(Reason::Shut), Certainty::NotApplied)
    );
    assert_eq!(server.plugin.seen().ensures.len(), 5, "nothing is sent any more");
    read(&host, "node").await.unwrap();

    // The plugin answers GetStatus all the time: one call is tried when the wait is over.
    let is_tried = |view: &GateView| matches!(view.of(LB), Gate::Trial { .. });
    host.gates(is_tried).await;
    ensure(&host, "a").await.unwrap_err();
    assert_eq!(host.shut(LB), Some(Why::Unreached), "the trial failed");
    server.plugin.adapt(heal);
    host.gates(is_tried).await;
    ensure(&host, "a").await.unwrap();
    assert_eq!(host.plugin.gates().borrow().of(LB), Gate::Open);
}

#[tokio::test]
async fn no_two_calls_are_on_trial_at_once() {
    let (host, server, _folder) = active(|script| script.ensure = at_once(|_| Err(unavailable()))).await;
    for service in ["a", "b", "c", "d", "e"] {
        ensure(&host, service).await.unwrap_err();
    }
    server.plugin.adapt(|script| script.ensure = never());
    host.gates(|view| matches!(view.of(LB), Gate::Trial { .. })).await;
    {
        let mut trial = Box::pin(ensure(&host, "a"));
        tokio::select! {
            result = &mut trial => panic!("{result:?}"),
            _ = server.plugin.sees(|seen| seen.ensures.len() == 6) => {}
        }
        assert_eq!(reason(&ensure(&host, "b").await), Some(Reason::Shut));
    }
    // Given up, it has decided nothing.
    server.plugin.adapt(heal);
    ensure(&host, "b").await.unwrap();
    host.opens(LB).await;
}

#[tokio::test]
async fn twenty_services_that_the_cloud_refuses_never_open_the_breaker() {
    let (host, server, _folder) = active(|script| {
        script.ensure = at_once(|request: v1::EnsureLoadBalancerRequest| {
            let name = request
                .r#ref
                .as_ref()
                .unwrap()
                .service
                .as_ref()
                .unwrap()
                .name
                .clone();
            if name.starts_with("bad") {
                return Err(refusal(Code::Unknown, "PROVIDER_ERROR", "NOT_APPLIED", None));
            }
            Ok(done(&request))
        });
    })
    .await;
    for round in 0..10 {
        for service in 0..20 {
            let result = ensure(&host, &format!("bad-{service}")).await;
            assert_eq!(reason(&result), Some(Reason::ProviderError), "round {round}");
        }
    }
    ensure(&host, "good").await.unwrap();
    read(&host, "node").await.unwrap();
    assert_eq!(server.plugin.seen().ensures.len(), 201);
    assert_eq!(host.results("lb"), [""; 0], "no gate was ever shut");
}

fn credentials(status: v1::ConditionStatus) -> v1::GetStatusResponse {
    v1::GetStatusResponse {
        conditions: vec![v1::PluginCondition {
            r#type: v1::PluginConditionType::CredentialsValid.into(),
            status: status.into(),
            ..v1::PluginCondition::default()
        }],
        ..v1::GetStatusResponse::default()
    }
}

/// A plugin whose every call is refused for its credentials.
async fn refused(status: v1::GetStatusResponse) -> (Host, Server, TempDir) {
    let refusal = || refusal(Code::Unauthenticated, "CREDENTIALS_EXPIRED", "NOT_APPLIED", None);
    let (host, server, folder) = active(|script| {
        script.get_instances = at_once(move |_| Err(refusal()));
        script.ensure = at_once(move |_| Err(refusal()));
    })
    .await;
    server.plugin.adapt(|script| script.status = status);
    let result = read(&host, "node").await;
    assert_eq!(reason(&result), Some(Reason::CredentialsExpired));
    assert_eq!(
        [INSTANCES, LB].map(|it| host.shut(it)),
        [Some(Why::Credentials); 2]
    );
    let result = ensure(&host, "web").await;
    assert_eq!(reason(&result), Some(Reason::Shut));
    assert_eq!(server.plugin.seen().ensures.len(), 0);
    (host, server, folder)
}

#[tokio::test]
async fn cred_rotate_refused_credentials_freeze_the_whole_plugin_until_it_says_that_it_has_others() {
    let (host, server, _folder) = refused(credentials(v1::ConditionStatus::False)).await;
    host.is(SessionState::Degraded).await;
    // However long it says so, it stays frozen: here twice as long as its silence would be taken for a change.
    tokio::time::sleep(QUICK.gates.credentials * 2).await;
    assert_eq!(host.shut(LB), Some(Why::Credentials));
    server.plugin.adapt(|script| {
        heal(script);
        script.status = credentials(v1::ConditionStatus::True);
    });
    host.opens(LB).await;
    read(&host, "node").await.unwrap();
    ensure(&host, "web").await.unwrap();
    assert_eq!(
        host.plugin.subscribe().borrow().session,
        1,
        "nobody was restarted"
    );
}

#[tokio::test]
async fn reauth_a_plugin_that_does_not_speak_of_its_credentials_is_tried_with_one_call_now_and_then() {
    let (host, server, _folder) = refused(v1::GetStatusResponse::default()).await;
    let is_tried = |view: &GateView| matches!(view.of(LB), Gate::Trial { .. });
    host.gates(is_tried).await;
    let result = ensure(&host, "web").await;
    assert_eq!(reason(&result), Some(Reason::CredentialsExpired));
    assert_eq!(host.shut(INSTANCES), Some(Why::Credentials));
    server.plugin.adapt(heal);
    host.gates(is_tried).await;
    read(&host, "node").await.unwrap();
    host.opens(LB).await;
}

#[tokio::test]
async fn a_refused_rate_pauses_every_call_of_the_plugin_for_as_long_as_it_asks() {
    const PAUSE: Duration = Duration::from_millis(1500);
    let (host, server, _folder) = active(|script| {
        script.ensure = at_once(|_| {
            Err(refusal(
                Code::ResourceExhausted,
                "RATE_LIMITED",
                "NOT_APPLIED",
                Some(PAUSE),
            ))
        });
    })
    .await;
    let result = ensure(&host, "web").await;
    let refused = clock::now();
    assert_eq!(reason(&result), Some(Reason::RateLimited));
    assert_eq!(reason(&read(&host, "node").await), Some(Reason::Shut));
    assert_eq!(server.plugin.seen().batches, [0; 0]);
    server.plugin.adapt(heal);
    host.opens(INSTANCES).await;
    let paused = clock::now().saturating_since(refused);
    // It began a moment before it was seen.
    assert!(paused + Duration::from_millis(50) >= PAUSE, "{paused:?}");
    read(&host, "node").await.unwrap();
    ensure(&host, "web").await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_says_it_is_throttled_gets_no_calls_until_then() {
    let (host, server, _folder) = active(|_| {}).await;
    let until = clock::wall().0 + 60_000_000;
    server.plugin.adapt(|script| {
        script.status.throttled_until = Some(prost_types::Timestamp {
            seconds: until / 1_000_000,
            nanos: 0,
        });
    });
    host.gates(|view| view.of(LB).why() == Some(Why::Throttled)).await;
    assert_eq!(reason(&read(&host, "node").await), Some(Reason::Shut));
    server.plugin.adapt(|script| script.status.throttled_until = None);
    host.opens(INSTANCES).await;
    read(&host, "node").await.unwrap();
}

#[tokio::test]
async fn a_capability_whose_answers_break_the_protocol_is_left_alone_until_there_is_another_process() {
    let (host, server, _folder) = active(|script| {
        script.get_instances = at_once(|_| Ok(v1::GetInstancesResponse::default()));
    })
    .await;
    for name in ["a", "b", "c"] {
        assert_eq!(host.shut(INSTANCES), None);
        assert_eq!(reason(&read(&host, name).await), Some(Reason::ProtocolViolation));
    }
    assert_eq!((host.shut(INSTANCES), host.shut(LB)), (Some(Why::Violated), None));
    let socket = server.socket.clone();
    drop(server);
    let _server = Server::start(&socket, Scripted::new(|_| {}));
    host.sees(|view| view.session == 2 && view.state == SessionState::Active)
        .await;
    assert_eq!(host.plugin.gates().borrow().of(INSTANCES), Gate::Open);
    read(&host, "a").await.unwrap();
}

#[tokio::test]
async fn a_declared_capability_that_is_withdrawn_is_left_alone() {
    let (host, _server, _folder) = active(|script| {
        script.ensure = at_once(|_| Err(refusal(Code::Unimplemented, "UNIMPLEMENTED", "NOT_APPLIED", None)));
    })
    .await;
    for name in ["a", "b", "c"] {
        assert_eq!(host.shut(LB), None);
        ensure(&host, name).await.unwrap_err();
    }
    assert_eq!((host.shut(LB), host.shut(INSTANCES)), (Some(Why::Violated), None));
    read(&host, "a").await.unwrap();
}

#[tokio::test]
async fn five_bugs_make_a_plugin_degraded_and_work_goes_on() {
    let (host, server, _folder) = active(|script| {
        script.ensure = at_once(|_| Err(refusal(Code::Internal, "PANIC", "UNKNOWN", None)));
    })
    .await;
    for _ in 0..5 {
        assert_eq!(reason(&ensure(&host, "web").await), Some(Reason::Panic));
    }
    let view = host.is(SessionState::Degraded).await;
    assert!(view.reason.contains("bug or panic"), "{}", view.reason);
    server.plugin.adapt(heal);
    ensure(&host, "web").await.unwrap();
}

#[rstest]
#[case::not_found(Status::not_found("no such instance"))]
#[case::permission(Status::permission_denied(""))]
#[case::unauthenticated(Status::unauthenticated("proxy: no session"))]
#[case::exhausted(Status::resource_exhausted("grpc: message too large"))]
#[tokio::test]
async fn a_status_of_nobody_says_nothing_about_an_instance_and_freezes_nothing(#[case] status: Status) {
    let (host, _server, _folder) =
        active(|script| script.get_instances = at_once(move |_| Err(status.clone()))).await;
    let failure = read(&host, "node").await.unwrap_err();
    assert_eq!((failure.reason, failure.certainty), (None, Certainty::Unknown));
    assert_eq!([INSTANCES, LB].map(|it| host.shut(it)), [None; 2]);
}

#[tokio::test]
async fn a_plugin_with_too_little_room_gets_what_is_configured_and_health_checks_need_none() {
    let folder = TempDir::new().unwrap();
    let script = Scripted::new(|script| script.ensure = never());
    let server = Server::start(&folder.path().join("p.sock"), script);
    let endpoint = Endpoint::Unix(server.socket.clone());
    let host = Host::start(endpoint, Standing::Leading(term(1)), |settings| {
        settings.budget.calls_in_flight = std::num::NonZeroUsize::new(2);
    });
    host.is(SessionState::Active).await;
    let names: HashSet<String> = (0..6).map(|number| format!("s{number}")).collect();
    let calls = futures::future::join_all(names.iter().map(|name| ensure(&host, name)));
    tokio::select! {
        _ = calls => panic!("they hang"),
        _ = server.plugin.sees(|seen| seen.ensures.len() == 2) => {}
    }
    assert_eq!(server.plugin.seen().ensures.len(), 2);
    assert_eq!(host.plugin.subscribe().borrow().state, SessionState::Active);
}
