//! What people are told of a plugin: one Event when it freezes or cannot be used and one when it works again, and no two
//! within five minutes. Whatever changed and changed back in between is in the metrics only.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::cloud::Capability;
use crate::gate::{Gate, GateView, Why};
use crate::outcome::Notice;

/// Event reasons.
const FROZEN: &str = "PluginFrozen";
const UNUSABLE: &str = "PluginIncompatible";
const RECOVERED: &str = "PluginRecovered";

/// Time between two Events about one plugin.
pub const QUIET: Duration = Duration::from_secs(300);

/// A shorter pause that the cloud asks for is a turn of the work.
const SHORT: Duration = Duration::from_secs(30);

/// What people were last told about one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bulletin {
    told: Troubles,
    at: Option<Instant>,
}

/// How a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition<'a> {
    /// Its gates.
    pub gates: &'a GateView,
    /// Why it cannot be used, if it answers and cannot.
    pub refusal: Option<&'a str>,
}

/// What people should know of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Troubles {
    refusal: Option<String>,
    frozen: BTreeMap<Capability, Why>,
}

/// What to do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issue {
    /// What to tell people now.
    pub notice: Option<Notice>,
    /// When there will be something to tell, if nothing changes until then.
    pub next: Option<Instant>,
}

impl Bulletin {
    /// `plugin` is so at `now`.
    pub fn step(&mut self, plugin: &str, condition: Condition<'_>, now: Instant) -> Issue {
        let current = self.troubles(condition, now);
        if current == self.told {
            return Issue::default();
        }
        let quiet_until = self.at.map(|at| at + QUIET).filter(|until| now < *until);
        if quiet_until.is_some() {
            return Issue {
                notice: None,
                next: quiet_until,
            };
        }
        let notice = sentence(plugin, &current, &self.told);
        self.told = current;
        self.at = Some(now);
        Issue {
            notice: Some(notice),
            next: None,
        }
    }

    fn troubles(&self, condition: Condition<'_>, now: Instant) -> Troubles {
        let is_worth_it = |capability: &Capability, gate: Gate| match gate {
            Gate::Open => false,
            Gate::Shut {
                why: Why::Throttled,
                until: Some(until),
            } => self.told.frozen.contains_key(capability) || until.saturating_since(now) >= SHORT,
            Gate::Trial { .. } | Gate::Shut { .. } => true,
        };
        let gates = condition.gates.gates.iter();
        let frozen = gates
            .filter(|(capability, gate)| is_worth_it(capability, **gate))
            .filter_map(|(capability, gate)| Some((*capability, gate.why()?)));
        Troubles {
            refusal: condition.refusal.map(str::to_owned),
            frozen: frozen.collect(),
        }
    }
}

fn sentence(plugin: &str, now: &Troubles, before: &Troubles) -> Notice {
    if let Some(refusal) = &now.refusal {
        let note = format!(
            "Plugin {plugin} cannot be used: {refusal}. What it owns stays as it is until a process of it answers that can"
        );
        return Notice::warning(UNUSABLE, note);
    }
    if now.frozen.is_empty() {
        let what = match names(before.frozen.keys()) {
            names if names.is_empty() => names,
            names => format!(": {names}"),
        };
        return Notice::normal(RECOVERED, format!("Plugin {plugin} works again{what}"));
    }
    let mut by_cause: BTreeMap<Why, Vec<&Capability>> = BTreeMap::new();
    for (capability, why) in &now.frozen {
        by_cause.entry(*why).or_default().push(capability);
    }
    let causes: Vec<String> = by_cause
        .into_iter()
        .map(|(why, capabilities)| format!("{}: {}", names(capabilities.into_iter()), why.sentence()))
        .collect();
    let note = format!(
        "Plugin {plugin} is frozen for {}. Nothing of that changes, deletions included, until it works again",
        causes.join("; ")
    );
    Notice::warning(FROZEN, note)
}

