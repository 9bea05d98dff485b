use proptest::prelude::*;
use rstest::rstest;

use super::*;

const OLD: Process = Process(1);
const NEW: Process = Process(2);
const NEWEST: Process = Process(3);

fn at(milliseconds: u64) -> Instant {
    Instant::from_origin(Duration::from_millis(milliseconds))
}

/// A step of a host that leads.
fn step(
    handover: &mut Handover,
    now: Instant,
    seen: &[Seen],
    departed: Option<Instant>,
) -> (Plan, Vec<News>) {
    let world = World {
        seen,
        departed,
        host_leads: true,
    };
    handover.step(now, &world)
}

/// Ready, and told nothing.
fn standby(process: Process) -> Seen {
    Seen {
        process,
        fitness: Fitness::Ready,
        is_busy: false,
        may_write: None,
    }
}

fn leading(process: Process, until: u64) -> Seen {
    Seen {
        fitness: Fitness::Works,
        may_write: Some(at(until)),
        ..standby(process)
    }
}

fn busy(seen: Seen) -> Seen {
    Seen {
        is_busy: true,
        ..seen
    }
}

fn ends(seen: Seen) -> Seen {
    Seen {
        fitness: Fitness::Ends,
        ..seen
    }
}

fn unready(seen: Seen) -> Seen {
    Seen {
        fitness: Fitness::Warms,
        ..seen
    }
}

/// What is to be so, without the time to look again.
fn told(plan: Plan) -> (Option<Process>, Calls, u64) {
    (plan.lead, plan.calls, plan.round)
}

/// A plugin in which the older process works.
fn settled() -> Handover {
    let mut handover = Handover::default();
    step(&mut handover, at(0), &[leading(OLD, 13_000)], None);
    handover
}

/// A plugin in which the newer process has just got the lead.
fn on_trial() -> Handover {
    let mut handover = settled();
    step(&mut handover, at(0), &[leading(OLD, 13_000), standby(NEW)], None);
    let (plan, _) = step(&mut handover, at(10), &[standby(OLD), standby(NEW)], None);
    assert_eq!(told(plan), (Some(NEW), Calls::Wait, 1));
    handover
}

#[test]
fn an_upgrade_goes_step_by_step_and_calls_wait_meanwhile() {
    let mut handover = settled();
    let newer = standby(NEW);
    let (plan, news) = step(&mut handover, at(0), &[busy(leading(OLD, 13_000)), newer], None);
    assert_eq!(news, [News::Begins { from: OLD, to: NEW }]);
    assert_eq!(
        plan,
        Plan {
            lead: Some(OLD),
            calls: Calls::Wait,
            round: 0,
            is_settled: false,
            wake: Some(at(1000))
        },
        "running calls may end"
    );
    let (plan, _) = step(
        &mut handover,
        at(1000),
        &[busy(leading(OLD, 13_000)), newer],
        None,
    );
    assert_eq!(
        plan,
        Plan {
            lead: None,
            calls: Calls::Wait,
            round: 1,
            is_settled: false,
            wake: Some(at(13_000))
        },
        "told to stop"
    );
    let (plan, _) = step(&mut handover, at(1100), &[busy(standby(OLD)), newer], None);
    assert_eq!(told(plan), (None, Calls::Wait, 1), "what it runs is awaited");
    let (plan, _) = step(&mut handover, at(1200), &[standby(OLD), newer], None);
    assert_eq!(
        plan,
        Plan {
            lead: Some(NEW),
            calls: Calls::Wait,
            round: 1,
            is_settled: false,
            wake: Some(at(31_200))
        }
    );
    let (plan, news) = step(
        &mut handover,
        at(1300),
        &[standby(OLD), leading(NEW, 14_000)],
        None,
    );
    assert_eq!(
        (told(plan), news),
        ((Some(NEW), Calls::To(NEW), 1), vec![News::Works(NEW)])
    );
    let (plan, news) = step(
        &mut handover,
        at(61_200),
        &[standby(OLD), leading(NEW, 74_000)],
        None,
    );
    assert_eq!(
        (told(plan), news),
        ((Some(NEW), Calls::To(NEW), 1), vec![News::Done(NEW)])
    );
}

