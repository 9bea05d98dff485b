//! Laws of the election, on a model: candidates with clocks of their own, a network that loses, delays and
//! repeats nothing in order, processes that stop and die, and a store that guards by resource version.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Times of the model are true milliseconds.
type Millis = u64;

const LEASE: Millis = 15_000;
const REQUEST_TIMEOUT: Millis = 5_000;
/// The longest a request or an event lies in the network.
const LONGEST_DELAY: Millis = 20_000;

/// What the network does with one request; `None` loses it.
#[derive(Clone, Copy, Debug)]
struct Fate {
    there: Option<Millis>,
    back: Option<Millis>,
    /// For the watch events of the change that it makes.
    watch: Option<Millis>,
}

const CALM: Fate = Fate {
    there: Some(5),
    back: Some(5),
    watch: Some(5),
};

#[derive(Clone, Copy, Debug)]
enum Wall {
    Skewed(i64),
    Stopped,
}

#[derive(Clone, Debug)]
struct Life {
    clock_origin: Millis,
    /// How much faster than true time its clock runs, in thousandths.
    clock_drift: i64,
    wall: Wall,
    starts: Millis,
    /// Stops (SIGSTOP) at the first time for the second.
    pause: (Millis, Millis),
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    /// SIGKILL of a candidate; its plugin lives on.
    Kill(usize),
    /// A clean exit of a candidate.
    Release(usize),
    /// Somebody deletes the Lease.
    Delete,
}

#[derive(Clone, Debug)]
struct Script {
    lives: Vec<Life>,
    fates: Vec<Fate>,
    /// From when the network is calm.
    calm: Millis,
    deeds: Vec<(Millis, Deed)>,
}

enum Happening {
    Wake {
        who: usize,
        number: u64,
    },
    Arrives {
        who: usize,
        number: u64,
        request: Request,
        fate: Fate,
    },
    Answer {
        who: usize,
        number: u64,
        answer: Answer,
    },
    Notice {
        who: usize,
        lease: Option<Version>,
    },
    Deed(Deed),
}

#[derive(Clone)]
enum Request {
    Read,
    Create(Record),
    Update(String, Record),
}

struct Process {
    machine: Machine,
    life: Life,
    alive: bool,
    releasing: bool,
    leading: Option<Leading>,
    wake: u64,
    request: u64,
    /// UID of the Lease that it last heard of.
    heard: Option<String>,
    /// True time until which its plugin may write.
    plugin_until: Millis,
}

impl Process {
    fn now(&self, time: Millis) -> Instant {
        let ran = time * u64::try_from(1_000 + self.life.clock_drift).unwrap() / 1_000;
        Instant::from_origin(Duration::from_millis(self.life.clock_origin + ran))
    }

    /// The first true time at which its clock shows at least `local`.
    fn true_time(&self, local: Instant) -> Millis {
        let ran = u64::try_from(local.since_origin().as_millis()).unwrap() - self.life.clock_origin;
        (ran * 1_000).div_ceil(u64::try_from(1_000 + self.life.clock_drift).unwrap())
    }

    fn wall(&self, time: Millis) -> Timestamp {
        match self.life.wall {
            Wall::Skewed(by) => Timestamp(i64::try_from(time).unwrap() * 1_000 + by),
            Wall::Stopped => Timestamp(42),
        }
    }

    /// Until when it is stopped, if it is at `time`.
    fn stopped(&self, time: Millis) -> Option<Millis> {
        let (from, length) = self.life.pause;
        (from..from + length).contains(&time).then_some(from + length)
    }

    fn holds_permit(&self, time: Millis) -> bool {
        let lease = Duration::from_millis(LEASE);
        self.alive
            && !self.releasing
            && self
                .leading
                .as_ref()
                .is_some_and(|held| may_start(self.now(time), held.renewed, lease))
    }
}

struct World {
    processes: Vec<Process>,
    lease: Option<Version>,
    versions: u64,
    agenda: BTreeMap<(Millis, u64), Happening>,
    sequence: u64,
    fates: Vec<Fate>,
    calm: Millis,
    epochs: Vec<Epoch>,
}

