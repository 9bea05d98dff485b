//! The gRPC service: one handler for each RPC, all through [`Runner`].

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::call::Access::{Read, Write};
use crate::error::PluginError;
use crate::provider::{CloudProvider, TargetUpdate};
use crate::role::{Epoch, Told};
use crate::runner::{Rpc, Runner};
use crate::session::Session;
use crate::v1::cloud_provider_server::CloudProvider as Wire;
use crate::v1::{self, Capability};
use crate::{status, time};

/// Serves a provider.
#[derive(Debug)]
pub(crate) struct Service<P> {
    runner: Arc<Runner<P>>,
    description: v1::DescribeResponse,
}

type Answer<T> = Result<Response<T>, Status>;

const GET_INSTANCES: Rpc = Rpc::new("GetInstances", Capability::Instances, Read, 12);
const LIST_INSTANCES: Rpc = Rpc::new("ListInstances", Capability::InstancesList, Read, 25);
const PUT_NODE_SET: Rpc = Rpc::new("PutNodeSet", Capability::LbNodesets, Read, 3);
const ENSURE_LOAD_BALANCER: Rpc = Rpc::new("EnsureLoadBalancer", Capability::Lb, Write, 50);
const UPDATE_TARGETS: Rpc = Rpc::new("UpdateTargets", Capability::Lb, Write, 50);
const GET_LOAD_BALANCERS: Rpc = Rpc::new("GetLoadBalancers", Capability::Lb, Read, 25);
const DELETE_LOAD_BALANCER: Rpc = Rpc::new("DeleteLoadBalancer", Capability::Lb, Write, 50);
const LIST_ROUTES: Rpc = Rpc::new("ListRoutes", Capability::Routes, Read, 25);
const APPLY_ROUTES: Rpc = Rpc::new("ApplyRoutes", Capability::Routes, Write, 50);
const LIST_OWNED_RESOURCES: Rpc = Rpc::new("ListOwnedResources", Capability::ResourcesList, Read, 25);
const DELETE_OWNED_RESOURCES: Rpc = Rpc::new("DeleteOwnedResources", Capability::ResourcesDelete, Write, 50);

impl<P: CloudProvider> Service<P> {
    pub(crate) fn new(runner: Arc<Runner<P>>, description: v1::DescribeResponse) -> Self {
        Self { runner, description }
    }
}

/// A handler that passes the request on as it is.
macro_rules! pass {
    ($self:ident, $rpc:ident, $request:ident, $method:ident) => {
        $self
            .runner
            .run(
                &$rpc,
                $request.into_inner(),
                |provider, call, request| async move { provider.$method(&call, request).await },
            )
            .await
    };
}

#[tonic::async_trait]
impl<P: CloudProvider> Wire for Service<P> {
    async fn describe(&self, _request: Request<v1::DescribeRequest>) -> Answer<v1::DescribeResponse> {
        Ok(Response::new(self.description.clone()))
    }

    async fn lead(&self, request: Request<v1::LeadRequest>) -> Answer<v1::LeadResponse> {
        let clock_stamp = time::boot_nanos();
        let session = session(&request)?;
        let (epoch, told) = told(request.get_ref(), &session)?;
        self.runner.leadership().lead(&epoch, &told, clock_stamp)?;
        session.stamp(clock_stamp);
        Ok(Response::new(v1::LeadResponse { clock_stamp }))
    }

    async fn get_status(&self, _request: Request<v1::GetStatusRequest>) -> Answer<v1::GetStatusResponse> {
        Ok(Response::new(status::collect(&self.runner).await))
    }

    async fn get_instances(
        &self,
        request: Request<v1::GetInstancesRequest>,
    ) -> Answer<v1::GetInstancesResponse> {
        pass!(self, GET_INSTANCES, request, get_instances)
    }

    async fn list_instances(
        &self,
        request: Request<v1::ListInstancesRequest>,
    ) -> Answer<v1::ListInstancesResponse> {
        pass!(self, LIST_INSTANCES, request, list_instances)
    }

    async fn put_node_set(&self, request: Request<v1::PutNodeSetRequest>) -> Answer<v1::PutNodeSetResponse> {
        let session = session(&request)?;
        let put = |_provider, _call, request: v1::PutNodeSetRequest| async move {
            let set = request.node_set.filter(|set| !set.digest.is_empty());
            session.put(set.ok_or_else(|| PluginError::invalid_spec("node_set.digest", "is missing"))?);
            Ok(v1::PutNodeSetResponse {})
        };
        self.runner.run(&PUT_NODE_SET, request.into_inner(), put).await
    }

    async fn ensure_load_balancer(
        &self,
        request: Request<v1::EnsureLoadBalancerRequest>,
    ) -> Answer<v1::EnsureLoadBalancerResponse> {
        let session = session(&request)?;
        let ensure = |provider: Arc<P>, call, mut request: v1::EnsureLoadBalancerRequest| async move {
            let nodes = resolve(&session, request.node_set.take(), "node_set")?;
            provider.ensure_load_balancer(&call, request, nodes).await
        };
        self.runner
            .run(&ENSURE_LOAD_BALANCER, request.into_inner(), ensure)
            .await
    }

