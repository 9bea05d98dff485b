use std::time::Duration;

use rstest::rstest;

use super::{Applied, Memory, Observed, Open, Plan, Purpose, Standing, Step, plan};
use crate::clock::{Instant, Timestamp};
use crate::cloud::{AbsenceProof, Description, Freshness, LoadBalancerAnswer};
use crate::fixtures::{CLASS_FINALIZER, description, initialised_node, service, territory, territory_of};
use crate::ids::Mark;
use crate::outcome::Next;
use crate::service::request::{Intent, IntentReason};
use crate::service::targets::{Selection, select};
use crate::service::view::{CLEANUP_FINALIZER, Ingress, IngressAddress, IpMode, ServiceView};

mod conclusions;
mod laws;

fn now() -> Instant {
    Instant::from_origin(Duration::from_secs(1_000_000))
}

fn ingress(ip: &str) -> Vec<Ingress> {
    vec![Ingress {
        address: IngressAddress::Ip(ip.parse().unwrap(), IpMode::Vip),
        ports: Vec::new(),
    }]
}

fn targets() -> Selection {
    select(
        &[initialised_node("n1", "10.0.0.1").into()],
        &description(),
        &territory(),
    )
}

/// Everything that a plan is made from, to be changed in the one way that a test is about.
struct Case {
    service: Option<ServiceView>,
    memory: Memory,
    plugin: Description,
    targets: Selection,
    looked: Option<LoadBalancerAnswer>,
    now: Instant,
}

impl Case {
    /// A Service with our finalizer on, of which this process remembers nothing.
    fn new() -> Self {
        let mut service = service("s");
        service.circumstances.finalizers = vec![CLEANUP_FINALIZER.to_owned()];
        Self {
            service: Some(service),
            memory: Memory::default(),
            plugin: description(),
            targets: targets(),
            looked: None,
            now: now(),
        }
    }

    /// The same when its load balancer stands, and its status says so.
    fn in_sync() -> Self {
        let mut case = Self::new();
        case.service().ingress = ingress("127.0.10.1");
        case.memory = Memory {
            sent: Some(std::sync::Arc::new(case.service().spec.clone())),
            standing: Standing::Balancer(Box::new(Applied {
                spec_digest: case.service().spec.digest(&description()),
                behaviour_digest: description().behaviour_digest,
                node_set_digest: targets().set.digest.clone(),
                ingress: ingress("127.0.10.1"),
            })),
            ..Memory::default()
        };
        case
    }

    fn service(&mut self) -> &mut ServiceView {
        self.service.as_mut().unwrap()
    }

    fn with(mut self, change: impl FnOnce(&mut ServiceView)) -> Self {
        change(self.service());
        self
    }

    fn with_memory(mut self, change: impl FnOnce(&mut Memory)) -> Self {
        change(&mut self.memory);
        self
    }

    fn with_plugin(mut self, change: impl FnOnce(&mut Description)) -> Self {
        change(&mut self.plugin);
        self
    }

    fn without_service(mut self) -> Self {
        self.service = None;
        self
    }