impl World {
    fn new(script: &Script) -> Self {
        let process = |(number, life): (usize, &Life)| Process {
            machine: Machine::new(Candidate {
                identity: format!("candidate-{number}"),
                timing: Timing::default(),
                poll_period: Timing::default().poll_period(0.3),
            }),
            life: life.clone(),
            alive: true,
            releasing: false,
            leading: None,
            wake: 0,
            request: 0,
            heard: None,
            plugin_until: 0,
        };
        let mut world = Self {
            processes: script.lives.iter().enumerate().map(process).collect(),
            lease: None,
            versions: 0,
            agenda: BTreeMap::new(),
            sequence: 0,
            fates: script.fates.clone(),
            calm: script.calm,
            epochs: Vec::new(),
        };
        for (who, life) in script.lives.iter().enumerate() {
            world.plan(life.starts, Happening::Wake { who, number: 0 });
        }
        for &(time, deed) in &script.deeds {
            world.plan(time, Happening::Deed(deed));
        }
        world
    }

    fn plan(&mut self, time: Millis, happening: Happening) {
        self.sequence += 1;
        self.agenda.insert((time, self.sequence), happening);
    }

    fn fate(&self, time: Millis) -> Fate {
        if time >= self.calm || self.fates.is_empty() {
            return CALM;
        }
        self.fates[usize::try_from(self.sequence).unwrap() % self.fates.len()]
    }

