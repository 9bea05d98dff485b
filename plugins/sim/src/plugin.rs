//! The plugin: the protocol's calls, over the cloud's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_plugin::{Call, CloudProvider, Description, Result, TargetUpdate, Term, v1};

use crate::api::CloudApi;
use crate::cloud::{Answer, Caller, Op};

mod asking;
mod balancers;
mod config;
mod faults;
mod instances;
mod observed;
mod perform;
mod resources;
mod routes;
mod settling;
mod spoil;
mod status;
mod steps;
mod wanted;

pub use config::{Capability, Family, PluginConfig};
pub use faults::PluginFaults;

use asking::{Asking, PATIENCE, failure};
use settling::Settling;
use status::Known;

/// A plugin of a simulated cloud. Cheap to clone; clones are one plugin.
#[derive(Clone, Debug)]
pub struct Sim(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    api: CloudApi,
    config: PluginConfig,
    faults: PluginFaults,
    settling: Settling,
    known: Mutex<Known>,
}

impl Sim {
    /// A plugin in front of `api`.
    pub fn new(api: CloudApi, config: PluginConfig, faults: PluginFaults) -> Self {
        Self(Arc::new(Inner {
            api,
            config,
            faults,
            settling: Settling::default(),
            known: Mutex::default(),
        }))
    }

    fn asking<'a>(&'a self, call: &'a Call, rpc: &'static str) -> Asking<'a> {
        Asking::new(&self.0, call, rpc)
    }
}

impl Inner {
    /// What the cloud's records call this process.
    fn name(&self) -> String {
        format!("{}/{}", self.config.provider, std::process::id())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CloudProvider for Sim {
    fn describe(&self) -> Description {
        self.0.config.describe()
    }

    /// What another process wrote just before this term may not be seen yet.
    async fn initialise(&self, term: &Term) -> Result<()> {
        let epoch = term.epoch();
        let caller = Caller {
            plugin: self.0.name(),
            rpc: "Initialise".to_owned(),
            request_id: String::new(),
            epoch: format!("{}/{}", epoch.lease, epoch.transitions),
        };
        let work = async {
            // A cloud that is away keeps no plugin from leading: every call says so by itself.
            let lag = match self.0.api.call(&caller, &Op::Account, PATIENCE).await {
                Ok(Answer::Account(account)) => account.lag,
                Ok(_) | Err(_) => Duration::ZERO,
            };
            self.0.settling.all(lag);
            Ok(())
        };
        self.0.faults.around("Initialise", work).await
    }

    async fn status(&self) -> v1::GetStatusResponse {
        let answer = self
            .0
            .faults
            .around("GetStatus", async { Ok(status::answer(&self.0).await) });
        answer.await.unwrap_or_default()
    }

    async fn get_instances(
        &self,
        call: &Call,
        request: v1::GetInstancesRequest,
    ) -> Result<v1::GetInstancesResponse> {
        let work = instances::get(self.asking(call, "GetInstances"), request);
        self.0.faults.answer("GetInstances", Box::pin(work)).await
    }

    async fn list_instances(
        &self,
        call: &Call,
        request: v1::ListInstancesRequest,
    ) -> Result<v1::ListInstancesResponse> {
        let work = instances::list(self.asking(call, "ListInstances"), &request);
        self.0.faults.answer("ListInstances", Box::pin(work)).await
    }

    async fn ensure_load_balancer(
        &self,
        call: &Call,
        request: v1::EnsureLoadBalancerRequest,
        nodes: Arc<v1::NodeSet>,
    ) -> Result<v1::EnsureLoadBalancerResponse> {
        let work = balancers::ensure(self.asking(call, "EnsureLoadBalancer"), request, &nodes);
        self.0.faults.answer("EnsureLoadBalancer", Box::pin(work)).await
    }

    async fn update_targets(
        &self,
        call: &Call,
        updates: Vec<TargetUpdate>,
    ) -> Result<Vec<v1::UpdateTargetsResult>> {
        let work = balancers::update(self.asking(call, "UpdateTargets"), updates);
        self.0.faults.answer("UpdateTargets", Box::pin(work)).await
    }

    async fn get_load_balancers(
        &self,
        call: &Call,
        request: v1::GetLoadBalancersRequest,
    ) -> Result<v1::GetLoadBalancersResponse> {
        let work = balancers::get(self.asking(call, "GetLoadBalancers"), request);
        self.0.faults.answer("GetLoadBalancers", Box::pin(work)).await
    }

    async fn delete_load_balancer(
        &self,
        call: &Call,
        request: v1::DeleteLoadBalancerRequest,
    ) -> Result<v1::DeleteLoadBalancerResponse> {
        let work = balancers::delete(self.asking(call, "DeleteLoadBalancer"), request);
        self.0.faults.answer("DeleteLoadBalancer", Box::pin(work)).await
    }

    async fn list_routes(
        &self,
        call: &Call,
        request: v1::ListRoutesRequest,
    ) -> Result<v1::ListRoutesResponse> {
        let work = routes::list(self.asking(call, "ListRoutes"), request);
        self.0.faults.answer("ListRoutes", Box::pin(work)).await
    }

    async fn apply_routes(
        &self,
        call: &Call,
        request: v1::ApplyRoutesRequest,
    ) -> Result<v1::ApplyRoutesResponse> {
        let work = routes::apply(self.asking(call, "ApplyRoutes"), request);
        self.0.faults.answer("ApplyRoutes", Box::pin(work)).await
    }

    async fn list_owned_resources(
        &self,
        call: &Call,
        request: v1::ListOwnedResourcesRequest,
    ) -> Result<v1::ListOwnedResourcesResponse> {
        let work = resources::list(self.asking(call, "ListOwnedResources"), request);
        self.0.faults.answer("ListOwnedResources", Box::pin(work)).await
    }

    async fn delete_owned_resources(
        &self,
        call: &Call,
        request: v1::DeleteOwnedResourcesRequest,
    ) -> Result<v1::DeleteOwnedResourcesResponse> {
        let work = resources::delete(self.asking(call, "DeleteOwnedResources"), request);
        self.0.faults.answer("DeleteOwnedResources", Box::pin(work)).await
    }
}
