//! Errors: gRPC statuses and the protocol's own message, as [`Failure`]s.

use bulkhead_core::cloud::{Certainty, Failure, Reason};
use bulkhead_core::outcome::in_cloud;
use bulkhead_core::service::field;
use bulkhead_proto::{ERROR_CERTAINTY_KEY, ERROR_DOMAIN, v1};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::text::clean;
use super::{Violation, retry_after};

/// Keys of `ErrorInfo.metadata` beside the certainty.
const CLOUD_CODE_KEY: &str = "cloud_code";
const CLOUD_REQUEST_ID_KEY: &str = "cloud_request_id";

/// A status, with whatever details it has. Without an `ErrorInfo` of ours whose reason goes with its code it is
/// unattributed.
pub(crate) fn from_status(status: &Status) -> Failure {
    let details = status.get_error_details();
    let ours = details.error_info().filter(|info| info.domain == ERROR_DOMAIN);
    let attributed = ours.and_then(|info| Some((info, attributed(&info.reason, status.code())?)));
    let Some((info, reason)) = attributed else {
        let message = clean(&format!("{}: {}", status.code().description(), status.message()));
        return Failure {
            reason: None,
            certainty: Certainty::Unknown,
            message,
            retry_after: None,
        };
    };
    let detail = |key| info.metadata.get(key).map_or("", String::as_str);
    let violations = details
        .bad_request()
        .into_iter()
        .flat_map(|request| &request.field_violations);
    Failure {
        reason: Some(reason),
        certainty: v1::Certainty::from_str_name(&format!("CERTAINTY_{}", detail(ERROR_CERTAINTY_KEY)))
            .map_or(Certainty::Unknown, certainty),
        message: message(
            status.message(),
            violations.map(|violation| (violation.field.as_str(), violation.description.as_str())),
            (detail(CLOUD_CODE_KEY), detail(CLOUD_REQUEST_ID_KEY)),
        ),
        retry_after: details.retry_info().and_then(|info| info.retry_delay),
    }
}

/// The reason of this name, if the protocol has it with this code.
fn attributed(name: &str, code: Code) -> Option<Reason> {
    let wire = v1::ErrorReason::from_str_name(&format!("ERROR_REASON_{name}"))?;
    let is_its_code = match wire {
        v1::ErrorReason::Unspecified => false,
        v1::ErrorReason::InvalidSpec | v1::ErrorReason::BatchTooLarge | v1::ErrorReason::BadPageToken => {
            code == Code::InvalidArgument
        }
        v1::ErrorReason::NotConfigured
        | v1::ErrorReason::NotLeading
        | v1::ErrorReason::ForeignOwner
        | v1::ErrorReason::InUse
        | v1::ErrorReason::Protected
        | v1::ErrorReason::NodeSetUnknown => code == Code::FailedPrecondition,
        v1::ErrorReason::OperationInProgress | v1::ErrorReason::Conflict => code == Code::Aborted,
        v1::ErrorReason::ReferencedObjectMissing => code == Code::NotFound,
        v1::ErrorReason::PermissionMissing => code == Code::PermissionDenied,
        v1::ErrorReason::CredentialsInvalid | v1::ErrorReason::CredentialsExpired => {
            code == Code::Unauthenticated
        }
        v1::ErrorReason::RateLimited
        | v1::ErrorReason::QuotaExceeded
        | v1::ErrorReason::LimitReached
        | v1::ErrorReason::MessageTooLarge => code == Code::ResourceExhausted,
        v1::ErrorReason::CloudUnavailable | v1::ErrorReason::Draining => code == Code::Unavailable,
        v1::ErrorReason::ProviderError => code == Code::Unknown,
        v1::ErrorReason::PluginBug | v1::ErrorReason::Panic => {
            matches!(code, Code::Internal | Code::DataLoss)
        }
        v1::ErrorReason::SnapshotExpired => code == Code::OutOfRange,
        v1::ErrorReason::Unimplemented => code == Code::Unimplemented,
    };
    reason(wire).filter(|_| is_its_code)
}

/// An error in the body of an answer. One without a reason is a violation: the plugin made it itself.
pub(crate) fn from_body(error: v1::Error) -> Failure {
    let v1::Error {
        reason: number,
        certainty: sure,
        message: text,
        retry_after: wait,
        cloud_code,
        cloud_request_id,
        field_violations,
    } = error;
    if number == 0 {
        return Violation::new("error.reason", "is unspecified").into();
    }
    let retry_after = match retry_after(wait) {
        Ok(retry_after) => retry_after,
        Err(violation) => return violation.inside("error").into(),
    };
    let violations = field_violations
        .iter()
        .map(|it| (it.field.as_str(), it.description.as_str()));
    Failure {
        reason: v1::ErrorReason::try_from(number).ok().and_then(reason),
        certainty: v1::Certainty::try_from(sure).map_or(Certainty::Unknown, certainty),
        message: message(&text, violations, (&cloud_code, &cloud_request_id)),
        retry_after,
    }
}

