//! Every write to Nodes and Services: one method for each row of the write table, and fresh reads.
//!
//! A call is sent once: what a failure means is for the caller to decide, who can see whether the world has
//! changed since. Writes in flight are bounded. A write waits for its place first ([`Write::place`]) and is sent then
//! ([`Placed::send`]), so that the right to send it can be asked for in between, and so that its deadline begins with it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use ::kube::api::{GetParams, Patch, PatchParams};
use ::kube::client::Body;
use ::kube::{Client, Resource};
use bulkhead_core::ids::{Guard, NodeName, ServiceKey, Uid};
use bulkhead_core::node::view::{NodeAddress, NodeView, Taint};
use bulkhead_core::service::view::{Ingress, ServiceView};
use http::{HeaderMap, Request, header};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::{Connection, Pace, Turn};
use super::error::ApiError;
use super::patch;
use super::views::{View, Watched};
use crate::telemetry::Chain;

/// Our name in `managedFields`.
const FIELD_MANAGER: &str = "bulkhead";

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(15);

/// Longest wait for a place and a turn.
const PATIENCE: Duration = Duration::from_secs(15);

/// Counts writes: the table's row, and `ok` or [`ApiError::kind`].
type Count = Arc<dyn Fn(&'static str, &'static str) + Send + Sync>;

/// What to change on a Node, in one patch. What is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePatch {
    /// `spec.providerID`, which can be set once.
    pub provider_id: Option<String>,
    /// Labels to set, or with `None` to remove.
    pub labels: BTreeMap<String, Option<String>>,
    /// All taints that the Node is to have.
    pub taints: Option<Vec<Taint>>,
}

/// Writes Nodes and Services. Clones share the bound on writes in flight.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    pace: Option<Pace>,
    places: Arc<Semaphore>,
    count: Count,
}

/// A write that is not sent yet.
#[derive(Debug)]
#[must_use = "nothing is written before it is sent"]
pub struct Write<V> {
    writer: Writer,
    row: &'static str,
    request: Result<Request<Vec<u8>>, ApiError>,
    answer: PhantomData<fn() -> V>,
}

/// A write whose place among those in flight is free, and whose turn it is.
#[derive(Debug)]
#[must_use = "nothing is written before it is sent"]
pub struct Placed<V> {
    write: Write<V>,
    place: OwnedSemaphorePermit,
    turn: Option<Turn>,
}

impl Writer {
    /// A writer with at most `in_flight` writes at once. `count` is called once for each write that ended.
    pub fn new(
        connection: &Connection,
        in_flight: NonZeroUsize,
        count: impl Fn(&'static str, &'static str) + Send + Sync + 'static,
    ) -> Self {
        let places = in_flight.get().min(Semaphore::MAX_PERMITS);
        Self {
            client: connection.client.clone(),
            pace: connection.pace.clone(),
            places: Arc::new(Semaphore::new(places)),
            count: Arc::new(count),
        }
    }

    /// Replaces a Node's addresses; answers the Node as it is then.
    pub fn patch_node_addresses(
        &self,
        name: &NodeName,
        uid: &Uid,
        addresses: &[NodeAddress],
    ) -> Write<NodeView> {
        let body = patch::node_addresses(uid, addresses);
        self.patch(
            "patch-node-addresses",
            None,
            &name.0,
            Some("status"),
            &Patch::Merge(body),
        )
    }

    /// Changes a Node's provider ID, labels and taints; answers the Node as it is then.
    pub fn patch_node(&self, name: &NodeName, guard: &Guard, changes: &NodePatch) -> Write<NodeView> {
        let body = patch::node(guard, changes);
        self.patch("patch-node", None, &name.0, None, &Patch::Merge(body))
    }

    /// Replaces a Service's finalizers; answers the Service as it is then.
    pub fn patch_service_finalizers(
        &self,
        key: &ServiceKey,
        guard: &Guard,
        finalizers: &[String],
    ) -> Write<ServiceView> {
        let body = patch::service_finalizers(guard, finalizers);
        // The right to patch `services/status` is all a cloud controller has ever had.
        self.patch_service("patch-service-finalizers", key, &Patch::Merge(body))
    }

    /// Changes a Service's status; answers the Service as it is then.
    pub fn patch_service_ingress(
        &self,
        key: &ServiceKey,
        uid: &Uid,
        ingress: &[Ingress],
    ) -> Write<ServiceView> {
        let body = patch::service_ingress(uid, ingress);
        self.patch_service("patch-service-ingress", key, &Patch::Strategic(body))
    }

