//! Every write to Nodes and Services: one method for each row of the write table, and fresh reads.
//!
//! A call is sent once: what a failure means is for the caller to decide, who can see whether the world has
//! changed since. Writes in flight are bounded; waiting for a place is not part of a call's deadline.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
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
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::patch;
use super::views::{View, Watched};
use crate::telemetry::Chain;

/// Our name in `managedFields`.
const FIELD_MANAGER: &str = "bulkhead";

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(15);

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

/// What to change in a Service's status. What is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStatusPatch<'a> {
    /// All of `status.loadBalancer.ingress`.
    pub ingress: Option<&'a [Ingress]>,
    /// Types of conditions to remove; those that are not there do no harm.
    pub remove_conditions: &'a [String],
}

/// Writes Nodes and Services. Clones share the bound on writes in flight.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    places: Arc<Semaphore>,
    count: Count,
}

impl Writer {
    /// A writer with at most `in_flight` writes at once. `count` is called once for each write that ended.
    pub fn new(
        client: Client,
        in_flight: NonZeroUsize,
        count: impl Fn(&'static str, &'static str) + Send + Sync + 'static,
    ) -> Self {
        let places = in_flight.get().min(Semaphore::MAX_PERMITS);
        Self {
            client,
            places: Arc::new(Semaphore::new(places)),
            count: Arc::new(count),
        }
    }

    /// Replaces a Node's addresses; the Node as it is then.
    pub async fn patch_node_addresses(
        &self,
        name: &NodeName,
        uid: &Uid,
        addresses: &[NodeAddress],
    ) -> Result<NodeView, ApiError> {
        let body = patch::node_addresses(uid, addresses);
        self.patch(
            "patch-node-addresses",
            None,
            &name.0,
            Some("status"),
            Patch::Merge(body),
        )
        .await
    }

    /// Changes a Node's provider ID, labels and taints; the Node as it is then.
    pub async fn patch_node(
        &self,
        name: &NodeName,
        guard: &Guard,
        changes: &NodePatch,
    ) -> Result<NodeView, ApiError> {
        let body = patch::node(guard, changes);
        self.patch("patch-node", None, &name.0, None, Patch::Merge(body))
            .await
    }

    /// Replaces a Service's finalizers; the Service as it is then.
    pub async fn patch_service_finalizers(
        &self,
        key: &ServiceKey,
        guard: &Guard,
        finalizers: &[String],
    ) -> Result<ServiceView, ApiError> {
        let body = patch::service_finalizers(guard, finalizers);
        // The right to patch `services/status` is all a cloud controller has ever had.
        self.patch_service("patch-service-finalizers", key, Patch::Merge(body))
            .await
    }

    /// Changes a Service's status; the Service as it is then.
    pub async fn patch_service_status(
        &self,
        key: &ServiceKey,
        uid: &Uid,
        changes: ServiceStatusPatch<'_>,
    ) -> Result<ServiceView, ApiError> {
        let body = patch::service_status(uid, &changes);
        self.patch_service("patch-service-status", key, Patch::Strategic(body))
            .await
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

    async fn patch_service(
        &self,
        row: &'static str,
        key: &ServiceKey,
        body: Patch<Value>,
    ) -> Result<ServiceView, ApiError> {
        self.patch(row, Some(&key.namespace), &key.name, Some("status"), body)
            .await
    }

    async fn patch<V: View>(
        &self,
        row: &'static str,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        body: Patch<Value>,
    ) -> Result<V, ApiError> {
        let requests = requests::<V>(namespace);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = match subresource {
            Some(subresource) => requests.patch_subresource(subresource, name, &params, &body),
            None => requests.patch(name, &params, &body),
        };
        // Never closed, so there is always a place in the end.
        let place = self.places.acquire().await;
        let result = within_deadline(self.send(request)).await;
        drop(place);
        (self.count)(row, result.as_ref().map_or_else(ApiError::kind, |_| "ok"));
        result
    }

    async fn read<V: View>(&self, namespace: Option<&str>, name: &str) -> Result<Option<V>, ApiError> {
        // Without a resourceVersion it is a read of the database.
        let request = requests::<V>(namespace).get(name, &GetParams::default());
        match within_deadline(self.send(request)).await {
            Ok(view) => Ok(Some(view)),
            Err(ApiError::Gone) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request once. Not by `Client::request`, which loses `Retry-After`.
    async fn send<V: View>(
        &self,
        request: Result<Request<Vec<u8>>, ::kube::core::request::Error>,
    ) -> Result<V, ApiError> {
        let request = request.map_err(|error| unreachable(&error))?;
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

fn requests<V: View>(namespace: Option<&str>) -> ::kube::core::Request {
    ::kube::core::Request::new(Watched::<V>::url_path(&(), namespace))
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
