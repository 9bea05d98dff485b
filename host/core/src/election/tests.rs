use rstest::rstest;

use super::*;

const LEASE: Duration = Duration::from_secs(15);

fn at(millis: u64) -> Instant {
    // Far from the clock's origin, as a real boot-time clock is.
    Instant::from_origin(Duration::from_secs(1_000) + Duration::from_millis(millis))
}

fn record(holder: &str, transitions: i64) -> Record {
    let lease_duration = if holder.is_empty() {
        RELEASED_DURATION
    } else {
        LEASE
    };
    Record {
        holder: holder.to_owned(),
        lease_duration,
        acquired: None,
        renewed: None,
        transitions,
    }
}

fn lease(uid: &str, version: u64, holder: &str, transitions: i64) -> Version {
    Version {
        uid: uid.to_owned(),
        resource_version: version.to_string(),
        record: record(holder, transitions),
    }
}

fn candidate() -> Machine {
    Machine::new(Candidate {
        identity: "me".to_owned(),
        timing: Timing::default(),
        poll_period: Duration::from_secs(3),
    })
}

/// A candidate that has read `lease` at second 0, and what it did about it.
fn having_read(lease: Option<Version>) -> (Machine, Vec<String>) {
    let mut machine = candidate();
    assert_eq!(machine.step(Event::Woken, at(0)), vec![Effect::Read]);
    let effects = machine.step(Event::Answered(Answer::Read(lease)), at(0));
    (machine, told(&effects))
}

/// A leader by version 2 of lease `u`, 6 transitions, its winning write sent and answered at second 0.
fn leader() -> Machine {
    let (mut machine, effects) = having_read(Some(lease("u", 1, "", 5)));
    assert_eq!(effects, ["update 1 as me, term 6"]);
    let effects = machine.step(Event::Answered(Answer::Written(lease("u", 2, "me", 6))), at(0));
    assert_eq!(told(&effects), ["won u/6", "wake at 2000"]);
    machine
}

/// Effects as short sentences, times in milliseconds since second 0; without the time to wake beside a
/// request, which is always the renew deadline.
fn told(effects: &[Effect]) -> Vec<String> {
    let effects = match effects {
        [
            start @ ..,
            Effect::Read | Effect::Create(_) | Effect::Update { .. },
            Effect::WakeAt(_),
        ] => &effects[..=start.len()],
        _ => effects,
    };
    let claim = |claim: &Claim| format!("as {}, term {}", claim.holder, claim.transitions);
    effects
        .iter()
        .map(|effect| match effect {
            Effect::Read => "read".to_owned(),
            Effect::Create(written) => format!("create {}", claim(written)),
            Effect::Update {
                guard,
                claim: written,
            } => format!("update {guard} {}", claim(written)),
            Effect::WakeAt(time) => format!("wake at {}", time.saturating_since(at(0)).as_millis()),
            Effect::Won(Leading { epoch, .. }) => format!("won {}/{}", epoch.lease_uid, epoch.transitions),
            Effect::Renewed(Leading { epoch, .. }) => {
                format!("renewed {}/{}", epoch.lease_uid, epoch.transitions)
            }
            Effect::Lost(why) => format!("lost: {why}"),
            Effect::StandingBy { holder } => format!("standing by {holder}"),
            Effect::Ended(how) => format!("ended {how:?}"),
        })
        .collect()
}

#[rstest]
#[case::upstream_defaults(15_000, 10_000, 2_000, None)]
#[case::lease_equal_to_renew_deadline(10_000, 10_000, 2_000, Some("--leader-elect-lease-duration must"))]
#[case::lease_below_renew_deadline(9_000, 10_000, 2_000, Some("--leader-elect-lease-duration must"))]
#[case::lease_with_a_fraction(15_500, 10_000, 2_000, Some("--leader-elect-lease-duration must be a whole"))]
#[case::lease_zero(0, 10_000, 2_000, Some("--leader-elect-lease-duration must be a whole"))]
#[case::renew_deadline_at_the_jittered_retry(
    15_000,
    2_400,
    2_000,
    Some("--leader-elect-renew-deadline must")
)]
#[case::renew_deadline_just_above(15_000, 2_401, 2_000, None)]
#[case::retry_period_zero(15_000, 10_000, 0, Some("--leader-elect-retry-period must"))]
fn timing_is_accepted_or_names_its_flag(
    #[case] lease: u64,
    #[case] renew: u64,
    #[case] retry: u64,
    #[case] error: Option<&str>,
) {
    let millis = Duration::from_millis;
    let made = Timing::new(millis(lease), millis(renew), millis(retry));
    match error {
        None => assert!(made.is_ok(), "{made:?}"),
        Some(start) => assert!(made.unwrap_err().to_string().starts_with(start)),
    }
}