#[test]
fn an_idle_process_is_told_to_stop_at_once() {
    let (plan, _) = step(&mut settled(), at(0), &[leading(OLD, 13_000), standby(NEW)], None);
    assert_eq!(told(plan), (None, Calls::Wait, 1));
}

#[rstest]
#[case::not_ready(unready(standby(NEW)))]
#[case::about_to_end(ends(standby(NEW)))]
fn a_newer_process_that_could_not_work_replaces_nobody(#[case] newer: Seen) {
    let (plan, news) = step(&mut settled(), at(0), &[leading(OLD, 13_000), newer], None);
    assert_eq!((told(plan), news), ((Some(OLD), Calls::To(OLD), 0), vec![]));
}

#[test]
fn an_older_process_replaces_nobody() {
    let mut handover = Handover::default();
    step(&mut handover, at(0), &[leading(NEW, 13_000)], None);
    let (plan, _) = step(&mut handover, at(0), &[standby(OLD), leading(NEW, 13_000)], None);
    assert_eq!(told(plan), (Some(NEW), Calls::To(NEW), 0));
}

#[test]
fn a_process_that_is_about_to_end_is_replaced_by_an_older_one_too() {
    let mut handover = Handover::default();
    step(&mut handover, at(0), &[leading(NEW, 13_000)], None);
    let (plan, _) = step(
        &mut handover,
        at(0),
        &[standby(OLD), ends(leading(NEW, 13_000))],
        None,
    );
    assert_eq!(told(plan), (None, Calls::Wait, 1));
}

#[test]
fn a_process_that_is_about_to_end_is_waited_for_while_its_successor_gets_ready() {
    let (plan, _) = step(
        &mut settled(),
        at(0),
        &[ends(leading(OLD, 13_000)), unready(standby(NEW))],
        None,
    );
    assert_eq!(told(plan), (Some(OLD), Calls::Wait, 0));
}

#[rstest]
#[case::gone(&[leading(OLD, 13_000)])]
#[case::not_ready_any_more(&[leading(OLD, 13_000), unready(standby(NEW))])]
fn a_newer_process_that_fails_before_it_leads_changes_nothing(#[case] seen: &[Seen]) {
    let mut handover = settled();
    let with_calls = [busy(leading(OLD, 13_000)), standby(NEW)];
    step(&mut handover, at(0), &with_calls, None);
    let (plan, _) = step(&mut handover, at(10), seen, None);
    assert_eq!(told(plan), (Some(OLD), Calls::To(OLD), 0));
}

#[test]
fn a_process_that_was_told_to_stop_leads_again_under_another_name() {
    let mut handover = settled();
    step(&mut handover, at(0), &[leading(OLD, 13_000), standby(NEW)], None);
    let (plan, _) = step(&mut handover, at(10), &[standby(OLD)], None);
    assert_eq!(told(plan), (Some(OLD), Calls::To(OLD), 1));
}

#[rstest]
#[case::gone(at(20), None, None)]
#[case::gone_while_it_may_write(at(20), None, Some(at(14_000)))]
#[case::about_to_end(at(20), Some(ends(standby(NEW))), None)]
#[case::never_ready(at(10) + WARM, Some(unready(standby(NEW))), None)]
fn a_newer_process_that_fails_goes_back(
    #[case] now: Instant,
    #[case] newer: Option<Seen>,
    #[case] departed: Option<Instant>,
) {
    let mut handover = on_trial();
    let seen: Vec<Seen> = [Some(standby(OLD)), newer].into_iter().flatten().collect();
    let (plan, news) = step(&mut handover, now, &seen, departed);
    assert_eq!(news, [News::Back { from: NEW, to: OLD }]);
    if departed.is_some() {
        assert_eq!((plan.lead, plan.wake), (None, departed), "it may live on");
    }
    let later = departed.unwrap_or(now);
    let (plan, _) = step(&mut handover, later, &seen, None);
    assert_eq!((plan.lead, plan.calls), (Some(OLD), Calls::To(OLD)));
    let (plan, news) = step(&mut handover, later, &[standby(OLD), standby(NEW)], None);
    if newer.is_some() {
        assert_eq!((plan.lead, news), (Some(OLD), vec![]), "it is not tried again");
    }
}

