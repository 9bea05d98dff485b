//! What each row of the table of `SPEC.md` section 3 does to the gates, and how they open again.

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::cloud::Certainty;

const BOTH: [Capability; 2] = [Capability::Instances, Capability::Lb];

fn at(seconds: u64) -> Instant {
    Instant::from_origin(Duration::from_secs(seconds))
}

fn failure(reason: impl Into<Option<Reason>>) -> Failure {
    Failure {
        reason: reason.into(),
        certainty: Certainty::Unknown,
        message: String::new(),
        retry_after: None,
    }
}

/// A plugin with two capabilities.
struct Plugin(Gates);

impl Plugin {
    fn new() -> Self {
        let mut gates = Gates::new(Pauses::DEFAULT);
        gates.session_began(&BOTH);
        Self(gates)
    }

    /// A call that is let through, begins and ends at `seconds`.
    fn call(&mut self, capability: Capability, key: &str, failure: Option<&Failure>, seconds: u64) {
        if let Ok(ticket) = self.0.begin(capability, at(seconds)) {
            self.end(ticket, key, failure, seconds);
        }
    }

    fn end(&mut self, ticket: Ticket, key: &str, failure: Option<&Failure>, seconds: u64) {
        let end = CallEnd {
            subject: Some(key),
            kind: CallKind::Write,
            failure,
        };
        self.0.ended(ticket, end, at(seconds));
    }

    fn says(&mut self, credentials: Option<bool>, seconds: u64) {
        let report = Report {
            credentials,
            throttled_for: None,
        };
        self.0.reported(report, at(seconds));
    }

    /// The reasons why the gates of instances and load balancers are shut.
    fn shut(&self, seconds: u64) -> [Option<Why>; 2] {
        BOTH.map(|capability| match self.0.gate(capability, at(seconds)) {
            Gate::Shut { why, .. } => Some(why),
            Gate::Open | Gate::Trial { .. } => None,
        })
    }

    fn gate(&self, seconds: u64) -> Gate {
        self.0.gate(Capability::Lb, at(seconds))
    }
}

/// What twenty Services whose calls all fail so, one a second, do to the gates of instances and load balancers.
#[rstest]
#[case::invalid_spec(Some(Reason::InvalidSpec), [None, None])]
#[case::batch_too_large(Some(Reason::BatchTooLarge), [None, None])]
#[case::bad_page_token(Some(Reason::BadPageToken), [None, None])]
#[case::not_configured(Some(Reason::NotConfigured), [None, None])]
#[case::not_leading(Some(Reason::NotLeading), [None, None])]
#[case::foreign_owner(Some(Reason::ForeignOwner), [None, None])]
#[case::in_use(Some(Reason::InUse), [None, None])]
#[case::protected(Some(Reason::Protected), [None, None])]
#[case::node_set_unknown(Some(Reason::NodeSetUnknown), [None, None])]
#[case::operation_in_progress(Some(Reason::OperationInProgress), [None, None])]
#[case::conflict(Some(Reason::Conflict), [None, None])]
#[case::referenced_object_missing(Some(Reason::ReferencedObjectMissing), [None, None])]
#[case::permission_missing(Some(Reason::PermissionMissing), [None, None])]
#[case::credentials_invalid(Some(Reason::CredentialsInvalid), [Some(Why::Credentials), Some(Why::Credentials)])]
#[case::credentials_expired(Some(Reason::CredentialsExpired), [Some(Why::Credentials), Some(Why::Credentials)])]
#[case::rate_limited(Some(Reason::RateLimited), [Some(Why::Throttled), Some(Why::Throttled)])]
#[case::quota_exceeded(Some(Reason::QuotaExceeded), [None, None])]
#[case::limit_reached(Some(Reason::LimitReached), [None, None])]
#[case::message_too_large(Some(Reason::MessageTooLarge), [None, None])]
#[case::cloud_unavailable(Some(Reason::CloudUnavailable), [None, Some(Why::Unreached)])]
#[case::draining(Some(Reason::Draining), [None, None])]
#[case::our_deadline(Some(Reason::DeadlineExceeded), [None, Some(Why::Unreached)])]
#[case::unimplemented(Some(Reason::Unimplemented), [None, Some(Why::Violated)])]
#[case::provider_error(Some(Reason::ProviderError), [None, None])]
#[case::plugin_bug(Some(Reason::PluginBug), [None, None])]
#[case::panic(Some(Reason::Panic), [None, None])]
#[case::snapshot_expired(Some(Reason::SnapshotExpired), [None, None])]
#[case::protocol_violation(Some(Reason::ProtocolViolation), [None, Some(Why::Violated)])]
#[case::cancelled_by_the_host(Some(Reason::Cancelled), [None, None])]
#[case::one_connection_lost(Some(Reason::Disconnected), [None, None])]
#[case::unattributed(None, [None, Some(Why::Unreached)])]
fn twenty_failures(#[case] reason: Option<Reason>, #[case] shut: [Option<Why>; 2]) {
    let mut plugin = Plugin::new();
    for key in 0..20 {
        plugin.call(Capability::Lb, &key.to_string(), Some(&failure(reason)), key);
    }
    assert_eq!(plugin.shut(19), shut);
}