#[rstest]
#[case::two_tries_fit_the_deadline(10_000, 5_000)]
#[case::never_under_a_second(1_500, 1_000)]
fn a_request_has_half_the_renew_deadline(#[case] renew: u64, #[case] timeout: u64) {
    let timing = Timing::new(LEASE, Duration::from_millis(renew), Duration::from_millis(500)).unwrap();
    assert_eq!(timing.request_timeout(), Duration::from_millis(timeout));
}

#[rstest]
#[case::lowest_draw(0.0, 2_000)]
#[case::highest_draw(1.0, 4_400)]
#[case::draw_out_of_range(7.0, 4_400)]
fn standbys_poll_at_the_jittered_retry_period(#[case] draw: f64, #[case] millis: u64) {
    assert_eq!(Timing::default().poll_period(draw), Duration::from_millis(millis));
}

#[rstest]
#[case::just_renewed(0, true, 13_125)]
#[case::a_fifth_is_left(12_000, true, 1_125)]
#[case::less_than_a_fifth_is_left(12_001, false, 1_124)]
#[case::an_eighth_is_left(13_125, false, 0)]
#[case::expired(15_000, false, 0)]
#[case::long_expired(1_000_000, false, 0)]
fn effects_and_leads_count_from_when_the_renewal_was_sent(
    #[case] age: u64,
    #[case] start: bool,
    #[case] valid_millis: u64,
) {
    assert_eq!(may_start(at(age), at(0), LEASE), start);
    assert_eq!(
        lead_valid_for(at(age), at(0), LEASE),
        Duration::from_millis(valid_millis)
    );
}

#[rstest]
#[case::clock_goes_on(Some(100), 200, 200)]
#[case::clock_stands_still(Some(100), 100, 101)]
#[case::clock_jumped_back(Some(100), 7, 101)]
#[case::first_renewal(None, 7, 7)]
fn a_renewal_time_always_grows(#[case] after: Option<i64>, #[case] wall: i64, #[case] want: i64) {
    let claim = Claim {
        holder: "me".to_owned(),
        lease_duration: LEASE,
        transitions: 3,
        acquired: Some(Timestamp(1)),
        after: after.map(Timestamp),
    };
    let written = claim.stamped(Timestamp(wall));
    assert_eq!(written.renewed, Some(Timestamp(want)));
    assert_eq!(written.acquired, Some(Timestamp(1)));
}

#[rstest]
#[case::never_seen_is_created_at_once(None, &["create as me, term 0"])]
#[case::released_is_taken_at_once(Some(lease("u", 1, "", 5)), &["update 1 as me, term 6"])]
#[case::our_own_name_is_won_anew(Some(lease("u", 1, "me", 5)), &["update 1 as me, term 6"])]
#[case::held_is_waited_for(Some(lease("u", 1, "other", 5)), &["standing by other", "wake at 3000"])]
fn a_candidate_that_has_read(#[case] lease: Option<Version>, #[case] want: &[&str]) {
    assert_eq!(having_read(lease).1, want);
}

#[rstest]
#[case::released(Some(lease("u", 2, "", 5)), 1_000, &["update 2 as me, term 6"])]
#[case::renewed_and_counting_anew(Some(lease("u", 2, "other", 5)), 1_000, &["wake at 3000"])]
#[case::taken_by_a_third(Some(lease("u", 2, "third", 6)), 1_000, &["standing by third", "wake at 3000"])]
#[case::vanished_and_waited_for(None, 1_000, &["wake at 3000"])]
#[case::made_anew_and_released(Some(lease("v", 9, "", 0)), 1_000, &["wake at 3000"])]
fn a_standby_that_is_told_by_the_watch(
    #[case] lease: Option<Version>,
    #[case] millis: u64,
    #[case] want: &[&str],
) {
    let (mut machine, _) = having_read(Some(self::lease("u", 1, "other", 5)));
    assert_eq!(told(&machine.step(Event::Noticed(lease), at(millis))), want);
}

