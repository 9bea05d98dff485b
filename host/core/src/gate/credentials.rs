//! Whether the cloud accepts the plugin's credentials.

use std::time::Duration;

use crate::breaker::Evidence;
use crate::clock::Instant;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Accepted,
    Refused {
        since: Instant,
        /// The plugin has said so itself, so that its word for the contrary is a change.
        admitted: bool,
    },
    OnTrial {
        is_trying: bool,
    },
}

/// Whether the cloud accepts the plugin's credentials, as far as calls and the plugin say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    state: State,
    /// Raised whenever the state changes: what was begun before says nothing of how things are since.
    turn: u32,
}

/// The right to make one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    turn: u32,
}

impl Credentials {
    pub(super) const fn are_refused(&self) -> bool {
        matches!(self.state, State::Refused { .. })
    }

    pub(super) const fn are_on_trial(&self) -> bool {
        matches!(self.state, State::OnTrial { .. })
    }

    /// Whether one more call may be made.
    pub(super) const fn has_room(&self) -> bool {
        match self.state {
            State::Accepted => true,
            State::Refused { .. } => false,
            State::OnTrial { is_trying } => !is_trying,
        }
    }

    /// A call is made, for which there is room.
    pub(super) const fn begin(&mut self) -> Pass {
        if let State::OnTrial { is_trying } = &mut self.state {
            *is_trying = true;
        }
        Pass { turn: self.turn }
    }

    pub(super) fn ended(&mut self, pass: Pass, are_refused: bool, evidence: Evidence, now: Instant) {
        if pass.turn != self.turn {
            return;
        }
        if are_refused {
            self.change_to(State::Refused {
                since: now,
                admitted: false,
            });
        } else if let State::OnTrial { is_trying } = &mut self.state {
            *is_trying = false;
            if evidence == Evidence::Reached {
                self.change_to(State::Accepted);
            }
        }
    }

    /// The plugin answered `GetStatus`; `None`: it does not speak of its credentials. A refusal stands for `pause` before
    /// its word for them, or its silence, is taken for a change.
    pub(super) fn reported(&mut self, are_valid: Option<bool>, pause: Duration, now: Instant) {
        let State::Refused { since, admitted } = &mut self.state else {
            return;
        };
        let is_due = now.saturating_since(*since) >= pause;
        match are_valid {
            Some(false) => *admitted = true,
            // At once it may be what the plugin believed before the call that failed.
            Some(true) if *admitted || is_due => self.change_to(State::Accepted),
            None if is_due => self.change_to(State::OnTrial { is_trying: false }),
            Some(true) | None => {}
        }
    }

    /// Another process may have other credentials.
    pub(super) fn session_began(&mut self) {
        if self.state != State::Accepted {
            self.change_to(State::OnTrial { is_trying: false });
        }
    }

    const fn change_to(&mut self, state: State) {
        self.state = state;
        self.turn = self.turn.wrapping_add(1);
    }
}
