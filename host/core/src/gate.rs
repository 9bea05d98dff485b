//! The gates of one plugin: what its failures mean for all its calls, not only for the object that met them.
//!
//! Four things shut a gate. Of one capability: the [breaker]. Of the whole plugin: credentials that the
//! cloud refuses, and a cloud, or a plugin, that asks to be left alone for a while. Behind a shut gate nothing changes,
//! deletions included. [`Gates`] is fed with the end of every call and with what the plugin says of itself, and
//! knows nothing else.

mod credentials;
mod throttle;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use self::credentials::Credentials;
use self::throttle::Throttle;
use crate::breaker::{self, Breaker, Cause, Evidence, Subject, Waits};
use crate::clock::Instant;
use crate::cloud::{Capability, Failure, Reason};
use crate::disposition::{Again, Against, CallKind, FROZEN, classify};

/// So many bugs and panics within this time make a plugin unsound.
pub const UNSOUND: (usize, Duration) = (5, Duration::from_secs(600));

/// For how long gates are shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// By a breaker.
    pub breaker: Waits,
    /// How long refused credentials stand before the plugin's word for them, or its silence, is taken for a change.
    pub credentials: Duration,
}

impl Pauses {
    /// Those of `SPEC.md` section 3.
    pub const DEFAULT: Self = Self {
        breaker: Waits::DEFAULT,
        credentials: FROZEN,
    };
}

/// Whether calls of one capability are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// They are.
    Open,
    /// One at a time is, until one succeeds.
    Trial {
        /// Why it was shut.
        why: Why,
    },
    /// None is.
    Shut {
        /// Why.
        why: Why,
        /// No sooner does it open; `None`: nobody knows.
        until: Option<Instant>,
    },
}

/// Why a gate is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The cloud refuses the plugin's credentials.
    Credentials,
    /// The cloud, or the plugin, asked to be left alone for a while.
    Throttled,
    /// The provider cannot be reached.
    Unreached,
    /// The plugin does not keep the protocol.
    Violated,
}

impl Why {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Throttled => "throttled",
            Self::Unreached => "unreached",
            Self::Violated => "violated",
        }
    }

    /// A sentence for people, without its end.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Credentials => "the cloud refuses its credentials",
            Self::Throttled => "it asked to be left alone for a while",
            Self::Unreached => "its calls come to nothing",
            Self::Violated => "its answers break the protocol",
        }
    }

    /// Whether whatever failed before the gate was shut may have failed for that reason, so that it deserves to be
    /// tried at once when the gate opens.
    pub const fn excuses_failures(self) -> bool {
        !matches!(self, Self::Throttled)
    }
}

impl From<Cause> for Why {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Unreached => Self::Unreached,
            Cause::Violated => Self::Violated,
        }
    }
}

impl Gate {
    /// Every state in metrics.
    pub const NAMES: [&'static str; 3] = ["open", "trial", "shut"];

    /// Its state in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Trial { .. } => "trial",
            Self::Shut { .. } => "shut",
        }
    }

    /// Why it is not open.
    pub const fn why(self) -> Option<Why> {
        match self {
            Self::Open => None,
            Self::Trial { why } | Self::Shut { why, .. } => Some(why),
        }
    }
}

/// The gates of a plugin at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateView {
    /// That of each declared capability.
    pub gates: BTreeMap<Capability, Gate>,
    /// The plugin meets so many bugs of its own that people should look.
    pub is_unsound: bool,
}

impl GateView {
    /// The gate of `capability`.
    pub fn of(&self, capability: Capability) -> Gate {
        self.gates.get(&capability).copied().unwrap_or(Gate::Open)
    }
}

/// The right to make one call, to be handed back with what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    capability: Capability,
    breaker: breaker::Pass,
    credentials: credentials::Pass,
    begun: Instant,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub struct CallEnd<'a> {
    /// What it was about.
    pub subject: Subject<'a>,
    /// What kind of call it was.
    pub kind: CallKind,
    /// Why it failed; `None`: it was answered, whatever the answer says of single objects.
    pub failure: Option<&'a Failure>,
}

/// What the plugin says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether the cloud accepts its credentials; `None`: it does not say.
    pub credentials: Option<bool>,
    /// How long it asks to be left alone from now.
    pub throttled_for: Option<Duration>,
}

/// The gates of one plugin.
#[derive(Clone, Debug)]
pub struct Gates {
    pauses: Pauses,
    breakers: BTreeMap<Capability, Breaker>,
    credentials: Credentials,
    throttle: Throttle,
    /// The last bugs and panics of the plugin, oldest first.
    faults: VecDeque<Instant>,
    /// The end of the present connection has been counted.
    is_loss_counted: bool,
}

impl Gates {
    /// All open.
    pub fn new(pauses: Pauses) -> Self {
        Self {
            pauses,
            breakers: BTreeMap::new(),
            credentials: Credentials::default(),
            throttle: Throttle::default(),
            faults: VecDeque::new(),
            is_loss_counted: false,
        }
    }

    fn breaker(&mut self, capability: Capability) -> &mut Breaker {
        let waits = self.pauses.breaker;
        self.breakers
            .entry(capability)
            .or_insert_with(|| Breaker::new(waits))
    }

    /// Another process, or the same over another connection, answers from now on, and declares `capabilities`.
    pub fn session_began(&mut self, capabilities: &[Capability]) {
        self.breakers
            .retain(|capability, _| capabilities.contains(capability));
        for capability in capabilities {
            self.breaker(*capability).session_began();
        }
        self.credentials.session_began();
        self.throttle.session_began();
        self.faults.clear();
        self.is_loss_counted = false;
    }

