//! What an API call that failed means.

use std::error::Error;
use std::time::Duration;

use ::kube::core::Status;
use bulkhead_core::outcome::WriteFailure;
use rustls::CertificateError;

use crate::telemetry::Chain;

/// Why an API call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Somebody else wrote first (409).
    #[error("somebody else changed the object first")]
    Conflict,
    /// The object is gone (404).
    #[error("the object is gone")]
    Gone,
    /// Another object has its name now (422 whose cause is `metadata.uid`).
    #[error("another object has this name now")]
    AnotherObject,
    /// The API server refuses a value (any other 422).
    #[error("the API server refuses {field}: {message}")]
    Invalid {
        /// The field it names first; empty if it names none.
        field: String,
        /// What it says about it.
        message: String,
    },
    /// A right is missing (403).
    #[error("not allowed: {message}")]
    Forbidden {
        /// What the API server says: who may not do what.
        message: String,
    },
    /// The API server does not know who asks (401).
    #[error(
        "the API server does not accept the host's credentials ({message}): look whether the kubeconfig's token or \
         client certificate has expired or was revoked"
    )]
    Unauthenticated {
        /// What the API server says.
        message: String,
    },
    /// The API server wants fewer requests (429).
    #[error("the API server asks to wait")]
    Throttled {
        /// How long; `None`: it does not say.
        retry_after: Option<Duration>,
    },
    /// Nothing was sent: there was no place for it among the calls in flight, or no turn at the wanted rate.
    #[error("nothing was sent: too many other calls for {} s", after.as_secs_f64())]
    NotSent {
        /// How long it waited.
        after: Duration,
    },
    /// No answer in time: whether the call had an effect is unknown.
    #[error("no answer within {} s", after.as_secs_f64())]
    Deadline {
        /// The deadline.
        after: Duration,
    },
    /// No answer, or none that can be read: whether the call had an effect is unknown.
    #[error("{why}")]
    Unreachable {
        /// What happened, on one line.
        why: String,
    },
    /// Any other refusal, and errors inside the API server.
    #[error("the API server answers {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// What the API server says.
        message: String,
    },
}

impl ApiError {
    /// A short fixed name, for metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Gone => "gone",
            Self::AnotherObject => "another_object",
            Self::Invalid { .. } => "invalid",
            Self::Forbidden { .. } => "forbidden",
            Self::Unauthenticated { .. } => "unauthenticated",
            Self::Throttled { .. } => "throttled",
            Self::NotSent { .. } => "not_sent",
            Self::Deadline { .. } => "deadline",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused { .. } => "refused",
        }
    }

    /// What a refusal means. `status` is the body, where it is one; `retry_after` the header's.
    pub(super) fn refusal(code: u16, status: Option<Status>, retry_after: Option<Duration>) -> Self {
        let status = status.unwrap_or_default();
        let message = one_line(&status.message);
        match code {
            404 => Self::Gone,
            409 => Self::Conflict,
            422 => invalid(&status, message),
            401 => Self::Unauthenticated { message },
            403 => Self::Forbidden { message },
            429 => {
                let told = status
                    .details
                    .map(|details| details.retry_after_seconds)
                    .filter(|seconds| *seconds > 0);
                let told = told.map(|seconds| Duration::from_secs(seconds.into()));
                Self::Throttled {
                    retry_after: retry_after.or(told),
                }
            }
            _ => Self::Refused { code, message },
        }
    }
}

fn invalid(status: &Status, message: String) -> ApiError {
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    if causes.iter().any(|cause| cause.field == "metadata.uid") {
        return ApiError::AnotherObject;
    }
    match causes.first() {
        Some(cause) => ApiError::Invalid {
            field: cause.field.clone(),
            message: one_line(&cause.message),
        },
        None => ApiError::Invalid {
            field: String::new(),
            message,
        },
    }
}

/// What others say must not break our lines.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

impl From<::kube::Error> for ApiError {
    fn from(error: ::kube::Error) -> Self {
        if let ::kube::Error::Api(status) = error {
            return Self::refusal(status.code, Some(*status), None);
        }
        let why = Chain(&error).to_string();
        Self::Unreachable {
            why: match certificate_problem(&error) {
                Some(problem) => format!("{problem} ({why})"),
                None => why,
            },
        }
    }
}

/// What is wrong with the API server's certificate, if that is why a connection failed, and what to do.
fn certificate_problem(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(problem)) = error.downcast_ref() {
            return Some(advice(problem));
        }
        // The source of an I/O error is not what it wraps, but the source of that.
        next = match error.downcast_ref::<std::io::Error>() {
            Some(wrapper) => wrapper.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

const fn advice(problem: &CertificateError) -> &'static str {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the library's variants, of which few are a user's to mend"
    )]
    match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the API server's certificate has expired: renew it there, or set this machine's clock"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the API server's certificate is not valid yet: set this machine's clock"
        }
        CertificateError::UnknownIssuer => {
            "the API server's certificate is not signed by the authority in the kubeconfig: take a kubeconfig of this \
             cluster"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the API server's certificate is not for this address: use one that it names"
        }
        _ => "the API server's certificate cannot be used",
    }
}

