use Controller::{CloudNode, CloudNodeLifecycle, NodeIpam, NodeRoute, ServiceLb};
use Verdict::{Deselected, NotBuilt, On};
use rstest::rstest;

use super::*;

#[rstest]
#[case::star_runs_what_is_built(&["*"], [On, NotBuilt, On, NotBuilt, NotBuilt])]
#[case::a_name_alone_runs_only_itself(&["service-lb-controller"], [Deselected, Deselected, On, Deselected, Deselected])]
#[case::an_alias_is_the_same_as_the_name(&["cloud-node", "service"], [On, Deselected, On, Deselected, Deselected])]
#[case::minus_after_star_switches_off(&["*", "-service"], [On, NotBuilt, Deselected, NotBuilt, NotBuilt])]
#[case::minus_before_star_switches_off_too(&["-cloud-node-controller", "*"], [Deselected, NotBuilt, On, NotBuilt, NotBuilt])]
#[case::the_first_entry_that_names_it_wins(&["service", "-service-lb-controller", "-cloud-node", "cloud-node"],
    [Deselected, Deselected, On, Deselected, Deselected])]
#[case::an_unbuilt_one_may_be_switched_off(&["*", "-route", "-nodeipam", "-cloud-node-lifecycle"],
    [On, Deselected, On, Deselected, Deselected])]
#[case::switched_off_first_then_named_is_off(&["-route", "route"],
    [Deselected, Deselected, Deselected, Deselected, Deselected])]
#[case::nothing_listed_runs_nothing(&[], [Deselected, Deselected, Deselected, Deselected, Deselected])]
fn selection_decides(#[case] list: &[&str], #[case] expected: [Verdict; 5]) {
    let selection = Selection::parse(list.iter().copied()).unwrap();
    assert_eq!(
        Controller::ALL.map(|controller| selection.verdict(controller)),
        expected
    );
}

#[rstest]
#[case::a_typo(&["cloud-nodes"], SelectionError::Unknown { entry: "cloud-nodes".into() })]
#[case::a_negated_typo(&["*", "-servce"], SelectionError::Unknown { entry: "-servce".into() })]
#[case::an_empty_entry(&[""], SelectionError::Unknown { entry: String::new() })]
#[case::minus_star_means_nothing(&["-*"], SelectionError::Unknown { entry: "-*".into() })]
#[case::an_unbuilt_one_named(&["*", "route"], SelectionError::NotBuilt { controller: NodeRoute })]
#[case::an_unbuilt_one_named_in_full(&["cloud-node-lifecycle-controller"],
    SelectionError::NotBuilt { controller: CloudNodeLifecycle })]
#[case::ipam_by_alias(&["nodeipam"], SelectionError::NotBuilt { controller: NodeIpam })]
fn selection_refuses(#[case] list: &[&str], #[case] expected: SelectionError) {
    assert_eq!(Selection::parse(list.iter().copied()), Err(expected));
}

#[test]
fn an_unknown_name_is_answered_with_every_legal_one() {
    let text = Selection::parse(["bogus"]).unwrap_err().to_string();
    assert!(text.contains("\"bogus\""), "{text}");
    for controller in Controller::ALL {
        assert!(
            text.contains(controller.name()) && text.contains(controller.alias()),
            "{text}"
        );
    }
}

#[rstest]
#[case::running(On, None)]
#[case::left_out(Deselected, None)]
#[case::not_built(NotBuilt, Some("service-lb-controller is off: not built yet"))]
fn a_verdict_is_one_line_or_none(#[case] verdict: Verdict, #[case] line: Option<&str>) {
    assert_eq!(verdict.explain(ServiceLb).as_deref(), line);
}

#[test]
fn names_and_aliases_find_their_controller() {
    for controller in Controller::ALL {
        assert_eq!(Controller::from_name(controller.name()), Some(controller));
        assert_eq!(Controller::from_name(controller.alias()), Some(controller));
    }
    assert_eq!(Controller::from_name("node"), None);
    assert!(CloudNode.is_built() && ServiceLb.is_built());
}