    /// Lets a call through, or says what holds it back.
    ///
    /// # Errors
    /// Why it is held back.
    pub fn begin(&mut self, capability: Capability, now: Instant) -> Result<Ticket, Why> {
        if let Gate::Shut { why, .. } = self.gate(capability, now) {
            return Err(why);
        }
        if !self.credentials.has_room() {
            return Err(Why::Credentials);
        }
        let breaker = self.breaker(capability);
        let state = breaker.state();
        let Some(breaker) = breaker.begin() else {
            return Err(why_not(state).unwrap_or(Why::Unreached));
        };
        Ok(Ticket {
            capability,
            breaker,
            credentials: self.credentials.begin(),
            begun: now,
        })
    }

    /// A call that was let through ended.
    pub fn ended(&mut self, ticket: Ticket, end: CallEnd<'_>, now: Instant) {
        let disposition = end.failure.map(|failure| classify(failure, end.kind));
        let evidence = self.evidence(end.failure, disposition.map(|it| it.against), now);
        let is_connection_lost = end.failure.and_then(|it| it.reason) == Some(Reason::Disconnected);
        let is_about_nothing = matches!(
            end.failure.and_then(|it| it.reason),
            Some(Reason::Unimplemented | Reason::Disconnected)
        );
        let subject = end.subject.filter(|_| !is_about_nothing);
        // However many calls it takes along, one connection that ends is one failure.
        let is_counted = is_connection_lost && std::mem::replace(&mut self.is_loss_counted, true);
        let evidence = if is_counted { Evidence::Nothing } else { evidence };
        self.breaker(ticket.capability)
            .ended(ticket.breaker, subject, evidence, now);
        let again = disposition.map(|it| it.again);
        self.credentials.ended(
            ticket.credentials,
            matches!(again, Some(Again::Freeze(_))),
            evidence,
            now,
        );
        match again {
            Some(Again::PausePlugin(pace)) => self.throttle.refused(ticket.begun, pace, now),
            _ if evidence == Evidence::Reached => self.throttle.reached(ticket.begun),
            _ => {}
        }
    }

    /// A call that was let through was given up before it could be said to have ended.
    pub fn abandoned(&mut self, ticket: Ticket, now: Instant) {
        if let Some(breaker) = self.breakers.get_mut(&ticket.capability) {
            breaker.ended(ticket.breaker, None, Evidence::Nothing, now);
        }
        self.credentials
            .ended(ticket.credentials, false, Evidence::Nothing, now);
    }

    /// The plugin answered `GetStatus`.
    pub fn reported(&mut self, report: Report, now: Instant) {
        for breaker in self.breakers.values_mut() {
            breaker.status_answered(now);
        }
        self.credentials
            .reported(report.credentials, self.pauses.credentials, now);
        self.throttle.reported(report.throttled_for, now);
    }

    /// The gate of `capability`. What holds for the whole plugin goes before what holds for the one capability.
    pub fn gate(&self, capability: Capability, now: Instant) -> Gate {
        if self.credentials.are_refused() {
            return Gate::Shut {
                why: Why::Credentials,
                until: None,
            };
        }
        if let Some(until) = self.throttle.until(now) {
            return Gate::Shut {
                why: Why::Throttled,
                until: Some(until),
            };
        }
        let breaker = self
            .breakers
            .get(&capability)
            .map_or(breaker::State::Closed, Breaker::state);
        match breaker {
            breaker::State::Open { cause, until } => Gate::Shut {
                why: cause.into(),
                until: Some(until),
            },
            breaker::State::HalfOpen { cause } => Gate::Trial { why: cause.into() },
            breaker::State::Closed if self.credentials.are_on_trial() => Gate::Trial {
                why: Why::Credentials,
            },
            breaker::State::Closed => Gate::Open,
        }
    }

    /// All gates.
    pub fn view(&self, now: Instant) -> GateView {
        GateView {
            gates: self.all(now).collect(),
            is_unsound: self.is_unsound(now),
        }
    }

    /// Whether [`view`](Self::view) would be `view`; mostly it is, and nothing has to be made to know it.
    pub fn are_as_in(&self, view: &GateView, now: Instant) -> bool {
        let seen = view.gates.iter().map(|(capability, gate)| (*capability, *gate));
        self.all(now).eq(seen) && self.is_unsound(now) == view.is_unsound
    }

    fn all(&self, now: Instant) -> impl Iterator<Item = (Capability, Gate)> {
        self.breakers
            .keys()
            .map(move |capability| (*capability, self.gate(*capability, now)))
    }

    /// When a gate next changes by the mere passing of time.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        self.throttle.until(now)
    }

    fn is_unsound(&self, now: Instant) -> bool {
        let (count, window) = UNSOUND;
        self.faults.len() >= count
            && self
                .faults
                .front()
                .is_some_and(|first| now.saturating_since(*first) <= window)
    }

    fn evidence(&mut self, failure: Option<&Failure>, against: Option<Against>, now: Instant) -> Evidence {
        match (failure, against) {
            (None, _) | (_, None | Some(Against::Object)) => Evidence::Reached,
            (_, Some(Against::Breaker)) => Evidence::Unreached,
            (_, Some(Against::Protocol)) => Evidence::Violated,
            (_, Some(Against::Nothing)) => Evidence::Nothing,
            (_, Some(Against::Soundness)) => {
                if self.faults.len() == UNSOUND.0 {
                    self.faults.pop_front();
                }
                self.faults.push_back(now);
                Evidence::Nothing
            }
        }
    }
}

fn why_not(state: breaker::State) -> Option<Why> {
    match state {
        breaker::State::Closed => None,
        breaker::State::Open { cause, .. } | breaker::State::HalfOpen { cause } => Some(cause.into()),
    }
}

#[cfg(test)]
mod tests;
