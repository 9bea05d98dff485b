//! Load balancers: converged from the cloud's truth, whatever happened before.

use std::time::Duration;

use bulkhead_plugin::v1::load_balancer_observation::Observation;
use bulkhead_plugin::v1::{self, Outcome};
use bulkhead_sim::cloud::{Distribution, Effect, ErrorCode, Fault, Kind, SettingsChange};
use proptest::prelude::*;
use rstest::rstest;
use tonic::Code;

use crate::fixture::{CLUSTER, MACHINES, Stage, delete, ensure, node, observe, owned, spec, update};

#[tokio::test]
async fn a_second_ensure_writes_nothing_and_one_node_more_is_one_write() {
    let stage = Stage::led(MACHINES).await;
    let request = ensure("u", spec(&[80, 443]), &[node(1), node(2)]);
    let made = stage.ensure(&request).await.unwrap();
    assert_eq!(made.outcome(), Outcome::Done, "{made:?}");
    assert_eq!(stage.of(Kind::Listener).len(), 2);
    assert_eq!(stage.of(Kind::Target).len(), 2);

    let before = stage.writes();
    let again = stage.ensure(&request).await.unwrap();
    assert_eq!((stage.writes(), &again), (before, &made));

    let more = ensure("u", spec(&[80, 443]), &[node(1), node(2), node(3)]);
    stage.ensure(&more).await.unwrap();
    assert_eq!((stage.writes(), stage.of(Kind::Target).len()), (before + 1, 3));

    let answer = stage
        .host
        .clone()
        .update_targets(update(&["u"], &[node(1)]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.results[0].outcome(), Outcome::Done);
    assert_eq!((stage.writes(), stage.of(Kind::Target).len()), (before + 2, 1));
}

#[rstest]
#[case::a_port_more(|spec: &mut v1::Spec| spec.ports.push(crate::fixture::spec(&[90]).ports[0].clone()), 2)]
#[case::another_node_port(|spec: &mut v1::Spec| spec.ports[0].node_port = Some(31_000), 2)]
#[case::ranges(|spec: &mut v1::Spec| spec.source_ranges = vec!["192.0.2.0/24".to_owned()], 2)]
#[case::affinity(|spec: &mut v1::Spec| spec.session_affinity = v1::SessionAffinity::ClientIp.into(), 1)]
#[case::health_check(|spec: &mut v1::Spec| {
    spec.health_check = Some(v1::HealthCheck { node_port: 32_000, path: "/healthz".to_owned() });
}, 1)]
#[case::another_address(|spec: &mut v1::Spec| spec.requested_addresses = vec!["198.18.7.7".to_owned()], 3)]
#[tokio::test]
async fn a_changed_field_touches_what_it_is_about(#[case] change: fn(&mut v1::Spec), #[case] writes: u64) {
    let stage = Stage::led(MACHINES).await;
    let mut spec = spec(&[80]);
    stage.ensure_done(&ensure("u", spec.clone(), &[node(1)])).await;
    let before = stage.writes();
    change(&mut spec);
    let request = ensure("u", spec.clone(), &[node(1)]);
    stage.ensure_done(&request).await;
    assert_eq!(stage.writes() - before, writes);
    stage.ensure_done(&request).await;
    assert_eq!(stage.writes() - before, writes);
    let seen = stage
        .host
        .clone()
        .get_load_balancers(observe("u", Some(spec)))
        .await
        .unwrap()
        .into_inner();
    assert!(
        matches!(seen.observations[0].observation, Some(Observation::InSync(_))),
        "{seen:?}"
    );
}

