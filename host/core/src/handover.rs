//! Which of a plugin's processes leads: the upgrade of a running plugin, and the way back.
//!
//! A newer process is taken to standby beside the one that works. Then calls wait, the older is told to stop and what
//! it runs is awaited, and the newer begins. If that fails within a minute, it goes back by the same steps. Whatever
//! happens, a process may lead only while no other can still hold a `Lead`: [`Handover::step`] gives the lead to
//! nobody as long as it cannot be sure.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Instant;

/// How long running calls may take to end by themselves before the process is told to stop: nearly all do, and a call
/// of several steps is not cut in two.
pub const CALM: Duration = Duration::from_secs(1);
/// How long a newer process may take until it works.
pub const WARM: Duration = Duration::from_secs(30);
/// How long a newer process is on trial.
pub const TRIAL: Duration = Duration::from_secs(60);

/// One process of a plugin, as long as the host is connected to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(pub u64);

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which one.
    pub process: Process,
    /// What it could do.
    pub fitness: Fitness,
    /// Calls are in flight.
    pub is_busy: bool,
    /// Until when at the latest it may start cloud writes; `None`: it has no `Lead`, or has given it back.
    pub may_write: Option<Instant>,
}

/// What a process could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fitness {
    /// It has said that it is about to end.
    Ends,
    /// It is not ready.
    Warms,
    /// A leading host may send it any call; it has no `Lead`.
    Ready,
    /// It has a `Lead`, is ready, and takes calls.
    Works,
}

impl Seen {
    fn stays(&self) -> bool {
        self.fitness > Fitness::Ends
    }

    fn is_ready(&self) -> bool {
        self.fitness >= Fitness::Ready
    }

    fn works(&self) -> bool {
        self.fitness == Fitness::Works
    }
}

/// What is known of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World<'a> {
    /// The connected processes, oldest first.
    pub seen: &'a [Seen],
    /// Until when processes that the host lost sight of may write.
    pub departed: Option<Instant>,
    /// Whether this host leads: otherwise nobody is told that it does, and nobody works.
    pub host_leads: bool,
}

/// Where calls go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// There is no process.
    Nowhere,
    /// They wait: a process that takes them comes soon.
    Wait,
    /// To this process, if it takes them.
    To(Process),
}

/// What is to be so from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Who may be told that this host leads; all others are told to stop.
    pub lead: Option<Process>,
    /// Where calls go.
    pub calls: Calls,
    /// Raised each time a process was told to stop. A plugin takes no epoch again that it was told to end, so that
    /// what leads in another round needs another name.
    pub round: u64,
    /// Whether nobody is being replaced: other processes are of no use any more.
    pub is_settled: bool,
    /// When to look again, if nothing changes before.
    pub wake: Option<Instant>,
}

/// What people should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A process is about to be replaced.
    Begins {
        /// Who works until now.
        from: Process,
        /// Who is to.
        to: Process,
    },
    /// The newer process works.
    Works(Process),
    /// The newer process failed; the older one gets the lead back.
    Back {
        /// Who failed.
        from: Process,
        /// Who leads again.
        to: Process,
    },
    /// The newer process has stood its trial.
    Done(Process),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// One process leads, if there is any.
    Settled(Option<Process>),
    /// Calls wait, and running ones end.
    Calming { step: Step, until: Instant },
    /// The older has been told to stop.
    Emptying { step: Step },
    /// The newer leads.
    Trial {
        to: Process,
        back: Process,
        since: Instant,
        has_worked: bool,
    },
}

/// From one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    from: Process,
    to: Process,
    /// Back to a process that worked before.
    is_back: bool,
}

/// The state of one plugin's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    phase: Phase,
    /// They failed: nobody is replaced by them.
    failed: BTreeSet<Process>,
    round: u64,
}

impl Default for Handover {
    fn default() -> Self {
        Self {
            phase: Phase::Settled(None),
            failed: BTreeSet::new(),
            round: 0,
        }
    }
}

impl Handover {
    /// What is to be so, now that this is known of the connected processes, oldest first.
    pub fn step(&mut self, now: Instant, world: &World<'_>) -> (Plan, Vec<News>) {
        let seen = world.seen;
        self.failed
            .retain(|failed| seen.iter().any(|it| it.process == *failed));
        let mut news = Vec::new();
        // Each phase is left at most twice: there and back.
        for _ in 0..8 {
            let Some(next) = self.next(now, world, &mut news) else {
                break;
            };
            if matches!(next, Phase::Emptying { .. }) {
                self.round += 1;
            }
            self.phase = next;
        }
        (self.plan(now, seen, world.departed), news)
    }

    fn next(&mut self, now: Instant, world: &World<'_>, news: &mut Vec<News>) -> Option<Phase> {
        let seen = world.seen;
        match self.phase {
            Phase::Settled(chosen) => self.after_settled(now, find(seen, chosen), seen, news),
            Phase::Calming { step, until } => {
                let from = find(seen, Some(step.from));
                if !is_wanted(seen, step.to) {
                    return Some(Phase::Settled(Some(step.from)));
                }
                (now >= until || from.is_none_or(|from| !from.is_busy)).then_some(Phase::Emptying { step })
            }
            Phase::Emptying { step } => {
                let from = find(seen, Some(step.from));
                if !is_wanted(seen, step.to) {
                    return Some(Phase::Settled(Some(step.from)));
                }
                let is_empty =
                    from.is_none_or(|from| !from.is_busy && from.may_write.is_none_or(|until| until <= now));
                is_empty.then_some(if step.is_back {
                    Phase::Settled(Some(step.to))
                } else {
                    Phase::Trial {
                        to: step.to,
                        back: step.from,
                        since: now,
                        has_worked: false,
                    }
                })
            }
            // Nobody can fail who has nothing to do.
            Phase::Trial { to, .. } if !world.host_leads => Some(Phase::Settled(Some(to))),
            Phase::Trial {
                to,
                back,
                since,
                has_worked,
            } => {
                let trial = (to, back, since);
                self.after_trial(now, trial, has_worked, seen, news)
            }
        }
    }