impl From<ApiError> for WriteFailure {
    fn from(error: ApiError) -> Self {
        let message = error.to_string();
        match error {
            ApiError::Conflict => Self::Conflict,
            ApiError::Gone => Self::Gone,
            ApiError::AnotherObject => Self::AnotherObject,
            ApiError::Invalid { field, message } => Self::Invalid { field, message },
            ApiError::Forbidden { message } => Self::Forbidden { message },
            ApiError::Throttled { retry_after } => Self::Unavailable { message, retry_after },
            ApiError::NotSent { .. }
            | ApiError::Deadline { .. }
            | ApiError::Unreachable { .. }
            | ApiError::Unauthenticated { .. }
            | ApiError::Refused { .. } => Self::Unavailable {
                message,
                retry_after: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn status(code: u16, reason: &str, message: &str, details: &serde_json::Value) -> Status {
        serde_json::from_value(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        }))
        .unwrap()
    }

    #[rstest]
    #[case::conflict(
        status(409, "Conflict",
            "Operation cannot be fulfilled on nodes \"a\": the object has been modified; please apply your changes to the latest version and try again",
            &json!({"name": "a", "kind": "nodes"})),
        ApiError::Conflict
    )]
    #[case::gone(
        status(404, "NotFound", "nodes \"a\" not found", &json!({"name": "a", "kind": "nodes"})),
        ApiError::Gone
    )]
    #[case::another_object(
        status(422, "Invalid",
            "Node \"a\" is invalid: metadata.uid: Invalid value: \"1\": field is immutable",
            &json!({"name": "a", "kind": "Node", "causes": [
                {"reason": "FieldValueInvalid", "message": "Invalid value: \"1\": field is immutable", "field": "metadata.uid"}]})),
        ApiError::AnotherObject
    )]
    #[case::another_object_named_second(
        status(422, "Invalid", "Node \"a\" is invalid",
            &json!({"causes": [
                {"reason": "FieldValueForbidden", "message": "no", "field": "spec.providerID"},
                {"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]})),
        ApiError::AnotherObject
    )]
    #[case::invalid_names_the_field(
        status(422, "Invalid",
            "Node \"a\" is invalid: spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
            &json!({"name": "a", "kind": "Node", "causes": [
                {"reason": "FieldValueForbidden", "message": "Forbidden: node updates may not change\nproviderID", "field": "spec.providerID"}]})),
        ApiError::Invalid { field: "spec.providerID".into(), message: "Forbidden: node updates may not change providerID".into() }
    )]
    #[case::invalid_without_causes(
        status(422, "Invalid", "the server rejected our request", &json!({})),
        ApiError::Invalid { field: String::new(), message: "the server rejected our request".into() }
    )]
    #[case::forbidden(
        status(403, "Forbidden",
            "nodes \"a\" is forbidden: User \"u\" cannot patch resource \"nodes/status\" in API group \"\" at the cluster scope",
            &json!({"name": "a", "kind": "nodes"})),
        ApiError::Forbidden {
            message: "nodes \"a\" is forbidden: User \"u\" cannot patch resource \"nodes/status\" in API group \"\" at the cluster scope".into()
        }
    )]
    #[case::who_is_that(
        status(401, "Unauthorized", "Unauthorized", &json!({})),
        ApiError::Unauthenticated { message: "Unauthorized".into() }
    )]
    #[case::throttled_says_how_long(
        status(429, "TooManyRequests", "the server has received too many requests and has asked us to try again later",
            &json!({"retryAfterSeconds": 3})),
        ApiError::Throttled { retry_after: Some(Duration::from_secs(3)) }
    )]
    #[case::etcd_away(
        status(500, "InternalError", "Internal error occurred: etcdserver: request timed out", &json!({})),
        ApiError::Refused { code: 500, message: "Internal error occurred: etcdserver: request timed out".into() }
    )]
    #[case::timeout_inside(
        status(504, "Timeout", "Timeout: request did not complete within the allotted timeout", &json!({})),
        ApiError::Refused { code: 504, message: "Timeout: request did not complete within the allotted timeout".into() }
    )]
    fn a_status_has_one_meaning(#[case] status: Status, #[case] expected: ApiError) {
        assert_eq!(ApiError::refusal(status.code, Some(status), None), expected);
    }

    #[test]
    fn a_certificate_that_has_expired_is_found_inside_whatever_wraps_it() {
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        let wrapped = std::io::Error::other(std::io::Error::other(expired));
        let ApiError::Unreachable { why } = ApiError::from(::kube::Error::Service(Box::new(wrapped))) else {
            panic!("it is unreachable");
        };
        assert!(
            why.starts_with("the API server's certificate has expired: renew it there"),
            "{why}"
        );
    }

    #[rstest]
    #[case::header_wins(429, Some(7), ApiError::Throttled { retry_after: Some(Duration::from_secs(7)) })]
    #[case::nobody_says(429, None, ApiError::Throttled { retry_after: None })]
    #[case::proxy_text(502, None, ApiError::Refused { code: 502, message: String::new() })]
    fn a_refusal_without_a_status_is_told_by_its_code(
        #[case] code: u16,
        #[case] header: Option<u64>,
        #[case] expected: ApiError,
    ) {
        assert_eq!(
            ApiError::refusal(code, None, header.map(Duration::from_secs)),
            expected
        );
    }
}