/// Breaks off after `writes` writes, then goes on as hosts do.
async fn broken_off(writes: u64, effect: Effect, lag: Duration) {
    let stage = Stage::led(MACHINES).await;
    let settings = SettingsChange::default().lag(Distribution::always(lag));
    stage.with(|cloud| cloud.configure(settings)).unwrap();
    let before = stage.inventory();
    stage.fault(Fault::new("write", effect.clone()).after(writes).times(1));
    let request = ensure("u", spec(&[80, 443]), &[node(1), node(2)]);
    stage.ensure(&request).await.ok();
    stage.ensure_done(&request).await;
    for (kind, count) in [
        (Kind::LoadBalancer, 1),
        (Kind::Listener, 2),
        (Kind::Pool, 1),
        (Kind::Target, 2),
        (Kind::HealthCheck, 1),
        (Kind::Address, 1),
        (Kind::Firewall, 1),
        (Kind::FirewallRule, 2),
    ] {
        assert_eq!(stage.of(kind).len(), count, "{kind:?} after {writes} writes");
    }
    stage.fault(Fault::new("write", effect).after(writes).times(1));
    stage.delete_done("u").await;
    assert_eq!(stage.inventory(), before, "after {writes} writes");
}

#[rstest]
#[case::the_answer_is_lost(Effect::LostAnswer)]
#[case::the_cloud_refuses(Effect::Error { code: ErrorCode::Unavailable, message: String::new(), retry_after: None })]
#[tokio::test]
async fn wherever_the_work_breaks_off_it_is_finished_once_and_undone_whole(#[case] effect: Effect) {
    for writes in 0..10 {
        broken_off(writes, effect.clone(), Duration::ZERO).await;
    }
}

#[rstest]
#[tokio::test]
async fn a_lost_answer_and_old_reads_make_no_duplicate(#[values(0, 3, 5, 8)] writes: u64) {
    broken_off(writes, Effect::LostAnswer, Duration::from_millis(200)).await;
}

