use proptest::prelude::*;
use rstest::rstest;

use super::*;

const NOW: u64 = 1_000;
const LATER: u64 = 2_000;

fn epoch(lease: &str, transitions: i64) -> Epoch {
    Epoch {
        lease: lease.to_owned(),
        transitions,
    }
}

fn grant() -> Told {
    Told::Grant { until: LATER }
}

/// A role that leads `a`/5 until [`LATER`].
fn leading() -> Role {
    let mut role = Role::default();
    role.lead(&epoch("a", 5), &grant(), NOW).expect("the first");
    role
}

fn kind(answer: &Result<Change, LeadRefusal>) -> &'static str {
    match answer {
        Ok(Change {
            ended: false,
            began: false,
        }) => "nothing",
        Ok(Change {
            ended: true,
            began: false,
        }) => "ended",
        Ok(Change {
            ended: false,
            began: true,
        }) => "began",
        Ok(Change {
            ended: true,
            began: true,
        }) => "replaced",
        Err(LeadRefusal::LowerEpoch { .. }) => "lower",
        Err(LeadRefusal::Ended { .. }) => "had ended",
        Err(LeadRefusal::OtherLease { .. }) => "other lease",
    }
}

#[rstest]
#[case::first_of_a_session_grants_nothing("a", 5, Told::Announce, "nothing")]
#[case::a_grant_begins("a", 5, grant(), "began")]
#[case::a_grant_that_is_over_already_begins_nothing("a", 5, Told::Grant { until: NOW }, "nothing")]
#[case::a_stop_of_what_never_led("a", 5, Told::Stop, "nothing")]
fn a_standby_plugin_takes(
    #[case] lease: &str,
    #[case] transitions: i64,
    #[case] told: Told,
    #[case] want: &str,
) {
    assert_eq!(
        kind(&Role::default().lead(&epoch(lease, transitions), &told, NOW)),
        want
    );
}

#[rstest]
#[case::a_renewal_changes_nothing("a", 5, grant(), NOW, "nothing")]
#[case::a_new_session_of_the_same_host("a", 5, Told::Announce, NOW, "nothing")]
#[case::a_stop_ends("a", 5, Told::Stop, NOW, "ended")]
#[case::a_lower_epoch_is_refused("a", 4, grant(), NOW, "lower")]
#[case::a_stop_of_a_lower_epoch_is_refused("a", 4, Told::Stop, NOW, "lower")]
#[case::a_lower_epoch_is_refused_even_when_the_lead_ran_out("a", 4, grant(), LATER, "lower")]
#[case::a_higher_epoch_ends_the_lower_before_it_is_granted("a", 6, Told::Announce, NOW, "ended")]
#[case::a_higher_epoch_replaces("a", 6, grant(), NOW, "replaced")]
#[case::another_lease_waits("b", 9, grant(), NOW, "other lease")]
#[case::another_lease_waits_also_with_its_first("b", 9, Told::Announce, NOW, "other lease")]
#[case::another_lease_replaces_one_that_ran_out("b", 0, Told::Grant { until: LATER + 1 }, LATER, "replaced")]
#[case::a_stop_of_another_lease_ends_nothing("b", 9, Told::Stop, NOW, "other lease")]
#[case::a_stop_of_another_lease_ends_what_ran_out("b", 9, Told::Stop, LATER, "ended")]
fn a_leading_plugin_takes(
    #[case] lease: &str,
    #[case] transitions: i64,
    #[case] told: Told,
    #[case] now: u64,
    #[case] want: &str,
) {
    assert_eq!(
        kind(&leading().lead(&epoch(lease, transitions), &told, now)),
        want
    );
}

#[rstest]
#[case::the_same_epoch_never_again("a", 5, grant(), "had ended")]
#[case::nor_its_announcement("a", 5, Told::Announce, "had ended")]
#[case::a_second_stop_is_fine("a", 5, Told::Stop, "nothing")]
#[case::the_next_epoch_begins("a", 6, grant(), "began")]
#[case::another_lease_need_not_wait("b", 0, grant(), "began")]
fn after_a_stop_a_plugin_takes(
    #[case] lease: &str,
    #[case] transitions: i64,
    #[case] told: Told,
    #[case] want: &str,
) {
    let mut role = leading();
    role.lead(&epoch("a", 5), &Told::Stop, NOW).expect("its own stop");
    assert_eq!(kind(&role.lead(&epoch(lease, transitions), &told, NOW)), want);
}

