//! What a plugin answers when something failed.
//!
//! Authors make errors by the named constructors only, so that code, reason and certainty always belong together.
//! The same error goes over the wire in two ways: as a gRPC status ([`tonic::Status`]) when a whole call failed, and
//! as [`v1::Error`] in the body of an answer when one item of a batch failed.

mod status;

use std::fmt;
use std::time::Duration;

use bulkhead_proto::MAX_ERROR_TEXT_BYTES;
pub use bulkhead_proto::v1::{Certainty, ErrorReason};
use tonic::Code;

use crate::v1;

pub use status::MAX_DETAILS_BYTES;

/// Longest cloud code and cloud request id in bytes.
const MAX_CLOUD_ID_BYTES: usize = 128;
/// Longest path of a field in bytes.
const MAX_FIELD_BYTES: usize = 128;
/// Most fields of one error.
const MAX_FIELDS: usize = 16;
/// Longest description of one field's violation in bytes.
const MAX_DESCRIPTION_BYTES: usize = 256;

/// A failed call or a failed item of a batch: reason, certainty, a text for people.
///
/// ```
/// use std::time::Duration;
/// use bulkhead_plugin::error::{Certainty, ErrorReason, PluginError};
///
/// let error = PluginError::rate_limited("the cloud answered 429", Duration::from_secs(7))
///     .with_cloud("Throttling", "req-1");
/// assert_eq!(error.reason(), ErrorReason::RateLimited);
/// assert_eq!(error.certainty(), Certainty::NotApplied);
/// ```
#[derive(Clone, Debug)]
pub struct PluginError(Box<Failure>);

#[derive(Clone, Debug)]
struct Failure {
    reason: ErrorReason,
    certainty: Certainty,
    message: String,
    retry_after: Option<Duration>,
    cloud_code: String,
    cloud_request_id: String,
    violations: Vec<v1::FieldViolation>,
}

/// What a plugin's function returns.
pub type Result<T> = std::result::Result<T, PluginError>;

/// The gRPC code of a reason: the one place that decides it.
pub fn code_of(reason: ErrorReason) -> Code {
    match reason {
        ErrorReason::InvalidSpec | ErrorReason::BatchTooLarge | ErrorReason::BadPageToken => {
            Code::InvalidArgument
        }
        ErrorReason::NotConfigured
        | ErrorReason::NotLeading
        | ErrorReason::ForeignOwner
        | ErrorReason::InUse
        | ErrorReason::Protected
        | ErrorReason::NodeSetUnknown => Code::FailedPrecondition,
        ErrorReason::OperationInProgress | ErrorReason::Conflict => Code::Aborted,
        ErrorReason::ReferencedObjectMissing => Code::NotFound,
        ErrorReason::PermissionMissing => Code::PermissionDenied,
        ErrorReason::CredentialsInvalid | ErrorReason::CredentialsExpired => Code::Unauthenticated,
        ErrorReason::RateLimited
        | ErrorReason::QuotaExceeded
        | ErrorReason::LimitReached
        | ErrorReason::MessageTooLarge => Code::ResourceExhausted,
        ErrorReason::CloudUnavailable | ErrorReason::Draining => Code::Unavailable,
        ErrorReason::ProviderError => Code::Unknown,
        ErrorReason::Unspecified | ErrorReason::PluginBug | ErrorReason::Panic => Code::Internal,
        ErrorReason::SnapshotExpired => Code::OutOfRange,
        ErrorReason::Unimplemented => Code::Unimplemented,
    }
}

impl PluginError {
    fn new(reason: ErrorReason, certainty: Certainty, message: impl Into<String>) -> Self {
        let message = printable(message.into(), MAX_ERROR_TEXT_BYTES);
        Self(Box::new(Failure {
            reason,
            certainty,
            message,
            retry_after: None,
            cloud_code: String::new(),
            cloud_request_id: String::new(),
            violations: Vec::new(),
        }))
    }

    fn refused(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self::new(reason, Certainty::NotApplied, message)
    }

    /// The user asked for something that cannot be. `field` is its path in the request, as `spec.ports[1].protocol`.
    pub fn invalid_spec(field: impl Into<String>, description: impl Into<String>) -> Self {
        let (field, description) = (field.into(), description.into());
        Self::refused(ErrorReason::InvalidSpec, format!("{field}: {description}"))
            .with_field(field, description)
    }

    /// More items than the plugin's declared limit.
    pub fn batch_too_large(items: usize, limit: usize) -> Self {
        let message = format!("{items} items in one call, at most {limit} are taken: split the batch");
        Self::refused(ErrorReason::BatchTooLarge, message)
    }

