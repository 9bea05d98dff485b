//! The trait that an author implements.

use std::future::Future;
use std::sync::Arc;

use crate::call::Call;
use crate::describe::Description;
use crate::error::{PluginError, Result};
use crate::term::Term;
use crate::v1;

/// One load balancer whose targets are to follow a node set.
#[derive(Clone, Debug)]
pub struct TargetUpdate {
    /// Which load balancer.
    pub reference: v1::LoadBalancerRef,
    /// The full set, whether it came inline or by digest.
    pub nodes: Arc<v1::NodeSet>,
}

/// A cloud. Implement what [`describe`](Self::describe) declares; everything else answers UNIMPLEMENTED.
///
/// The SDK calls a method only while the host leads, after [`initialise`](Self::initialise) has succeeded, and only if
/// its capability is declared. Each call runs in a task of its own that is never dropped: when the caller goes away
/// the work goes on, and the next call finds what it did. A panic ends one call, not the process.
///
/// Rules for authors: before each cloud write ask [`Call::writing`] or [`Call::may_write`]; look up by mark before creating; answer
/// `IN_PROGRESS` before [`Call::remaining`] is zero; report every resource with its mark, also on failure; answer
/// absence as a field, never as an error.
pub trait CloudProvider: Send + Sync + 'static {
    /// Who the plugin is and what it can do. No cloud call; always the same answer.
    fn describe(&self) -> Description;

    /// Prepares for work: asked at the beginning of every term of leadership, beside the answer to `Lead`. Until it
    /// returns the plugin's health is `NOT_SERVING`. Asked again, with growing pauses, while it fails. Background work
    /// that it starts ends with [`Term::ended`].
    fn initialise(&self, _term: &Term) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// The term is over and no call of it runs any more: end background work. Nothing of the next term starts before
    /// this returns.
    fn stand_down(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// How the plugin is; answers within a second, also when standby. The SDK adds draining, calls in flight and the
    /// behaviour digest.
    fn status(&self) -> impl Future<Output = v1::GetStatusResponse> + Send {
        async { v1::GetStatusResponse::default() }
    }

    /// Reads instances: one result for each node, in their order. Capability `INSTANCES`.
    fn get_instances(
        &self,
        _call: &Call,
        _request: v1::GetInstancesRequest,
    ) -> impl Future<Output = Result<v1::GetInstancesResponse>> + Send {
        unimplemented("GetInstances")
    }

    /// Reads all instances in pages. Capability `INSTANCES_LIST`.
    fn list_instances(
        &self,
        _call: &Call,
        _request: v1::ListInstancesRequest,
    ) -> impl Future<Output = Result<v1::ListInstancesResponse>> + Send {
        unimplemented("ListInstances")
    }

    /// Makes a load balancer what `request.spec` says, with the targets `nodes` (`request.node_set` is taken out). A
    /// second identical call writes nothing to the cloud. Capability `LB`.
    fn ensure_load_balancer(
        &self,
        _call: &Call,
        _request: v1::EnsureLoadBalancerRequest,
        _nodes: Arc<v1::NodeSet>,
    ) -> impl Future<Output = Result<v1::EnsureLoadBalancerResponse>> + Send {
        unimplemented("EnsureLoadBalancer")
    }

    /// Changes targets only: one result for each update, in their order. Never creates. Capability `LB`.
    fn update_targets(
        &self,
        _call: &Call,
        _updates: Vec<TargetUpdate>,
    ) -> impl Future<Output = Result<Vec<v1::UpdateTargetsResult>>> + Send {
        unimplemented("UpdateTargets")
    }

    /// Reads load balancers and compares them. Writes nothing. Capability `LB`.
    fn get_load_balancers(
        &self,
        _call: &Call,
        _request: v1::GetLoadBalancersRequest,
    ) -> impl Future<Output = Result<v1::GetLoadBalancersResponse>> + Send {
        unimplemented("GetLoadBalancers")
    }

    /// Removes a load balancer and its children. Removing what is absent is DONE. Capability `LB`.
    fn delete_load_balancer(
        &self,
        _call: &Call,
        _request: v1::DeleteLoadBalancerRequest,
    ) -> impl Future<Output = Result<v1::DeleteLoadBalancerResponse>> + Send {
        unimplemented("DeleteLoadBalancer")
    }

    /// Reads routes inside the cluster CIDRs, in pages. Capability `ROUTES`.
    fn list_routes(
        &self,
        _call: &Call,
        _request: v1::ListRoutesRequest,
    ) -> impl Future<Output = Result<v1::ListRoutesResponse>> + Send {
        unimplemented("ListRoutes")
    }

    /// Creates, replaces and deletes routes: one result for each operation, in their order. Capability `ROUTES`.
    fn apply_routes(
        &self,
        _call: &Call,
        _request: v1::ApplyRoutesRequest,
    ) -> impl Future<Output = Result<v1::ApplyRoutesResponse>> + Send {
        unimplemented("ApplyRoutes")
    }

    /// Reads everything that carries a mark of this cluster, in pages. Capability `RESOURCES_LIST`.
    fn list_owned_resources(
        &self,
        _call: &Call,
        _request: v1::ListOwnedResourcesRequest,
    ) -> impl Future<Output = Result<v1::ListOwnedResourcesResponse>> + Send {
        unimplemented("ListOwnedResources")
    }

    /// Deletes marked resources by id, under guards: one result each. Capability `RESOURCES_DELETE`.
    fn delete_owned_resources(
        &self,
        _call: &Call,
        _request: v1::DeleteOwnedResourcesRequest,
    ) -> impl Future<Output = Result<v1::DeleteOwnedResourcesResponse>> + Send {
        unimplemented("DeleteOwnedResources")
    }
}

fn unimplemented<T: Send>(rpc: &'static str) -> impl Future<Output = Result<T>> + Send {
    std::future::ready(Err(PluginError::unimplemented(rpc)))
}