fn names<'a>(capabilities: impl Iterator<Item = &'a Capability>) -> String {
    capabilities
        .map(|capability| capability.name())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const LB: Capability = Capability::Lb;

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    fn shut(why: Why, until: u64) -> Gate {
        Gate::Shut {
            why,
            until: Some(at(until)),
        }
    }

    const TRIAL: Gate = Gate::Trial { why: Why::Unreached };

    fn view(lb: Gate) -> GateView {
        GateView {
            gates: BTreeMap::from([(Capability::Instances, Gate::Open), (LB, lb)]),
            is_unsound: false,
        }
    }

    fn usable(gates: &GateView) -> Condition<'_> {
        Condition { gates, refusal: None }
    }

    /// The gate of load balancers from which second on, and the seconds at which what is told.
    #[rstest]
    #[case::all_is_well(&[(0, Gate::Open), (900, Gate::Open)], &[])]
    #[case::frozen_once(
        &[(0, shut(Why::Unreached, 30)), (30, TRIAL), (31, shut(Why::Unreached, 91)), (3600, TRIAL)],
        &[(0, FROZEN)]
    )]
    #[case::works_again_soon(&[(0, shut(Why::Unreached, 30)), (31, Gate::Open)], &[(0, FROZEN), (300, RECOVERED)])]
    #[case::works_again_late(&[(0, shut(Why::Unreached, 30)), (900, Gate::Open)], &[(0, FROZEN), (900, RECOVERED)])]
    #[case::flaps(
        &[(0, shut(Why::Unreached, 30)), (31, Gate::Open), (200, shut(Why::Unreached, 230)), (900, Gate::Open)],
        &[(0, FROZEN), (900, RECOVERED)]
    )]
    #[case::frozen_for_another_reason(
        &[(0, shut(Why::Unreached, 30)), (31, shut(Why::Credentials, 0))],
        &[(0, FROZEN), (300, FROZEN)]
    )]
    #[case::a_short_pause(&[(0, shut(Why::Throttled, 29)), (29, Gate::Open)], &[])]
    #[case::a_long_pause(
        &[(0, shut(Why::Throttled, 400)), (390, shut(Why::Throttled, 400)), (400, Gate::Open)],
        &[(0, FROZEN), (400, RECOVERED)]
    )]
    fn people_are_told(#[case] gates: &[(u64, Gate)], #[case] expected: &[(u64, &'static str)]) {
        let mut bulletin = Bulletin::default();
        let mut told = Vec::new();
        for second in 0..4000 {
            let (_, gate) = gates.iter().rev().find(|(since, _)| *since <= second).unwrap();
            let step = bulletin.step("acme", usable(&view(*gate)), at(second));
            told.extend(step.notice.map(|notice| (second, notice.reason)));
        }
        assert_eq!(told, expected);
    }

    #[test]
    fn it_says_what_is_frozen_and_why() {
        let both = GateView {
            gates: BTreeMap::from([
                (Capability::Instances, shut(Why::Credentials, 0)),
                (LB, shut(Why::Credentials, 0)),
            ]),
            is_unsound: false,
        };
        let mut bulletin = Bulletin::default();
        let notice = bulletin.step("acme", usable(&both), at(0)).notice.unwrap();
        assert_eq!(
            notice.note,
            "Plugin acme is frozen for instances, lb: the cloud refuses its credentials. Nothing of that changes, \
             deletions included, until it works again"
        );
        let waits = bulletin.step("acme", usable(&view(Gate::Open)), at(10));
        assert_eq!((waits.notice, waits.next), (None, Some(at(300))));
        let notice = bulletin
            .step("acme", usable(&view(Gate::Open)), at(300))
            .notice
            .unwrap();
        assert_eq!(notice.note, "Plugin acme works again: instances, lb");
    }

    #[test]
    fn a_plugin_that_cannot_be_used_is_told_with_the_reason() {
        let open = view(Gate::Open);
        let mut bulletin = Bulletin::default();
        let mut told = |refusal, second| {
            let condition = Condition {
                gates: &open,
                refusal,
            };
            let notice = bulletin.step("acme", condition, at(second)).notice;
            notice.map(|notice| (notice.reason, notice.note))
        };
        let reason = "it speaks protocol revisions [2], this host speaks 1";
        let (kind, note) = told(Some(reason), 0).unwrap();
        assert_eq!(kind, UNUSABLE);
        assert_eq!(
            note,
            "Plugin acme cannot be used: it speaks protocol revisions [2], this host speaks 1. What it owns stays as it is \
             until a process of it answers that can"
        );
        assert_eq!(told(Some(reason), 1000), None);
        let (kind, note) = told(None, 1001).unwrap();
        assert_eq!((kind, note.as_str()), (RECOVERED, "Plugin acme works again"));
    }

    proptest! {
        #[test]
        fn never_twice_within_five_minutes(steps in proptest::collection::vec((0_u64..200, 0_u8..4), 0..100)) {
            let mut bulletin = Bulletin::default();
            let (mut now, mut last) = (0, None);
            for (pause, gate) in steps {
                now += pause;
                let gate = match gate {
                    0 => Gate::Open,
                    1 => TRIAL,
                    2 => shut(Why::Credentials, 0),
                    _ => shut(Why::Throttled, now + 60),
                };
                if bulletin.step("acme", usable(&view(gate)), at(now)).notice.is_some() {
                    prop_assert!(last.is_none_or(|last| now - last >= QUIET.as_secs()));
                    last = Some(now);
                }
            }
        }
    }
}
