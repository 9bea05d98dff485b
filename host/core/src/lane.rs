//! When a controller works: while this host leads, the plugin takes its work and the gate is not shut.
//!
//! A new term forgets what an earlier one remembered and looks at every object; a new session looks at every object
//! again, since what failed before may have been the old one's fault; so does a change of what the plugin owns. So does
//! a gate that opens, unless the plugin only asked for a pause: then every key waits as long as it has to. When a plugin
//! is rid of a trouble that it reported, what failed is tried again at once.

use crate::election::Epoch;
use crate::gate::Gate;

/// How many keys a queue hands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// None. Those that wait go on waiting.
    Nothing,
    /// One at a time.
    OneByOne,
    /// As many as there are workers.
    #[default]
    Freely,
}

/// What a lane depends on, now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The term that this host leads in; `None`: it does not, or is about to stop.
    pub leading: Option<Epoch>,
    /// Number of the plugin's session.
    pub session: u64,
    /// How often it was said what the plugin owns; 0: never, and then nothing is its own.
    pub territory: u64,
    /// Whether that session takes work, and the plugin declares what the controller needs.
    pub takes_work: bool,
    /// Whether the plugin reports a trouble of its own.
    pub is_troubled: bool,
    /// The gate of what the controller needs.
    pub gate: Gate,
}

impl Situation {
    /// The session and the territory to be open for, if any, and how far.
    fn wanted(&self) -> (Option<(u64, u64)>, Flow) {
        let (is_shut, flow) = match self.gate {
            Gate::Open => (false, Flow::Freely),
            Gate::Trial { .. } => (false, Flow::OneByOne),
            Gate::Shut { why, .. } => (why.excuses_failures(), Flow::Nothing),
        };
        let works = self.leading.is_some() && self.takes_work && self.territory > 0 && !is_shut;
        (works.then_some((self.session, self.territory)), flow)
    }
}

/// What to do with the controller and its queue, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Hand out nothing, take nothing, forget every key.
    Close,
    /// Forget what an earlier term remembered.
    BeginTerm(Epoch),
    /// Hand out so many keys.
    Let(Flow),
    /// Put every object in and hand them out.
    Open,
    /// Hand out now what waits because it failed.
    RetryFailed,
}

/// What a lane has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    epoch: Option<Epoch>,
    /// The session and the territory for which it is open.
    open: Option<(u64, u64)>,
    flow: Flow,
    was_troubled: bool,
}

impl Lane {
    /// What to do now that the situation is this.
    pub fn step(&mut self, now: &Situation) -> Vec<Order> {
        let (wanted, flow) = now.wanted();
        let new_term = now
            .leading
            .as_ref()
            .filter(|epoch| Some(*epoch) != self.epoch.as_ref());
        let mut orders = Vec::new();
        if self.open.is_some() && (wanted != self.open || new_term.is_some()) {
            orders.push(Order::Close);
            self.open = None;
        }
        if let Some(epoch) = new_term {
            orders.push(Order::BeginTerm(epoch.clone()));
            self.epoch = Some(epoch.clone());
        }
        if wanted.is_some() && flow != self.flow {
            orders.push(Order::Let(flow));
            self.flow = flow;
        }
        let is_cured = std::mem::replace(&mut self.was_troubled, now.is_troubled) && !now.is_troubled;
        if wanted.is_some() && self.open.is_none() {
            orders.push(Order::Open);
            self.open = wanted;
        } else if self.open.is_some() && is_cured {
            orders.push(Order::RetryFailed);
        }
        orders
    }

    /// Whether the controller works.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Flow, Lane, Order, Situation};
    use crate::clock::Instant;
    use crate::election::Epoch;
    use crate::gate::{Gate, Why};

    fn epoch(transitions: i64) -> Epoch {
        Epoch {
            lease_uid: "l".to_owned(),
            transitions,
        }
    }

    fn situation(term: Option<i64>, session: u64, takes_work: bool) -> Situation {
        Situation {
            leading: term.map(epoch),
            session,
            territory: 1,
            takes_work,
            is_troubled: false,
            gate: Gate::Open,
        }
    }

    fn owning(territory: u64) -> Situation {
        Situation {
            territory,
            ..situation(Some(1), 1, true)
        }
    }

    fn behind(gate: Gate) -> Situation {
        Situation {
            gate,
            ..situation(Some(1), 1, true)
        }
    }

    const fn shut(why: Why) -> Gate {
        Gate::Shut {
            why,
            until: Some(Instant::ORIGIN),
        }
    }

    const TRIAL: Gate = Gate::Trial { why: Why::Unreached };