#[rstest]
#[case::cannot_implement_what_it_declares(Reason::Unimplemented, Some(Why::Violated))]
#[case::answers_nonsense_about_one_object(Reason::ProtocolViolation, None)]
#[case::cannot_reach_the_cloud_for_one_object(Reason::CloudUnavailable, None)]
fn one_key_is_no_verdict_on_a_capability_unless_it(#[case] reason: Reason, #[case] shut: Option<Why>) {
    let mut plugin = Plugin::new();
    for second in 0..20 {
        plugin.call(Capability::Lb, "web", Some(&failure(reason)), second);
    }
    assert_eq!(plugin.shut(19), [None, shut]);
}

#[test]
fn a_process_that_dies_with_twenty_calls_is_one_failure_and_five_such_open_the_breaker() {
    let mut plugin = Plugin::new();
    for session in 0..5 {
        assert_eq!(plugin.shut(session), [None, None], "session {session}");
        let tickets: Vec<_> = (0..20)
            .map(|_| plugin.0.begin(Capability::Lb, at(session)).unwrap())
            .collect();
        for (key, ticket) in tickets.into_iter().enumerate() {
            plugin.end(
                ticket,
                &key.to_string(),
                Some(&failure(Reason::Disconnected)),
                session,
            );
        }
        plugin.0.session_began(&BOTH);
    }
    assert_eq!(plugin.shut(5), [None, Some(Why::Unreached)]);
}

#[rstest]
#[case::four(4, 1, false)]
#[case::five(5, 1, true)]
#[case::five_within_ten_minutes(5, 150, true)]
#[case::five_in_more(5, 151, false)]
#[case::many_in_more(50, 151, false)]
fn a_plugin_is_unsound_after(#[case] faults: u64, #[case] every: u64, #[case] expected: bool) {
    let mut plugin = Plugin::new();
    for fault in 0..faults {
        plugin.call(
            Capability::Lb,
            "web",
            Some(&failure(Reason::Panic)),
            fault * every,
        );
    }
    let now = (faults - 1) * every;
    assert_eq!(plugin.0.view(at(now)).is_unsound, expected);
    assert!(!plugin.0.view(at(now + 601)).is_unsound, "it is forgotten");
    plugin.0.session_began(&BOTH);
    assert!(!plugin.0.view(at(now)).is_unsound, "another process");
}

fn frozen() -> Plugin {
    let mut plugin = Plugin::new();
    plugin.call(
        Capability::Instances,
        "node",
        Some(&failure(Reason::CredentialsExpired)),
        0,
    );
    plugin
}

const TRIAL: Gate = Gate::Trial {
    why: Why::Credentials,
};
const FROZEN: Gate = Gate::Shut {
    why: Why::Credentials,
    until: None,
};