#[rstest]
#[case::in_time("a", 5, LATER - 1, Ok(()))]
#[case::at_the_end("a", 5, LATER, Err(Refusal::RanOut))]
#[case::of_a_lower_epoch("a", 4, NOW, Err(Refusal::OtherEpoch))]
#[case::of_a_higher_epoch("a", 6, NOW, Err(Refusal::OtherEpoch))]
#[case::of_another_lease("b", 5, NOW, Err(Refusal::OtherEpoch))]
fn a_leading_plugin_judges_a_write(
    #[case] lease: &str,
    #[case] transitions: i64,
    #[case] now: u64,
    #[case] want: Result<(), Refusal>,
) {
    assert_eq!(leading().admit_write(&epoch(lease, transitions), now), want);
}

#[test]
fn reads_go_on_when_the_lead_ran_out_and_end_with_the_term() {
    let mut role = leading();
    assert_eq!(role.admit_read(), Ok(()));
    role.lead(&epoch("a", 5), &Told::Stop, LATER)
        .expect("its own stop");
    assert_eq!(role.admit_read(), Err(Refusal::Standby));
}

#[test]
fn a_new_session_of_the_same_host_does_not_shorten_what_was_granted() {
    let mut role = leading();
    role.lead(&epoch("a", 5), &Told::Announce, NOW)
        .expect("the same epoch");
    assert_eq!(role.until(), LATER);
}

/// What happens to a role, with the time since the step before.
#[derive(Clone, Debug)]
struct Step {
    passed: u64,
    epoch: Epoch,
    told: ToldFor,
}

#[derive(Clone, Copy, Debug)]
enum ToldFor {
    Nothing,
    Nanos(u64),
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let told = prop_oneof![
        Just(ToldFor::Nothing),
        (1..50_u64).prop_map(ToldFor::Nanos),
        Just(ToldFor::Stop)
    ];
    let lease = prop_oneof![Just("a"), Just("b")];
    let step = (0..40_u64, lease, 0..4_i64, told).prop_map(|(passed, lease, transitions, told)| Step {
        passed,
        epoch: epoch(lease, transitions),
        told,
    });
    proptest::collection::vec(step, 0..60)
}

fn every_epoch() -> impl Iterator<Item = Epoch> {
    ["a", "b"]
        .into_iter()
        .flat_map(|lease| (0..4).map(move |transitions| epoch(lease, transitions)))
}

proptest! {
    #[test]
    fn no_two_epochs_may_write_at_once_and_none_after_its_last_grant(steps in steps()) {
        let mut role = Role::default();
        let mut now = 1_u64;
        let mut granted: std::collections::HashMap<(String, i64), u64> = std::collections::HashMap::new();
        for step in steps {
            now += step.passed;
            let told = match step.told {
                ToldFor::Nothing => Told::Announce,
                ToldFor::Nanos(nanos) => Told::Grant { until: now + nanos },
                ToldFor::Stop => Told::Stop,
            };
            let answer = role.lead(&step.epoch, &told, now);
            let key = (step.epoch.lease.clone(), step.epoch.transitions);
            match (&answer, &told) {
                (Ok(_), Told::Grant { until }) => { granted.insert(key, *until); }
                (Ok(_), Told::Stop) => { granted.remove(&key); }
                _ => {}
            }
            for at in [now, now + 20, now + 50] {
                let writers: Vec<Epoch> =
                    every_epoch().filter(|epoch| role.admit_write(epoch, at).is_ok()).collect();
                prop_assert!(writers.len() <= 1, "{writers:?} at {at}");
                for writer in writers {
                    let until = granted.get(&(writer.lease.clone(), writer.transitions)).copied();
                    prop_assert!(until.is_some_and(|until| at < until), "{writer:?} at {at}, granted {until:?}");
                    prop_assert!(at < role.until());
                }
            }
        }
    }

    #[test]
    fn an_epoch_that_ended_never_leads_again_within_its_lease(steps in steps()) {
        let mut role = Role::default();
        let mut now = 1_u64;
        let mut highest = -1_i64;
        let mut ended = -1_i64;
        for step in steps.into_iter().filter(|step| step.epoch.lease == "a") {
            now += step.passed;
            let told = match step.told {
                ToldFor::Nothing => Told::Announce,
                ToldFor::Nanos(nanos) => Told::Grant { until: now + nanos },
                ToldFor::Stop => Told::Stop,
            };
            let transitions = step.epoch.transitions;
            let taken = role.lead(&step.epoch, &told, now).is_ok();
            if matches!(told, Told::Grant { .. }) {
                prop_assert_eq!(taken, transitions >= highest && transitions > ended);
            }
            if taken {
                highest = highest.max(transitions);
                if matches!(told, Told::Stop) {
                    ended = ended.max(transitions);
                }
            }
        }
    }
}
