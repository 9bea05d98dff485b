//! When a controller works: while this host leads and the plugin takes its work.
//!
//! A new term forgets what an earlier one remembered and looks at every object; a new session looks at every object
//! again, since what failed before may have been the old one's fault; so does a change of what the plugin owns.

use crate::election::Epoch;

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
}

/// What to do with the controller and its queue, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Hand out nothing, take nothing, forget every key.
    Close,
    /// Forget what an earlier term remembered.
    BeginTerm(Epoch),
    /// Put every object in and hand them out.
    Open,
}

/// What a lane has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    epoch: Option<Epoch>,
    /// The session and the territory for which it is open.
    open: Option<(u64, u64)>,
}

impl Lane {
    /// What to do now that the situation is this.
    pub fn step(&mut self, now: &Situation) -> Vec<Order> {
        let may_work = now.leading.is_some() && now.takes_work && now.territory > 0;
        let wanted = may_work.then_some((now.session, now.territory));
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
        if wanted.is_some() && self.open.is_none() {
            orders.push(Order::Open);
            self.open = wanted;
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

    use super::{Lane, Order, Situation};
    use crate::election::Epoch;

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
        }
    }

    fn owning(territory: u64) -> Situation {
        Situation {
            territory,
            ..situation(Some(1), 1, true)
        }
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
    fn a_working_lane(#[case] now: Situation, #[case] orders: Vec<Order>) {
        let mut lane = Lane::default();
        assert_eq!(
            lane.step(&situation(Some(1), 1, true)),
            [Order::BeginTerm(epoch(1)), Order::Open]
        );
        assert_eq!(lane.step(&now), orders);
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