/// What a frozen plugin says of its credentials at which second, and the gate after that.
#[rstest]
#[case::what_it_believed_before(&[(2, Some(true))], FROZEN)]
#[case::it_has_not_noticed_for_long(&[(2, Some(true)), (30, Some(true))], Gate::Open)]
#[case::it_has_new_ones(&[(2, Some(false)), (4, Some(true))], Gate::Open)]
#[case::it_says_that_they_are_bad(&[(2, Some(false)), (300, Some(false))], FROZEN)]
#[case::it_does_not_say(&[(2, None), (29, None)], FROZEN)]
#[case::it_does_not_say_for_long(&[(2, None), (30, None)], TRIAL)]
fn a_freeze_ends(#[case] said: &[(u64, Option<bool>)], #[case] gate: Gate) {
    let mut plugin = frozen();
    for (second, credentials) in said {
        plugin.says(*credentials, *second);
    }
    assert_eq!(plugin.gate(300), gate);
}

#[rstest]
#[case::accepted(None, Gate::Open)]
#[case::the_object_is_refused(Some(Reason::ProviderError), Gate::Open)]
#[case::refused_again(Some(Reason::CredentialsInvalid), FROZEN)]
#[case::nobody_knows(Some(Reason::CloudUnavailable), TRIAL)]
fn one_call_decides_on_new_credentials(#[case] reason: Option<Reason>, #[case] gate: Gate) {
    let mut plugin = frozen();
    plugin.says(None, 30);
    let trial = plugin.0.begin(Capability::Lb, at(31)).unwrap();
    assert_eq!(
        plugin.0.begin(Capability::Instances, at(31)),
        Err(Why::Credentials),
        "one at a time, whatever its capability"
    );
    let failure = reason.map(failure);
    plugin.end(trial, "web", failure.as_ref(), 32);
    assert_eq!(plugin.gate(32), gate);
}

#[test]
fn another_process_is_tried_with_one_call() {
    let mut plugin = frozen();
    plugin.0.session_began(&BOTH);
    assert_eq!(plugin.gate(1), TRIAL);
    let trial = plugin.0.begin(Capability::Lb, at(1)).unwrap();
    plugin.0.abandoned(trial, at(2));
    assert!(plugin.0.begin(Capability::Lb, at(2)).is_ok());
}

#[test]
fn calls_from_before_a_freeze_do_not_end_it() {
    let mut plugin = Plugin::new();
    let early = plugin.0.begin(Capability::Lb, at(0)).unwrap();
    plugin.call(Capability::Lb, "a", Some(&failure(Reason::CredentialsInvalid)), 1);
    plugin.end(early, "b", None, 2);
    assert_eq!(plugin.gate(2), FROZEN);
}

/// Seconds at which calls are refused, and what was asked for with it; until when the plugin is left alone.
#[rstest]
#[case::a_second_by_itself(&[(10, None)], 11)]
#[case::what_the_cloud_asks_for(&[(10, Some(7))], 17)]
#[case::no_more_than_a_quarter_of_an_hour(&[(10, Some(7200))], 910)]
#[case::refused_again_after_the_pause(&[(10, None), (11, None), (13, None)], 17)]
fn a_refused_rate_pauses_the_plugin(#[case] refused: &[(u64, Option<u64>)], #[case] until: u64) {
    let mut plugin = Plugin::new();
    for (second, asked) in refused {
        let failure = Failure {
            retry_after: asked.map(Duration::from_secs),
            ..failure(Reason::RateLimited)
        };
        // Begun a moment before it is refused: after the pause before has ended.
        let ticket = plugin
            .0
            .begin(Capability::Lb, at(*second) + Duration::from_millis(1))
            .unwrap();
        let end = CallEnd {
            subject: None,
            kind: CallKind::Read,
            failure: Some(&failure),
        };
        plugin.0.ended(ticket, end, at(*second));
    }
    let last = refused.last().unwrap().0;
    assert_eq!(plugin.0.next_change(at(last)), Some(at(until)));
    let why = Some(Why::Throttled);
    assert_eq!(plugin.shut(until - 1), [why, why]);
    assert_eq!(plugin.gate(until), Gate::Open);
}

