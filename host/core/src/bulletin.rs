//! What people are told of a plugin's gates: one Event when it freezes and one when it works again, and no two within
//! five minutes. Whatever changed and changed back in between is in the metrics only.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::cloud::Capability;
use crate::gate::{Gate, GateView, Why};
use crate::outcome::Notice;

/// Event reasons.
const FROZEN: &str = "PluginFrozen";
const RECOVERED: &str = "PluginRecovered";

/// Time between two Events about one plugin.
pub const QUIET: Duration = Duration::from_secs(300);

/// A shorter pause that the cloud asks for is a turn of the work.
const SHORT: Duration = Duration::from_secs(30);

/// What people were last told about one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bulletin {
    told: BTreeMap<Capability, Why>,
    at: Option<Instant>,
}

/// What to do about a plugin's gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issue {
    /// What to tell people now.
    pub notice: Option<Notice>,
    /// When there will be something to tell, if nothing changes until then.
    pub next: Option<Instant>,
}

impl Bulletin {
    /// The gates of `plugin` are as `view` says.
    pub fn step(&mut self, plugin: &str, view: &GateView, now: Instant) -> Issue {
        let current = self.troubles(view, now);
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

    /// What is frozen, and why, as far as people should know.
    fn troubles(&self, view: &GateView, now: Instant) -> BTreeMap<Capability, Why> {
        let is_worth_it = |capability: &Capability, gate: Gate| match gate {
            Gate::Open => false,
            Gate::Shut {
                why: Why::Throttled,
                until: Some(until),
            } => self.told.contains_key(capability) || until.saturating_since(now) >= SHORT,
            Gate::Trial { .. } | Gate::Shut { .. } => true,
        };
        view.gates
            .iter()
            .filter(|(capability, gate)| is_worth_it(capability, **gate))
            .filter_map(|(capability, gate)| Some((*capability, gate.why()?)))
            .collect()
    }
}

fn sentence(plugin: &str, now: &BTreeMap<Capability, Why>, before: &BTreeMap<Capability, Why>) -> Notice {
    if now.is_empty() {
        let note = format!("Plugin {plugin} works again: {}", names(before.keys()));
        return Notice::normal(RECOVERED, note);
    }
    let mut by_cause: BTreeMap<Why, Vec<&Capability>> = BTreeMap::new();
    for (capability, why) in now {
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
            let step = bulletin.step("acme", &view(*gate), at(second));
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
        let notice = bulletin.step("acme", &both, at(0)).notice.unwrap();
        assert_eq!(
            notice.note,
            "Plugin acme is frozen for instances, lb: the cloud refuses its credentials. Nothing of that changes, \
             deletions included, until it works again"
        );
        let waits = bulletin.step("acme", &view(Gate::Open), at(10));
        assert_eq!((waits.notice, waits.next), (None, Some(at(300))));
        let notice = bulletin.step("acme", &view(Gate::Open), at(300)).notice.unwrap();
        assert_eq!(notice.note, "Plugin acme works again: instances, lb");
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
                if bulletin.step("acme", &view(gate), at(now)).notice.is_some() {
                    prop_assert!(last.is_none_or(|last| now - last >= QUIET.as_secs()));
                    last = Some(now);
                }
            }
        }
    }
}
