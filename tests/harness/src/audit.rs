//! What the API server was asked, as its audit log tells.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::Deserialize;

/// One finished request. Watches are finished when they end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedRequest {
    /// The user's name, as `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// `nodes`, `services`, …; empty for other paths.
    pub resource: String,
    /// `status` or alike; empty for the object itself.
    pub subresource: String,
    /// Empty for objects without one.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// When the API server received the request: RFC 3339 with microseconds, UTC, which sorts as text.
    pub received: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: String,
    stage: String,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

/// Reads the finished requests from an audit log, in the order in which they ended.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditedRequest>> {
    let text = fs::read_to_string(path).context("read the API server's audit log")?;
    // The last line may be half written.
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let mut requests = Vec::new();
    for line in complete.lines() {
        let event: Event = serde_json::from_str(line).with_context(|| format!("read audit line {line}"))?;
        if event.stage == "ResponseComplete" {
            requests.push(event.into());
        }
    }
    Ok(requests)
}

impl From<Event> for AuditedRequest {
    fn from(event: Event) -> Self {
        Self {
            user: event.user.username,
            verb: event.verb,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            namespace: event.object_ref.namespace,
            name: event.object_ref.name,
            code: event.response_status.code,
            received: event.request_received_timestamp,
        }
    }
}

impl AuditedRequest {
    /// Whether it asked for a change.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}