/// Polls every 3 s from second 0 on, each answered with `seen`, up to `until`; returns what it does then.
fn polls(machine: &mut Machine, seen: Option<&Version>, until: u64) -> Vec<String> {
    for second in (3..).step_by(3).take_while(|second| second * 1_000 < until) {
        assert_eq!(told(&machine.step(Event::Woken, at(second * 1_000))), ["read"]);
        let effects = machine.step(Event::Answered(Answer::Read(seen.cloned())), at(second * 1_000));
        assert!(
            told(&effects).iter().all(|effect| effect.starts_with("wake at")),
            "{effects:?}"
        );
    }
    told(&machine.step(Event::Woken, at(until)))
}

#[rstest]
#[case::before_its_duration_it_is_looked_at(14_999, &["wake at 15000"])]
#[case::after_its_duration_it_is_taken(15_000, &["update 1 as me, term 6"])]
fn a_record_that_does_not_change(#[case] until: u64, #[case] want: &[&str]) {
    let seen = Some(lease("u", 1, "other", 5));
    let (mut machine, _) = having_read(seen.clone());
    assert_eq!(polls(&mut machine, seen.as_ref(), until), want);
}

#[rstest]
#[case::before_the_last_duration(17_999, &["wake at 18000"])]
#[case::after_the_last_duration(18_000, &["create as me, term 6"])]
fn a_lease_of_another_that_vanished(#[case] until: u64, #[case] want: &[&str]) {
    let (mut machine, _) = having_read(Some(lease("u", 1, "other", 5)));
    // The first poll, at second 3, is the first to find it gone.
    assert_eq!(told(&machine.step(Event::Woken, at(3_000))), ["read"]);
    machine.step(Event::Answered(Answer::Read(None)), at(3_000));
    for second in [6, 9, 12, 15] {
        assert_eq!(told(&machine.step(Event::Woken, at(second * 1_000))), ["read"]);
        machine.step(Event::Answered(Answer::Read(None)), at(second * 1_000));
    }
    assert_eq!(told(&machine.step(Event::Woken, at(until))), want);
}

#[test]
fn an_absence_from_before_the_watch_told_of_the_lease_is_looked_at_again() {
    let mut machine = candidate();
    assert_eq!(machine.step(Event::Woken, at(0)), vec![Effect::Read]);
    machine.step(Event::Noticed(Some(lease("u", 1, "other", 0))), at(400));
    let effects = machine.step(Event::Answered(Answer::Read(None)), at(4_500));
    assert_eq!(told(&effects), ["read"]);
    // It is gone by now, and whoever held it has its whole duration.
    let effects = machine.step(Event::Answered(Answer::Read(None)), at(9_000));
    assert_eq!(told(&effects), ["wake at 12000"]);
    for second in [12, 15, 18, 21] {
        assert_eq!(told(&machine.step(Event::Woken, at(second * 1_000))), ["read"]);
        machine.step(Event::Answered(Answer::Read(None)), at(second * 1_000));
    }
    assert_eq!(
        told(&machine.step(Event::Woken, at(24_000))),
        ["create as me, term 1"]
    );
}

#[rstest]
#[case::ours_lost_and_gone("me")]
#[case::released_and_gone("")]
fn whoever_does_not_lead_waits_when_the_lease_vanished(#[case] last_holder: &str) {
    let (mut machine, _) = having_read(Some(lease("u", 1, last_holder, 5)));
    machine.step(Event::Answered(Answer::Conflict), at(10));
    machine.step(Event::Answered(Answer::Read(None)), at(20));
    assert_eq!(told(&machine.step(Event::Woken, at(2_000))), ["wake at 3020"]);
}

#[rstest]
#[case::renews_when_due(Event::Woken, 2_000, &["update 2 as me, term 6"])]
#[case::not_before(Event::Woken, 1_999, &["wake at 2000"])]
#[case::its_own_version_is_no_news(Event::Noticed(Some(lease("u", 2, "me", 6))), 100, &["wake at 2000"])]
#[case::late_news_of_others_is_checked(Event::Noticed(Some(lease("u", 1, "other", 5))), 100, &["read"])]
#[case::a_deletion_is_checked(Event::Noticed(None), 100, &["read"])]
#[case::gives_up_at_the_renew_deadline(
    Event::Woken,
    10_000,
    &["lost: no renewal succeeded within the renew deadline", "read"],
)]
#[case::drains_and_renews(Event::Drain, 2_000, &["update 2 as me, term 6"])]
#[case::releases_at_once(Event::Release, 100, &["update 2 as , term 6"])]
fn a_leader(#[case] event: Event, #[case] millis: u64, #[case] want: &[&str]) {
    assert_eq!(told(&leader().step(event, at(millis))), want);
}

