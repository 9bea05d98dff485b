use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::{Action, Conclusion, Need, Observed, Plan, complaint, conclude, need, plan, wakes};
use crate::cloud::{AbsenceProof, Certainty, Failure, Freshness, Instance, InstanceAnswer, Reason};
use crate::fixtures::{address, initialised_node, instance, node, territory};
use crate::ids::{NodeName, ProviderId};
use crate::node::view::{AddressType, NodeView, Taint, UNINITIALIZED_TAINT};
use crate::outcome::{Next, SLOW, WriteFailure};

const REFRESH: Duration = Duration::from_secs(300);

fn planned(node: &NodeView, answer: &InstanceAnswer) -> Plan {
    plan(&Observed {
        node,
        answer,
        territory: &territory(),
        claimed_by: None,
        refresh: REFRESH,
        age: Duration::from_secs(60),
    })
}

fn found(instance: Instance) -> InstanceAnswer {
    InstanceAnswer::Found(Box::new(instance))
}

fn failed(reason: Option<Reason>) -> InstanceAnswer {
    InstanceAnswer::Failed(Failure {
        reason,
        certainty: Certainty::Unknown,
        message: "it said no".to_owned(),
        retry_after: None,
    })
}

/// What a plan does, in one word.
fn kind(plan: &Plan) -> &'static str {
    match plan {
        Plan::Write(Action::WriteAddresses { .. }) => "addresses",
        Plan::Write(Action::Initialise { .. }) => "initialise",
        Plan::Write(Action::RepairLabels { .. }) => "labels",
        Plan::Rest { notices, .. } if notices.is_empty() => "rest",
        Plan::Rest { .. } => "complain",
    }
}

/// The node after the API server took the action.
fn apply(node: &NodeView, action: &Action) -> NodeView {
    let mut node = node.clone();
    match action.clone() {
        Action::WriteAddresses { addresses, .. } => node.addresses = addresses,
        Action::Initialise {
            provider_id,
            labels,
            taints,
            ..
        } => {
            if let Some(id) = provider_id {
                node.provider_id = Some(id.into());
            }
            node.labels.extend(labels);
            node.taints = taints;
        }
        Action::RepairLabels { labels, .. } => node.labels.extend(labels),
    }
    node
}

#[rstest]
#[case::addresses_come_first(node("n1"), found(instance("n1")), "addresses")]
#[case::then_the_rest_in_one_write(with_addresses(node("n1")), found(instance("n1")), "initialise")]
#[case::taint_stuck_is_told_and_tried_again(node("n1"), failed(Some(Reason::ProviderError)), "complain")]
#[case::between_two_sessions_nobody_is_told(node("n1"), failed(Some(Reason::Disconnected)), "rest")]
#[case::eventual_absence_keeps_the_taint(node("n1"), absent(), "complain")]
#[case::pending_waits(node("n1"), InstanceAnswer::Pending { retry_after: None, reason: String::new() }, "rest")]
#[case::not_mine_is_told_once(node("n1"), InstanceAnswer::NotMine { reason: "other".to_owned() }, "complain")]
#[case::addr_lost_keeps_good_addresses(
    initialised_node("n1", "10.0.0.1"),
    found(without_addresses()),
    "complain"
)]
#[case::absence_of_an_initialised_node_is_not_decided_here(
    initialised_node("n1", "10.0.0.1"),
    absent(),
    "rest"
)]
fn a_node(#[case] node: NodeView, #[case] answer: InstanceAnswer, #[case] does: &str) {
    assert_eq!(kind(&planned(&node, &answer)), does);
}

fn with_addresses(mut node: NodeView) -> NodeView {
    node.addresses = instance("n1").addresses;
    node
}

fn without_addresses() -> Instance {
    Instance {
        addresses: Vec::new(),
        ..instance("n1")
    }
}

fn absent() -> InstanceAnswer {
    InstanceAnswer::Absent(AbsenceProof {
        complete: true,
        scopes: Vec::new(),
        freshness: Freshness::Direct,
    })
}