    /// A page token that this plugin did not make.
    pub fn bad_page_token(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::BadPageToken, message)
    }

    /// The plugin lacks configuration that this call needs.
    pub fn not_configured(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::NotConfigured, message)
    }

    /// The plugin may not do this now: it is standby, or the request is of another epoch. The SDK answers it itself
    /// before a call starts; authors get it from [`Call::writing`](crate::Call::writing).
    pub fn not_leading(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::NotLeading, message)
    }

    /// The resource exists and carries somebody else's mark, or none.
    pub fn foreign_owner(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::ForeignOwner, message)
    }

    /// Something else uses the resource.
    pub fn in_use(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::InUse, message)
    }

    /// A protection that the user set forbids it.
    pub fn protected(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::Protected, message)
    }

    /// No node set of this digest was put in this session, or it was evicted.
    pub fn node_set_unknown(digest: &str) -> Self {
        Self::refused(
            ErrorReason::NodeSetUnknown,
            format!("node set {digest} is not known here: send it in full"),
        )
    }

    /// The cloud or this plugin is busy with the object; ask again with the same request id.
    pub fn operation_in_progress(message: impl Into<String>, retry_after: Duration) -> Self {
        Self::refused(ErrorReason::OperationInProgress, message).with_retry_after(retry_after)
    }

    /// The object changed in the cloud between read and write.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::Conflict, message)
    }

    /// An object that the user named (a subnet, an address) does not exist. Never a statement about instances or
    /// load balancers: their absence is a field of a good answer.
    pub fn referenced_object_missing(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::ReferencedObjectMissing, message)
    }

    /// The credentials do not allow `action`, in the cloud's own word.
    pub fn permission_missing(action: &str) -> Self {
        Self::refused(
            ErrorReason::PermissionMissing,
            format!("the credentials do not allow {action}"),
        )
    }

    /// The cloud refuses the credentials.
    pub fn credentials_invalid(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::CredentialsInvalid, message)
    }

    /// The credentials were good and have expired.
    pub fn credentials_expired(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::CredentialsExpired, message)
    }

    /// The cloud asks for fewer calls.
    pub fn rate_limited(message: impl Into<String>, retry_after: Duration) -> Self {
        Self::refused(ErrorReason::RateLimited, message).with_retry_after(retry_after)
    }

    /// The account's quota is used up.
    pub fn quota_exceeded(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::QuotaExceeded, message)
    }

    /// A fixed limit of the cloud is reached (targets of a load balancer, rules of a firewall).
    pub fn limit_reached(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::LimitReached, message)
    }

    /// The answer to a read does not fit into one message.
    pub fn message_too_large(bytes: usize) -> Self {
        let message =
            format!("an answer of {bytes} bytes does not fit into one message: ask for fewer items");
        Self::refused(ErrorReason::MessageTooLarge, message)
    }

    /// The cloud does not answer, or answers 5xx. Whether it applied a change is unknown; say so if you know better.
    pub fn cloud_unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorReason::CloudUnavailable, Certainty::Unknown, message)
    }

    /// The plugin is ending and takes no new call.
    pub fn draining() -> Self {
        Self::refused(
            ErrorReason::Draining,
            "the plugin is ending and takes no new call",
        )
    }

    /// The cloud refused this object for a reason that no other constructor fits. Certainty is unknown unless said.
    pub fn provider_error(message: impl Into<String>) -> Self {
        Self::new(ErrorReason::ProviderError, Certainty::Unknown, message)
    }

    /// The plugin met a state that its author thought impossible.
    pub fn plugin_bug(message: impl Into<String>) -> Self {
        Self::new(ErrorReason::PluginBug, Certainty::Unknown, message)
    }

    /// A call panicked. Made by the SDK.
    pub fn panicked(message: impl Into<String>) -> Self {
        Self::new(ErrorReason::Panic, Certainty::Unknown, message)
    }

    /// The pages of this list are gone; start again.
    pub fn snapshot_expired(message: impl Into<String>) -> Self {
        Self::refused(ErrorReason::SnapshotExpired, message)
    }

    /// The plugin does not have this RPC, nor declares its capability.
    pub fn unimplemented(rpc: &str) -> Self {
        Self::refused(
            ErrorReason::Unimplemented,
            format!("this plugin does not implement {rpc}"),
        )
    }

    /// Says what is known about the change. Constructors set the cautious value.
    #[must_use]
    pub fn with_certainty(mut self, certainty: Certainty) -> Self {
        self.0.certainty = certainty;
        self
    }

    /// Says how long to wait before asking again; a lower bound for the host.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.0.retry_after = Some(retry_after);
        self
    }

    /// The cloud's own error code and request id, for its support. Either may be empty.
    #[must_use]
    pub fn with_cloud(mut self, code: impl Into<String>, request_id: impl Into<String>) -> Self {
        self.0.cloud_code = printable(code.into(), MAX_CLOUD_ID_BYTES);
        self.0.cloud_request_id = printable(request_id.into(), MAX_CLOUD_ID_BYTES);
        self
    }

    /// Names one more field of the request that is wrong; the first 16 are kept.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>, description: impl Into<String>) -> Self {
        if self.0.violations.len() < MAX_FIELDS {
            self.0.violations.push(v1::FieldViolation {
                field: printable(field.into(), MAX_FIELD_BYTES),
                description: printable(description.into(), MAX_DESCRIPTION_BYTES),
            });
        }
        self
    }

    /// Why it failed.
    pub fn reason(&self) -> ErrorReason {
        self.0.reason
    }

    /// What is known about the change that was asked for.
    pub fn certainty(&self) -> Certainty {
        self.0.certainty
    }

    /// The text for people: printable, at most 1 KiB.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// How long to wait before asking again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.message)
    }
}

impl std::error::Error for PluginError {}

impl From<PluginError> for v1::Error {
    fn from(error: PluginError) -> Self {
        let failure = *error.0;
        Self {
            reason: failure.reason.into(),
            certainty: failure.certainty.into(),
            message: failure.message,
            retry_after: failure.retry_after.map(crate::time::duration),
            cloud_code: failure.cloud_code,
            cloud_request_id: failure.cloud_request_id,
            field_violations: failure.violations,
        }
    }
}

/// Texts from clouds go into headers, events and logs: no control characters, cut at a character's border.
fn printable(mut text: String, limit: usize) -> String {
    const CUT: &str = "...";
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit.saturating_sub(CUT.len())));
        text.push_str(CUT);
    }
    if text.chars().any(char::is_control) {
        text.replace(char::is_control, " ")
    } else {
        text
    }
}

#[cfg(test)]
mod tests;
