use proptest::prelude::*;
use rstest::rstest;

use super::*;

use Evidence::{Nothing, Reached, Unreached, Violated};

fn at(seconds: u64) -> Instant {
    Instant::from_origin(Duration::from_secs(seconds))
}

const fn open(cause: Cause, seconds: u64) -> State {
    State::Open {
        cause,
        until: Instant::from_origin(Duration::from_secs(seconds)),
    }
}

const fn fresh() -> Breaker {
    Breaker::new(Waits::DEFAULT)
}

/// One call after another: when each ends, what it is about and what it says.
type Ends<'a> = &'a [(u64, Subject<'a>, Evidence)];

fn after(ends: Ends<'_>) -> Breaker {
    let mut breaker = fresh();
    for (seconds, subject, evidence) in ends {
        if let Some(pass) = breaker.begin() {
            breaker.ended(pass, *subject, *evidence, at(*seconds));
        }
    }
    breaker
}

const A: Subject<'_> = Some("a");
const B: Subject<'_> = Some("b");
const C: Subject<'_> = Some("c");

#[rstest]
#[case::four_are_not_enough(&[(0, A, Unreached), (1, B, Unreached), (2, C, Unreached), (3, A, Unreached)], State::Closed)]
#[case::five_of_three_keys(
    &[(0, A, Unreached), (1, B, Unreached), (2, C, Unreached), (3, A, Unreached), (4, A, Unreached)],
    open(Cause::Unreached, 34)
)]
#[case::any_number_of_two_keys(
    &[(0, A, Unreached), (1, B, Unreached), (2, A, Unreached), (3, B, Unreached), (4, A, Unreached),
      (5, B, Unreached), (6, A, Unreached)],
    State::Closed
)]
#[case::the_third_key_comes_last(
    &[(0, A, Unreached), (1, B, Unreached), (2, A, Unreached), (3, B, Unreached), (4, A, Unreached),
      (5, B, Unreached), (6, C, Unreached)],
    open(Cause::Unreached, 36)
)]
#[case::five_without_a_key(
    &[(0, None, Unreached), (1, None, Unreached), (2, None, Unreached), (3, None, Unreached), (4, None, Unreached)],
    open(Cause::Unreached, 34)
)]
#[case::three_without_a_key_among_those_of_one(
    &[(0, A, Unreached), (1, A, Unreached), (2, None, Unreached), (3, A, Unreached), (4, None, Unreached)],
    open(Cause::Unreached, 34)
)]
#[case::an_answer_between(
    &[(0, A, Unreached), (1, B, Unreached), (2, C, Unreached), (3, A, Reached), (4, B, Unreached), (5, C, Unreached)],
    State::Closed
)]
#[case::what_says_nothing_does_not_break_the_row(
    &[(0, A, Unreached), (1, B, Unreached), (2, A, Nothing), (3, C, Unreached), (4, A, Violated),
      (5, B, Unreached), (6, C, Unreached)],
    open(Cause::Unreached, 36)
)]
#[case::too_slowly(
    &[(0, A, Unreached), (20, B, Unreached), (40, C, Unreached), (60, A, Unreached), (61, B, Unreached)],
    State::Closed
)]
#[case::just_within_a_minute(
    &[(1, A, Unreached), (20, B, Unreached), (40, C, Unreached), (60, A, Unreached), (61, B, Unreached)],
    open(Cause::Unreached, 91)
)]
#[case::three_violations(&[(0, A, Violated), (100, B, Violated), (200, None, Violated)], open(Cause::Violated, 260))]
#[case::one_object_whose_answers_cannot_be_read(
    &[(0, A, Violated), (1, A, Violated), (2, A, Violated), (3, A, Violated)],
    State::Closed
)]
#[case::a_sound_answer_between_violations(
    &[(0, A, Violated), (1, B, Violated), (2, C, Reached), (3, C, Violated)],
    State::Closed
)]
fn it_opens_on_a_row_of_ends(#[case] ends: Ends<'_>, #[case] state: State) {
    assert_eq!(after(ends).state(), state);
}

/// Open since second 0, until 30.
fn opened() -> Breaker {
    after(&[(0, None, Unreached); 5])
}

/// Half open since second 30.
fn half_open() -> Breaker {
    let mut breaker = opened();
    breaker.status_answered(at(30));
    breaker
}

#[test]
fn open_it_lets_nothing_through() {
    assert_eq!(opened().begin(), None);
}

#[rstest]
#[case::too_early(29, open(Cause::Unreached, 30))]
#[case::in_time(30, State::HalfOpen { cause: Cause::Unreached })]
fn it_opens_half_only_after_the_plugin_has_said_how_it_is(#[case] seconds: u64, #[case] state: State) {
    let mut breaker = opened();
    breaker.status_answered(at(seconds));
    assert_eq!(breaker.state(), state);
}

#[rstest]
#[case::success_closes_it(Reached, State::Closed)]
#[case::failure_doubles_the_wait(Unreached, open(Cause::Unreached, 31 + 60))]
#[case::a_violation_is_a_failure_too(Violated, open(Cause::Violated, 31 + 120))]
#[case::what_says_nothing_changes_nothing(Nothing, State::HalfOpen { cause: Cause::Unreached })]
fn the_trial_decides(#[case] evidence: Evidence, #[case] state: State) {
    let mut breaker = half_open();
    let pass = breaker.begin().unwrap();
    assert_eq!(breaker.begin(), None, "one at a time");
    breaker.ended(pass, A, evidence, at(31));
    assert_eq!(breaker.state(), state);
    assert_eq!(breaker.begin().is_some(), !matches!(state, State::Open { .. }));
}