#[tokio::test]
async fn what_was_just_made_is_deleted_although_reads_do_not_show_it_yet() {
    let stage = Stage::led(MACHINES).await;
    let settings = SettingsChange::default().lag(Distribution::always(Duration::from_millis(500)));
    stage.with(|cloud| cloud.configure(settings)).unwrap();
    let before = stage.inventory();
    stage.ensure(&ensure("u", spec(&[80]), &[node(1)])).await.unwrap();
    stage.delete_done("u").await;
    assert_eq!(stage.inventory(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_way_through_specs_ends_as_the_last_one_alone_would(
        steps in prop::collection::vec((prop::collection::btree_set(1_u32..6, 1..4), 0_u32..4, any::<bool>()), 1..5),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let request = |(ports, nodes, ranges): &(std::collections::BTreeSet<u32>, u32, bool)| {
            let mut spec = spec(&ports.iter().copied().collect::<Vec<_>>());
            if *ranges {
                spec.source_ranges = vec!["192.0.2.0/24".to_owned(), "198.51.100.0/24".to_owned()];
            }
            ensure("u", spec, &(1..=*nodes).map(node).collect::<Vec<_>>())
        };
        let shape = |stage: &Stage| {
            let mut all: Vec<_> = stage.inventory().into_iter().map(|it| (it.kind, it.name, it.tags)).collect();
            all.sort();
            all
        };
        runtime.block_on(async {
            let (one, other) = (Stage::led(MACHINES).await, Stage::led(MACHINES).await);
            for step in &steps {
                one.ensure_done(&request(step)).await;
            }
            other.ensure_done(&request(steps.last().unwrap())).await;
            assert_eq!(shape(&one), shape(&other));
            let empty = Stage::standby(MACHINES).await;
            one.delete_done("u").await;
            assert_eq!(shape(&one), shape(&empty));
        });
    }
}

#[tokio::test]
async fn a_slow_load_balancer_is_in_progress_until_it_serves_and_until_it_is_gone() {
    let stage = Stage::led(
        "cloud: {settings: {provisioning: {load_balancer: 300ms}, deletion: {load_balancer: 300ms}}}",
    )
    .await;
    let request = ensure("u", spec(&[80]), &[]);
    let first = stage.ensure(&request).await.unwrap();
    assert_eq!(first.outcome(), Outcome::InProgress);
    assert!(!first.resources.is_empty() && !first.progress.is_empty() && first.error.is_none());
    let made = stage.ensure_done(&request).await;
    assert_eq!(made.status.unwrap().ingress.len(), 1);
    let gone = Box::pin(stage.host.clone().delete_load_balancer(delete("u")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(gone.outcome(), Outcome::InProgress);
    assert!(!gone.remaining.is_empty());
    stage.delete_done("u").await;
    assert_eq!(stage.inventory().len(), 1);
}

#[rstest]
#[case::throttled(ErrorCode::Throttled, Code::ResourceExhausted)]
#[case::quota(ErrorCode::QuotaExceeded, Code::ResourceExhausted)]
#[case::away(ErrorCode::Unavailable, Code::Unavailable)]
#[case::wrong_credentials(ErrorCode::CredentialsInvalid, Code::Unauthenticated)]
#[case::expired_credentials(ErrorCode::CredentialsExpired, Code::Unauthenticated)]
#[case::no_permission(ErrorCode::PermissionDenied, Code::PermissionDenied)]
#[case::refused(ErrorCode::Refused, Code::Unknown)]
#[tokio::test]
async fn what_the_cloud_refuses_first_is_a_status_of_its_own(
    #[case] code: ErrorCode,
    #[case] expected: Code,
) {
    let stage = Stage::led(MACHINES).await;
    let effect = Effect::Error {
        code,
        message: "no".to_owned(),
        retry_after: None,
    };
    stage.fault(Fault::new("write", effect));
    let status = stage.ensure(&ensure("u", spec(&[80]), &[])).await.unwrap_err();
    assert_eq!(status.code(), expected, "{status:?}");
    assert_eq!(stage.of(Kind::LoadBalancer).len(), 0);
}

#[tokio::test]
async fn a_quota_in_the_middle_is_blocked_with_what_was_made() {
    let stage = Stage::led("cloud: {settings: {quotas: {load_balancer: 0}}}").await;
    let answer = stage.ensure(&ensure("u", spec(&[80]), &[])).await.unwrap();
    assert_eq!(answer.outcome(), Outcome::Blocked);
    assert_eq!(answer.error.unwrap().reason(), v1::ErrorReason::QuotaExceeded);
    assert!(!answer.resources.is_empty());
    stage.delete_done("u").await;
}

#[tokio::test]
async fn what_has_our_name_and_no_mark_is_never_taken() {
    let stage = Stage::led(MACHINES).await;
    stage.ensure_done(&ensure("u", spec(&[80]), &[])).await;
    let mut foreign = stage.of(Kind::LoadBalancer).remove(0);
    foreign.tags.clear();
    stage.cloud.with(|cloud, now| cloud.put(foreign, now)).unwrap();
    let status = stage.ensure(&ensure("u", spec(&[80]), &[])).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("mark"), "{status:?}");
}

#[tokio::test]
async fn what_was_removed_by_hand_is_seen_and_repaired() {
    let stage = Stage::led(MACHINES).await;
    stage.ensure_done(&ensure("u", spec(&[80]), &[node(1)])).await;
    let id = stage.of(Kind::Listener).remove(0).id;
    stage.cloud.with(|cloud, now| cloud.remove(&id, now));
    let writes = stage.writes();
    let seen = stage
        .host
        .clone()
        .get_load_balancers(observe("u", Some(spec(&[80]))))
        .await
        .unwrap()
        .into_inner();
    let Some(Observation::Drifted(drift)) = &seen.observations[0].observation else {
        panic!("{seen:?}")
    };
    assert_eq!(drift.fields, ["resource:listener/tcp/80"]);
    let absent = stage
        .host
        .clone()
        .get_load_balancers(observe("other", None))
        .await
        .unwrap()
        .into_inner();
    assert!(matches!(
        absent.observations[0].observation,
        Some(Observation::Absent(_))
    ));
    assert_eq!(stage.writes(), writes);
    stage.ensure_done(&ensure("u", spec(&[80]), &[node(1)])).await;
    assert_eq!((stage.writes(), stage.of(Kind::Listener).len()), (writes + 1, 1));
}

#[tokio::test]
async fn nodes_that_are_no_targets_are_named_and_fail_nobody() {
    let stage = Stage::led(&format!("{MACHINES}plugin: {{maxTargets: 1}}")).await;
    let strange = |name: &str, provider_id: &str| v1::Node {
        name: name.to_owned(),
        provider_id: provider_id.to_owned(),
        ..Default::default()
    };
    let nodes = [
        strange("a", ""),
        strange("b", "other://i-1"),
        strange("c", "sim://i-1"),
        strange("d", "sim://i-2"),
    ];
    let made = stage.ensure(&ensure("u", spec(&[80]), &nodes)).await.unwrap();
    let problems: Vec<_> = made
        .target_problems
        .iter()
        .map(|it| (it.node_name.as_str(), it.reason.as_str()))
        .collect();
    assert_eq!(
        problems,
        [
            ("a", "NoProviderID"),
            ("b", "ForeignProvider"),
            ("d", "LimitReached")
        ]
    );
    assert_eq!(made.outcome(), Outcome::Done);
    let made = stage
        .ensure(&ensure("v", spec(&[80]), &[node(77)]))
        .await
        .unwrap();
    assert_eq!(
        (made.outcome(), made.target_problems[0].reason.as_str()),
        (Outcome::Done, "InstanceUnknown")
    );
}

#[tokio::test]
async fn what_is_listed_is_what_was_reported_and_can_be_deleted_one_by_one() {
    let stage = Stage::led(MACHINES).await;
    let before = stage.inventory();
    let made = stage.ensure_done(&ensure("u", spec(&[80]), &[node(1)])).await;
    let mut reported: Vec<v1::Resource> = made.resources;
    reported.retain(|it| it.mark.as_ref().unwrap().kind() == v1::MarkKind::Tag);
    for resource in &reported {
        let expected = bulkhead_plugin::mark::mark(CLUSTER, "u", &resource.role);
        assert_eq!(resource.mark.as_ref().unwrap().value, expected);
    }
    let mut listed = stage
        .host
        .clone()
        .list_owned_resources(owned())
        .await
        .unwrap()
        .into_inner();
    assert!(
        listed
            .verdicts
            .iter()
            .all(|it| it.verdict.as_ref().unwrap().complete)
    );
    let by_id = |one: &v1::Resource, other: &v1::Resource| one.id.cmp(&other.id);
    reported.sort_by(by_id);
    listed.resources.sort_by(by_id);
    assert_eq!(listed.resources, reported);

    for _ in 0..5 {
        let one = |it: &v1::Resource| v1::DeleteOwnedResource {
            id: it.id.clone(),
            r#type: it.r#type.clone(),
            expected_mark: it.mark.clone(),
            expected_revision: String::new(),
        };
        let request = v1::DeleteOwnedResourcesRequest {
            cluster: Some(crate::fixture::cluster()),
            intent: Some(crate::fixture::intent()),
            resources: reported.iter().map(one).collect(),
        };
        stage.host.clone().delete_owned_resources(request).await.unwrap();
    }
    assert_eq!(stage.inventory(), before);
}

#[tokio::test]
async fn an_address_is_kept_where_the_policy_says_so_and_found_again() {
    let stage = Stage::led(MACHINES).await;
    let made = stage.ensure_done(&ensure("u", spec(&[80]), &[])).await;
    let policy = v1::DeletePolicy::KeepAddress.into();
    let kept = v1::DeleteLoadBalancerRequest {
        policy,
        ..delete("u")
    };
    let answer = Box::pin(stage.host.clone().delete_load_balancer(kept))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((answer.outcome(), answer.remaining.len()), (Outcome::Done, 1));
    let again = stage.ensure_done(&ensure("u", spec(&[80]), &[])).await;
    assert_eq!(again.status, made.status);
}

#[tokio::test]
async fn wrong_specs_are_refused_before_any_call_of_the_cloud() {
    let stage = Stage::led(MACHINES).await;
    let calls = stage.with(|cloud| cloud.records().total().calls);
    let mut no_node_port = spec(&[80]);
    no_node_port.ports[0].node_port = None;
    let mut ranges = spec(&[80]);
    ranges.source_ranges = vec!["here".to_owned()];
    for (wrong, field) in [
        (no_node_port, "spec.ports[0].node_port"),
        (ranges, "spec.source_ranges[0]"),
        (spec(&[80, 80]), "spec.ports[1]"),
        (spec(&[]), "spec.ports"),
    ] {
        let status = stage.ensure(&ensure("u", wrong, &[])).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(field), "{status:?}");
    }
    assert_eq!(stage.with(|cloud| cloud.records().total().calls), calls);
}
