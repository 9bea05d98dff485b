use proptest::collection::vec;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn pool(ranges: &[&str], excluded: &[&str]) -> Pool {
    Pool::new(
        ranges.iter().map(|text| text.parse().unwrap()),
        excluded.iter().map(|text| ip(text)),
    )
    .unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(name: &str) -> ServiceKey {
    ServiceKey {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
    }
}

#[rstest]
#[case::the_network_address_is_skipped(&["127.0.10.0/24"], &[], Request::Any(Family::V4), "127.0.10.1")]
#[case::a_single_address(&["127.0.10.9"], &[], Request::Any(Family::V4), "127.0.10.9")]
#[case::exclusions_are_skipped(&["127.0.10.0/24"], &["127.0.10.1", "127.0.10.2"], Request::Any(Family::V4), "127.0.10.3")]
#[case::ranges_in_the_order_given(&["127.0.20.8/31", "127.0.10.0/24"], &[], Request::Any(Family::V4), "127.0.20.8")]
#[case::the_requested_one(&["127.0.10.0/24"], &[], Request::Exactly(ip("127.0.10.77")), "127.0.10.77")]
#[case::the_preferred_one(&["127.0.10.0/24"], &[], Request::Preferably(ip("127.0.10.77")), "127.0.10.77")]
#[case::a_preference_outside_is_dropped(&["127.0.10.0/24"], &[], Request::Preferably(ip("10.0.0.1")), "127.0.10.1")]
#[case::the_other_family(&["127.0.10.0/24", "::1"], &[], Request::Any(Family::V6), "::1")]
#[case::a_huge_range_costs_nothing(&["fd00::/8"], &[], Request::Any(Family::V6), "fd00::1")]
fn takes(#[case] ranges: &[&str], #[case] excluded: &[&str], #[case] request: Request, #[case] want: &str) {
    assert_eq!(pool(ranges, excluded).take(&service("a"), request), Ok(ip(want)));
}

#[rstest]
#[case::outside(
    "10.0.0.1",
    "requested address 10.0.0.1 is not in the address pool 127.0.10.0/30: ask for one inside, or for none to be given a free one; its operator can add ranges with --pool"
)]
#[case::network_address(
    "127.0.10.0",
    "requested address 127.0.10.0 is not in the address pool 127.0.10.0/30: ask for one inside, or for none to be given a free one; its operator can add ranges with --pool"
)]
#[case::broadcast_address(
    "127.0.10.3",
    "requested address 127.0.10.3 is not in the address pool 127.0.10.0/30: ask for one inside, or for none to be given a free one; its operator can add ranges with --pool"
)]
#[case::excluded(
    "127.0.10.2",
    "requested address 127.0.10.2 is not in the address pool 127.0.10.0/30: ask for one inside, or for none to be given a free one; its operator can add ranges with --pool"
)]
#[case::taken(
    "127.0.10.1",
    "requested address 127.0.10.1 is taken by Service shop/a: ask for another one of the address pool 127.0.10.0/30, or for none to be given a free one"
)]
#[case::other_family(
    "::1",
    "requested address ::1 is not in the address pool 127.0.10.0/30: ask for one inside, or for none to be given a free one; its operator can add ranges with --pool"
)]
fn refuses_a_request(#[case] address: &str, #[case] message: &str) {
    let mut pool = pool(&["127.0.10.0/30"], &["127.0.10.2"]);
    pool.take(&service("a"), Request::Exactly(ip("127.0.10.1")))
        .unwrap();
    let error = pool
        .take(&service("b"), Request::Exactly(ip(address)))
        .unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn exhaustion_names_the_pool_and_ends_with_a_release() {
    let mut pool = pool(&["127.0.10.0/30"], &[]);
    let first = pool.take(&service("a"), Request::Any(Family::V4)).unwrap();
    pool.take(&service("b"), Request::Any(Family::V4)).unwrap();
    let full = pool.take(&service("c"), Request::Any(Family::V4)).unwrap_err();
    assert_eq!(
        full,
        PoolError::Exhausted {
            family: Family::V4,
            pool: "127.0.10.0/30".to_owned(),
            taken: 2
        }
    );
    pool.release(first);
    assert_eq!(pool.take(&service("c"), Request::Any(Family::V4)), Ok(first));
}

fn wish(families: &[Family], need: Need, requested: &[&str], preferred: &[&str]) -> Wish {
    Wish {
        families: families.to_vec(),
        need,
        requested: requested.iter().map(|text| ip(text)).collect(),
        preferred: preferred.iter().map(|text| ip(text)).collect(),
    }
}

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];
const TURNED: &[Family] = &[Family::V6, Family::V4];

