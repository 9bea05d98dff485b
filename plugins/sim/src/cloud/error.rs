//! What the cloud says when it does not do what it was asked.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Too many calls; says when to come back.
    Throttled,
    /// The account may not have one more.
    QuotaExceeded,
    /// The parent cannot hold one more.
    LimitReached,
    /// A part of the cloud is away.
    Unavailable,
    /// The credentials are wrong.
    CredentialsInvalid,
    /// The credentials were good once.
    CredentialsExpired,
    /// The credentials do not allow this operation.
    PermissionDenied,
    /// There is no such object.
    NotFound,
    /// The name is taken; `names` has the id of its holder.
    AlreadyExists,
    /// Something refers to it or is part of it; `names` has the ids.
    InUse,
    /// It changed meanwhile.
    Conflict,
    /// It is being made or deleted.
    Busy,
    /// The request cannot be; `names` has what is wrong.
    Invalid,
    /// Its owner protected it.
    Protected,
    /// The page token has aged.
    PageExpired,
    /// The page token is none.
    BadPageToken,
    /// The cloud refuses this object and gives no reason.
    Refused,
}

impl ErrorCode {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::QuotaExceeded => "quota_exceeded",
            Self::LimitReached => "limit_reached",
            Self::Unavailable => "unavailable",
            Self::CredentialsInvalid => "credentials_invalid",
            Self::CredentialsExpired => "credentials_expired",
            Self::PermissionDenied => "permission_denied",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::InUse => "in_use",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::Invalid => "invalid",
            Self::Protected => "protected",
            Self::PageExpired => "page_expired",
            Self::BadPageToken => "bad_page_token",
            Self::Refused => "refused",
        }
    }
}

/// What the caller may conclude about the change that it asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Applied {
    /// Nothing was changed.
    #[default]
    No,
    /// Nobody knows.
    Unknown,
}

/// An answer that says no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct CloudError {
    /// Why.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
    /// What is known about the change.
    pub applied: Applied,
    /// When to come back.
    pub retry_after: Option<Duration>,
    /// What it is about, see the codes.
    pub names: Vec<String>,
    /// The number of the call, for the cloud's support.
    pub request_id: String,
}

impl CloudError {
    /// A plain refusal: nothing was changed.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            applied: Applied::No,
            retry_after: None,
            names: Vec::new(),
            request_id: String::new(),
        }
    }

    /// Says what it is about.
    #[must_use]
    pub fn about(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.names = names.into_iter().collect();
        self
    }
}
