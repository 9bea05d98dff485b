use std::collections::BTreeSet;
use std::sync::Arc;

use rstest::rstest;

use super::*;
use crate::health::{Board, Probe};

const PORT: u16 = 80;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// A rotation over `+` (up), `?` (unknown) and `-` (down) targets, numbered from 1.
fn rotation(standings: &str, others: Others) -> (Rotation, Arc<Board>) {
    let board = Arc::new(Board::default());
    let all: Vec<(IpAddr, char)> = (1..).map(address).zip(standings.chars()).collect();
    let watched: BTreeSet<IpAddr> = all
        .iter()
        .filter(|(_, kind)| *kind != '+')
        .map(|(at, _)| *at)
        .collect();
    board.watch(&watched, Some(&Probe::Connect { port: PORT }));
    for (at, _) in all.iter().filter(|(_, kind)| *kind == '-') {
        board.pulse(*at).unwrap().hint_failure(PORT);
    }
    let rotation = Rotation::default();
    rotation.replace(
        all.iter().map(|(at, _)| (*at, board.pulse(*at))).collect(),
        others,
    );
    (rotation, board)
}

#[rstest]
#[case::in_turn("+++", &[], None, &[1, 2, 3, 1])]
#[case::only_those_that_are_up("+-+?", &[], None, &[1, 3, 1, 3])]
#[case::unknown_if_none_is_up("-?-?", &[], None, &[2, 4, 2, 4])]
#[case::any_if_all_seem_down("--", &[], None, &[1, 2, 1, 2])]
#[case::never_one_that_was_tried("++", &[1], None, &[2, 2, 2, 2])]
#[case::a_worse_one_after_the_good_ones("+?", &[1], None, &[2, 2, 2, 2])]
#[case::none_left("+", &[1], None, &[])]
#[case::none_at_all("", &[], None, &[])]
#[case::a_favourite_always("+++", &[], Some(2), &[2, 2, 2, 2])]
#[case::no_favourite_that_is_down("+-+", &[], Some(2), &[1, 3, 1, 3])]
#[case::no_favourite_that_was_tried("++", &[2], Some(2), &[1, 1, 1, 1])]
#[case::no_favourite_that_left("++", &[], Some(9), &[1, 2, 1, 2])]
#[tokio::test]
async fn picks(
    #[case] standings: &str,
    #[case] tried: &[u8],
    #[case] favourite: Option<u8>,
    #[case] want: &[u8],
) {
    let (rotation, _board) = rotation(standings, Others::AtWorst);
    let tried: Vec<IpAddr> = tried.iter().map(|last| address(*last)).collect();
    let got: Vec<IpAddr> = (0..4)
        .filter_map(|turn| rotation.pick(turn, &tried, favourite.map(address)))
        .map(|endpoint| endpoint.address())
        .collect();
    assert_eq!(got, want.iter().map(|last| address(*last)).collect::<Vec<_>>());
}

#[rstest]
#[case::one_that_says_no_is_believed("-", None, false)]
#[case::one_that_was_not_asked_serves("-?", Some(2), true)]
#[case::one_that_is_up_decides("-?+", Some(3), false)]
#[case::nothing_to_decide("", None, false)]
#[tokio::test]
async fn where_nodes_say_themselves(
    #[case] standings: &str,
    #[case] want: Option<u8>,
    #[case] undecided: bool,
) {
    let (rotation, _board) = rotation(standings, Others::Unknown);
    let picked = rotation.pick(0, &[], None).map(|endpoint| endpoint.address());
    assert_eq!(picked, want.map(address));
    assert_eq!(rotation.is_undecided(), undecided);
}

#[tokio::test]
async fn only_a_removed_target_is_told_to_leave() {
    let rotation = Rotation::default();
    rotation.replace(
        BTreeMap::from([(address(1), None), (address(2), None)]),
        Others::AtWorst,
    );
    let (stays, goes) = (
        rotation.pick(0, &[], None).unwrap(),
        rotation.pick(1, &[], None).unwrap(),
    );
    rotation.replace(
        BTreeMap::from([(address(1), None), (address(3), None)]),
        Others::AtWorst,
    );
    assert!(!stays.leaving().is_cancelled());
    assert!(goes.leaving().is_cancelled());
}