/// From a pool of 127.0.10.1, 127.0.10.2 (taken), 127.0.10.3 and `::1`.
#[rstest]
#[case::one_family(wish(V4, Need::Every, &[], &[]), &[], Ok("127.0.10.1"))]
#[case::two_families_in_their_order(wish(TURNED, Need::Every, &[], &[]), &[], Ok("::1 127.0.10.1"))]
#[case::what_is_held_is_kept(wish(BOTH, Need::Every, &[], &["127.0.10.1"]), &["127.0.10.3"], Ok("127.0.10.3 ::1"))]
#[case::held_from_outside_the_pool(wish(V4, Need::Every, &[], &[]), &["10.9.9.9"], Ok("10.9.9.9"))]
#[case::a_family_less(wish(V6, Need::Every, &[], &[]), &["127.0.10.3", "::1"], Ok("::1"))]
#[case::what_was_told_before(wish(BOTH, Need::Every, &[], &["127.0.10.3"]), &[], Ok("127.0.10.3 ::1"))]
#[case::requested(wish(BOTH, Need::Every, &["127.0.10.3"], &["127.0.10.1"]), &["127.0.10.1"], Ok("127.0.10.3 ::1"))]
#[case::requested_and_taken(wish(BOTH, Need::Any, &["127.0.10.2"], &[]), &[], Err("requested address 127.0.10.2 is taken by Service shop/other: ask for another one of the address pool 127.0.10.0/29, ::1/128, or for none to be given a free one"))]
fn assigns(#[case] wish: Wish, #[case] held: &[&str], #[case] want: Result<&str, &str>) {
    let mut pool = pool(
        &["127.0.10.0/29", "::1"],
        &["127.0.10.4", "127.0.10.5", "127.0.10.6"],
    );
    pool.take(&service("other"), Request::Exactly(ip("127.0.10.2")))
        .unwrap();
    let held: Vec<IpAddr> = held.iter().map(|text| ip(text)).collect();
    for address in &held {
        pool.restore(&service("a"), *address).unwrap();
    }
    let before = pool.taken.clone();
    let assigned = pool.assign(&service("a"), &wish, &held);
    let told = assigned.as_ref().map(|all| {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        all.join(" ")
    });
    assert_eq!(
        told.map_err(ToString::to_string),
        want.map(str::to_owned).map_err(str::to_owned)
    );
    if assigned.is_err() {
        assert_eq!(pool.taken, before, "nothing is taken");
    }
}

#[rstest]
#[case::any_is_enough(Need::Any, Some("127.0.10.1"))]
#[case::every_one_is_needed(Need::Every, None)]
fn a_family_that_has_no_address(#[case] need: Need, #[case] want: Option<&str>) {
    let mut pool = pool(&["127.0.10.0/30"], &[]);
    let assigned = pool.assign(&service("a"), &wish(TURNED, need, &[], &[]), &[]);
    assert_eq!(assigned.ok(), want.map(|text| vec![ip(text)]));
    assert_eq!(pool.taken.len(), usize::from(want.is_some()));
}

#[test]
fn a_restored_address_may_be_outside_but_not_twice() {
    let mut pool = pool(&["127.0.10.0/30"], &[]);
    pool.restore(&service("a"), ip("10.9.9.9")).unwrap();
    assert!(matches!(
        pool.restore(&service("b"), ip("10.9.9.9")),
        Err(PoolError::Taken { .. })
    ));
}

#[rstest]
#[case::overlap(&["10.0.0.0/8", "10.1.0.0/16"], "address pool: 10.0.0.0/8 and 10.1.0.0/16 overlap")]
#[case::the_same_twice(&["10.0.0.1", "10.0.0.1"], "address pool: 10.0.0.1/32 and 10.0.0.1/32 overlap")]
#[case::nothing(&[], "address pool: give at least one address or CIDR, such as 127.0.10.0/24")]
fn refuses_a_configuration(#[case] ranges: &[&str], #[case] message: &str) {
    let ranges = ranges.iter().map(|text| text.parse().unwrap());
    assert_eq!(Pool::new(ranges, []).unwrap_err().to_string(), message);
}

#[derive(Debug, Clone)]
enum Step {
    Take(u8, Option<u8>),
    Release(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let take = (0_u8..8, proptest::option::of(0_u8..8)).prop_map(|(who, at)| Step::Take(who, at));
    vec(
        prop_oneof![3 => take, 1 => (0_u8..8).prop_map(Step::Release)],
        0..60,
    )
}

proptest! {
    /// Against a plain list of who was told what.
    #[test]
    fn no_address_ever_has_two_owners(steps in steps()) {
        let mut pool = pool(&["127.0.10.0/29"], &["127.0.10.4"]);
        let mut told: Vec<(IpAddr, ServiceKey)> = Vec::new();
        for step in steps {
            match step {
                Step::Take(who, at) => {
                    let owner = service(&who.to_string());
                    let request = at.map_or(Request::Any(Family::V4), |last| {
                        Request::Exactly(IpAddr::from([127, 0, 10, last]))
                    });
                    match pool.take(&owner, request) {
                        Ok(address) => {
                            prop_assert!(told.iter().all(|(taken, _)| *taken != address));
                            prop_assert!(pool.offers(address));
                            told.push((address, owner));
                        }
                        Err(PoolError::Exhausted { .. }) => prop_assert_eq!(told.len(), 5),
                        Err(PoolError::Taken { address, by, .. }) => prop_assert!(told.contains(&(address, by))),
                        Err(PoolError::NotInPool { address, .. }) => prop_assert!(!pool.offers(address)),
                    }
                }
                Step::Release(last) => {
                    let address = IpAddr::from([127, 0, 10, last]);
                    pool.release(address);
                    told.retain(|(taken, _)| *taken != address);
                }
            }
            for (address, owner) in &told {
                prop_assert_eq!(pool.owner(*address), Some(owner));
            }
        }
    }
}
