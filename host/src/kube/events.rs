//! Events (`events.k8s.io/v1`): what people see of what the host does.
//!
//! Telling never blocks and never fails the one who tells: an Event that finds the queue full, its object's
//! allowance used up, or the API server unwilling is dropped and counted. Repeats raise the count of the Event that
//! is there. kube's own recorder is not used: it takes what differs only in its note for a repeat, keeps
//! everything it has seen, and loses a repeat of an Event that the cluster has forgotten.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use ::kube::api::{Patch, PatchParams, PostParams};
use ::kube::{Api, Client};
use bulkhead_core::backoff::Backoff;
use bulkhead_core::ids::{NodeName, ServiceKey, Uid};
use bulkhead_core::outcome::{Notice, Severity};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::json;
use tokio::sync::mpsc;

use self::series::{Decision, Series};
use super::error::ApiError;
use crate::clock;

mod series;

/// Upstream's component names, under which dashboards and people look for Events.
pub mod component {
    /// The node controller.
    pub const NODE: &str = "cloud-node-controller";
    /// The service-lb controller.
    pub const SERVICE: &str = "service-controller";
    /// The process: leader election.
    pub const MANAGER: &str = "cloud-controller-manager";
}

/// Events that wait to be written.
const QUEUE: usize = 1000;

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// How often one Event is tried, in all.
const ATTEMPTS: u32 = 4;

/// Bounds of the API: longer texts are refused.
const NOTE_BYTES: usize = 1024;
const INSTANCE_BYTES: usize = 128;
/// An Event's name is its object's and a number; together at most 253.
const NAME_BYTES: usize = 230;

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// As `v1`.
    pub api_version: &'static str,
    /// As `Node`.
    pub kind: &'static str,
    /// `None` for kinds without.
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
    /// Its real UID, without which `kubectl describe` does not show the Event.
    pub uid: Option<Uid>,
}

impl Regarding {
    /// The kind of a Lease.
    pub const LEASE: &'static str = "Lease";

    /// A Node.
    pub fn node(name: &NodeName, uid: &Uid) -> Self {
        Self {
            api_version: "v1",
            kind: "Node",
            namespace: None,
            name: name.0.clone(),
            uid: Some(uid.clone()),
        }
    }

    /// A Service.
    pub fn service(key: &ServiceKey, uid: &Uid) -> Self {
        Self {
            api_version: "v1",
            kind: "Service",
            namespace: Some(key.namespace.clone()),
            name: key.name.clone(),
            uid: Some(uid.clone()),
        }
    }

    /// A Lease.
    pub fn lease(namespace: &str, name: &str, uid: Option<Uid>) -> Self {
        Self {
            api_version: "coordination.k8s.io/v1",
            kind: Self::LEASE,
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
            uid,
        }
    }

    /// A Namespace.
    pub fn namespace(name: &str) -> Self {
        Self {
            api_version: "v1",
            kind: "Namespace",
            namespace: None,
            name: name.to_owned(),
            uid: None,
        }
    }

    /// Where Events about it live: those about objects without a namespace in `default`, as the API wants it.
    fn event_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// The object that it is about.
    pub regarding: Regarding,
    /// Whether somebody should look.
    pub severity: Severity,
    /// Why, CamelCase, at most 128 bytes: upstream's reason where upstream has one.
    pub reason: Cow<'static, str>,
    /// What happened, for people; cut after 1024 bytes.
    pub note: String,
    /// What was being done, CamelCase, at most 128 bytes.
    pub action: &'static str,
}

impl EventSpec {
    /// What a pass has to tell about an object.
    pub fn from_notice(regarding: Regarding, action: &'static str, notice: Notice) -> Self {
        Self {
            regarding,
            severity: notice.severity,
            reason: notice.reason.into(),
            note: notice.note,
            action,
        }
    }
}

/// An Event on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    component: &'static str,
    spec: EventSpec,
}

impl Hash for Told {
    /// Severity and action follow from the reason.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (
            self.component,
            &self.spec.regarding,
            &self.spec.reason,
            &self.spec.note,
        )
            .hash(state);
    }
}

/// Called for each Event that is dropped.
type Dropped = Arc<dyn Fn() + Send + Sync>;

/// Takes Events of one component. Clones share the queue.
#[derive(Clone)]
pub struct EventRecorder {
    component: &'static str,
    queue: mpsc::Sender<Told>,
    dropped: Dropped,
}

/// Writes what recorders take.
pub struct EventWriter {
    client: Client,
    instance: String,
    queue: mpsc::Receiver<Told>,
    series: Series<Told>,
    dropped: Dropped,
    refused: bool,
}

/// A recorder and its writer. `instance` is this host's identity; `dropped` is called for each Event that is not
/// written.
pub fn events(
    client: Client,
    instance: &str,
    dropped: impl Fn() + Send + Sync + 'static,
) -> (EventRecorder, EventWriter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let dropped: Dropped = Arc::new(dropped);
    let recorder = EventRecorder {
        component: component::MANAGER,
        queue: sender,
        dropped: Arc::clone(&dropped),
    };
    let writer = EventWriter {
        client,
        instance: cut(instance, INSTANCE_BYTES).to_owned(),
        queue: receiver,
        series: Series::default(),
        dropped,
        refused: false,
    };
    (recorder, writer)
}

impl EventRecorder {
    /// The same, for another component; see [`component`].
    #[must_use]
    pub fn with_component(&self, component: &'static str) -> Self {
        Self {
            component,
            ..self.clone()
        }
    }

