//! What each result of a step means.

use std::time::Duration;

use rstest::rstest;

use super::{Case, deleting, ingress};
use crate::backoff::Backoff;
use crate::cloud::{
    AbsenceProof, Certainty, Deleted, Ensured, Failure, Freshness, LoadBalancerAnswer, Outcome, Reason,
    Resource, TargetsAnswer,
};
use crate::digest::Digest;
use crate::fixtures::{description, service, territory};
use crate::outcome::{Next, SLOW, WriteFailure};
use crate::service::field::in_kubernetes;
use crate::service::plan::{Conclusion, Performed, Standing, Step, Then, conclude};
use crate::service::request::IntentReason;

fn failure(reason: Option<Reason>) -> Failure {
    Failure {
        reason,
        certainty: Certainty::Unknown,
        message: "quota of 5 reached".to_owned(),
        retry_after: None,
    }
}

fn ensured(outcome: Outcome) -> Ensured {
    Ensured {
        outcome,
        spec_digest: service("s").spec.digest(&description()),
        ingress: Some(ingress("127.0.10.1")),
        resources: Vec::new(),
        target_problems: Vec::new(),
        port_problems: Vec::new(),
        failure: None,
    }
}

/// That the address asked for cannot be had, as the border tells it of any Service.
fn address_refused() -> Failure {
    Failure {
        message: format!("{}: is taken", in_kubernetes("spec.requested_addresses")),
        ..failure(Some(Reason::InUse))
    }
}

fn in_progress(retry_after: Option<u64>) -> Outcome {
    Outcome::InProgress {
        progress: "waiting for an address".to_owned(),
        retry_after: retry_after.map(Duration::from_secs),
    }
}

fn concluded(case: &Case, performed: Performed) -> Conclusion {
    let step = case.plan().step;
    case.observed(|observed| conclude(observed, &step, performed))
}

fn reasons(conclusion: &Conclusion) -> Vec<&'static str> {
    conclusion.notices.iter().map(|notice| notice.reason).collect()
}

/// 5 to 30 minutes.
const QUOTA: Backoff = Backoff::new(SLOW, Duration::from_secs(1800));

#[rstest]
#[case::of_a_new_one(Err(address_refused()))]
#[case::of_one_that_stands(Ok(ensured(Outcome::Blocked(address_refused()))))]
fn people_are_told_the_one_place_where_their_service_asks_for_the_address(
    #[case] result: Result<Ensured, Failure>,
) {
    let mut service = service("s");
    service.spec.requested_addresses = vec!["192.0.2.1".to_owned()];
    let spec_digest = service.spec.digest(&description());
    let result = result.map(|answer| {
        Box::new(Ensured {
            spec_digest,
            ..answer
        })
    });
    let case = Case::new().with(|it| it.spec = service.spec);
    let conclusion = concluded(&case, Performed::Ensured(result));
    let notes: Vec<_> = conclusion
        .notices
        .iter()
        .map(|notice| notice.note.as_str())
        .collect();
    assert_eq!(
        notes,
        ["Error syncing load balancer: .spec.loadBalancerIP: is taken"]
    );
}

#[rstest]
#[case::done(Ok(ensured(Outcome::Done)), Then::Again, &["EnsuredLoadBalancer"], false)]
#[case::in_progress(Ok(ensured(in_progress(None))), Then::Rest(Next::After(Duration::from_secs(2))), &["EnsuringLoadBalancer"], true)]
#[case::in_progress_for_ever(Ok(ensured(in_progress(Some(9999)))), Then::Rest(Next::After(SLOW)), &["EnsuringLoadBalancer"], true)]
#[case::elsewhere(Ok(ensured(Outcome::Elsewhere)), Then::Again, &[], false)]
#[case::blocked(Ok(ensured(Outcome::Blocked(failure(None)))), Then::Rest(Next::retry_after(SLOW)), &["SyncLoadBalancerFailed"], true)]
#[case::provider_error(Err(failure(Some(Reason::ProviderError))), Then::Rest(Next::RETRY), &["SyncLoadBalancerFailed"], true)]
#[case::unattributed(Err(failure(None)), Then::Rest(Next::RETRY), &["SyncLoadBalancerFailed"], true)]
#[case::lb_quota(Err(failure(Some(Reason::QuotaExceeded))), Then::Rest(Next::Backoff(QUOTA)), &["SyncLoadBalancerFailed"], true)]
#[case::nil_status(Err(failure(Some(Reason::ProtocolViolation))), Then::Rest(Next::RETRY), &["SyncLoadBalancerFailed"], true)]
#[case::invalid_spec(Err(failure(Some(Reason::InvalidSpec))), Then::Rest(Next::retry_after(SLOW)), &["SyncLoadBalancerFailed"], true)]
#[case::plugin_died(Err(failure(Some(Reason::Disconnected))), Then::Rest(Next::RETRY), &[], true)]
#[case::lost_leadership(Err(failure(Some(Reason::Cancelled))), Then::Rest(Next::AwaitChange), &[], true)]
fn an_ensure_that_came_to(
    #[case] result: Result<Ensured, Failure>,
    #[case] then: Then,
    #[case] told: &[&str],
    #[case] intent_open: bool,
) {
    let conclusion = concluded(&Case::new(), Performed::Ensured(result.map(Box::new)));
    assert_eq!((conclusion.then, reasons(&conclusion).as_slice()), (then, told));
    let memory = conclusion.memory.unwrap();
    assert_eq!(memory.open.is_some(), intent_open);
    assert!(
        memory.sent.is_some(),
        "from now on something may stand in the cloud"
    );
}