#[test]
fn a_newer_process_that_worked_and_does_not_at_the_end_of_its_trial_has_failed() {
    let mut handover = on_trial();
    step(&mut handover, at(20), &[standby(OLD), leading(NEW, 13_000)], None);
    let sick = unready(leading(NEW, 13_000));
    let (plan, _) = step(&mut handover, at(30), &[standby(OLD), sick], None);
    assert_eq!(told(plan), (Some(NEW), Calls::To(NEW), 1), "it may recover");
    let (_, news) = step(&mut handover, at(10) + TRIAL, &[standby(OLD), sick], None);
    assert_eq!(news, [News::Back { from: NEW, to: OLD }]);
}

#[test]
fn a_trial_is_over_when_there_is_no_way_back() {
    let mut handover = on_trial();
    let (plan, news) = step(&mut handover, at(20), &[unready(standby(NEW))], None);
    assert_eq!((told(plan), news), ((Some(NEW), Calls::To(NEW), 1), vec![]));
}

#[test]
fn the_next_upgrade_need_not_wait_for_the_end_of_a_trial() {
    let mut handover = on_trial();
    let working = [standby(OLD), leading(NEW, 13_000), standby(NEWEST)];
    let (plan, news) = step(&mut handover, at(20), &working, None);
    assert_eq!(
        news,
        [
            News::Works(NEW),
            News::Begins {
                from: NEW,
                to: NEWEST
            }
        ]
    );
    assert_eq!(told(plan), (None, Calls::Wait, 2));
}

#[test]
fn where_nobody_leads_the_newest_ready_process_does() {
    let all = [standby(OLD), standby(NEW), unready(standby(NEWEST))];
    let (plan, _) = step(&mut Handover::default(), at(0), &all, None);
    assert_eq!(told(plan), (Some(NEW), Calls::To(NEW), 0));
}

#[test]
fn a_host_that_does_not_lead_takes_the_newer_process_without_a_trial() {
    let step = |handover: &mut Handover, seen: &[Seen]| {
        let world = World {
            seen,
            departed: None,
            host_leads: false,
        };
        told(handover.step(at(0), &world).0)
    };
    let mut handover = Handover::default();
    step(&mut handover, &[standby(OLD)]);
    let plan = step(&mut handover, &[standby(OLD), standby(NEW)]);
    assert_eq!((plan.0, plan.1), (Some(NEW), Calls::To(NEW)));
    let plan = step(&mut handover, &[standby(OLD), standby(NEW)]);
    assert_eq!(plan.1, Calls::To(NEW));
}

#[test]
fn what_a_lost_process_may_still_write_is_waited_for() {
    let mut handover = settled();
    let (plan, _) = step(&mut handover, at(10), &[standby(NEW)], Some(at(13_000)));
    assert_eq!(
        plan,
        Plan {
            lead: None,
            calls: Calls::To(NEW),
            round: 0,
            is_settled: true,
            wake: Some(at(13_000))
        }
    );
    let (plan, _) = step(&mut handover, at(13_000), &[standby(NEW)], Some(at(13_000)));
    assert_eq!(plan.lead, Some(NEW));
}

/// What can happen to a plugin, one after another.
#[derive(Clone, Debug)]
enum Happening {
    Starts,
    Dies(usize),
    Vanishes(usize),
    TurnsReady(usize, bool),
    Drains(usize),
    GetsBusy(usize, bool),
    TimePasses(u16),
    Obeys(usize),
}

fn happening() -> impl Strategy<Value = Happening> {
    let who = 0..4_usize;
    prop_oneof![
        Just(Happening::Starts),
        who.clone().prop_map(Happening::Dies),
        who.clone().prop_map(Happening::Vanishes),
        (who.clone(), any::<bool>()).prop_map(|(who, is)| Happening::TurnsReady(who, is)),
        who.clone().prop_map(Happening::Drains),
        (who.clone(), any::<bool>()).prop_map(|(who, is)| Happening::GetsBusy(who, is)),
        (0..20_000_u16).prop_map(Happening::TimePasses),
        who.prop_map(Happening::Obeys),
    ]
}