    /// Has an Event written some time later; never waits.
    pub fn emit(&self, mut spec: EventSpec) {
        let length = cut(&spec.note, NOTE_BYTES).len();
        spec.note.truncate(length);
        if self
            .queue
            .try_send(Told {
                component: self.component,
                spec,
            })
            .is_err()
        {
            (self.dropped)();
        }
    }
}

impl EventWriter {
    /// Writes Events until all recorders are gone and nothing is left to write. The caller owns the task, and ends
    /// it if it cannot wait.
    pub async fn run(mut self) {
        while let Some(told) = self.queue.recv().await {
            self.write(&told).await;
        }
    }

    async fn write(&mut self, told: &Told) {
        let decision = self
            .series
            .decide(told, (told.component, &told.spec.regarding), clock::now());
        if decision == Decision::Drop {
            (self.dropped)();
            return;
        }
        let mut attempt = 1;
        let error = loop {
            match self.attempt(told, &decision).await {
                Ok(()) => return,
                Err(error) if attempt < ATTEMPTS && may_pass(&error) => {
                    tokio::time::sleep(pause(attempt, &error)).await;
                    attempt += 1;
                }
                Err(error) => break error,
            }
        };
        (self.dropped)();
        // Without the right to write Events each of them would be a line.
        if std::mem::replace(&mut self.refused, true) {
            tracing::debug!(%error, ?told, "an Event is not written");
        } else {
            tracing::warn!(%error, reason = %told.spec.reason, "an Event is not written; more of these are only counted");
        }
    }

    async fn attempt(&mut self, told: &Told, decision: &Decision) -> Result<(), ApiError> {
        match decision {
            Decision::Drop => Ok(()),
            Decision::Create => self.create(told).await,
            Decision::Repeat { name, count } => match self.repeat(told, name, *count).await {
                // The cluster forgets Events after an hour or so.
                Err(ApiError::Gone) => {
                    self.series.forget(told);
                    self.create(told).await
                }
                result => result,
            },
        }
    }

    async fn create(&mut self, told: &Told) -> Result<(), ApiError> {
        let time = micro_time();
        let name = event_name(&told.spec.regarding.name, time.0.as_nanosecond());
        let event = self.event(told, name.clone(), time);
        let api = self.api(told);
        in_time(api.create(&PostParams::default(), &event)).await?;
        self.series.created(told, name, clock::now());
        Ok(())
    }

    async fn repeat(&mut self, told: &Told, name: &str, count: i32) -> Result<(), ApiError> {
        let patch = json!({ "series": { "count": count, "lastObservedTime": micro_time() } });
        let api = self.api(told);
        in_time(api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await?;
        self.series.repeated(told, clock::now());
        Ok(())
    }

    fn api(&self, told: &Told) -> Api<Event> {
        Api::namespaced(self.client.clone(), told.spec.regarding.event_namespace())
    }

    fn event(&self, told: &Told, name: String, time: MicroTime) -> Event {
        let EventSpec {
            regarding,
            severity,
            reason,
            note,
            action,
        } = &told.spec;
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(regarding.event_namespace().to_owned()),
                ..ObjectMeta::default()
            },
            action: Some((*action).to_owned()),
            event_time: Some(time),
            note: Some(note.clone()),
            reason: Some(reason.to_string()),
            regarding: Some(ObjectReference {
                api_version: Some(regarding.api_version.to_owned()),
                kind: Some(regarding.kind.to_owned()),
                name: Some(regarding.name.clone()),
                namespace: regarding.namespace.clone(),
                uid: regarding.uid.as_ref().map(ToString::to_string),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(told.component.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(match severity {
                Severity::Normal => "Normal".to_owned(),
                Severity::Warning => "Warning".to_owned(),
            }),
            ..Event::default()
        }
    }
}

/// Whether the same Event may be written later.
const fn may_pass(error: &ApiError) -> bool {
    match error {
        ApiError::Throttled { .. }
        | ApiError::NotSent { .. }
        | ApiError::Deadline { .. }
        | ApiError::Unreachable { .. } => true,
        ApiError::Refused { code, .. } => *code >= 500,
        ApiError::Conflict
        | ApiError::Gone
        | ApiError::AnotherObject
        | ApiError::Invalid { .. }
        | ApiError::Forbidden { .. } => false,
    }
}

fn pause(attempt: u32, error: &ApiError) -> Duration {
    let asked = if let ApiError::Throttled {
        retry_after: Some(asked),
    } = error
    {
        *asked
    } else {
        Duration::ZERO
    };
    Backoff::OBJECT
        .delay(attempt, 0.0)
        .max(asked.min(Duration::from_secs(30)))
}

async fn in_time<T>(call: impl Future<Output = ::kube::Result<T>>) -> Result<T, ApiError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => result.map_err(ApiError::from),
        Err(_) => Err(ApiError::Deadline { after: DEADLINE }),
    }
}

fn micro_time() -> MicroTime {
    MicroTime(jiff::Timestamp::from_microsecond(clock::wall().0).unwrap_or_default())
}

fn event_name(object: &str, nanoseconds: i128) -> String {
    // Two Events of one microsecond are of two objects, or the second is a repeat or gets its own microsecond:
    // there is one writer.
    format!(
        "{}.{nanoseconds:x}",
        cut(object, NAME_BYTES).trim_end_matches(['.', '-'])
    )
}

/// The longest beginning of `text` with at most `bytes` bytes and whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRecorder")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