#[rstest]
#[case::applied(Answer::Written(lease("u", 3, "me", 6)), 2_010, &["renewed u/6", "wake at 4000"])]
#[case::without_a_new_version(Answer::Written(lease("u", 2, "me", 6)), 2_010, &["wake at 4000"])]
#[case::refused(Answer::Conflict, 2_010, &["read"])]
#[case::failed_is_paced(Answer::Failed, 2_010, &["wake at 4000"])]
#[case::timed_out_is_read_at_once(Answer::Failed, 7_000, &["read"])]
#[case::answered_too_late(
    Answer::Written(lease("u", 3, "me", 6)),
    10_000,
    &["lost: no renewal succeeded within the renew deadline", "update 3 as me, term 7"],
)]
fn a_renewal_sent_at_second_two(#[case] answer: Answer, #[case] millis: u64, #[case] want: &[&str]) {
    let mut machine = leader();
    machine.step(Event::Woken, at(2_000));
    assert_eq!(told(&machine.step(Event::Answered(answer), at(millis))), want);
}

#[rstest]
#[case::still_ours(Some(lease("u", 3, "me", 6)), &["update 3 as me, term 6"])]
#[case::ours_with_another_count(Some(lease("u", 3, "me", 0)), &["update 3 as me, term 6"])]
#[case::taken(
    Some(lease("u", 3, "other", 7)),
    &["lost: other holds the lease now", "standing by other", "wake at 5010"],
)]
#[case::cleared(
    Some(lease("u", 3, "", 6)),
    &["lost: somebody cleared the lease", "update 3 as me, term 7"],
)]
#[case::vanished_is_made_again_by_its_holder(None, &["create as me, term 7"])]
#[case::vanished_and_made_by_our_lost_answer(Some(lease("v", 9, "me", 7)), &["update 9 as me, term 8"])]
fn a_leader_that_reads_after_a_conflict(#[case] lease: Option<Version>, #[case] want: &[&str]) {
    let mut machine = leader();
    machine.step(Event::Woken, at(2_000));
    machine.step(Event::Answered(Answer::Conflict), at(2_010));
    assert_eq!(
        told(&machine.step(Event::Answered(Answer::Read(lease)), at(2_010))),
        want
    );
}

#[test]
fn a_lease_made_again_by_its_holder_is_a_new_epoch_without_a_loss() {
    let mut machine = leader();
    machine.step(Event::Noticed(None), at(500));
    machine.step(Event::Answered(Answer::Read(None)), at(510));
    let effects = machine.step(Event::Answered(Answer::Written(lease("v", 9, "me", 7))), at(520));
    assert_eq!(told(&effects), ["renewed v/7", "wake at 2510"]);
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut machine = leader();
    machine.step(Event::Woken, at(2_000));
    let effects = machine.step(
        Event::Answered(Answer::Written(lease("u", 3, "me", 6))),
        at(6_500),
    );
    let Some(Effect::Renewed(leading)) = effects.first() else {
        panic!("{effects:?}")
    };
    assert_eq!(leading.renewed, at(2_000));
}

#[test]
fn a_leader_wakes_at_the_renew_deadline_even_while_a_renewal_is_under_way() {
    assert_eq!(
        leader().step(Event::Woken, at(2_000)).last(),
        Some(&Effect::WakeAt(at(10_000)))
    );
}

#[test]
fn every_second_conflict_in_a_row_waits() {
    let mut machine = leader();
    machine.step(Event::Woken, at(2_000));
    assert_eq!(
        told(&machine.step(Event::Answered(Answer::Conflict), at(2_010))),
        ["read"]
    );
    let seen = Some(lease("u", 3, "me", 6));
    machine.step(Event::Answered(Answer::Read(seen)), at(2_020));
    assert_eq!(
        told(&machine.step(Event::Answered(Answer::Conflict), at(2_030))),
        ["wake at 4020"]
    );
}

