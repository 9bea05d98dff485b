//! The election's step function: events in, effects out, no clock and no wire.
//!
//! The machine keeps at most one request under way. A request whose outcome is not known is followed by a
//! read, never by a second blind write; every write is guarded by the resource version it was decided on.

use std::time::Duration;

use super::{Claim, Epoch, RELEASED_DURATION, Record, Timing, Version};
use crate::clock::Instant;

/// Who takes part, and at what pace.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Unique per process.
    pub identity: String,
    /// The election's durations.
    pub timing: Timing,
    /// The pause between two looks while standing by: [`Timing::poll_period`].
    pub poll_period: Duration,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The watch delivered a version of the Lease, or its absence. It may be late: a leader takes it as a
    /// reason to read, no more.
    Noticed(Option<Version>),
    /// The request under way ended.
    Answered(Answer),
    /// The time asked for by [`Effect::WakeAt`] came.
    Woken,
    /// Win nothing more; a leadership that is held is renewed until it is released.
    Drain,
    /// Give the Lease up, then end.
    Release,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A read from the API server: the Lease, or that there is none.
    Read(Option<Version>),
    /// The write was applied and made this version.
    Written(Version),
    /// The write was refused: the Lease is another version, is gone, or exists already.
    Conflict,
    /// Anything else. A write may have been applied, or may yet be.
    Failed,
}

/// What the caller must do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read the Lease from the API server and report the answer.
    Read,
    /// Create the Lease and report the answer.
    Create(Claim),
    /// Update the Lease if it still has this resource version, and report the answer.
    Update {
        /// The resource version that the decision was made on.
        guard: String,
        /// What to write.
        claim: Claim,
    },
    /// Send [`Event::Woken`] at this time. Replaces the time asked for before; a step without it asks for none.
    WakeAt(Instant),
    /// A leadership begins.
    Won(Leading),
    /// The leadership goes on. Its epoch is another one where a deleted Lease was made again.
    Renewed(Leading),
    /// The leadership is over: cancel everything that runs under it.
    Lost(Loss),
    /// Another candidate leads; told once for each.
    StandingBy {
        /// Its identity.
        holder: String,
    },
    /// Nothing more will come out of this machine.
    Ended(Ending),
}

/// A leadership held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Which one.
    pub epoch: Epoch,
    /// When the last successful renewal was sent.
    pub renewed: Instant,
}

/// Why a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// Nothing was heard from the API server in time.
    #[error("no renewal succeeded within the renew deadline")]
    RenewDeadline,
    /// The Lease names somebody else.
    #[error("{holder} holds the lease now")]
    Taken {
        /// Who.
        holder: String,
    },
    /// The Lease names nobody: anybody may take it at once.
    #[error("somebody cleared the lease")]
    Cleared,
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The Lease names nobody now.
    Released,
    /// The Lease did not name this process.
    NothingHeld,
    /// The API server did not answer: the Lease may name this process until it expires.
    Unknown,
}

/// What the API server was last known to have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Absent,
    Lease(Version),
}

/// What this process wants, in the order in which it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Aim {
    Lead,
    Drain,
    Release,
    Ended,
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Begin an epoch.
    Acquire,
    /// Go on with it.
    Renew,
    /// End it.
    Release,
}

/// The request under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    sent: Instant,
    write: Option<Write>,
}

/// A write under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    purpose: Purpose,
    guard: Option<String>,
}

/// What to do next.
enum Next {
    Read,
    Create,
    Update(Version, Purpose),
    Wait(Option<Instant>),
    End(Ending),
}

/// One candidate of an election.
#[derive(Clone, Debug)]
pub struct Machine {
    candidate: Candidate,
    aim: Aim,
    leading: Option<Leading>,
    known: Known,
    /// When `known` last changed here: expiry counts from this.
    changed: Instant,
    /// `known` must be read again before it is written on.
    doubtful: bool,
    /// A write of ours may have left our name in the Lease.
    maybe_named: bool,
    /// Until when the holder of a Lease that vanished keeps its claim.
    claimed_until: Instant,
    /// The last number of transitions seen, in whatever Lease object.
    transitions: Option<i64>,
    in_flight: Option<Request>,
    /// No request before this time.
    hold_off: Instant,
    /// A standby's next look.
    next_look: Instant,
    /// The last write met a conflict.
    conflicted: bool,
    /// The holder last told by [`Effect::StandingBy`].
    told: Option<String>,
}