#[test]
fn an_answer_about_an_older_spec_concludes_nothing() {
    let answer = Ensured {
        spec_digest: Digest::received("older"),
        ..ensured(Outcome::Done)
    };
    let memory = concluded(&Case::new(), Performed::Ensured(Ok(Box::new(answer))))
        .memory
        .unwrap();
    assert_eq!(
        (memory.standing, memory.open.is_some()),
        (Standing::Unknown, true)
    );
}

#[test]
fn a_takeover_that_changed_nothing_tells_nobody() {
    let case = Case::new().with(|service| service.ingress = ingress("127.0.10.1"));
    let conclusion = concluded(&case, Performed::Ensured(Ok(Box::new(ensured(Outcome::Done)))));
    assert!(conclusion.notices.is_empty());
}

#[test]
fn the_same_failure_is_told_once() {
    let mut case = Case::new();
    let quota = || Performed::Ensured(Err(failure(Some(Reason::QuotaExceeded))));
    let first = concluded(&case, quota());
    assert_eq!(reasons(&first), ["SyncLoadBalancerFailed"]);
    case.memory = first.memory.unwrap();
    assert!(concluded(&case, quota()).notices.is_empty());
}

fn deleted(outcome: Outcome, remaining: usize) -> Performed {
    let resource = |n: usize| Resource {
        id: format!("r{n}"),
        kind: "sg".to_owned(),
        class: 7,
        role: String::new(),
        mark: None,
        origin: 1,
        revision: String::new(),
    };
    Performed::Deleted(Ok(Deleted {
        outcome,
        remaining: (0..remaining).map(resource).collect(),
    }))
}

#[rstest]
#[case::done(deleted(Outcome::Done, 0), Then::Again, true)]
#[case::sg_leak_is_not_done(deleted(Outcome::Done, 1), Then::Rest(Next::RETRY), false)]
#[case::in_progress(
    deleted(in_progress(Some(7)), 1),
    Then::Rest(Next::After(Duration::from_secs(7))),
    false
)]
#[case::protected(
    deleted(Outcome::Protected(failure(None)), 1),
    Then::Rest(Next::retry_after(SLOW)),
    false
)]
#[case::failed(
    Performed::Deleted(Err(failure(Some(Reason::CloudUnavailable)))),
    Then::Rest(Next::RETRY),
    false
)]
fn a_delete_that_came_to(#[case] performed: Performed, #[case] then: Then, #[case] nothing_left: bool) {
    let conclusion = concluded(&Case::in_sync().with(deleting), performed);
    assert_eq!(conclusion.then, then);
    let memory = conclusion.memory.unwrap();
    assert_eq!(memory.standing == Standing::Nothing, nothing_left);
    assert!(memory.remembers(), "what is not gone is not forgotten");
}

#[test]
fn targets_of_a_vanished_load_balancer_mean_making_it_anew() {
    let mut case = Case::in_sync();
    case.targets = crate::service::targets::select(&[], &description(), &territory());
    let proof = AbsenceProof {
        complete: true,
        scopes: Vec::new(),
        freshness: Freshness::Direct,
    };
    let conclusion = concluded(&case, Performed::Updated(Ok(TargetsAnswer::Absent(proof))));
    assert_eq!(conclusion.then, Then::Again);
    case.memory = conclusion.memory.unwrap();
    let Step::Ensure { intent, .. } = case.plan().step else {
        panic!("must ensure")
    };
    assert_eq!(intent.reason, IntentReason::Drift);
}