    fn observed<T>(&self, see: impl FnOnce(&Observed<'_>) -> T) -> T {
        let example = service("s");
        see(&Observed {
            service: self.service.as_ref(),
            key: &example.key,
            uid: &example.uid,
            mark: &Mark("bh-x".to_owned()),
            memory: &self.memory,
            plugin: &self.plugin,
            territory: &territory_of(&self.plugin),
            targets: &self.targets,
            looked: self.looked.as_ref(),
            fresh_request_id: "fresh",
            now: self.now,
        })
    }

    fn plan(&self) -> Plan {
        self.observed(plan)
    }
}

/// What a step is, in one word.
fn kind(step: &Step) -> String {
    match step {
        Step::Rest(next) => format!("rest {next:?}"),
        Step::Forget => "forget".to_owned(),
        Step::WriteFinalizers { finalizers, .. } => format!("finalizers {finalizers:?}"),
        Step::WriteStatus { .. } => "status".to_owned(),
        Step::Look(_) => "look".to_owned(),
        Step::Ensure { intent, .. } => format!("ensure {:?}", intent.reason),
        Step::UpdateTargets { .. } => "targets".to_owned(),
        Step::Delete { .. } => "delete".to_owned(),
    }
}

fn deleting(service: &mut ServiceView) {
    service.circumstances.deleted_at = Some(Timestamp(1));
}

fn is_cluster_ip(service: &mut ServiceView) {
    service.is_load_balancer = false;
    service.ingress.clear();
}

fn absence() -> AbsenceProof {
    AbsenceProof {
        complete: true,
        scopes: Vec::new(),
        freshness: Freshness::Direct,
    }
}

fn absent() -> LoadBalancerAnswer {
    LoadBalancerAnswer::Absent(absence())
}

#[rstest]
#[case::new_service_gets_its_finalizer_first(
    Case::new().with(|s| s.circumstances.finalizers = vec!["example.com/x".to_owned()]),
    r#"finalizers ["example.com/x", "service.kubernetes.io/load-balancer-cleanup"]"#)]
#[case::class_of_ours_gets_our_finalizer(
    Case::new().with(|s| { s.spec.class = "ours".to_owned(); s.circumstances.finalizers.clear(); }),
    r#"finalizers ["local.bulkhead.dev/load-balancer"]"#)]
#[case::then_the_load_balancer(Case::new(), "ensure Changed")]
#[case::after_a_restart_it_is_taken_over(Case::new().with(|s| s.ingress = ingress("127.0.10.1")), "ensure Takeover")]
#[case::in_sync_rests(Case::in_sync(), "rest AwaitChange")]
#[case::status_lost_comes_back(Case::in_sync().with(|s| s.ingress.clear()), "status")]
#[case::port_changed(Case::in_sync().with(|s| s.spec.ports[0].port = 81), "ensure Changed")]
#[case::nodeport_change(Case::in_sync().with(|s| s.spec.ports[0].node_port = Some(30081)), "ensure Changed")]
#[case::foreign_annotation_costs_nothing(
    Case::in_sync().with(|s| drop(s.spec.annotations.insert("argocd.example/x".to_owned(), "y".to_owned()))),
    "rest AwaitChange")]
#[case::declared_annotation(
    Case::in_sync().with(|s| drop(s.spec.annotations.insert("local.bulkhead.dev/pool".to_owned(), "b".to_owned()))),
    "ensure Changed")]
#[case::plugin_translates_differently_now(
    Case::in_sync().with_plugin(|p| p.behaviour_digest = "b2".to_owned()), "ensure Changed")]
#[case::foreign_class_is_left_alone(Case::new().with(|s| s.spec.class = "example.com/other".to_owned()), "forget")]
#[case::implemented_elsewhere_rests(
    Case::new().with_memory(|m| m.standing = Standing::Elsewhere {
        spec_digest: service("s").spec.digest(&description()) }),
    "rest AwaitChange")]
#[case::deleted_is_torn_down(Case::in_sync().with(deleting), "delete")]
#[case::orphan_ccm_down_is_torn_down_without_memory(Case::new().with(deleting), "delete")]
#[case::torn_down_shows_no_address(
    Case::in_sync().with(deleting).with_memory(|m| m.standing = Standing::Nothing), "status")]
#[case::torn_down_is_released(
    Case::in_sync().with(deleting).with(|s| s.ingress.clear()).with_memory(|m| m.standing = Standing::Nothing), "finalizers []")]
#[case::finalizer_readd_never(
    Case::in_sync().with_memory(|m| m.standing = Standing::Nothing).with(deleting).with(|s| s.ingress.clear()).with(|s| s.circumstances.finalizers = vec!["example.com/holds".to_owned()]),
    "forget")]
#[case::became_a_foreign_class_is_torn_down(
    Case::in_sync().with(|s| s.spec.class = "example.com/other".to_owned()), "delete")]
#[case::became_a_foreign_class_torn_down_is_released(
    Case::in_sync()
        .with(|s| s.spec.class = "example.com/other".to_owned())
        .with_memory(|m| m.standing = Standing::Nothing),
    "finalizers []")]
#[case::of_two_classes_of_ours_in_turn_is_released_of_both(
    Case::in_sync()
        .with(deleting).with(|s| s.ingress.clear())
        .with(|s| s.circumstances.finalizers.push(CLASS_FINALIZER.to_owned()))
        .with_memory(|m| m.standing = Standing::Nothing),
    "finalizers []")]
#[case::finalizer_stripped_while_deleting_is_torn_down(
    Case::in_sync().with(deleting).with(|s| s.circumstances.finalizers.clear()), "delete")]
#[case::type_change_is_torn_down(Case::in_sync().with(is_cluster_ip), "delete")]
#[case::type_change_torn_down_is_released(
    Case::in_sync().with(is_cluster_ip).with_memory(|m| m.standing = Standing::Nothing), "finalizers []")]