#[test]
fn calls_that_are_refused_together_are_one_refusal() {
    let mut plugin = Plugin::new();
    let tickets: Vec<_> = (0..16)
        .map(|_| plugin.0.begin(Capability::Lb, at(0)).unwrap())
        .collect();
    for ticket in tickets {
        plugin.end(ticket, "web", Some(&failure(Reason::RateLimited)), 5);
    }
    assert_eq!(plugin.0.next_change(at(5)), Some(at(6)));
}

#[rstest]
#[case::as_asked(Some(20), 0, Some(20))]
#[case::within_reason(Some(86_400), 0, Some(900))]
#[case::not_at_all(None, 0, None)]
fn a_plugin_that_says_it_is_throttled_is_left_alone(
    #[case] asked: Option<u64>,
    #[case] now: u64,
    #[case] until: Option<u64>,
) {
    let mut plugin = Plugin::new();
    let report = Report {
        credentials: None,
        throttled_for: asked.map(Duration::from_secs),
    };
    plugin.0.reported(report, at(now));
    assert_eq!(plugin.0.next_change(at(now)), until.map(at));
    plugin.says(None, now + 1);
    assert_eq!(plugin.gate(now + 1), Gate::Open, "its last word counts");
}

#[test]
fn a_capability_that_is_not_declared_any_more_is_forgotten() {
    let mut plugin = Plugin::new();
    plugin.0.session_began(&[Capability::Instances]);
    assert_eq!(plugin.0.view(at(0)).gates.len(), 1);
    assert_eq!(plugin.0.view(at(0)).of(Capability::Lb), Gate::Open);
}

fn reasons() -> impl Strategy<Value = Option<Reason>> {
    proptest::sample::select(vec![
        None,
        Some(Reason::ProviderError),
        Some(Reason::CloudUnavailable),
        Some(Reason::CredentialsInvalid),
        Some(Reason::RateLimited),
        Some(Reason::Unimplemented),
        Some(Reason::Panic),
        Some(Reason::Cancelled),
    ])
}

proptest! {
    /// Whatever happens, a plugin that says that all is well and answers is used again.
    #[test]
    fn no_gate_stays_shut(
        calls in proptest::collection::vec((reasons(), 0_u64..40, proptest::option::of(any::<bool>())), 0..100),
    ) {
        let mut plugin = Plugin::new();
        let mut now = 0;
        for (reason, pause, credentials) in calls {
            now += pause;
            plugin.call(Capability::Lb, &now.to_string(), Some(&failure(reason)), now);
            plugin.says(credentials, now);
        }
        now += 1000;
        plugin.says(None, now);
        plugin.call(Capability::Lb, "web", None, now);
        prop_assert_eq!(plugin.gate(now), Gate::Open);
    }

    /// A change that is not noticed is shown to nobody.
    #[test]
    fn a_view_is_known_to_be_old_exactly_when_a_new_one_differs(
        calls in proptest::collection::vec((reasons(), 0_u64..40, any::<bool>()), 0..60),
    ) {
        let mut plugin = Plugin::new();
        let (mut now, mut seen) = (0, plugin.0.view(at(0)));
        for (reason, pause, is_shown) in calls {
            now += pause;
            plugin.call(Capability::Lb, &now.to_string(), Some(&failure(reason)), now);
            let new = plugin.0.view(at(now));
            prop_assert_eq!(plugin.0.are_as_in(&seen, at(now)), new == seen);
            if is_shown {
                seen = new;
            }
        }
    }

    #[test]
    fn calls_of_one_capability_never_shut_the_gate_of_another_unless_for_the_whole_plugin(
        calls in proptest::collection::vec((reasons(), 0_u64..40), 0..100),
    ) {
        let mut plugin = Plugin::new();
        let mut now = 0;
        for (reason, pause) in calls {
            now += pause;
            plugin.call(Capability::Lb, &now.to_string(), Some(&failure(reason)), now);
            let [instances, _] = plugin.shut(now);
            prop_assert!(matches!(instances, None | Some(Why::Credentials | Why::Throttled)));
            plugin.says(Some(true), now);
        }
    }
}
