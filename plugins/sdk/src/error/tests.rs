use rstest::rstest;
use tonic::Status;
use tonic_types::StatusExt as _;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The protocol's table: each constructor's code, reason and certainty.
#[rstest]
#[case(
    PluginError::invalid_spec("spec.ports[0]", "x"),
    Code::InvalidArgument,
    "INVALID_SPEC",
    "NOT_APPLIED"
)]
#[case(
    PluginError::batch_too_large(9, 3),
    Code::InvalidArgument,
    "BATCH_TOO_LARGE",
    "NOT_APPLIED"
)]
#[case(
    PluginError::bad_page_token("x"),
    Code::InvalidArgument,
    "BAD_PAGE_TOKEN",
    "NOT_APPLIED"
)]
#[case(
    PluginError::not_configured("x"),
    Code::FailedPrecondition,
    "NOT_CONFIGURED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::not_leading("x"),
    Code::FailedPrecondition,
    "NOT_LEADING",
    "NOT_APPLIED"
)]
#[case(
    PluginError::foreign_owner("x"),
    Code::FailedPrecondition,
    "FOREIGN_OWNER",
    "NOT_APPLIED"
)]
#[case(PluginError::in_use("x"), Code::FailedPrecondition, "IN_USE", "NOT_APPLIED")]
#[case(
    PluginError::protected("x"),
    Code::FailedPrecondition,
    "PROTECTED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::node_set_unknown("x"),
    Code::FailedPrecondition,
    "NODE_SET_UNKNOWN",
    "NOT_APPLIED"
)]
#[case(
    PluginError::operation_in_progress("x", SECOND),
    Code::Aborted,
    "OPERATION_IN_PROGRESS",
    "NOT_APPLIED"
)]
#[case(PluginError::conflict("x"), Code::Aborted, "CONFLICT", "NOT_APPLIED")]
#[case(
    PluginError::referenced_object_missing("x"),
    Code::NotFound,
    "REFERENCED_OBJECT_MISSING",
    "NOT_APPLIED"
)]
#[case(
    PluginError::permission_missing("x"),
    Code::PermissionDenied,
    "PERMISSION_MISSING",
    "NOT_APPLIED"
)]
#[case(
    PluginError::credentials_invalid("x"),
    Code::Unauthenticated,
    "CREDENTIALS_INVALID",
    "NOT_APPLIED"
)]
#[case(
    PluginError::credentials_expired("x"),
    Code::Unauthenticated,
    "CREDENTIALS_EXPIRED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::rate_limited("x", SECOND),
    Code::ResourceExhausted,
    "RATE_LIMITED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::quota_exceeded("x"),
    Code::ResourceExhausted,
    "QUOTA_EXCEEDED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::limit_reached("x"),
    Code::ResourceExhausted,
    "LIMIT_REACHED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::message_too_large(1),
    Code::ResourceExhausted,
    "MESSAGE_TOO_LARGE",
    "NOT_APPLIED"
)]
#[case(
    PluginError::cloud_unavailable("x"),
    Code::Unavailable,
    "CLOUD_UNAVAILABLE",
    "UNKNOWN"
)]
#[case(PluginError::draining(), Code::Unavailable, "DRAINING", "NOT_APPLIED")]
#[case(PluginError::provider_error("x"), Code::Unknown, "PROVIDER_ERROR", "UNKNOWN")]
#[case(PluginError::plugin_bug("x"), Code::Internal, "PLUGIN_BUG", "UNKNOWN")]
#[case(PluginError::panicked("x"), Code::Internal, "PANIC", "UNKNOWN")]
#[case(
    PluginError::snapshot_expired("x"),
    Code::OutOfRange,
    "SNAPSHOT_EXPIRED",
    "NOT_APPLIED"
)]
#[case(
    PluginError::unimplemented("x"),
    Code::Unimplemented,
    "UNIMPLEMENTED",
    "NOT_APPLIED"
)]
fn a_constructor_decides_code_reason_and_certainty(
    #[case] error: PluginError,
    #[case] code: Code,
    #[case] reason: &str,
    #[case] certainty: &str,
) {
    let retry_after = error.retry_after();
    let status = Status::from(error);
    assert_eq!(status.code(), code);
    let details = status.get_error_details();
    let info = details.error_info().expect("ErrorInfo");
    assert_eq!(info.domain, "bulkhead.dev");
    assert_eq!(info.reason, reason);
    assert_eq!(
        info.metadata.get("certainty").map(String::as_str),
        Some(certainty)
    );
    assert_eq!(
        details.retry_info().and_then(|info| info.retry_delay),
        retry_after
    );
}

#[test]
fn every_reason_of_the_protocol_has_a_row_above() {
    // The last reason is 26; the row count of the table above follows it.
    assert!(ErrorReason::try_from(26).is_ok());
    assert!(ErrorReason::try_from(27).is_err());
}

#[test]
fn waiting_is_advised_only_where_it_helps() {
    let limited = PluginError::rate_limited("x", SECOND);
    assert_eq!(limited.retry_after(), Some(SECOND));
    assert_eq!(PluginError::conflict("x").retry_after(), None);
}

#[test]
fn the_field_of_a_wrong_spec_is_named_in_status_and_body() {
    let error = PluginError::invalid_spec("spec.ports[1].protocol", "SCTP is not forwarded");
    let status = Status::from(error.clone());
    let violation = &status
        .get_details_bad_request()
        .expect("BadRequest")
        .field_violations[0];
    assert_eq!(violation.field, "spec.ports[1].protocol");
    let body = v1::Error::from(error);
    assert_eq!(body.field_violations[0].description, "SCTP is not forwarded");
    assert_eq!(body.reason(), ErrorReason::InvalidSpec);
}

#[test]
fn the_cloud_s_code_and_request_id_travel_along() {
    let error = PluginError::provider_error("refused").with_cloud("VpcLimit", "req-9");
    let details = Status::from(error.clone()).get_error_details();
    let metadata = &details.error_info().expect("ErrorInfo").metadata;
    assert_eq!(metadata["cloud_code"], "VpcLimit");
    assert_eq!(metadata["cloud_request_id"], "req-9");
    assert_eq!(v1::Error::from(error).cloud_request_id, "req-9");
}

#[test]
fn a_megabyte_of_text_and_many_fields_still_fit_into_a_status() {
    let long = "é".repeat(1 << 20);
    let mut error = PluginError::invalid_spec(&long, &long)
        .with_cloud(&long, &long)
        .with_retry_after(SECOND);
    for _ in 0..500 {
        error = error.with_field(&long, &long);
    }
    assert!(error.message().len() <= MAX_ERROR_TEXT_BYTES);
    let status = Status::from(error);
    assert!(
        status.details().len() <= MAX_DETAILS_BYTES,
        "{}",
        status.details().len()
    );
    assert!(status.get_details_error_info().is_some());
    // Percent-encoding triples what is not ASCII, base64 adds a third.
    assert!(3 * status.message().len() + status.details().len() * 4 / 3 < 8 << 10);
}

#[test]
fn control_characters_never_reach_headers_events_or_logs() {
    let error = PluginError::provider_error("one\ntwo\u{1b}[31m\0");
    assert_eq!(error.message(), "one two [31m ");
}

#[test]
fn certainty_may_be_said_where_it_is_known() {
    let error = PluginError::cloud_unavailable("the balancer is made, its tags are not")
        .with_certainty(Certainty::Applied);
    let body = v1::Error::from(error);
    assert_eq!(body.certainty(), Certainty::Applied);
}