#[rstest]
#[case::that_changed_nothing(Certainty::NotApplied, false)]
#[case::of_unknown_outcome_after_a_look(Certainty::Unknown, true)]
fn a_failed_target_update_is_followed_by_a_full_ensure(
    #[case] certainty: Certainty,
    #[case] looks_first: bool,
) {
    let mut case = Case::in_sync();
    case.targets = crate::service::targets::select(&[], &description(), &territory());
    let failure = Failure {
        certainty,
        ..failure(Some(Reason::ProviderError))
    };
    let conclusion = concluded(&case, Performed::Updated(Err(failure)));
    assert_eq!(reasons(&conclusion), ["UpdateLoadBalancerFailed"]);
    case.memory = conclusion.memory.unwrap();
    assert_eq!(matches!(case.plan().step, Step::Look(_)), looks_first);
    case.looked = Some(LoadBalancerAnswer::Unverified);
    assert!(matches!(case.plan().step, Step::Ensure { .. }));
}

#[test]
fn a_target_update_between_two_sessions_is_asked_again() {
    let mut case = Case::in_sync();
    let before = case.memory.standing.clone();
    case.targets = crate::service::targets::select(&[], &description(), &territory());
    let conclusion = concluded(
        &case,
        Performed::Updated(Err(failure(Some(Reason::Disconnected)))),
    );
    assert_eq!(conclusion.memory.unwrap().standing, before);
}

#[test]
fn a_write_that_the_gate_held_back_does_not_make_an_earlier_one_known() {
    let mut case = Case::new();
    for reason in [Reason::DeadlineExceeded, Reason::Shut] {
        let failure = Failure {
            certainty: Certainty::NotApplied,
            ..failure(Some(reason))
        };
        case.looked = Some(LoadBalancerAnswer::Unverified);
        assert!(matches!(case.plan().step, Step::Ensure { .. }));
        case.memory = concluded(&case, Performed::Ensured(Err(failure))).memory.unwrap();
        case.looked = None;
        assert!(matches!(case.plan().step, Step::Look(_)), "after {reason:?}");
    }
}

#[test]
fn an_ensure_of_unknown_outcome_is_looked_up_before_it_is_tried_again() {
    let mut case = Case::new();
    let lost = Performed::Ensured(Err(failure(Some(Reason::DeadlineExceeded))));
    case.memory = concluded(&case, lost).memory.unwrap();
    assert!(matches!(case.plan().step, Step::Look(_)));
    case.looked = Some(LoadBalancerAnswer::Unverified);
    let Step::Ensure { intent, .. } = case.plan().step else {
        panic!("must ensure")
    };
    assert_eq!(intent.reason, IntentReason::Retry);
    let done = Performed::Ensured(Ok(Box::new(ensured(Outcome::Done))));
    assert!(!concluded(&case, done).memory.unwrap().is_unsure);
}

#[test]
fn a_service_that_met_a_quota_waits_for_room() {
    let quota = Performed::Ensured(Err(failure(Some(Reason::QuotaExceeded))));
    assert!(concluded(&Case::new(), quota).memory.unwrap().is_starved);
}

fn invalid(field: &str) -> WriteFailure {
    WriteFailure::Invalid {
        field: field.to_owned(),
        message: "Forbidden: may only be used when `spec.type` is \"LoadBalancer\"".to_owned(),
    }
}

#[rstest]
#[case::conflict_status_is_read_again(WriteFailure::Conflict, Then::Reread)]
#[case::gone(WriteFailure::Gone, Then::Reread)]
#[case::away(WriteFailure::Unavailable { message: String::new(), retry_after: None }, Then::Rest(Next::RETRY))]
#[case::rbac_status(WriteFailure::Forbidden { message: "no".to_owned() }, Then::Rest(Next::RETRY))]
#[case::type_change_overtook_it(invalid("status.loadBalancer.ingress"), Then::Reread)]
#[case::another_field_is_refused(invalid("status.conditions"), Then::Rest(Next::retry_after(SLOW)))]
fn a_status_write_that_failed(#[case] failure: WriteFailure, #[case] then: Then) {
    let case = Case::in_sync().with(|service| service.ingress.clear());
    let conclusion = concluded(&case, Performed::Wrote(Err(failure)));
    assert_eq!(conclusion.then, then);
    assert!(then != Then::Reread || conclusion.notices.is_empty());
    assert_eq!(conclusion.memory.unwrap().standing, case.memory.standing);
}