#[test]
fn initialising_sets_provider_id_and_six_labels_and_keeps_foreign_taints() {
    let mut node = with_addresses(node("n1"));
    let foreign = Taint {
        key: "example.com/x".to_owned(),
        value: None,
        effect: "NoExecute".to_owned(),
        time_added: Some("2026-01-01T00:00:00Z".to_owned()),
    };
    node.taints.push(foreign.clone());
    // Whatever its effect and value: every taint with that key goes.
    node.taints.push(Taint {
        key: UNINITIALIZED_TAINT.to_owned(),
        value: None,
        effect: "NoExecute".to_owned(),
        time_added: None,
    });
    let Plan::Write(Action::Initialise {
        guard,
        provider_id,
        labels,
        taints,
    }) = planned(&node, &found(instance("n1")))
    else {
        panic!("must initialise")
    };
    assert_eq!(
        (guard, provider_id, labels.len()),
        (node.guard(), ProviderId::parse("local://i-n1").ok(), 6)
    );
    assert_eq!(taints, [foreign]);
}

#[test]
fn a_provider_id_that_is_set_already_is_never_written_again() {
    let mut node = with_addresses(node("n1"));
    node.provider_id = Some("local://i-n1".to_owned());
    let Plan::Write(Action::Initialise { provider_id, .. }) = planned(&node, &found(instance("n1"))) else {
        panic!("must initialise")
    };
    assert_eq!(provider_id, None);
}

#[rstest]
#[case::other_instance(Some("local://i-old"), "local://i-n1", None)]
#[case::of_another_plugin(None, "other://i-1", None)]
#[case::claimed_by_another_node(None, "local://i-n1", Some("n0"))]
fn a_suspect_instance_writes_nothing(
    #[case] own: Option<&str>,
    #[case] given: &str,
    #[case] claimed_by: Option<&str>,
) {
    let mut node = node("n1");
    node.provider_id = own.map(str::to_owned);
    let answer = found(Instance {
        provider_id: ProviderId::parse(given).unwrap(),
        ..instance("n1")
    });
    let claimed_by = claimed_by.map(|name| NodeName(name.to_owned()));
    let plan = plan(&Observed {
        node: &node,
        answer: &answer,
        territory: &territory(),
        claimed_by: claimed_by.as_ref(),
        refresh: REFRESH,
        age: Duration::from_secs(60),
    });
    let Plan::Rest { notices, next } = plan else {
        panic!("must write nothing")
    };
    assert_eq!((notices.len(), next), (1, Next::After(SLOW)));
}

#[rstest]
#[case::tainted(node("n1"), Need::Initialise)]
#[case::initialised(initialised_node("n1", "10.0.0.1"), Need::Refresh)]
#[case::foreign(NodeView { provider_id: Some("aws://x".to_owned()), ..node("n1") }, Need::Nothing)]
#[case::nobodys(NodeView { taints: Vec::new(), ..node("n1") }, Need::Nothing)]
#[case::on_its_way_out(NodeView { deleting: true, ..node("n1") }, Need::Nothing)]
fn the_plugin_is_asked_about(#[case] node: NodeView, #[case] wanted: Need) {
    assert_eq!(need(&node, &territory()), wanted);
}

#[rstest]
#[case::missing_prefix(Some("6407101"), true, true)]
#[case::white_space(Some(" local://i-1 "), true, true)]
#[case::in_capitals(Some("LOCAL://i-1"), true, true)]
#[case::another_providers(Some("aws:///eu/i-2"), true, false)]
#[case::ours(Some("local://i-1"), true, false)]
#[case::none(None, true, false)]
#[case::initialised_by_somebody(Some("6407101"), false, false)]
fn a_provider_id_that_can_never_do_is_told(
    #[case] provider_id: Option<&str>,
    #[case] tainted: bool,
    #[case] told: bool,
) {
    let mut node = node("n1");
    node.provider_id = provider_id.map(str::to_owned);
    if !tainted {
        node.taints.clear();
    }
    assert_eq!(complaint(&node, &territory()).is_some(), told);
}