    /// A Node as it is in the cluster's database, not in any cache; `None` if there is none.
    pub async fn read_node(&self, name: &NodeName) -> Result<Option<NodeView>, ApiError> {
        self.read(None, &name.0).await
    }

    /// A Service as it is in the cluster's database, not in any cache, whether it matters to a store or not; `None`
    /// if there is none.
    pub async fn read_service(&self, key: &ServiceKey) -> Result<Option<ServiceView>, ApiError> {
        self.read(Some(&key.namespace), &key.name).await
    }

    fn patch_service(&self, row: &'static str, key: &ServiceKey, body: &Patch<Value>) -> Write<ServiceView> {
        self.patch(row, Some(&key.namespace), &key.name, Some("status"), body)
    }

    fn patch<V: View>(
        &self,
        row: &'static str,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        body: &Patch<Value>,
    ) -> Write<V> {
        let requests = requests::<V>(namespace);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = match subresource {
            Some(subresource) => requests.patch_subresource(subresource, name, &params, body),
            None => requests.patch(name, &params, body),
        };
        Write {
            writer: self.clone(),
            row,
            request: request.map_err(|error| unreachable(&error)),
            answer: PhantomData,
        }
    }

    async fn read<V: View>(&self, namespace: Option<&str>, name: &str) -> Result<Option<V>, ApiError> {
        // Without a resourceVersion it is a read of the database.
        let request = requests::<V>(namespace).get(name, &GetParams::default());
        let request = request.map_err(|error| unreachable(&error))?;
        let turn = in_patience(self.turn()).await?;
        match within_deadline(self.send(request, turn)).await {
            Ok(view) => Ok(Some(view)),
            Err(ApiError::Gone) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn turn(&self) -> Option<Turn> {
        match &self.pace {
            Some(pace) => Some(pace.turn().await),
            None => None,
        }
    }

    /// Sends a request once. Not by `Client::request`, which loses `Retry-After`.
    async fn send<V: View>(&self, mut request: Request<Vec<u8>>, turn: Option<Turn>) -> Result<V, ApiError> {
        if let Some(turn) = turn {
            request.extensions_mut().insert(turn);
        }
        let response = self.client.send(request.map(Body::from)).await?;
        let (head, body) = response.into_parts();
        let body = body.collect_bytes().await?;
        if head.status.is_success() {
            let object: Watched<V> = serde_json::from_slice(&body).map_err(|error| unreachable(&error))?;
            return Ok(object.view);
        }
        let status = serde_json::from_slice(&body).ok();
        Err(ApiError::refusal(
            head.status.as_u16(),
            status,
            retry_after(&head.headers),
        ))
    }
}

impl<V: View> Write<V> {
    /// Waits for a place among the writes in flight, and for a turn where a rate is set.
    ///
    /// # Errors
    /// There was none in time: nothing was sent.
    pub async fn place(self) -> Result<Placed<V>, ApiError> {
        let places = Arc::clone(&self.writer.places);
        let wait = async {
            let place = places.acquire_owned().await;
            (place, self.writer.turn().await)
        };
        match in_patience(wait).await {
            Ok((Ok(place), turn)) => Ok(Placed {
                write: self,
                place,
                turn,
            }),
            // Places are never closed.
            Ok((Err(_), _)) => Err(ApiError::NotSent {
                after: Duration::ZERO,
            }),
            Err(error) => {
                (self.writer.count)(self.row, error.kind());
                Err(error)
            }
        }
    }
}

impl<V: View> Placed<V> {
    /// Sends the write, once; the object as it is then.
    ///
    /// # Errors
    /// What the API server says, or that it does not.
    pub async fn send(self) -> Result<V, ApiError> {
        let Self { write, place, turn } = self;
        let sent = async { write.writer.send(write.request?, turn).await };
        let result = within_deadline(sent).await;
        drop(place);
        (write.writer.count)(write.row, result.as_ref().map_or_else(ApiError::kind, |_| "ok"));
        result
    }
}

fn requests<V: View>(namespace: Option<&str>) -> ::kube::core::Request {
    ::kube::core::Request::new(Watched::<V>::url_path(&(), namespace))
}

async fn in_patience<T>(wait: impl Future<Output = T>) -> Result<T, ApiError> {
    tokio::time::timeout(PATIENCE, wait)
        .await
        .map_err(|_| ApiError::NotSent { after: PATIENCE })
}

async fn within_deadline<V>(call: impl Future<Output = Result<V, ApiError>>) -> Result<V, ApiError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::Deadline { after: DEADLINE }),
    }
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> ApiError {
    ApiError::Unreachable {
        why: Chain(error).to_string(),
    }
}

/// The API server says seconds, never a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("free_places", &self.places.available_permits())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