    /// Lets everything happen up to `end`, checking the laws all the way.
    fn run(&mut self, end: Millis) {
        while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((time, _), happening) = entry.remove_entry();
            self.happen(time, happening);
            let holders = self.holders(time);
            assert!(holders.len() <= 1, "at {time} ms {holders:?} hold a permit");
        }
    }

    fn holders(&self, time: Millis) -> Vec<usize> {
        (0..self.processes.len())
            .filter(|&who| self.processes[who].holds_permit(time))
            .collect()
    }

    fn happen(&mut self, time: Millis, happening: Happening) {
        let target = match &happening {
            Happening::Wake { who, .. } | Happening::Answer { who, .. } | Happening::Notice { who, .. } => {
                Some(*who)
            }
            Happening::Arrives { .. } | Happening::Deed(_) => None,
        };
        if let Some(until) = target.and_then(|who| self.processes[who].stopped(time)) {
            return self.plan(until, happening);
        }
        match happening {
            Happening::Wake { who, number } => {
                if self.processes[who].wake == number {
                    self.step(time, who, Event::Woken);
                }
            }
            Happening::Arrives {
                who,
                number,
                request,
                fate,
            } => {
                let answer = self.serve(time, request, fate);
                if let Some(delay) = fate.back {
                    self.plan(time + delay, Happening::Answer { who, number, answer });
                }
            }
            Happening::Answer { who, number, answer } => {
                if self.processes[who].request == number {
                    self.processes[who].request += 1;
                    if let Answer::Read(Some(lease)) | Answer::Written(lease) = &answer {
                        self.processes[who].heard = Some(lease.uid.clone());
                    }
                    self.step(time, who, Event::Answered(answer));
                }
            }
            Happening::Notice { who, lease } => {
                if let Some(lease) = &lease {
                    self.processes[who].heard = Some(lease.uid.clone());
                }
                self.step(time, who, Event::Noticed(lease));
            }
            Happening::Deed(deed) => self.perform(time, deed),
        }
    }

    fn perform(&mut self, time: Millis, deed: Deed) {
        match deed {
            Deed::Kill(who) => self.processes[who].alive = false,
            Deed::Release(who) if time < self.processes[who].life.starts => {
                self.processes[who].alive = false;
            }
            Deed::Release(who) => {
                // The host asks for the release once its plugins have answered `Lead(0)`.
                self.processes[who].releasing = true;
                self.processes[who].plugin_until = 0;
                self.step(time, who, Event::Release);
            }
            Deed::Delete => {
                // Whoever never heard of the Lease cannot know that one vanished.
                let uid = self.lease.as_ref().map(|lease| lease.uid.clone());
                if uid.is_some() && self.processes.iter().all(|process| process.heard == uid) {
                    self.lease = None;
                    self.tell(time, self.fate(time));
                }
            }
        }
    }

    /// The API server.
    fn serve(&mut self, time: Millis, request: Request, fate: Fate) -> Answer {
        self.versions += 1;
        let made = |uid: String, record| Version {
            uid,
            resource_version: self.versions.to_string(),
            record,
        };
        let written = match (request, &self.lease) {
            (Request::Read, lease) => return Answer::Read(lease.clone()),
            (Request::Create(record), None) => made(format!("uid-{}", self.versions), record),
            (Request::Update(guard, record), Some(lease)) if lease.resource_version == guard => {
                if lease.record == record {
                    return Answer::Written(lease.clone());
                }
                made(lease.uid.clone(), record)
            }
            (Request::Create(_) | Request::Update(..), _) => return Answer::Conflict,
        };
        self.lease = Some(written.clone());
        self.tell(time, fate);
        Answer::Written(written)
    }

    /// The watch.
    fn tell(&mut self, time: Millis, fate: Fate) {
        let Some(delay) = fate.watch else { return };
        for who in 0..self.processes.len() {
            let lease = self.lease.clone();
            self.plan(time + delay, Happening::Notice { who, lease });
        }
    }

    fn step(&mut self, time: Millis, who: usize, event: Event) {
        if !self.processes[who].alive || time < self.processes[who].life.starts {
            return;
        }
        let now = self.processes[who].now(time);
        self.processes[who].wake += 1;
        for effect in self.processes[who].machine.step(event, now) {
            self.take(time, who, effect);
        }
    }

    fn take(&mut self, time: Millis, who: usize, effect: Effect) {
        let wall = self.processes[who].wall(time);
        match effect {
            Effect::Read => self.send(time, who, Request::Read),
            Effect::Create(claim) => self.send(time, who, Request::Create(claim.stamped(wall))),
            Effect::Update { guard, claim } => {
                self.send(time, who, Request::Update(guard, claim.stamped(wall)));
            }
            Effect::WakeAt(local) => {
                let number = self.processes[who].wake;
                let wake = self.processes[who].true_time(local).max(time);
                self.plan(wake, Happening::Wake { who, number });
            }
            Effect::Won(leading) => {
                for (other, process) in self
                    .processes
                    .iter()
                    .enumerate()
                    .filter(|&(other, _)| other != who)
                {
                    assert!(
                        process.plugin_until <= time,
                        "{who} won at {time} ms, the plugin of {other} may write until {} ms",
                        process.plugin_until,
                    );
                }
                assert!(
                    !self.epochs.contains(&leading.epoch),
                    "{} was won twice",
                    leading.epoch
                );
                self.epochs.push(leading.epoch.clone());
                self.lead(time, who, leading);
            }
            Effect::Renewed(leading) => {
                if !self.epochs.contains(&leading.epoch) {
                    self.epochs.push(leading.epoch.clone());
                }
                self.lead(time, who, leading);
            }
            Effect::Lost(_) | Effect::Ended(_) => self.processes[who].leading = None,
            Effect::StandingBy { .. } => {}
        }
    }

    /// The host tells its plugin, which hears it at once.
    fn lead(&mut self, time: Millis, who: usize, leading: Leading) {
        let process = &mut self.processes[who];
        if !process.releasing {
            let now = process.now(time);
            let valid = lead_valid_for(now, leading.renewed, Duration::from_millis(LEASE));
            process.plugin_until = process.true_time(now + valid);
        }
        process.leading = Some(leading);
    }

    fn send(&mut self, time: Millis, who: usize, request: Request) {
        let fate = self.fate(time);
        let number = self.processes[who].request;
        if let Some(delay) = fate.there {
            self.plan(
                time + delay,
                Happening::Arrives {
                    who,
                    number,
                    request,
                    fate,
                },
            );
        }
        self.plan(
            time + REQUEST_TIMEOUT,
            Happening::Answer {
                who,
                number,
                answer: Answer::Failed,
            },
        );
    }
}

fn delays() -> impl Strategy<Value = Option<Millis>> {
    prop_oneof![
        6 => (1..200_u64).prop_map(Some),
        2 => (200..REQUEST_TIMEOUT).prop_map(Some),
        2 => (REQUEST_TIMEOUT..LONGEST_DELAY).prop_map(Some),
        2 => Just(None),
    ]
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = (delays(), delays(), delays()).prop_map(|(there, back, watch)| Fate { there, back, watch });
    prop::collection::vec(fate, 1..40)
}

