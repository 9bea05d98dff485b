//! What the API server was asked, as its audit log tells.

use std::{collections::BTreeSet, env, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The environment variable with the folder where each API server leaves what it was asked; unset: nowhere.
const FOLDER_VARIABLE: &str = "BULKHEAD_AUDIT_DIR";

/// One finished request. Watches are finished when they end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedRequest {
    /// The user's name, as `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
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
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
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

/// What one API server was asked: of each kind of request one.
#[derive(Serialize)]
struct Summary<'a> {
    scenario: &'a str,
    forbidden_because: Option<&'a str>,
    requests: BTreeSet<Kind>,
}

/// A kind of request: who asked what, and whether that was granted.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Kind {
    user: String,
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    code: u16,
}

/// Reads the finished requests from an audit log, in the order in which they ended.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditedRequest>> {
    let mut events = events(path)?;
    events.retain(|event| event.stage == "ResponseComplete");
    Ok(events.into_iter().map(AuditedRequest::from).collect())
}

/// Leaves what the API server with this audit log was asked, where the environment says so.
pub(crate) fn leave_summary(path: &Path, scenario: &str, forbidden_because: Option<&str>) -> Result<()> {
    let Some(folder) = env::var_os(FOLDER_VARIABLE) else {
        return Ok(());
    };
    let summary = Summary {
        scenario,
        forbidden_because,
        requests: kinds(events(path)?),
    };
    let file = Path::new(&folder).join(format!("{scenario}-{}.json", Uuid::new_v4().simple()));
    fs::write(&file, serde_json::to_vec_pretty(&summary)?)
        .with_context(|| format!("write {}", file.display()))
}

/// Also of requests that are not finished: a watch ends with its server, which is killed.
fn kinds(events: Vec<Event>) -> BTreeSet<Kind> {
    let about_resources = events
        .into_iter()
        .filter(|event| !event.object_ref.resource.is_empty());
    about_resources
        .map(|event| Kind {
            user: event.user.username,
            verb: event.verb,
            group: event.object_ref.api_group,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            code: event.response_status.code,
        })
        .collect()
}

fn events(path: &Path) -> Result<Vec<Event>> {
    let text = fs::read_to_string(path).context("read the API server's audit log")?;
    // The last line may be half written.
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("read audit line {line}")))
        .collect()
}

impl From<Event> for AuditedRequest {
    fn from(event: Event) -> Self {
        Self {
            user: event.user.username,
            verb: event.verb,
            group: event.object_ref.api_group,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn event(stage: &str, verb: &str, resource: &str, code: u16) -> Event {
        serde_json::from_value(serde_json::json!({
            "verb": verb, "user": { "username": "host" }, "stage": stage,
            "objectRef": { "resource": resource, "apiGroup": "events.k8s.io" },
            "responseStatus": { "code": code }, "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_summary_has_each_kind_of_request_once_and_watches_that_never_ended() {
        let kinds = kinds(vec![
            event("ResponseComplete", "patch", "events", 200),
            event("ResponseComplete", "patch", "events", 200),
            event("ResponseComplete", "patch", "events", 403),
            event("ResponseStarted", "watch", "events", 200),
            event("ResponseComplete", "get", "", 200),
        ]);
        let kinds: Vec<_> = kinds.iter().map(|kind| (&*kind.verb, kind.code)).collect();
        assert_eq!(kinds, [("patch", 200), ("patch", 403), ("watch", 200)]);
    }
}
