//! What goes wrong on demand.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::distribution::Span;
use super::error::ErrorCode;
use super::random::Random;

/// A fault: where, what, how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// Of the cloud: `create/load_balancer`, `list`, `account`, `read`, `write` or `*`. Of the plugin's own process:
    /// `plugin/` and a call of the protocol, as `plugin/EnsureLoadBalancer`, or `plugin/*`.
    pub on: String,
    /// What happens.
    pub effect: Effect,
    /// So many matching calls go well first.
    #[serde(default)]
    pub skip: u64,
    /// How often it happens; for ever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// How likely it is in each call, 0 to 1; always if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// For how long; for ever if not given.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub lasting: Option<Span>,
}

/// What happens in a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Effect {
    /// Cloud: the call is refused and changes nothing.
    Error {
        /// As the cloud names it.
        code: ErrorCode,
        /// For people.
        #[serde(default)]
        message: String,
        /// When to come back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<Span>,
    },
    /// Cloud: it is done, and the answer is lost: the caller is told "unavailable".
    LostAnswer,
    /// Cloud and plugin: no answer ever comes. In the cloud nothing is changed.
    Hang,
    /// Cloud: it is done, and no answer ever comes.
    DoneThenHang,
    /// Cloud and plugin: the answer comes so much later. What was asked is done at once.
    Delay(Span),
    /// Cloud: a list says that there is nothing. Plugin: every node is absent.
    Empty,
    /// Cloud and plugin: the answer is about other objects than was asked.
    WrongIds,
    /// Plugin: the handler panics.
    Panic,
    /// Plugin: the process ends with this code.
    Exit(u8),
    /// Plugin: the process aborts.
    Abort,
    /// Plugin: the process takes this many bytes of memory and keeps them.
    Balloon(u64),
    /// Plugin: an answer without what the protocol says is never unset.
    Garbage,
    /// Plugin: an answer of so many bytes.
    Oversized(u64),
    /// Plugin: the call fails with this reason of the protocol, as `PROVIDER_ERROR`.
    Fail(String),
}

/// Why a fault cannot be set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// No call is named so.
    #[error(
        "fault on {on:?}: no call is named so; use an operation as create/load_balancer, list, account, read, write or *, \
         or plugin/ and a call of the protocol"
    )]
    On {
        /// What was given.
        on: String,
    },
    /// The effect belongs elsewhere.
    #[error("fault on {on:?}: {effect} cannot happen there")]
    Effect {
        /// What was given.
        on: String,
        /// The effect.
        effect: String,
    },
    /// No probability.
    #[error("fault on {on:?}: a probability lies between 0 and 1")]
    Probability {
        /// What was given.
        on: String,
    },
    /// The bound is reached.
    #[error("there are {MAX_FAULTS} faults already: clear some")]
    TooMany,
}

/// Most faults at a time.
pub const MAX_FAULTS: usize = 1000;

/// What faults of the plugin's own process begin with.
pub(crate) const PLUGIN: &str = "plugin/";

/// The calls of the protocol, and those moments in the life of a plugin that can fail, too.
const CALLS: &[&str] = &[
    "*",
    "Initialise",
    "GetStatus",
    "GetInstances",
    "ListInstances",
    "EnsureLoadBalancer",
    "UpdateTargets",
    "GetLoadBalancers",
    "DeleteLoadBalancer",
    "ListRoutes",
    "ApplyRoutes",
    "ListOwnedResources",
    "DeleteOwnedResources",
];

impl Fault {
    /// A fault that always happens.
    pub fn new(on: impl Into<String>, effect: Effect) -> Self {
        Self {
            on: on.into(),
            effect,
            skip: 0,
            times: None,
            probability: None,
            lasting: None,
        }
    }

    /// So often only.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Not the first ones.
    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Not always.
    #[must_use]
    pub fn likely(mut self, probability: f64) -> Self {
        self.probability = Some(probability);
        self
    }

    /// Not for ever.
    #[must_use]
    pub fn lasting(mut self, span: Duration) -> Self {
        self.lasting = Some(Span(span));
        self
    }

