//! The table of `SPEC.md` section 3, a row each.

use rstest::rstest;

use super::*;

use CallKind::{Read, Write};
use Next::{After, AwaitChange};

fn failure(reason: impl Into<Option<Reason>>, certainty: Certainty) -> Failure {
    Failure {
        reason: reason.into(),
        certainty,
        message: String::new(),
        retry_after: None,
    }
}

const fn seconds(first: u64, cap: u64) -> Backoff {
    Backoff::new(Duration::from_secs(first), Duration::from_secs(cap))
}

const ORDINARILY: Again = Again::Backoff(seconds(1, 300));
const SLOWLY: Again = Again::OnChange(Some(Duration::from_secs(300)));
const FROZEN_PLUGIN: Again = Again::Freeze(Duration::from_secs(30));

#[rstest]
#[case::invalid_spec(Some(Reason::InvalidSpec), Again::OnChange(None), Against::Object)]
#[case::batch_too_large(Some(Reason::BatchTooLarge), Again::Halve, Against::Object)]
#[case::bad_page_token(Some(Reason::BadPageToken), Again::StartOver, Against::Nothing)]
#[case::not_configured(Some(Reason::NotConfigured), SLOWLY, Against::Object)]
#[case::not_leading(Some(Reason::NotLeading), Again::WhenLed, Against::Nothing)]
#[case::foreign_owner(
    Some(Reason::ForeignOwner),
    Again::OnChange(Some(Duration::from_secs(600))),
    Against::Object
)]
#[case::in_use(Some(Reason::InUse), SLOWLY, Against::Object)]
#[case::protected(Some(Reason::Protected), SLOWLY, Against::Object)]
#[case::node_set_unknown(Some(Reason::NodeSetUnknown), SLOWLY, Against::Object)]
#[case::operation_in_progress(
    Some(Reason::OperationInProgress),
    Again::Soon(Duration::from_secs(2)),
    Against::Nothing
)]
#[case::conflict(Some(Reason::Conflict), Again::Soon(Duration::from_secs(2)), Against::Nothing)]
#[case::referenced_object_missing(Some(Reason::ReferencedObjectMissing), SLOWLY, Against::Object)]
#[case::permission_missing(
    Some(Reason::PermissionMissing),
    Again::Backoff(seconds(60, 900)),
    Against::Object
)]
#[case::credentials_invalid(Some(Reason::CredentialsInvalid), FROZEN_PLUGIN, Against::Nothing)]
#[case::credentials_expired(Some(Reason::CredentialsExpired), FROZEN_PLUGIN, Against::Nothing)]
#[case::rate_limited(
    Some(Reason::RateLimited),
    Again::PausePlugin(seconds(1, 300)),
    Against::Nothing
)]
#[case::quota_exceeded(
    Some(Reason::QuotaExceeded),
    Again::OnCapacity(seconds(300, 1800)),
    Against::Object
)]
#[case::limit_reached(
    Some(Reason::LimitReached),
    Again::OnCapacity(seconds(300, 1800)),
    Against::Object
)]
#[case::message_too_large(Some(Reason::MessageTooLarge), Again::Halve, Against::Object)]
#[case::cloud_unavailable(Some(Reason::CloudUnavailable), ORDINARILY, Against::Breaker)]
#[case::draining(Some(Reason::Draining), Again::WhenConnected, Against::Nothing)]
#[case::our_deadline(Some(Reason::DeadlineExceeded), ORDINARILY, Against::Breaker)]
#[case::unimplemented(Some(Reason::Unimplemented), ORDINARILY, Against::Protocol)]
#[case::provider_error(Some(Reason::ProviderError), ORDINARILY, Against::Object)]
#[case::plugin_bug(Some(Reason::PluginBug), ORDINARILY, Against::Soundness)]
#[case::panic(Some(Reason::Panic), ORDINARILY, Against::Soundness)]
#[case::snapshot_expired(Some(Reason::SnapshotExpired), Again::StartOver, Against::Nothing)]
#[case::protocol_violation(Some(Reason::ProtocolViolation), ORDINARILY, Against::Protocol)]
#[case::cancelled_by_the_host(Some(Reason::Cancelled), Again::Stop, Against::Nothing)]
#[case::disconnected(Some(Reason::Disconnected), Again::WhenConnected, Against::Breaker)]
#[case::gate_shut(Some(Reason::Shut), Again::WhenOpen, Against::Nothing)]
#[case::unattributed(None, ORDINARILY, Against::Breaker)]
fn a_read_that_failed(#[case] reason: Option<Reason>, #[case] again: Again, #[case] against: Against) {
    let expected = Disposition {
        again,
        look_first: false,
        against,
    };
    assert_eq!(classify(&failure(reason, Certainty::Unknown), Read), expected);
}

/// Where a write is not treated as a read with the same reason.
#[rstest]
#[case::invalid_spec(Reason::InvalidSpec, SLOWLY)]
#[case::node_set_unknown(Reason::NodeSetUnknown, Again::ResendNodeSet)]
fn a_write_goes_on_otherwise(#[case] reason: Reason, #[case] again: Again) {
    assert_eq!(
        classify(&failure(Some(reason), Certainty::NotApplied), Write).again,
        again
    );
}