fn lives(latest_start: Millis) -> impl Strategy<Value = Vec<Life>> {
    let wall = prop_oneof![
        (-4_000_000_000_000..4_000_000_000_000_i64).prop_map(Wall::Skewed),
        Just(Wall::Stopped)
    ];
    let pause = (0..80_000_u64, prop_oneof![Just(0), 0..40_000_u64]);
    let life = (100_000..900_000_u64, -10..=10_i64, wall, 0..=latest_start, pause).prop_map(
        |(clock_origin, clock_drift, wall, starts, pause)| Life {
            clock_origin,
            clock_drift,
            wall,
            starts,
            pause,
        },
    );
    prop::collection::vec(life, 2..=4)
}

/// Candidate 0 never dies, so that somebody can lead in the end.
fn exits() -> impl Strategy<Value = Vec<(Millis, Deed)>> {
    let deed = prop_oneof![Just(Deed::Kill(1)), Just(Deed::Release(1))];
    prop::collection::vec((0..80_000_u64, deed), 0..=1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn there_are_never_two_permits_and_in_the_end_there_is_one(
        lives in lives(60_000), fates in fates(), deeds in exits(),
    ) {
        let faults_end = 120_000;
        let script = Script { lives, fates, calm: faults_end, deeds };
        let mut world = World::new(&script);
        // What still lies in the network, the request under way, one record's duration, one look.
        let bound = faults_end + LONGEST_DELAY + REQUEST_TIMEOUT + LEASE + 5_000;
        world.run(bound);
        prop_assert_eq!(world.holders(bound).len(), 1);
    }

    #[test]
    fn a_deleted_lease_never_makes_two_permits_whatever_the_network_does(
        lives in lives(0), fates in fates(), deeds in exits(), deleted in 0..100_000_u64,
    ) {
        let mut script = Script { lives, fates, calm: 120_000, deeds };
        script.deeds.push((deleted, Deed::Delete));
        let mut world = World::new(&script);
        let bound = script.calm + LONGEST_DELAY + REQUEST_TIMEOUT + 2 * LEASE + 5_000;
        world.run(bound);
        prop_assert_eq!(world.holders(bound).len(), 1);
    }

    #[test]
    fn the_holder_of_a_deleted_lease_leads_on(mut lives in lives(0), deleted in 20_000..30_000_u64) {
        for life in &mut lives {
            life.pause = (0, 0);
        }
        let script = Script { lives, fates: vec![], calm: 0, deeds: vec![(deleted, Deed::Delete)] };
        let mut world = World::new(&script);
        world.run(deleted - 1);
        let before = world.holders(deleted - 1);
        world.run(deleted + 100);
        let uid = world.lease.as_ref().map(|lease| lease.uid.clone());
        prop_assert_eq!(world.holders(deleted + 100), before);
        prop_assert!(uid.is_some() && world.processes.iter().all(|process| process.heard == uid));
    }

    #[test]
    fn a_deleted_lease_of_a_dead_holder_is_won_within_its_duration(
        mut lives in lives(0), deleted in 20_000..30_000_u64,
    ) {
        for life in &mut lives {
            life.pause = (0, 0);
        }
        let mut script = Script { lives, fates: vec![], calm: 0, deeds: vec![] };
        let mut world = World::new(&script);
        world.run(deleted - 100);
        script.deeds = vec![
            (deleted, Deed::Kill(world.holders(deleted - 100)[0])),
            (deleted, Deed::Delete),
        ];
        let mut world = World::new(&script);
        // A clock that runs slow by a hundredth, and the round trips.
        let bound = deleted + LEASE + LEASE / 100 + 100;
        world.run(bound);
        prop_assert_eq!(world.holders(bound).len(), 1);
    }

    #[test]
    fn a_killed_leader_is_followed_within_its_lease_and_a_released_one_at_once(
        mut lives in lives(0), gone in 20_000..30_000_u64, release: bool,
    ) {
        for life in &mut lives {
            life.pause = (0, 0);
        }
        let mut script = Script { lives, fates: vec![], calm: 0, deeds: vec![] };
        let mut world = World::new(&script);
        world.run(gone - 100);
        let leader = world.holders(gone - 100)[0];
        let (deed, bound) = if release { (Deed::Release(leader), gone + 100) } else { (Deed::Kill(leader), gone + LEASE + LEASE / 100 + 100) };
        script.deeds = vec![(gone, deed)];
        let mut world = World::new(&script);
        world.run(bound);
        let successors = world.holders(bound);
        prop_assert!(successors.len() == 1 && successors[0] != leader, "{:?}", successors);
    }
}
