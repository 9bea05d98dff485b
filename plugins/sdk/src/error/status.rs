//! A [`PluginError`] as a gRPC status with Google's error details.

use std::collections::HashMap;

use bulkhead_proto::{ERROR_CERTAINTY_KEY, ERROR_DOMAIN};
use tonic::Status;
use tonic_types::{ErrorDetails, PreconditionViolation, QuotaViolation, StatusExt as _};

use super::{ErrorReason, Failure, PluginError, code_of};

/// `ErrorInfo.metadata` key of the cloud's own error code.
const CLOUD_CODE_KEY: &str = "cloud_code";
/// `ErrorInfo.metadata` key of the cloud's request id.
const CLOUD_REQUEST_ID_KEY: &str = "cloud_request_id";

/// Upper bound of a status' details in bytes. With the message and base64 a status stays under 8 KiB, which every
/// HTTP/2 library takes as headers.
pub const MAX_DETAILS_BYTES: usize = 2048;

impl From<PluginError> for Status {
    fn from(error: PluginError) -> Self {
        let mut failure = error.0;
        loop {
            let status = with_details(&failure);
            if status.details().len() <= MAX_DETAILS_BYTES || failure.violations.pop().is_none() {
                return status;
            }
        }
    }
}

fn with_details(failure: &Failure) -> Status {
    let reason = name(failure.reason.as_str_name(), "ERROR_REASON_");
    let mut details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, metadata(failure));
    if let Some(retry_after) = failure.retry_after {
        details.set_retry_info(Some(retry_after));
    }
    for violation in &failure.violations {
        details.add_bad_request_violation(&violation.field, &violation.description);
    }
    if matches!(
        failure.reason,
        ErrorReason::QuotaExceeded | ErrorReason::LimitReached
    ) {
        details.set_quota_failure(vec![QuotaViolation::new("cloud", reason)]);
    }
    if matches!(
        failure.reason,
        ErrorReason::ForeignOwner | ErrorReason::InUse | ErrorReason::Protected
    ) {
        details.set_precondition_failure(vec![PreconditionViolation::new(reason, "cloud", "")]);
    }
    Status::with_error_details(code_of(failure.reason), &failure.message, details)
}

fn metadata(failure: &Failure) -> HashMap<String, String> {
    let certainty = name(failure.certainty.as_str_name(), "CERTAINTY_");
    let mut metadata = HashMap::from([(ERROR_CERTAINTY_KEY.to_owned(), certainty.to_owned())]);
    for (key, value) in [
        (CLOUD_CODE_KEY, &failure.cloud_code),
        (CLOUD_REQUEST_ID_KEY, &failure.cloud_request_id),
    ] {
        if !value.is_empty() {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    metadata
}

fn name<'a>(full: &'a str, prefix: &str) -> &'a str {
    full.strip_prefix(prefix).unwrap_or(full)
}