#[test]
fn waits_double_up_to_five_minutes_and_start_anew_after_a_success() {
    let mut breaker = opened();
    let mut waits = Vec::new();
    let mut now = at(30);
    for _ in 0..5 {
        breaker.status_answered(now);
        let pass = breaker.begin().unwrap();
        breaker.ended(pass, A, Unreached, now);
        let State::Open { until, .. } = breaker.state() else {
            panic!("{breaker:?}")
        };
        waits.push(until.saturating_since(now).as_secs());
        now = until;
    }
    assert_eq!(waits, [60, 120, 240, 300, 300]);
    breaker.status_answered(now);
    let pass = breaker.begin().unwrap();
    breaker.ended(pass, A, Reached, now);
    for _ in 0..5 {
        let pass = breaker.begin().unwrap();
        breaker.ended(pass, None, Unreached, now);
    }
    assert_eq!(
        breaker.state(),
        State::Open {
            cause: Cause::Unreached,
            until: now + Duration::from_secs(30)
        }
    );
}

#[rstest]
#[case::of_calls_from_before_it_opened(Reached)]
#[case::of_failures_from_before_it_opened(Unreached)]
fn the_end_decides_nothing(#[case] evidence: Evidence) {
    let mut breaker = fresh();
    let early = breaker.begin().unwrap();
    for _ in 0..5 {
        let pass = breaker.begin().unwrap();
        breaker.ended(pass, None, Unreached, at(0));
    }
    breaker.status_answered(at(30));
    let before = breaker.clone();
    breaker.ended(early, A, evidence, at(31));
    assert_eq!(breaker, before);
}

#[rstest]
#[case::violations_are_the_process_s(Violated, true)]
#[case::the_provider_is_the_same(Unreached, false)]
fn a_new_session_forgets(#[case] evidence: Evidence, #[case] forgets: bool) {
    let mut breaker = after(&[(0, None, evidence); 5]);
    assert_ne!(breaker.state(), State::Closed);
    breaker.session_began();
    assert_eq!(breaker.state() == State::Closed, forgets);
}

/// What may happen to a breaker.
#[derive(Clone, Copy, Debug)]
enum Event {
    Begin,
    End(usize, Evidence, Option<u8>),
    Status,
    Pause(u64),
    Session,
}

fn evidence() -> impl Strategy<Value = Evidence> {
    prop_oneof![Just(Reached), Just(Unreached), Just(Violated), Just(Nothing)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Begin),
        4 => (any::<usize>(), evidence(), proptest::option::of(0_u8..5)).prop_map(|(a, b, c)| Event::End(a, b, c)),
        2 => Just(Event::Status),
        1 => (0_u64..400).prop_map(Event::Pause),
        1 => Just(Event::Session),
    ]
}

proptest! {
    #[test]
    fn never_are_two_trials_in_flight(events in proptest::collection::vec(event(), 0..300)) {
        let mut breaker = fresh();
        let mut in_flight: Vec<Pass> = Vec::new();
        let mut now = at(0);
        for event in events {
            match event {
                Event::Begin => in_flight.extend(breaker.begin()),
                Event::End(index, evidence, key) if !in_flight.is_empty() => {
                    let pass = in_flight.swap_remove(index % in_flight.len());
                    let key = key.map(|key| key.to_string());
                    breaker.ended(pass, key.as_deref(), evidence, now);
                }
                Event::End(..) => {}
                Event::Status => breaker.status_answered(now),
                Event::Pause(seconds) => now = now + Duration::from_secs(seconds),
                Event::Session => breaker.session_began(),
            }
            let current = breaker.turn;
            let trials = in_flight.iter().filter(|pass| pass.is_trial && pass.turn == current).count();
            prop_assert!(trials <= 1);
            prop_assert_eq!(breaker.is_trying, trials == 1);
            prop_assert!(breaker.unreached.0.len() <= REMEMBERED);
        }
    }

    #[test]
    fn answers_never_open_it_whatever_they_say_of_objects(
        ends in proptest::collection::vec((0_u64..1000, proptest::option::of("[a-z]"), any::<bool>()), 0..200),
    ) {
        let mut breaker = fresh();
        for (seconds, key, says_something) in ends {
            let pass = breaker.begin().unwrap();
            let evidence = if says_something { Reached } else { Nothing };
            breaker.ended(pass, key.as_deref(), evidence, at(seconds));
            prop_assert_eq!(breaker.state(), State::Closed);
        }
        prop_assert_eq!(breaker, fresh());
    }

    #[test]
    fn after_a_success_it_is_as_new(events in proptest::collection::vec(event(), 0..200)) {
        let mut breaker = fresh();
        let mut now = at(0);
        for event in events {
            match event {
                Event::Begin | Event::End(..) => {
                    let end = if let Event::End(_, evidence, _) = event { evidence } else { Unreached };
                    if let Some(pass) = breaker.begin() {
                        breaker.ended(pass, None, end, now);
                    }
                }
                Event::Status => breaker.status_answered(now),
                Event::Pause(seconds) => now = now + Duration::from_secs(seconds),
                Event::Session => breaker.session_began(),
            }
        }
        now = now + Duration::from_secs(1000);
        breaker.status_answered(now);
        let pass = breaker.begin().unwrap();
        breaker.ended(pass, None, Reached, now);
        prop_assert_eq!(Breaker { turn: 0, ..breaker }, fresh());
    }
}