/// A world in which processes do what they are told late, or never.
#[derive(Default)]
struct Cluster {
    now: u64,
    started: u64,
    seen: Vec<Seen>,
    departed: Vec<Instant>,
}

impl Cluster {
    fn happens(&mut self, happening: &Happening, plan: &Plan) {
        let now = at(self.now);
        let count = self.seen.len().max(1);
        let one = |who: &usize| *who % count;
        match happening {
            Happening::Starts if self.seen.len() < 4 => {
                self.started += 1;
                self.seen.push(standby(Process(self.started)));
            }
            Happening::TimePasses(milliseconds) => self.now += u64::from(*milliseconds),
            Happening::Starts => {}
            _ if self.seen.is_empty() => {}
            Happening::Dies(who) => drop(self.seen.remove(one(who))),
            Happening::Vanishes(who) => self.departed.extend(self.seen.remove(one(who)).may_write),
            Happening::TurnsReady(who, is) => {
                self.seen[one(who)].fitness = if *is { Fitness::Ready } else { Fitness::Warms };
            }
            Happening::Drains(who) => self.seen[one(who)].fitness = Fitness::Ends,
            Happening::GetsBusy(who, is) => self.seen[one(who)].is_busy = *is,
            Happening::Obeys(who) => {
                let it = &mut self.seen[one(who)];
                if plan.lead == Some(it.process) {
                    it.may_write = Some(now + Duration::from_secs(13));
                } else {
                    it.may_write = None;
                }
            }
        }
        for it in &mut self.seen {
            it.may_write = it.may_write.filter(|until| *until > at(self.now));
            if it.fitness >= Fitness::Ready {
                it.fitness = if it.may_write.is_some() {
                    Fitness::Works
                } else {
                    Fitness::Ready
                };
            }
        }
        self.departed.retain(|until| *until > at(self.now));
    }

    fn holders(&self) -> usize {
        self.seen.iter().filter(|it| it.may_write.is_some()).count() + self.departed.len()
    }
}

proptest! {
    #[test]
    fn never_do_two_processes_hold_a_lead(happenings in proptest::collection::vec(happening(), 0..80)) {
        let (mut world, mut handover) = (Cluster::default(), Handover::default());
        let mut plan = step(&mut handover, at(0), &[], None).0;
        let mut rounds = plan.round;
        for happening in happenings {
            world.happens(&happening, &plan);
            prop_assert!(world.holders() <= 1, "{happening:?} {plan:?} {:?} {:?}", world.seen, world.departed);
            plan = step(&mut handover, at(world.now), &world.seen, world.departed.iter().max().copied()).0;
            prop_assert!(plan.round >= rounds);
            rounds = plan.round;
            prop_assert!(plan.wake.is_none_or(|wake| wake > at(world.now)));
        }
    }

    #[test]
    fn as_long_as_a_process_is_ready_and_nothing_happens_calls_find_one(
        happenings in proptest::collection::vec(happening(), 0..80)
    ) {
        let (mut world, mut handover) = (Cluster::default(), Handover::default());
        let mut plan = step(&mut handover, at(0), &[], None).0;
        for happening in happenings {
            world.happens(&happening, &plan);
            plan = step(&mut handover, at(world.now), &world.seen, world.departed.iter().max().copied()).0;
        }
        for it in &mut world.seen {
            (it.fitness, it.is_busy) = (Fitness::Ready, false);
        }
        // A trial is the longest that may lie between: all do what they are told, again and again.
        for _ in 0..40 {
            for who in 0..world.seen.len() {
                world.happens(&Happening::Obeys(who), &plan);
            }
            world.happens(&Happening::TimePasses(5_000), &plan);
            for who in 0..world.seen.len() {
                world.happens(&Happening::Obeys(who), &plan);
            }
            plan = step(&mut handover, at(world.now), &world.seen, world.departed.iter().max().copied()).0;
        }
        if world.seen.is_empty() {
            prop_assert_eq!(plan.calls, Calls::Nowhere);
        } else {
            let leads = |it: Process| Some(it) == plan.lead;
            prop_assert!(matches!(plan.calls, Calls::To(it) if leads(it)), "{:?} {:?}", plan, handover);
        }
    }
}
