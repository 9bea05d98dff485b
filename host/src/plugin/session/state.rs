//! The state of a session as a function of what is known about it.

use std::fmt;
use std::sync::Arc;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::Description;
use bulkhead_core::election::Epoch;

use crate::clock;

/// The states of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// The plugin is configured; there was no session yet.
    Discovered,
    /// The plugin answers, and cannot be used.
    Incompatible,
    /// There is a session; the plugin is not ready to work.
    Warming,
    /// The plugin is ready and has no `Lead` from this host.
    Standby,
    /// The plugin is ready and has a `Lead` from this host.
    Active,
    /// As active; but the plugin reports a trouble.
    Degraded,
    /// The plugin, or this host, is about to end: nothing new is sent.
    Draining,
    /// The session ended; the next one is tried.
    Gone,
}

impl SessionState {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Discovered,
        Self::Incompatible,
        Self::Warming,
        Self::Standby,
        Self::Active,
        Self::Degraded,
        Self::Draining,
        Self::Gone,
    ];

    /// Whether controllers may send work.
    pub const fn takes_work(self) -> bool {
        matches!(self, Self::Active | Self::Degraded)
    }

    /// Its name, as `/readyz/plugins` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Discovered => "discovered",
            Self::Incompatible => "incompatible",
            Self::Warming => "warming",
            Self::Standby => "standby",
            Self::Active => "active",
            Self::Degraded => "degraded",
            Self::Draining => "draining",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The state of a plugin's session.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The state.
    pub state: SessionState,
    /// Since when it is in this state.
    pub since: Instant,
    /// Why, for people; may be empty.
    pub reason: String,
    /// What the plugin said of itself when the session began; `None` without a session.
    pub description: Option<Arc<Description>>,
    /// Raised with each new session; 0 before the first.
    pub session: u64,
    /// How long processes may write by a `Lead` of this host.
    pub led: Led,
}

impl SessionView {
    /// No session yet.
    pub(crate) fn new() -> Self {
        Self {
            state: SessionState::Discovered,
            since: clock::now(),
            reason: String::new(),
            description: None,
            session: 0,
            led: Led::default(),
        }
    }

    /// The present sessions may write until then; whether that is news.
    pub(crate) fn set_led(&mut self, until: Option<Instant>) -> bool {
        let is_new = self.led.session != until;
        self.led.session = until;
        is_new
    }

    /// A session that ended may write until then; whether that is news.
    pub(crate) fn remember(&mut self, until: Option<Instant>) -> bool {
        let is_new = until > self.led.before;
        self.led.before = self.led.before.max(until);
        is_new
    }

    /// The state is this from now on; whether that is news.
    pub(crate) fn becomes(&mut self, state: SessionState, reason: String, now: Instant) -> bool {
        if self.state == state && self.reason == reason {
            return false;
        }
        if self.state != state {
            self.since = now;
        }
        self.state = state;
        self.reason = reason;
        true
    }
}

/// Until when, at the latest, plugin processes may start writes because of what this host told them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Led {
    /// By the present session; `None`: it has no `Lead`, or has answered that it stands down.
    session: Option<Instant>,
    /// By sessions that ended while a `Lead` was in force: their process may live on.
    before: Option<Instant>,
}

impl Led {
    /// The end of the last right; `None`: nobody has one. It may lie in the past.
    pub fn until(self) -> Option<Instant> {
        self.session.max(self.before)
    }

    /// Another session with this process told it a `Lead` that ends at `until` at the latest.
    pub(super) fn inherited(&mut self, until: Instant) {
        self.before = self.before.max(Some(until));
    }

    /// The session is told a `Lead` that ends at `until` at the latest.
    pub(super) fn told(&mut self, until: Instant) {
        self.session = self.session.max(Some(until));
    }

    /// The session has answered that it stands down.
    pub(super) const fn stood_down(&mut self) {
        self.session = None;
    }

    /// The session ended, and nobody knows what its process does.
    pub(crate) fn session_ended(&mut self) {
        self.before = self.until();
        self.session = None;
    }
}

/// What is known of a live session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Whether the service's health is SERVING.
    pub(crate) serving: bool,
    /// Why it is not, for people.
    pub(crate) unready: String,
    /// The plugin's right to write.
    pub(crate) lead: LeadFact,
    /// This host is about to stop leading or to end.
    pub(crate) host_drains: bool,
    /// The plugin reported that it is about to end.
    pub(crate) drains: bool,
    /// The trouble that the plugin reported, or shows.
    pub(crate) trouble: Option<String>,
}

/// A plugin's right to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeadFact {
    /// It has none from this host.
    #[default]
    None,
    /// It would not take it.
    Refused(String),
    /// It has one of this term, and has not been heard to be ready since: the term may have to be prepared.
    Taken(Epoch),
    /// It has one of this term, and was ready for it.
    Granted(Epoch),
}

impl LeadFact {
    /// The plugin takes a `Lead` of `epoch`. Only the first of a term makes it prepare anything.
    pub(super) fn take(&mut self, epoch: &Epoch) {
        match self {
            Self::Taken(known) | Self::Granted(known) if known == epoch => {}
            Self::None | Self::Refused(_) | Self::Taken(_) | Self::Granted(_) => {
                *self = Self::Taken(epoch.clone());
            }
        }
    }

    /// The term that the plugin has taken and was not heard to be ready for.
    pub(super) const fn unconfirmed(&self) -> Option<&Epoch> {
        match self {
            Self::Taken(epoch) => Some(epoch),
            Self::None | Self::Refused(_) | Self::Granted(_) => None,
        }
    }