    /// Whether it concerns the plugin's own process, not the cloud.
    pub fn is_of_plugin(&self) -> bool {
        self.on.starts_with(PLUGIN)
    }

    /// Whether it can be set.
    ///
    /// # Errors
    ///
    /// A call that does not exist, an effect that cannot happen there, a probability that is none.
    pub fn check(&self) -> Result<(), FaultError> {
        let on = || self.on.clone();
        if !is_call(&self.on) {
            return Err(FaultError::On { on: on() });
        }
        if !self.probability.is_none_or(|it| (0.0..=1.0).contains(&it)) {
            return Err(FaultError::Probability { on: on() });
        }
        let fits = match self.effect {
            Effect::Error { .. } | Effect::LostAnswer | Effect::DoneThenHang => !self.is_of_plugin(),
            Effect::Hang | Effect::Delay(_) | Effect::Empty | Effect::WrongIds => true,
            Effect::Panic
            | Effect::Exit(_)
            | Effect::Abort
            | Effect::Balloon(_)
            | Effect::Garbage
            | Effect::Oversized(_)
            | Effect::Fail(_) => self.is_of_plugin(),
        };
        if fits {
            Ok(())
        } else {
            Err(FaultError::Effect {
                on: on(),
                effect: format!("{:?}", self.effect),
            })
        }
    }

    fn matches(&self, call: &Called<'_>) -> bool {
        match self.on.as_str() {
            "*" => true,
            "read" => !call.writes,
            "write" => call.writes,
            on => on == call.verb || on == call.name,
        }
    }
}

fn is_call(on: &str) -> bool {
    if let Some(call) = on.strip_prefix(PLUGIN) {
        return CALLS.contains(&call);
    }
    match on.split_once('/') {
        None => [
            "*", "read", "write", "account", "list", "create", "update", "delete",
        ]
        .contains(&on),
        Some((verb, kind)) => {
            ["list", "create", "update", "delete"].contains(&verb)
                && super::kind::Kind::of_name(kind).is_some()
        }
    }
}

/// A call that a fault may hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Called<'a> {
    /// As `create` or `plugin/*`.
    pub(crate) verb: &'a str,
    /// As `create/load_balancer`.
    pub(crate) name: &'a str,
    pub(crate) writes: bool,
}

/// A fault that is set.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultState {
    /// Given when it was added.
    pub id: u64,
    /// What it is.
    pub fault: Fault,
    /// How often it has happened.
    pub fired: u64,
}

#[derive(Clone, Debug)]
struct Armed {
    state: FaultState,
    passed: u64,
    until: Option<Duration>,
}

/// All faults of a process.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    armed: Vec<Armed>,
    last: u64,
}

impl Faults {
    /// None yet; ids begin after `last`, so that two lists of one process never share one.
    pub(crate) fn numbered_from(last: u64) -> Self {
        Self {
            armed: Vec::new(),
            last,
        }
    }

    /// Adds one, from `now` on; its id.
    ///
    /// # Errors
    ///
    /// As [`Fault::check`], and if there are too many.
    pub fn add(&mut self, fault: Fault, now: Duration) -> Result<u64, FaultError> {
        fault.check()?;
        self.expire(now);
        if self.armed.len() >= MAX_FAULTS {
            return Err(FaultError::TooMany);
        }
        self.last += 1;
        self.armed.push(Armed {
            until: fault.lasting.map(|span| now + span.0),
            passed: 0,
            state: FaultState {
                id: self.last,
                fault,
                fired: 0,
            },
        });
        Ok(self.last)
    }

    /// Takes away those with these ids, or all.
    pub fn clear(&mut self, ids: &[u64]) -> Vec<FaultState> {
        let (gone, kept) = std::mem::take(&mut self.armed)
            .into_iter()
            .partition(|armed| ids.is_empty() || ids.contains(&armed.state.id));
        self.armed = kept;
        let gone: Vec<Armed> = gone;
        gone.into_iter().map(|armed| armed.state).collect()
    }

