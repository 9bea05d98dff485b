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
    "requested address 10.0.0.1 is not in the address pool 127.0.10.0/30"
)]
#[case::network_address(
    "127.0.10.0",
    "requested address 127.0.10.0 is not in the address pool 127.0.10.0/30"
)]
#[case::broadcast_address(
    "127.0.10.3",
    "requested address 127.0.10.3 is not in the address pool 127.0.10.0/30"
)]
#[case::excluded(
    "127.0.10.2",
    "requested address 127.0.10.2 is not in the address pool 127.0.10.0/30"
)]
#[case::taken("127.0.10.1", "requested address 127.0.10.1 is taken by Service shop/a")]
#[case::other_family("::1", "requested address ::1 is not in the address pool 127.0.10.0/30")]
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
                        Err(PoolError::Taken { address, by }) => prop_assert!(told.contains(&(address, by))),
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