    fn after_settled(
        &self,
        now: Instant,
        chosen: Option<&Seen>,
        seen: &[Seen],
        news: &mut Vec<News>,
    ) -> Option<Phase> {
        let Some(chosen) = chosen else {
            let best = self.best(seen);
            return (Phase::Settled(best) != self.phase).then_some(Phase::Settled(best));
        };
        let successor = self.successor(seen, chosen.process, !chosen.stays())?;
        news.push(News::Begins {
            from: chosen.process,
            to: successor,
        });
        Some(calming(now, chosen.process, successor, false))
    }

    fn after_trial(
        &mut self,
        now: Instant,
        (to, back, since): (Process, Process, Instant),
        has_worked: bool,
        seen: &[Seen],
        news: &mut Vec<News>,
    ) -> Option<Phase> {
        let Some(newer) = find(seen, Some(to)) else {
            // Without either, any other will do.
            if is_wanted(seen, back) {
                news.push(News::Back { from: to, to: back });
            }
            return Some(Phase::Settled(Some(back)));
        };
        if newer.works() && !has_worked {
            news.push(News::Works(to));
            return Some(Phase::Trial {
                to,
                back,
                since,
                has_worked: true,
            });
        }
        let spent = now.saturating_since(since);
        let has_failed =
            !newer.stays() || (!has_worked && spent >= WARM) || (!newer.works() && spent >= TRIAL);
        if has_failed && is_wanted(seen, back) {
            self.failed.insert(to);
            news.push(News::Back { from: to, to: back });
            return Some(calming(now, to, back, true));
        }
        if has_failed || find(seen, Some(back)).is_none() || spent >= TRIAL {
            if newer.works() {
                news.push(News::Done(to));
            }
            return Some(Phase::Settled(Some(to)));
        }
        // The next upgrade may come sooner than the end of the trial.
        let successor = self.successor(seen, to, false).filter(|_| newer.works())?;
        news.push(News::Begins {
            from: to,
            to: successor,
        });
        Some(calming(now, to, successor, false))
    }

    /// The newest process that is ready to replace `chosen`: a newer one, or any if `chosen` is about to end.
    fn successor(&self, seen: &[Seen], chosen: Process, any: bool) -> Option<Process> {
        seen.iter()
            .rev()
            .take_while(|it| any || it.process != chosen)
            .find(|it| it.process != chosen && it.is_ready() && !self.failed.contains(&it.process))
            .map(|it| it.process)
    }

    /// Whom to take where nobody leads: the best of them, the newest of the best.
    fn best(&self, seen: &[Seen]) -> Option<Process> {
        seen.iter()
            .max_by_key(|it| (it.stays(), !self.failed.contains(&it.process), it.is_ready()))
            .map(|it| it.process)
    }

    fn plan(&self, now: Instant, seen: &[Seen], departed: Option<Instant>) -> Plan {
        let (wanted, calls, wake) = match self.phase {
            Phase::Settled(chosen) => match find(seen, chosen) {
                None => (None, Calls::Nowhere, None),
                Some(it) if !it.stays() && seen.iter().any(Seen::stays) => {
                    (Some(it.process), Calls::Wait, None)
                }
                Some(it) => (Some(it.process), Calls::To(it.process), None),
            },
            Phase::Calming { step, until } => (Some(step.from), Calls::Wait, Some(until)),
            Phase::Emptying { step } => {
                let ends = find(seen, Some(step.from)).and_then(|from| from.may_write);
                (None, Calls::Wait, ends)
            }
            Phase::Trial {
                to,
                since,
                has_worked,
                ..
            } => {
                let calls = if has_worked { Calls::To(to) } else { Calls::Wait };
                let limit = if has_worked { TRIAL } else { WARM };
                (Some(to), calls, Some(since + limit))
            }
        };
        let of_others = seen
            .iter()
            .filter(|it| Some(it.process) != wanted)
            .filter_map(|it| it.may_write)
            .max();
        let held = of_others.max(departed).filter(|until| *until > now);
        Plan {
            lead: wanted.filter(|_| held.is_none()),
            calls,
            round: self.round,
            is_settled: matches!(self.phase, Phase::Settled(_)),
            wake: [wake, held].into_iter().flatten().filter(|at| *at > now).min(),
        }
    }
}

fn calming(now: Instant, from: Process, to: Process, is_back: bool) -> Phase {
    let step = Step { from, to, is_back };
    Phase::Calming {
        step,
        until: now + CALM,
    }
}

fn find(seen: &[Seen], process: Option<Process>) -> Option<&Seen> {
    seen.iter().find(|it| Some(it.process) == process)
}

/// Whether a process could still take over.
fn is_wanted(seen: &[Seen], process: Process) -> bool {
    find(seen, Some(process)).is_some_and(Seen::is_ready)
}

#[cfg(test)]
mod tests;
