//! The breaker of one capability of one plugin: whether calls of it are let through.
//!
//! It opens on what says that the provider cannot be reached, or that the plugin does not keep the protocol; never on
//! answers about objects, however many fail: twenty Services made from one bad template must not freeze a cloud. Open,
//! it lets nothing through for a while; then, once the plugin has answered `GetStatus`, one call at a time, whose
//! success closes it and whose failure doubles the wait.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::Instant;

/// What the end of a call says of the capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The provider was reached, whatever it said of the object.
    Reached,
    /// It was not: no connection, no answer in time, unavailable, or nobody knows.
    Unreached,
    /// The plugin broke the protocol.
    Violated,
    /// It says nothing.
    Nothing,
}

/// What a call was about: the key of its one object; `None` for all others.
pub type Subject<'a> = Option<&'a str>;

/// Why a breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The provider cannot be reached.
    Unreached,
    /// The plugin does not keep the protocol.
    Violated,
}

/// For how long a breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Because the provider cannot be reached.
    pub unreached: Backoff,
    /// Because the plugin does not keep the protocol.
    pub violated: Backoff,
}

impl Waits {
    /// Half a minute to five, as `SPEC.md` section 3 has it; one minute to fifteen for what only a new version cures.
    pub const DEFAULT: Self = Self {
        unreached: Backoff::new(Duration::from_secs(30), Duration::from_secs(300)),
        violated: Backoff::new(Duration::from_secs(60), Duration::from_secs(900)),
    };

    const fn of(&self, cause: Cause) -> Backoff {
        match cause {
            Cause::Unreached => self.unreached,
            Cause::Violated => self.violated,
        }
    }
}

/// When a breaker opens.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Ends of calls in a row.
    count: usize,
    /// How many different keys they are about; a call without one counts as one more.
    keys: usize,
    /// How long an end counts.
    window: Duration,
}

impl Cause {
    const fn rule(self) -> Rule {
        match self {
            // SPEC.md section 3.
            Self::Unreached => Rule {
                count: 5,
                keys: 3,
                window: Duration::from_secs(60),
            },
            // Three in a row, with no sound answer between. One object whose answer cannot be read is not enough.
            Self::Violated => Rule {
                count: 3,
                keys: 3,
                window: Duration::from_secs(600),
            },
        }
    }
}

/// The right to make one call, to be handed back with what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// What happened to the breaker before counts no more.
    turn: u32,
    is_trial: bool,
}

/// Whether calls are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They are.
    Closed,
    /// None is.
    Open {
        /// Why.
        cause: Cause,
        /// No sooner does it let one through.
        until: Instant,
    },
    /// One at a time is, until one succeeds.
    HalfOpen {
        /// Why it was opened.
        cause: Cause,
    },
}

/// The breaker of one capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    waits: Waits,
    state: State,
    /// Raised whenever the state changes.
    turn: u32,
    /// How often it was opened without having been closed.
    openings: u32,
    /// A trial call is in flight.
    is_trying: bool,
    unreached: Run,
    violated: Run,
}

impl Breaker {
    /// A closed one that opens for so long.
    pub const fn new(waits: Waits) -> Self {
        Self {
            waits,
            state: State::Closed,
            turn: 0,
            openings: 0,
            is_trying: false,
            unreached: Run(VecDeque::new()),
            violated: Run(VecDeque::new()),
        }
    }

    /// Whether calls are let through.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Lets a call through, if there is room for one.
    pub fn begin(&mut self) -> Option<Pass> {
        let is_trial = match self.state {
            State::Open { .. } => return None,
            State::HalfOpen { .. } if self.is_trying => return None,
            State::HalfOpen { .. } => true,
            State::Closed => false,
        };
        self.is_trying |= is_trial;
        Some(Pass {
            turn: self.turn,
            is_trial,
        })
    }

    /// A call that was let through ended.
    pub fn ended(&mut self, pass: Pass, subject: Subject<'_>, evidence: Evidence, now: Instant) {
        // What was begun before the breaker last changed says nothing of how things are since.
        if pass.turn != self.turn {
            return;
        }
        if pass.is_trial {
            self.is_trying = false;
        }
        let cause = match evidence {
            Evidence::Nothing => return,
            Evidence::Reached => return self.close(),
            Evidence::Unreached => Cause::Unreached,
            Evidence::Violated => Cause::Violated,
        };
        let run = match cause {
            Cause::Unreached => &mut self.unreached,
            Cause::Violated => &mut self.violated,
        };
        run.add(subject, now, cause.rule());
        if pass.is_trial || run.is_over(cause.rule()) {
            self.open(cause, now);
        }
    }

    /// The plugin answered `GetStatus`.
    pub fn status_answered(&mut self, now: Instant) {
        if let State::Open { cause, until } = self.state
            && until <= now
        {
            self.turn = self.turn.wrapping_add(1);
            self.state = State::HalfOpen { cause };
        }
    }

    /// Another process answers from now on: what the one before it did to the protocol is forgotten. Whether the
    /// provider can be reached is not the process's doing.
    pub fn session_began(&mut self) {
        self.violated = Run::default();
        match self.state {
            State::Open { cause, .. } | State::HalfOpen { cause } if cause == Cause::Violated => self.close(),
            State::Open { .. } | State::HalfOpen { .. } | State::Closed => {}
        }
    }

    fn open(&mut self, cause: Cause, now: Instant) {
        self.openings = self.openings.saturating_add(1);
        let until = now + self.waits.of(cause).delay(self.openings, 0.0);
        self.state = State::Open { cause, until };
        self.turn = self.turn.wrapping_add(1);
        self.is_trying = false;
        self.unreached = Run::default();
        self.violated = Run::default();
    }

    /// As new, but for calls that are still in flight.
    fn close(&mut self) {
        let turn = match self.state {
            State::Closed => self.turn,
            State::Open { .. } | State::HalfOpen { .. } => self.turn.wrapping_add(1),
        };
        *self = Self {
            turn,
            ..Self::new(self.waits)
        };
    }
}

/// Ends of calls in a row that say the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run(VecDeque<(Instant, Option<String>)>);

/// Ends that are remembered. Only calls about fewer keys than the rules ask for leave more.
const REMEMBERED: usize = 32;

impl Run {
    fn add(&mut self, subject: Subject<'_>, now: Instant, rule: Rule) {
        self.0.retain(|(at, _)| now.saturating_since(*at) <= rule.window);
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((now, subject.map(ToOwned::to_owned)));
    }

    fn is_over(&self, rule: Rule) -> bool {
        let keys: BTreeSet<&str> = self.0.iter().filter_map(|(_, key)| key.as_deref()).collect();
        let without = self.0.iter().filter(|(_, key)| key.is_none()).count();
        self.0.len() >= rule.count && keys.len() + without >= rule.keys
    }
}

#[cfg(test)]
mod tests;