    async fn update_targets(
        &self,
        request: Request<v1::UpdateTargetsRequest>,
    ) -> Answer<v1::UpdateTargetsResponse> {
        let session = session(&request)?;
        let update = |provider: Arc<P>, call, request: v1::UpdateTargetsRequest| async move {
            let updates = updates(&session, request.items)?;
            let results = provider.update_targets(&call, updates).await?;
            Ok(v1::UpdateTargetsResponse { results })
        };
        self.runner
            .run(&UPDATE_TARGETS, request.into_inner(), update)
            .await
    }

    async fn get_load_balancers(
        &self,
        request: Request<v1::GetLoadBalancersRequest>,
    ) -> Answer<v1::GetLoadBalancersResponse> {
        pass!(self, GET_LOAD_BALANCERS, request, get_load_balancers)
    }

    async fn delete_load_balancer(
        &self,
        request: Request<v1::DeleteLoadBalancerRequest>,
    ) -> Answer<v1::DeleteLoadBalancerResponse> {
        pass!(self, DELETE_LOAD_BALANCER, request, delete_load_balancer)
    }

    async fn list_routes(&self, request: Request<v1::ListRoutesRequest>) -> Answer<v1::ListRoutesResponse> {
        pass!(self, LIST_ROUTES, request, list_routes)
    }

    async fn apply_routes(
        &self,
        request: Request<v1::ApplyRoutesRequest>,
    ) -> Answer<v1::ApplyRoutesResponse> {
        pass!(self, APPLY_ROUTES, request, apply_routes)
    }

    async fn list_owned_resources(
        &self,
        request: Request<v1::ListOwnedResourcesRequest>,
    ) -> Answer<v1::ListOwnedResourcesResponse> {
        pass!(self, LIST_OWNED_RESOURCES, request, list_owned_resources)
    }

    async fn delete_owned_resources(
        &self,
        request: Request<v1::DeleteOwnedResourcesRequest>,
    ) -> Answer<v1::DeleteOwnedResourcesResponse> {
        pass!(self, DELETE_OWNED_RESOURCES, request, delete_owned_resources)
    }
}

/// The session behind a request; every connection that [`crate::socket`] accepts carries one.
fn session<T>(request: &Request<T>) -> Result<Arc<Session>, PluginError> {
    let session = request.extensions().get::<Arc<Session>>();
    session
        .cloned()
        .ok_or_else(|| PluginError::plugin_bug("a connection without a session"))
}

/// Reads a `Lead`. An absent duration is refused: read as zero it would stop a plugin by accident.
fn told(request: &v1::LeadRequest, session: &Session) -> Result<(Epoch, Told), PluginError> {
    let epoch = epoch(request.epoch.as_ref(), "epoch")?;
    let valid_for = request
        .valid_for
        .ok_or_else(|| PluginError::invalid_spec("valid_for", "is missing"))?;
    let valid_for = std::time::Duration::try_from(valid_for)
        .map_err(|_| PluginError::invalid_spec("valid_for", "is negative"))?;
    let told = match request.echo {
        _ if valid_for.is_zero() => Told::Stop,
        Some(echo) if session.knows(echo) => {
            let nanos = u64::try_from(valid_for.as_nanos()).unwrap_or(u64::MAX);
            Told::Grant {
                until: echo.saturating_add(nanos),
            }
        }
        _ => Told::Announce,
    };
    Ok((epoch, told))
}

/// Reads an epoch.
pub(crate) fn epoch(epoch: Option<&v1::Epoch>, field: &str) -> Result<Epoch, PluginError> {
    match epoch {
        Some(epoch) if !epoch.lease_uid.is_empty() => Ok(Epoch {
            lease: epoch.lease_uid.clone(),
            transitions: epoch.transitions,
        }),
        _ => Err(PluginError::invalid_spec(
            format!("{field}.lease_uid"),
            "is missing",
        )),
    }
}

fn updates(session: &Session, items: Vec<v1::UpdateTargetsItem>) -> Result<Vec<TargetUpdate>, PluginError> {
    let update = |(number, item): (usize, v1::UpdateTargetsItem)| {
        let field = |name: &str| format!("items[{number}].{name}");
        let reference = item
            .r#ref
            .ok_or_else(|| PluginError::invalid_spec(field("ref"), "is missing"))?;
        Ok(TargetUpdate {
            reference,
            nodes: resolve(session, item.node_set, &field("node_set"))?,
        })
    };
    items.into_iter().enumerate().map(update).collect()
}

/// The full node set, wherever it is.
fn resolve(
    session: &Session,
    reference: Option<v1::NodeSetRef>,
    field: &str,
) -> Result<Arc<v1::NodeSet>, PluginError> {
    match reference.and_then(|reference| reference.set) {
        Some(v1::node_set_ref::Set::Inline(set)) => Ok(Arc::new(set)),
        Some(v1::node_set_ref::Set::Digest(digest)) => session
            .node_set(&digest)
            .ok_or_else(|| PluginError::node_set_unknown(&digest)),
        None => Err(PluginError::invalid_spec(field, "is missing")),
    }
}