#[test]
fn heartbeats_wake_nobody_and_lost_labels_do() {
    let old = initialised_node("n1", "10.0.0.1");
    let mut new = NodeView {
        resource_version: "2".to_owned(),
        ..old.clone()
    };
    assert!(!wakes(Some(&old), &new));
    new.labels.insert("x".to_owned(), "y".to_owned());
    assert!(wakes(Some(&old), &new));
    assert!(wakes(None, &new));
}

#[rstest]
#[case::conflict(WriteFailure::Conflict, Conclusion::Reread)]
#[case::gone(WriteFailure::Gone, Conclusion::Reread)]
#[case::another_object(WriteFailure::AnotherObject, Conclusion::Reread)]
fn a_lost_guard_means_reading_again(#[case] failure: WriteFailure, #[case] wanted: Conclusion) {
    let action = Action::WriteAddresses {
        uid: node("n1").uid,
        addresses: Vec::new(),
    };
    assert_eq!(conclude(&action, Err(&failure)), wanted);
}

#[test]
fn an_invalid_value_is_told_with_its_field() {
    let action = Action::WriteAddresses {
        uid: node("n1").uid,
        addresses: Vec::new(),
    };
    let failure = WriteFailure::Invalid {
        field: "status.addresses[1]".to_owned(),
        message: "Duplicate value".to_owned(),
    };
    let Conclusion::Rest { notices, next } = conclude(&action, Err(&failure)) else {
        panic!("must rest")
    };
    assert!(notices[0].note.contains("status.addresses[1]") && next == Next::retry_after(SLOW));
}

proptest! {
    /// Executing the plan and planning again reaches rest within three writes, from any start; on the way no version
    /// without the taint lacks provider ID, labels or addresses.
    #[test]
    fn initialising_converges_in_the_safe_order(
        tainted in any::<bool>(),
        has_provider_id in any::<bool>(),
        has_addresses in any::<bool>(),
        lost_labels in any::<bool>(),
        zone in "[a-zA-Z0-9 _.-]{0,70}",
        extra in proptest::collection::btree_map("[a-z./]{0,12}", ".{0,80}", 0..4),
    ) {
        let mut seen = if tainted { node("n1") } else { initialised_node("n1", "10.9.9.9") };
        if has_provider_id || !tainted {
            seen.provider_id = Some("local://i-n1".to_owned());
        }
        if has_addresses {
            seen.addresses = instance("n1").addresses;
        }
        if lost_labels {
            seen.labels.insert("topology.kubernetes.io/zone".to_owned(), "z9".to_owned());
        }
        let answer = found(Instance { zone, extra_labels: extra, ..instance("n1") });
        for _ in 0..3 {
            let now = planned(&seen, &answer);
            prop_assert_eq!(&now, &planned(&seen, &answer), "planning twice is equal");
            let Plan::Write(action) = now else { break };
            seen = apply(&seen, &action);
            if tainted && !seen.is_uninitialized() {
                prop_assert!(seen.provider_id.is_some());
                prop_assert_eq!(&seen.addresses, &instance("n1").addresses);
                prop_assert!(seen.labels.contains_key("node.kubernetes.io/instance-type"));
            }
        }
        let end = planned(&seen, &answer);
        prop_assert_eq!(kind(&end), "rest", "{:?}", end);
        prop_assert!(!seen.is_uninitialized());
    }
}

#[test]
fn addresses_of_an_initialised_node_follow_the_cloud() {
    let node = initialised_node("n1", "10.0.0.9");
    let Plan::Write(Action::WriteAddresses { addresses, .. }) = planned(&node, &found(instance("n1"))) else {
        panic!("must write addresses")
    };
    assert!(addresses.contains(&address(AddressType::InternalIp, "10.0.0.1")));
}