/// The text for people: what the plugin says, the fields it names elsewhere only, and where to look in the cloud. Fields
/// have the names that users know.
fn message<'a>(
    text: &str,
    violations: impl Iterator<Item = (&'a str, &'a str)>,
    (cloud_code, cloud_request_id): (&str, &str),
) -> String {
    let mut text = text.to_owned();
    let mut fields = String::new();
    for (path, description) in violations.filter(|(path, _)| !path.is_empty()).take(8) {
        text = field::translate(&text, path);
        let name = field::in_kubernetes(path);
        if !text.contains(&name) {
            fields = format!("{fields}; {name}: {description}");
        }
    }
    let cloud = in_cloud(cloud_code, cloud_request_id);
    clean(&format!("{text}{fields}{cloud}"))
}

const fn certainty(wire: v1::Certainty) -> Certainty {
    match wire {
        v1::Certainty::NotApplied => Certainty::NotApplied,
        v1::Certainty::Applied => Certainty::Applied,
        v1::Certainty::Unspecified | v1::Certainty::Unknown => Certainty::Unknown,
    }
}

const fn reason(wire: v1::ErrorReason) -> Option<Reason> {
    Some(match wire {
        v1::ErrorReason::Unspecified => return None,
        v1::ErrorReason::InvalidSpec => Reason::InvalidSpec,
        v1::ErrorReason::BatchTooLarge => Reason::BatchTooLarge,
        v1::ErrorReason::BadPageToken => Reason::BadPageToken,
        v1::ErrorReason::NotConfigured => Reason::NotConfigured,
        v1::ErrorReason::NotLeading => Reason::NotLeading,
        v1::ErrorReason::ForeignOwner => Reason::ForeignOwner,
        v1::ErrorReason::InUse => Reason::InUse,
        v1::ErrorReason::Protected => Reason::Protected,
        v1::ErrorReason::NodeSetUnknown => Reason::NodeSetUnknown,
        v1::ErrorReason::OperationInProgress => Reason::OperationInProgress,
        v1::ErrorReason::Conflict => Reason::Conflict,
        v1::ErrorReason::ReferencedObjectMissing => Reason::ReferencedObjectMissing,
        v1::ErrorReason::PermissionMissing => Reason::PermissionMissing,
        v1::ErrorReason::CredentialsInvalid => Reason::CredentialsInvalid,
        v1::ErrorReason::CredentialsExpired => Reason::CredentialsExpired,
        v1::ErrorReason::RateLimited => Reason::RateLimited,
        v1::ErrorReason::QuotaExceeded => Reason::QuotaExceeded,
        v1::ErrorReason::LimitReached => Reason::LimitReached,
        v1::ErrorReason::MessageTooLarge => Reason::MessageTooLarge,
        v1::ErrorReason::CloudUnavailable => Reason::CloudUnavailable,
        v1::ErrorReason::Draining => Reason::Draining,
        v1::ErrorReason::ProviderError => Reason::ProviderError,
        v1::ErrorReason::PluginBug => Reason::PluginBug,
        v1::ErrorReason::Panic => Reason::Panic,
        v1::ErrorReason::SnapshotExpired => Reason::SnapshotExpired,
        v1::ErrorReason::Unimplemented => Reason::Unimplemented,
    })
}

/// The failure's kind, as metrics and logs name it.
pub(crate) const fn label(failure: &Failure) -> &'static str {
    let Some(reason) = failure.reason else {
        return "unattributed";
    };
    match reason {
        Reason::InvalidSpec => "invalid_spec",
        Reason::BatchTooLarge => "batch_too_large",
        Reason::BadPageToken => "bad_page_token",
        Reason::NotConfigured => "not_configured",
        Reason::NotLeading => "not_leading",
        Reason::ForeignOwner => "foreign_owner",
        Reason::InUse => "in_use",
        Reason::Protected => "protected",
        Reason::NodeSetUnknown => "node_set_unknown",
        Reason::OperationInProgress => "operation_in_progress",
        Reason::Conflict => "conflict",
        Reason::ReferencedObjectMissing => "referenced_object_missing",
        Reason::PermissionMissing => "permission_missing",
        Reason::CredentialsInvalid => "credentials_invalid",
        Reason::CredentialsExpired => "credentials_expired",
        Reason::RateLimited => "rate_limited",
        Reason::QuotaExceeded => "quota_exceeded",
        Reason::LimitReached => "limit_reached",
        Reason::MessageTooLarge => "message_too_large",
        Reason::CloudUnavailable => "cloud_unavailable",
        Reason::Draining => "draining",
        Reason::ProviderError => "provider_error",
        Reason::PluginBug => "plugin_bug",
        Reason::Panic => "panic",
        Reason::SnapshotExpired => "snapshot_expired",
        Reason::Unimplemented => "unimplemented",
        Reason::DeadlineExceeded => "deadline_exceeded",
        Reason::Cancelled => "cancelled",
        Reason::ProtocolViolation => "protocol_violation",
        Reason::Disconnected => "disconnected",
        Reason::Shut => "shut",
    }
}