#[rstest]
#[case::invalid_spec(Some(Reason::InvalidSpec), true)]
#[case::not_configured(Some(Reason::NotConfigured), true)]
#[case::foreign_owner(Some(Reason::ForeignOwner), true)]
#[case::in_use(Some(Reason::InUse), true)]
#[case::protected(Some(Reason::Protected), true)]
#[case::referenced_object_missing(Some(Reason::ReferencedObjectMissing), true)]
#[case::permission_missing(Some(Reason::PermissionMissing), true)]
#[case::quota_exceeded(Some(Reason::QuotaExceeded), true)]
#[case::limit_reached(Some(Reason::LimitReached), true)]
#[case::provider_error(Some(Reason::ProviderError), true)]
#[case::cloud_outage(Some(Reason::CloudUnavailable), true)]
#[case::nil_status(Some(Reason::ProtocolViolation), true)]
#[case::panic(Some(Reason::Panic), true)]
#[case::between_sessions(Some(Reason::Disconnected), false)]
#[case::between_terms(Some(Reason::NotLeading), false)]
#[case::bad_credentials(Some(Reason::CredentialsInvalid), true)]
#[case::rate_limited(Some(Reason::RateLimited), true)]
#[case::work_in_progress_is_no_failure(Some(Reason::OperationInProgress), false)]
#[case::gate_shut(Some(Reason::Shut), false)]
#[case::unattributed(None, true)]
fn an_object_gets_an_event_unless_it_is_between_two_turns(
    #[case] reason: Option<Reason>,
    #[case] event: bool,
) {
    assert_eq!(deserves_notice(&failure(reason, Certainty::NotApplied)), event);
}

#[rstest]
#[case::refused(Some(Reason::ProviderError), Certainty::NotApplied, false)]
#[case::failed_after_the_change(Some(Reason::ProviderError), Certainty::Applied, true)]
#[case::nobody_knows(Some(Reason::ProviderError), Certainty::Unknown, true)]
#[case::cloud_away_before_the_change(Some(Reason::CloudUnavailable), Certainty::NotApplied, false)]
#[case::cloud_away_meanwhile(Some(Reason::CloudUnavailable), Certainty::Unknown, true)]
#[case::no_session_to_send_it_over(Some(Reason::Disconnected), Certainty::NotApplied, false)]
#[case::session_lost_meanwhile(Some(Reason::Disconnected), Certainty::Unknown, true)]
#[case::deadline_whatever_is_claimed(Some(Reason::DeadlineExceeded), Certainty::NotApplied, true)]
#[case::panic_whatever_is_claimed(Some(Reason::Panic), Certainty::NotApplied, true)]
#[case::bug_whatever_is_claimed(Some(Reason::PluginBug), Certainty::NotApplied, true)]
#[case::unattributed_whatever_is_claimed(None, Certainty::NotApplied, true)]
fn a_write_that_may_have_happened_is_looked_up_first(
    #[case] reason: Option<Reason>,
    #[case] certainty: Certainty,
    #[case] look_first: bool,
) {
    assert_eq!(
        classify(&failure(reason, certainty), Write).look_first,
        look_first
    );
}

#[rstest]
#[case::none(None, 0)]
#[case::seven_seconds(Some(7), 7)]
#[case::an_hour_is_clamped(Some(3600), 900)]
fn retry_information_is_a_lower_bound(#[case] asked: Option<u64>, #[case] at_least: u64) {
    let failure = Failure {
        retry_after: asked.map(Duration::from_secs),
        ..failure(Some(Reason::CloudUnavailable), Certainty::Unknown)
    };
    let Again::Backoff(backoff) = classify(&failure, Read).again else {
        panic!("no back-off")
    };
    assert_eq!(backoff.at_least, Duration::from_secs(at_least));
}

#[rstest]
#[case::ordinary(None, Read, None, Next::RETRY)]
#[case::ordinary_with_retry_information(
    Some(Reason::CloudUnavailable),
    Write,
    Some(7),
    Next::retry_after(Duration::from_secs(7))
)]
#[case::permission(Some(Reason::PermissionMissing), Write, None, Next::Backoff(seconds(60, 900)))]
#[case::quota(Some(Reason::QuotaExceeded), Write, None, Next::Backoff(seconds(300, 1800)))]
#[case::busy(Some(Reason::OperationInProgress), Write, None, After(Duration::from_secs(2)))]
#[case::busy_with_retry_information(Some(Reason::Conflict), Write, Some(20), After(Duration::from_secs(20)))]
#[case::rate_limited(
    Some(Reason::RateLimited),
    Read,
    Some(9),
    Next::retry_after(Duration::from_secs(9))
)]
#[case::credentials(
    Some(Reason::CredentialsExpired),
    Read,
    None,
    Next::retry_after(Duration::from_secs(30))
)]
#[case::invalid_for_a_write(Some(Reason::InvalidSpec), Write, None, Next::retry_after(SLOW))]
#[case::invalid_for_a_read(Some(Reason::InvalidSpec), Read, None, AwaitChange)]
#[case::given_up(Some(Reason::Cancelled), Write, None, AwaitChange)]
#[case::no_session(Some(Reason::Disconnected), Read, None, Next::RETRY)]
#[case::not_led(Some(Reason::NotLeading), Write, None, Next::RETRY)]
#[case::gate_shut(Some(Reason::Shut), Write, None, Next::RETRY)]
fn a_pass_comes_back(
    #[case] reason: Option<Reason>,
    #[case] call: CallKind,
    #[case] retry_after: Option<u64>,
    #[case] next: Next,
) {
    let failure = Failure {
        retry_after: retry_after.map(Duration::from_secs),
        ..failure(reason, Certainty::NotApplied)
    };
    assert_eq!(after_failure(&failure, call), next);
}