    #[test]
    fn what_failed_is_tried_again_once_the_plugin_is_rid_of_its_trouble() {
        let troubled = |session, is_troubled| Situation {
            is_troubled,
            ..situation(Some(1), session, true)
        };
        let mut lane = Lane::default();
        lane.step(&troubled(1, true));
        assert_eq!(lane.step(&troubled(1, true)), []);
        assert_eq!(lane.step(&troubled(1, false)), [Order::RetryFailed]);
        assert_eq!(lane.step(&troubled(1, false)), []);
        assert_eq!(lane.step(&troubled(1, true)), []);
        let another = [Order::Close, Order::Open];
        assert_eq!(lane.step(&troubled(2, false)), another, "nothing has failed yet");
    }

    /// What a lane that works in term 1 with session 1 does next.
    #[rstest]
    #[case::nothing_new(situation(Some(1), 1, true), vec![])]
    #[case::plugin_dies(situation(Some(1), 1, false), vec![Order::Close])]
    #[case::another_process_at_the_same_path(situation(Some(1), 2, true), vec![Order::Close, Order::Open])]
    #[case::another_process_not_ready_yet(situation(Some(1), 2, false), vec![Order::Close])]
    #[case::owns_something_else(owning(2), vec![Order::Close, Order::Open])]
    #[case::leadership_lost(situation(None, 1, true), vec![Order::Close])]
    #[case::won_anew(situation(Some(2), 1, true), vec![Order::Close, Order::BeginTerm(epoch(2)), Order::Open])]
    #[case::won_anew_without_a_plugin(situation(Some(2), 1, false), vec![Order::Close, Order::BeginTerm(epoch(2))])]
    #[case::breaker_opens(behind(shut(Why::Unreached)), vec![Order::Close])]
    #[case::protocol_broken(behind(shut(Why::Violated)), vec![Order::Close])]
    #[case::credentials_refused(behind(shut(Why::Credentials)), vec![Order::Close])]
    #[case::throttled(behind(shut(Why::Throttled)), vec![Order::Let(Flow::Nothing)])]
    #[case::another_process_on_trial(
        Situation { session: 2, ..behind(TRIAL) },
        vec![Order::Close, Order::Let(Flow::OneByOne), Order::Open]
    )]
    fn a_working_lane(#[case] now: Situation, #[case] orders: Vec<Order>) {
        let mut lane = Lane::default();
        assert_eq!(
            lane.step(&situation(Some(1), 1, true)),
            [Order::BeginTerm(epoch(1)), Order::Open]
        );
        assert_eq!(lane.step(&now), orders);
    }

    #[test]
    fn a_gate_opens_by_way_of_a_trial_and_every_object_is_looked_at() {
        let mut lane = Lane::default();
        lane.step(&behind(Gate::Open));
        let orders = [shut(Why::Unreached), TRIAL, TRIAL, Gate::Open].map(|gate| lane.step(&behind(gate)));
        assert_eq!(
            orders,
            [
                vec![Order::Close],
                vec![Order::Let(Flow::OneByOne), Order::Open],
                vec![],
                vec![Order::Let(Flow::Freely)],
            ]
        );
    }

    #[test]
    fn after_a_pause_every_key_goes_on_as_before() {
        let mut lane = Lane::default();
        lane.step(&behind(Gate::Open));
        lane.step(&behind(shut(Why::Throttled)));
        assert_eq!(lane.step(&behind(Gate::Open)), [Order::Let(Flow::Freely)]);
    }

    #[test]
    fn a_lane_that_opens_within_a_pause_hands_out_nothing() {
        let mut lane = Lane::default();
        assert_eq!(
            lane.step(&behind(shut(Why::Throttled))),
            [Order::BeginTerm(epoch(1)), Order::Let(Flow::Nothing), Order::Open]
        );
    }

    #[test]
    fn a_standby_does_nothing_however_often_it_is_told() {
        let mut lane = Lane::default();
        for session in [1, 1, 2] {
            assert_eq!(lane.step(&situation(None, session, true)), []);
        }
    }

    #[test]
    fn nothing_is_done_before_anybody_said_what_the_plugin_owns() {
        let mut lane = Lane::default();
        assert_eq!(lane.step(&owning(0)), [Order::BeginTerm(epoch(1))]);
        assert_eq!(lane.step(&owning(1)), [Order::Open]);
    }

    #[test]
    fn a_term_is_remembered_while_the_plugin_is_away() {
        let mut lane = Lane::default();
        lane.step(&situation(Some(1), 1, true));
        lane.step(&situation(Some(1), 1, false));
        assert_eq!(lane.step(&situation(Some(1), 2, true)), [Order::Open]);
    }
}