    /// Those that can still happen.
    pub fn list(&mut self, now: Duration) -> Vec<FaultState> {
        self.expire(now);
        self.armed.iter().map(|armed| armed.state.clone()).collect()
    }

    /// The first that happens in this call.
    pub(crate) fn strike(&mut self, call: &Called<'_>, now: Duration, random: &mut Random) -> Option<Effect> {
        self.expire(now);
        for armed in &mut self.armed {
            if !armed.state.fault.matches(call) {
                continue;
            }
            if armed.passed < armed.state.fault.skip {
                armed.passed += 1;
                continue;
            }
            let likely = armed.state.fault.probability;
            if likely.is_some_and(|likely| random.fraction() >= likely) {
                continue;
            }
            armed.state.fired += 1;
            return Some(armed.state.fault.effect.clone());
        }
        None
    }

    fn expire(&mut self, now: Duration) {
        self.armed.retain(|armed| {
            let spent = armed
                .state
                .fault
                .times
                .is_some_and(|times| armed.state.fired >= times);
            !spent && armed.until.is_none_or(|until| now < until)
        });
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn struck(faults: &mut Faults, name: &str, now: Duration) -> bool {
        let verb = name.split('/').next().unwrap_or_default();
        let writes = verb != "list";
        let call = Called { verb, name, writes };
        faults.strike(&call, now, &mut Random::new(1)).is_some()
    }

    #[rstest]
    #[case::name("create/pool", "create/pool", true)]
    #[case::another_kind("create/pool", "create/listener", false)]
    #[case::verb("create", "create/listener", true)]
    #[case::writes("write", "delete/pool", true)]
    #[case::a_read_is_no_write("write", "list/pool", false)]
    #[case::reads("read", "list/pool", true)]
    #[case::everything("*", "list/pool", true)]
    fn a_fault_hits_the_calls_that_it_names(#[case] on: &str, #[case] call: &str, #[case] hits: bool) {
        let mut faults = Faults::default();
        faults.add(Fault::new(on, Effect::Hang), NOW).expect("legal");
        assert_eq!(struck(&mut faults, call, NOW), hits);
    }

    #[test]
    fn a_fault_with_a_count_and_a_skip_happens_that_often_after_that_many() {
        let mut faults = Faults::default();
        faults
            .add(Fault::new("list", Effect::Empty).after(2).times(2), NOW)
            .expect("legal");
        let seen: Vec<bool> = (0..6).map(|_| struck(&mut faults, "list/pool", NOW)).collect();
        assert_eq!(seen, [false, false, true, true, false, false]);
        assert_eq!(faults.list(NOW), []);
    }

    #[test]
    fn a_fault_ends_with_its_time() {
        let mut faults = Faults::default();
        faults
            .add(Fault::new("*", Effect::Hang).lasting(Duration::from_secs(5)), NOW)
            .expect("legal");
        assert!(struck(&mut faults, "account", NOW + Duration::from_secs(4)));
        assert!(!struck(&mut faults, "account", NOW + Duration::from_secs(5)));
    }

    #[test]
    fn a_probability_is_kept_over_many_calls() {
        let mut faults = Faults::default();
        faults
            .add(Fault::new("*", Effect::Hang).likely(0.25), NOW)
            .expect("legal");
        let mut random = Random::new(3);
        let call = Called {
            verb: "list",
            name: "list/pool",
            writes: false,
        };
        let hits = (0..4000)
            .filter(|_| faults.strike(&call, NOW, &mut random).is_some())
            .count();
        assert!((900..1100).contains(&hits), "{hits}");
    }

    #[rstest]
    #[case::no_call("make/pool", Effect::Hang)]
    #[case::no_kind("create/thing", Effect::Hang)]
    #[case::no_rpc("plugin/Ensure", Effect::Hang)]
    #[case::a_cloud_does_not_panic("create/pool", Effect::Panic)]
    #[case::a_plugin_loses_no_answer("plugin/EnsureLoadBalancer", Effect::LostAnswer)]
    fn what_cannot_happen_is_refused(#[case] on: &str, #[case] effect: Effect) {
        assert!(Faults::default().add(Fault::new(on, effect), NOW).is_err());
    }
}