#[test]
fn a_win_that_is_answered_after_its_deadline_is_won_anew() {
    let (mut machine, _) = having_read(Some(lease("u", 1, "", 5)));
    let effects = machine.step(
        Event::Answered(Answer::Written(lease("u", 2, "me", 6))),
        at(10_000),
    );
    assert_eq!(told(&effects), ["update 2 as me, term 7"]);
}

#[test]
fn a_creation_that_met_a_vanished_lease_waits_for_its_holder() {
    let (mut machine, effects) = having_read(None);
    assert_eq!(effects, ["create as me, term 0"]);
    machine.step(Event::Noticed(Some(lease("u", 1, "other", 0))), at(10));
    machine.step(Event::Noticed(None), at(1_000));
    let effects = machine.step(
        Event::Answered(Answer::Written(lease("v", 2, "me", 0))),
        at(1_010),
    );
    assert_eq!(told(&effects), ["wake at 4010"]);
    // Looked at in between, it is won anew once the other's claim is over.
    for millis in [4_010, 7_010, 10_010, 13_010] {
        assert_eq!(told(&machine.step(Event::Woken, at(millis))), ["read"]);
        machine.step(
            Event::Answered(Answer::Read(Some(lease("v", 2, "me", 0)))),
            at(millis),
        );
    }
    assert_eq!(
        told(&machine.step(Event::Woken, at(16_000))),
        ["update 2 as me, term 1"]
    );
}

#[test]
fn a_draining_standby_takes_nothing() {
    let (mut machine, _) = having_read(Some(lease("u", 1, "other", 5)));
    assert_eq!(told(&machine.step(Event::Drain, at(100))), [""; 0]);
    let effects = machine.step(Event::Noticed(Some(lease("u", 2, "", 5))), at(200));
    assert_eq!(told(&effects), [""; 0]);
}

#[test]
fn a_standby_that_never_wrote_ends_at_once() {
    let (mut machine, _) = having_read(Some(lease("u", 1, "other", 5)));
    assert_eq!(
        told(&machine.step(Event::Release, at(100))),
        ["ended NothingHeld"]
    );
}

#[rstest]
#[case::given_up(Answer::Written(lease("u", 3, "", 6)), &["ended Released"])]
#[case::unclear_is_read(Answer::Failed, &["wake at 2100"])]
#[case::refused_is_read(Answer::Conflict, &["read"])]
fn a_release(#[case] answer: Answer, #[case] want: &[&str]) {
    let mut machine = leader();
    machine.step(Event::Release, at(100));
    assert_eq!(told(&machine.step(Event::Answered(answer), at(110))), want);
}

#[rstest]
#[case::had_been_applied(Answer::Read(Some(lease("u", 3, "", 6))), &["ended NothingHeld"])]
#[case::had_not(Answer::Read(Some(lease("u", 2, "me", 6))), &["update 2 as , term 6"])]
#[case::gone(Answer::Read(None), &["ended NothingHeld"])]
fn a_release_of_unknown_outcome(#[case] answer: Answer, #[case] want: &[&str]) {
    let mut machine = leader();
    machine.step(Event::Release, at(100));
    machine.step(Event::Answered(Answer::Failed), at(110));
    assert_eq!(told(&machine.step(Event::Woken, at(2_100))), ["read"]);
    assert_eq!(told(&machine.step(Event::Answered(answer), at(2_110))), want);
}

#[test]
fn a_release_without_an_api_server_ends_after_the_renew_deadline() {
    let mut machine = leader();
    machine.step(Event::Release, at(9_000));
    let effects = machine.step(Event::Answered(Answer::Failed), at(14_000));
    assert_eq!(
        told(&effects),
        [
            "lost: no renewal succeeded within the renew deadline",
            "ended Unknown"
        ]
    );
}

#[test]
fn a_winning_write_that_ends_after_the_release_was_asked_for_is_given_up() {
    let (mut machine, _) = having_read(Some(lease("u", 1, "", 5)));
    assert_eq!(told(&machine.step(Event::Release, at(10))), [""; 0]);
    let effects = machine.step(Event::Answered(Answer::Written(lease("u", 2, "me", 6))), at(20));
    assert_eq!(told(&effects), ["update 2 as , term 6"]);
}