#[case::type_change_of_our_class(
    Case::new().with(is_cluster_ip).with(|s| s.circumstances.finalizers = vec![CLASS_FINALIZER.to_owned()]), "delete")]
#[case::type_change_while_away_asks_first(Case::new().with(is_cluster_ip), "look")]
#[case::wanted_again_after_a_type_change(
    Case::in_sync().with_memory(|m| m.standing = Standing::Nothing), "ensure Changed")]
#[case::gone_without_finalizer_is_torn_down(Case::in_sync().without_service(), "delete")]
#[case::gone_and_unknown_is_forgotten(Case::new().without_service(), "forget")]
#[case::lb_reappear_never(
    Case::in_sync().without_service().with_memory(|m| m.standing = Standing::Nothing), "forget")]
fn plans(#[case] case: Case, #[case] wanted: &str) {
    let plan = case.plan();
    assert_eq!(kind(&plan.step), wanted);
    assert_eq!(plan, case.plan(), "planning twice is equal");
}

#[rstest]
#[case::ours_is_deleted(LoadBalancerAnswer::Unverified, None, false, "delete")]
#[case::absent_waits(absent(), None, false, "rest After(600s)")]
#[case::absent_waits_on(absent(), Some(500), false, "rest After(100s)")]
#[case::absent_for_long_is_released(absent(), Some(600), false, "finalizers []")]
#[case::absent_never_holds_a_deletion(absent(), None, true, "finalizers []")]
#[case::somebody_elses(LoadBalancerAnswer::NotMine { reason: "tag".to_owned() }, None, false, "rest After(300s)")]
fn upstreams_finalizer_on_a_service_of_another_type(
    #[case] looked: LoadBalancerAnswer,
    #[case] unknown_for: Option<u64>,
    #[case] deleted: bool,
    #[case] wanted: &str,
) {
    let mut case = Case::new().with(is_cluster_ip);
    if deleted {
        case = case.with(deleting);
    }
    case.looked = Some(looked);
    case.memory.unknown_since = unknown_for.map(|seconds| now() - Duration::from_secs(seconds));
    assert_eq!(kind(&case.plan().step), wanted);
}

#[test]
fn nodes_that_change_move_the_targets_only() {
    let mut case = Case::in_sync();
    case.targets = select(&[], &description(), &territory());
    let plan = case.plan();
    assert_eq!(kind(&plan.step), "targets");
    assert!(
        plan.notices[0]
            .note
            .starts_with("There are no available nodes for LoadBalancer"),
        "{plan:?}"
    );
}

#[test]
fn an_intent_keeps_its_request_id_until_it_is_concluded() {
    let mut case = Case::new();
    let digest = case.service().spec.digest(&description());
    case.memory.open = Some(Open {
        purpose: Purpose::Ensure(digest),
        intent: Intent {
            request_id: "first".to_owned(),
            reason: IntentReason::Changed,
        },
    });
    let Step::Ensure { intent, .. } = case.plan().step else {
        panic!("must ensure")
    };
    assert_eq!(
        intent,
        Intent {
            request_id: "first".to_owned(),
            reason: IntentReason::Retry
        }
    );

    // Another wish is another intent.
    let case = case.with(|service| service.spec.ports[0].port = 81);
    let Step::Ensure { intent, .. } = case.plan().step else {
        panic!("must ensure")
    };
    assert_eq!(intent.request_id, "fresh");
}

#[test]
fn deletion_says_what_was_applied_whatever_the_service_says_now() {
    let applied = Case::in_sync().memory.sent;
    let case = Case::in_sync().with(deleting).with(|service| {
        service
            .spec
            .annotations
            .insert("local.bulkhead.dev/pool".to_owned(), "other".to_owned());
    });
    let Step::Delete { reference, .. } = case.plan().step else {
        panic!("must delete")
    };
    assert_eq!(reference.applied, applied);
    assert_ne!(reference.current.unwrap().spec, applied.unwrap());
}

#[test]
fn a_takeover_is_no_news_and_a_new_service_is() {
    let reasons = |case: Case| {
        case.plan()
            .notices
            .iter()
            .map(|notice| notice.reason)
            .collect::<Vec<_>>()
    };
    assert_eq!(reasons(Case::new()), ["EnsuringLoadBalancer"]);
    assert!(reasons(Case::new().with(|service| service.ingress = ingress("127.0.10.1"))).is_empty());
}

#[test]
fn only_no_answer_is_the_end_of_a_rest() {
    assert_eq!(Case::in_sync().plan().step, Step::Rest(Next::AwaitChange));
}