    /// The plugin is ready: it was asked after it had taken `asked_for`.
    pub(super) fn confirm(&mut self, asked_for: &Epoch) {
        if self.unconfirmed() == Some(asked_for) {
            *self = Self::Granted(asked_for.clone());
        }
    }
}

impl Facts {
    /// The state that follows, and why.
    pub(crate) fn state(&self) -> (SessionState, String) {
        if self.drains {
            return (SessionState::Draining, "it is about to end".to_owned());
        }
        if self.host_drains {
            return (
                SessionState::Draining,
                "this host is about to stop leading".to_owned(),
            );
        }
        if !self.serving {
            return (SessionState::Warming, self.unready.clone());
        }
        match (&self.lead, &self.trouble) {
            (LeadFact::None | LeadFact::Taken(_), _) => (SessionState::Standby, String::new()),
            (LeadFact::Refused(why), _) => (SessionState::Standby, why.clone()),
            (LeadFact::Granted(_), Some(trouble)) => (SessionState::Degraded, trouble.clone()),
            (LeadFact::Granted(_), None) => (SessionState::Active, String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    #[test]
    fn the_end_of_a_session_is_not_the_end_of_its_right() {
        let at = |seconds| Instant::from_origin(Duration::from_secs(seconds));
        let mut led = Led::default();
        assert_eq!(led.until(), None);
        led.told(at(13));
        led.session_ended();
        assert_eq!(led.until(), Some(at(13)));
        led.told(at(20));
        assert_eq!(led.until(), Some(at(20)));
        led.stood_down();
        assert_eq!(led.until(), Some(at(13)), "the other process has not been told");
    }

    fn well() -> Facts {
        Facts {
            serving: true,
            lead: LeadFact::Granted(epoch(1)),
            ..Facts::default()
        }
    }

    fn epoch(transitions: i64) -> Epoch {
        Epoch {
            lease_uid: "lease".to_owned(),
            transitions,
        }
    }

    #[rstest]
    #[case::is_ready(LeadFact::Taken(epoch(1)), 1, LeadFact::Granted(epoch(1)))]
    #[case::was_asked_before_this_term(LeadFact::Taken(epoch(2)), 1, LeadFact::Taken(epoch(2)))]
    #[case::was_known(LeadFact::Granted(epoch(1)), 1, LeadFact::Granted(epoch(1)))]
    #[case::gave_it_back_meanwhile(LeadFact::None, 1, LeadFact::None)]
    fn a_plugin_is_ready_for_the_term_that_it_was_asked_about(
        #[case] mut lead: LeadFact,
        #[case] asked_for: i64,
        #[case] then: LeadFact,
    ) {
        lead.confirm(&epoch(asked_for));
        assert_eq!(lead, then);
    }

    #[rstest]
    #[case::the_first(LeadFact::None, LeadFact::Taken(epoch(1)))]
    #[case::at_last(LeadFact::Refused("taken".into()), LeadFact::Taken(epoch(1)))]
    #[case::a_renewal(LeadFact::Granted(epoch(1)), LeadFact::Granted(epoch(1)))]
    #[case::another_term(LeadFact::Granted(epoch(0)), LeadFact::Taken(epoch(1)))]
    fn only_the_first_lead_of_a_term_has_to_be_confirmed(#[case] mut lead: LeadFact, #[case] then: LeadFact) {
        lead.take(&epoch(1));
        assert_eq!(lead, then);
    }

    #[rstest]
    #[case::all_is_well(well(), SessionState::Active, "")]
    #[case::before_the_first_health_check(Facts::default(), SessionState::Warming, "")]
    #[case::led_but_not_ready(
        Facts { serving: false, unready: "lock held".into(), ..well() }, SessionState::Warming, "lock held"
    )]
    #[case::ready_without_a_lead(Facts { lead: LeadFact::None, ..well() }, SessionState::Standby, "")]
    #[case::ready_before_it_was_led(
        Facts { lead: LeadFact::Taken(epoch(1)), ..well() }, SessionState::Standby, ""
    )]
    #[case::another_host_leads_it(
        Facts { lead: LeadFact::Refused("taken".into()), ..well() }, SessionState::Standby, "taken"
    )]
    #[case::trouble(Facts { trouble: Some("quota".into()), ..well() }, SessionState::Degraded, "quota")]
    #[case::trouble_of_a_standby_is_no_news(
        Facts { trouble: Some("quota".into()), lead: LeadFact::None, ..well() }, SessionState::Standby, ""
    )]
    #[case::the_plugin_ends(Facts { drains: true, ..well() }, SessionState::Draining, "it is about to end")]
    #[case::the_host_ends(
        Facts { host_drains: true, lead: LeadFact::None, ..well() },
        SessionState::Draining,
        "this host is about to stop leading"
    )]
    fn the_state_follows_from_the_facts(
        #[case] facts: Facts,
        #[case] state: SessionState,
        #[case] reason: &str,
    ) {
        assert_eq!(facts.state(), (state, reason.to_owned()));
    }

    #[rstest]
    fn only_a_plugin_that_may_write_gets_work(
        #[values(SessionState::Active, SessionState::Degraded)] yes: SessionState,
        #[values(
            SessionState::Discovered,
            SessionState::Incompatible,
            SessionState::Warming,
            SessionState::Standby,
            SessionState::Draining,
            SessionState::Gone
        )]
        no: SessionState,
    ) {
        assert!(yes.takes_work() && !no.takes_work());
    }
}