impl Machine {
    /// A candidate that knows nothing yet; its first step reads the Lease.
    pub const fn new(candidate: Candidate) -> Self {
        Self {
            candidate,
            aim: Aim::Lead,
            leading: None,
            known: Known::Nothing,
            changed: Instant::ORIGIN,
            doubtful: true,
            maybe_named: false,
            claimed_until: Instant::ORIGIN,
            transitions: None,
            in_flight: None,
            hold_off: Instant::ORIGIN,
            next_look: Instant::ORIGIN,
            conflicted: false,
            told: None,
        }
    }

    /// Takes in what happened at `now` and says what to do about it.
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.aim == Aim::Ended {
            return effects;
        }
        if self.lead_deadline().is_some_and(|deadline| now >= deadline) {
            self.doubtful = true;
            self.lose(Loss::RenewDeadline, &mut effects);
        }
        match event {
            Event::Noticed(lease) => self.notice(lease, now, &mut effects),
            Event::Answered(answer) => self.answered(answer, now, &mut effects),
            Event::Woken => {}
            Event::Drain => self.aim = self.aim.max(Aim::Drain),
            Event::Release => self.aim = Aim::Release,
        }
        if self.aim != Aim::Ended {
            self.act(now, &mut effects);
        }
        effects
    }

    /// When the leadership ends unless it is renewed.
    fn lead_deadline(&self) -> Option<Instant> {
        let leading = self.leading.as_ref()?;
        Some(leading.renewed + self.candidate.timing.renew_deadline())
    }

    fn names_us(&self, record: &Record) -> bool {
        record.holder == self.candidate.identity
    }

    fn lose(&mut self, why: Loss, effects: &mut Vec<Effect>) {
        self.leading = None;
        effects.push(Effect::Lost(why));
    }

    /// Takes in what the watch says.
    fn notice(&mut self, lease: Option<Version>, now: Instant, effects: &mut Vec<Effect>) {
        let Some(leading) = &self.leading else {
            return self.observe(lease, now, effects);
        };
        let ours =
            lease.is_some_and(|lease| lease.uid == leading.epoch.lease_uid && self.names_us(&lease.record));
        if !ours {
            self.doubtful = true;
        }
    }

    /// Takes in a version of the Lease.
    fn observe(&mut self, lease: Option<Version>, now: Instant, effects: &mut Vec<Effect>) {
        if self.same_version(lease.as_ref()) {
            return;
        }
        self.keep_claim_of_the_vanished(lease.as_ref(), now);
        self.changed = now;
        let Some(lease) = lease else {
            self.known = Known::Absent;
            return;
        };
        self.transitions = Some(lease.record.transitions);
        let holder = lease.record.holder.clone();
        self.known = Known::Lease(lease);
        if holder == self.candidate.identity {
            return;
        }
        // Nobody's name is what a release of unknown outcome was to leave.
        if self.leading.is_some() && !(self.aim == Aim::Release && holder.is_empty()) {
            let why = if holder.is_empty() {
                Loss::Cleared
            } else {
                Loss::Taken {
                    holder: holder.clone(),
                }
            };
            self.lose(why, effects);
        }
        if !holder.is_empty() && self.told.as_ref() != Some(&holder) {
            self.told = Some(holder.clone());
            effects.push(Effect::StandingBy { holder });
        }
    }

    fn same_version(&self, lease: Option<&Version>) -> bool {
        match (&self.known, lease) {
            (Known::Absent, None) => true,
            (Known::Lease(known), Some(lease)) => {
                known.uid == lease.uid && known.resource_version == lease.resource_version
            }
            (Known::Nothing | Known::Absent | Known::Lease(_), _) => false,
        }
    }

    /// Where the Lease is gone, whoever held it may not know yet, and is the only one to make it again at
    /// once: its claim lives on for the Lease's duration. Whatever name was last seen in it, somebody else
    /// may have won since.
    fn keep_claim_of_the_vanished(&mut self, lease: Option<&Version>, now: Instant) {
        let Known::Lease(known) = &self.known else { return };
        let vanished = lease.is_none_or(|lease| lease.uid != known.uid);
        if vanished && self.leading.is_none() {
            let duration = known
                .record
                .lease_duration
                .max(self.candidate.timing.lease_duration());
            self.claimed_until = self.claimed_until.max(now + duration);
        }
    }

    /// Takes in the answer of the request under way.
    fn answered(&mut self, answer: Answer, now: Instant, effects: &mut Vec<Effect>) {
        let Some(request) = self.in_flight.take() else {
            return;
        };
        match (answer, request.write) {
            (Answer::Read(None), _) if self.heard_of_a_lease_since(request.sent) => self.doubtful = true,
            (Answer::Read(lease), _) => {
                self.doubtful = false;
                self.maybe_named = lease.as_ref().is_some_and(|lease| self.names_us(&lease.record));
                self.next_look = now + self.candidate.poll_period;
                self.observe(lease, now, effects);
            }
            (Answer::Written(lease), Some(write))
                if write.guard.as_ref() != Some(&lease.resource_version) =>
            {
                self.written(lease, write.purpose, request.sent, now, effects);
            }
            (Answer::Conflict, _) => {
                self.doubtful = true;
                self.conflicted = !self.conflicted;
                if !self.conflicted {
                    self.hold_off = self.pause_after(request.sent, now);
                }
            }
            // A write that made no new version was seen by nobody: it renewed nothing.
            (Answer::Failed | Answer::Written(_), _) => {
                self.doubtful = true;
                self.hold_off = self.pause_after(request.sent, now);
                if self.aim == Aim::Release && self.leading.is_none() {
                    self.end(Ending::Unknown, effects);
                }
            }
        }
    }

    /// Whether the watch has told of a Lease after a request was sent: an answer that there is none may be of the time
    /// before, and would let the claim of whoever holds that Lease run out unseen.
    fn heard_of_a_lease_since(&self, sent: Instant) -> bool {
        matches!(self.known, Known::Lease(_)) && self.changed >= sent
    }

    /// When the next try may start after one that failed: a period after it was sent.
    fn pause_after(&self, sent: Instant, now: Instant) -> Instant {
        let period = match self.leading {
            Some(_) => self.candidate.timing.retry_period(),
            None => self.candidate.poll_period,
        };
        now.max(sent + period)
    }

    /// Takes in a write of ours that was applied.
    fn written(
        &mut self,
        lease: Version,
        purpose: Purpose,
        sent: Instant,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        self.conflicted = false;
        self.doubtful = false;
        self.next_look = now + self.candidate.poll_period;
        let named = self.names_us(&lease.record);
        let epoch = Epoch {
            lease_uid: lease.uid.clone(),
            transitions: lease.record.transitions,
        };
        self.observe(Some(lease), now, effects);
        if purpose == Purpose::Release {
            return self.end(Ending::Released, effects);
        }
        let renewed = Leading { epoch, renewed: sent };
        // A write that lay in the network for long may have met a Lease that vanished in between.
        let in_time = now < sent + self.candidate.timing.renew_deadline() && now >= self.claimed_until;
        match (&self.leading, purpose) {
            (Some(_), _) if named => {
                self.leading = Some(renewed.clone());
                effects.push(Effect::Renewed(renewed));
            }
            // A renewal that was answered after the loss must not revive the epoch that was lost.
            (None, Purpose::Acquire) if named && in_time && self.aim == Aim::Lead => {
                self.told = None;
                self.leading = Some(renewed.clone());
                effects.push(Effect::Won(renewed));
            }
            (Some(_) | None, _) => {}
        }
    }

    fn end(&mut self, how: Ending, effects: &mut Vec<Effect>) {
        self.aim = Aim::Ended;
        self.leading = None;
        effects.push(Effect::Ended(how));
    }

    /// Starts what is due, or says when to look again.
    fn act(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        match self.next(now) {
            Next::Read => {
                self.in_flight = Some(Request {
                    sent: now,
                    write: None,
                });
                effects.push(Effect::Read);
            }
            Next::Create => {
                self.start_write(Purpose::Acquire, None, now);
                effects.push(Effect::Create(self.claim(None, Purpose::Acquire)));
            }
            Next::Update(lease, purpose) => {
                let guard = lease.resource_version.clone();
                self.start_write(purpose, Some(guard.clone()), now);
                effects.push(Effect::Update {
                    guard,
                    claim: self.claim(Some(&lease.record), purpose),
                });
            }
            Next::Wait(_) => {}
            Next::End(how) => return self.end(how, effects),
        }
        if let Next::Wait(Some(time)) = self.next(now) {
            effects.push(Effect::WakeAt(time));
        }
    }

    fn start_write(&mut self, purpose: Purpose, guard: Option<String>, now: Instant) {
        self.maybe_named = true;
        self.in_flight = Some(Request {
            sent: now,
            write: Some(Write { purpose, guard }),
        });
    }

    fn claim(&self, current: Option<&Record>, purpose: Purpose) -> Claim {
        let seen = self.transitions;
        let timing = self.candidate.timing;
        let raised = seen.map_or(0, |transitions| transitions.saturating_add(1));
        let (holder, lease_duration, transitions) = match purpose {
            Purpose::Acquire => (self.candidate.identity.clone(), timing.lease_duration(), raised),
            Purpose::Renew => {
                let epoch = self.leading.as_ref().map(|leading| leading.epoch.transitions);
                let kept = epoch.or(seen).unwrap_or(0);
                (self.candidate.identity.clone(), timing.lease_duration(), kept)
            }
            Purpose::Release => (String::new(), RELEASED_DURATION, seen.unwrap_or(0)),
        };
        let acquired = match purpose {
            Purpose::Renew => current.and_then(|record| record.acquired),
            Purpose::Acquire | Purpose::Release => None,
        };
        Claim {
            holder,
            lease_duration,
            transitions,
            acquired,
            after: current.and_then(|record| record.renewed),
        }
    }

    /// What is due at `now`: the whole policy, read from here down.
    fn next(&self, now: Instant) -> Next {
        if self.in_flight.is_some() {
            return Next::Wait(self.lead_deadline());
        }
        match (&self.leading, self.aim) {
            (_, Aim::Release) => self.next_of_release(now),
            (Some(leading), _) => self.next_of_leader(leading, now),
            (None, Aim::Lead) => self.next_of_standby(now),
            (None, Aim::Drain | Aim::Ended) => Next::Wait(None),
        }
    }

    fn next_of_leader(&self, leading: &Leading, now: Instant) -> Next {
        let renewal = leading.renewed + self.candidate.timing.retry_period();
        let due = match self.known {
            Known::Lease(_) if !self.doubtful => renewal.max(self.hold_off),
            // In doubt, or the Lease is gone and only its holder may make it again at once.
            Known::Lease(_) | Known::Absent | Known::Nothing => self.hold_off,
        };
        if now < due {
            return Next::Wait(self.lead_deadline().map(|deadline| deadline.min(due)));
        }
        match &self.known {
            _ if self.doubtful => Next::Read,
            Known::Nothing => Next::Read,
            Known::Absent => Next::Create,
            Known::Lease(lease) if lease.uid == leading.epoch.lease_uid => {
                Next::Update(lease.clone(), Purpose::Renew)
            }
            Known::Lease(lease) => Next::Update(lease.clone(), Purpose::Acquire),
        }
    }

    fn next_of_standby(&self, now: Instant) -> Next {
        if now < self.hold_off {
            return Next::Wait(Some(self.hold_off));
        }
        if self.doubtful {
            return Next::Read;
        }
        let free = self.free_at();
        match &self.known {
            Known::Lease(lease) if now >= free => Next::Update(lease.clone(), Purpose::Acquire),
            Known::Absent if now >= free => Next::Create,
            Known::Nothing | Known::Absent | Known::Lease(_) if now >= self.next_look => Next::Read,
            Known::Nothing | Known::Absent | Known::Lease(_) => Next::Wait(Some(free.min(self.next_look))),
        }
    }

    /// From when this standby may take the Lease as it is known.
    fn free_at(&self) -> Instant {
        match &self.known {
            Known::Lease(lease) if !lease.record.holder.is_empty() && !self.names_us(&lease.record) => {
                self.claimed_until.max(self.changed + lease.record.lease_duration)
            }
            Known::Nothing | Known::Absent | Known::Lease(_) => self.claimed_until,
        }
    }

    fn next_of_release(&self, now: Instant) -> Next {
        if self.leading.is_none() && !self.maybe_named {
            return Next::End(Ending::NothingHeld);
        }
        if now < self.hold_off {
            let wake = self
                .lead_deadline()
                .map_or(self.hold_off, |deadline| deadline.min(self.hold_off));
            return Next::Wait(Some(wake));
        }
        match &self.known {
            _ if self.doubtful => Next::Read,
            Known::Lease(lease) if self.names_us(&lease.record) => {
                Next::Update(lease.clone(), Purpose::Release)
            }
            Known::Nothing | Known::Absent | Known::Lease(_) => Next::End(Ending::NothingHeld),
        }
    }
}
