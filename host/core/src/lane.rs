//! When a controller works: while this host leads and the plugin takes its work.
//!
//! A new term forgets what an earlier one remembered and looks at every object; a new session looks at every object
//! again, since what failed before may have been the old one's fault.

use crate::election::Epoch;

/// What a lane depends on, now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The term that this host leads in; `None`: it does not, or is about to stop.
    pub leading: Option<Epoch>,
    /// Number of the plugin's session.
    pub session: u64,
    /// Whether that session takes work, and the plugin declares what the controller needs.
    pub takes_work: bool,
}

/// What to do with the controller's queue, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Hand out nothing.
    Close,
    /// Forget everything, and put every object in.
    BeginTerm(Epoch),
    /// End every pause after a failure, and put every object in.
    LookAgain,
    /// Hand out what is due.
    Open,
}

/// What a lane has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    epoch: Option<Epoch>,
    session: u64,
}

impl Lane {
    /// What to do now that the situation is this.
    pub fn step(&mut self, now: &Situation) -> Vec<Order> {
        let is_open = now.leading.is_some() && now.takes_work;
        let mut orders = Vec::new();
        if !is_open {
            orders.push(Order::Close);
        }
        if let Some(epoch) = now
            .leading
            .as_ref()
            .filter(|epoch| Some(*epoch) != self.epoch.as_ref())
        {
            orders.push(Order::BeginTerm(epoch.clone()));
            self.epoch = Some(epoch.clone());
            self.session = now.session;
        }
        if is_open {
            if now.session != self.session {
                orders.push(Order::LookAgain);
                self.session = now.session;
            }
            orders.push(Order::Open);
        }
        orders
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
            takes_work,
        }
    }

    /// What a lane in term 1 with session 1 does next.
    #[rstest]
    #[case::nothing_new(situation(Some(1), 1, true), vec![Order::Open])]
    #[case::plugin_dies(situation(Some(1), 1, false), vec![Order::Close])]
    #[case::another_process_at_the_same_path(situation(Some(1), 2, true), vec![Order::LookAgain, Order::Open])]
    #[case::another_process_not_ready_yet(situation(Some(1), 2, false), vec![Order::Close])]
    #[case::leadership_lost(situation(None, 1, true), vec![Order::Close])]
    #[case::won_anew(situation(Some(2), 1, true), vec![Order::BeginTerm(epoch(2)), Order::Open])]
    #[case::won_anew_without_a_plugin(situation(Some(2), 1, false), vec![Order::Close, Order::BeginTerm(epoch(2))])]
    #[case::won_anew_with_another_session(situation(Some(2), 2, true), vec![Order::BeginTerm(epoch(2)), Order::Open])]
    fn a_working_lane(#[case] now: Situation, #[case] orders: Vec<Order>) {
        let mut lane = Lane::default();
        lane.step(&situation(Some(1), 1, true));
        assert_eq!(lane.step(&now), orders);
    }

    #[test]
    fn every_object_is_looked_at_once_for_each_session_however_often_it_is_told() {
        let mut lane = Lane::default();
        let mut looks = 0;
        for session in [1, 1, 2, 2, 2, 3] {
            for takes_work in [false, true, true] {
                let orders = lane.step(&situation(Some(1), session, takes_work));
                looks += orders
                    .iter()
                    .filter(|it| matches!(it, Order::BeginTerm(_) | Order::LookAgain))
                    .count();
            }
        }
        assert_eq!(looks, 3);
    }
}
