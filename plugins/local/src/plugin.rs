//! The plugin: the protocol's calls in terms of [`World`] and [`InventoryFile`].

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::{Call, CloudProvider, Description, Result, TargetUpdate, Term, v1};
use tokio::sync::watch;

use crate::cidr::Family;
use crate::inventory::{InventoryFile, SCHEME, View};
use crate::pool::Pool;
use crate::state::LockError;
use crate::world::{Measures, Phase, Settings, World};

mod balancers;
mod instances;
mod resources;
mod spec;
mod status;

/// The provider's name.
pub const PROVIDER: &str = "local";

/// The load-balancer class beside "no class".
pub const CLASS: &str = "bulkhead.dev/local";

/// Raised whenever the same Spec leads to another result.
const TRANSLATION: u32 = 2;

/// More targets than any one machine should forward to.
const MAX_TARGETS: u32 = 1000;

/// What was counted, for metrics.
#[derive(Debug)]
pub struct Measured {
    /// Of load balancers; none while the process waits for its state.
    pub world: Option<Measures>,
    /// What is known of the inventory, if there is one.
    pub inventory: Option<View>,
}

/// The plugin. Cheap to clone; clones are one plugin.
#[derive(Debug, Clone)]
pub struct Local(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    world: OnceLock<World>,
    phase: watch::Sender<Phase>,
    inventory: Option<InventoryFile>,
    families: Vec<Family>,
    behaviour: String,
    since: Mutex<status::Since>,
}

impl Local {
    /// A plugin that serves nothing yet: see [`Local::run`]. Without an inventory it has no say on
    /// instances.
    pub fn new(pool: &Pool, inventory: Option<&Path>) -> Self {
        let inventory = inventory.map(InventoryFile::new);
        Self(Arc::new(Inner {
            world: OnceLock::new(),
            phase: watch::Sender::new(Phase::Starting),
            inventory,
            families: pool.families(),
            behaviour: format!("local-{TRANSLATION} pool {pool}"),
            since: Mutex::default(),
        }))
    }

    /// Serves as soon as the state directory is free, before any host asks and whatever the role, and
    /// follows the inventory; for ever. Fails if the state directory can never be used.
    pub async fn run(&self, settings: Settings) -> std::result::Result<(), LockError> {
        let serve = async {
            let world = World::open(settings, &self.0.phase).await?;
            // Only this function sets it, and a second call would wait for the lock above for ever.
            self.0.world.get_or_init(|| world);
            self.0.phase.send_replace(Phase::Serving);
            std::future::pending().await
        };
        let follow = async {
            match &self.0.inventory {
                Some(inventory) => inventory.follow().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            served = serve => served,
            () = follow => Ok(()),
        }
    }

    /// What was counted since the process started.
    pub async fn measures(&self) -> Measured {
        let world = match self.0.world.get() {
            Some(world) => Some(world.measures().await),
            None => None,
        };
        Measured {
            world,
            inventory: self.0.inventory.as_ref().map(InventoryFile::view),
        }
    }

    /// The load balancers, or why there are none to speak of.
    fn world(&self) -> Result<&World> {
        self.0.world.get().ok_or_else(|| {
            let phase = self.0.phase.borrow();
            match &*phase {
                Phase::Unreadable(problem) => PluginError::not_configured(problem),
                Phase::Waiting(holder) => PluginError::not_configured(format!(
                    "the state directory is in use by {holder}: this process serves once that one ends"
                )),
                Phase::Starting | Phase::Serving => {
                    PluginError::not_configured("the load balancers are being restored")
                }
            }
        })
    }

    fn inventory(&self) -> Result<&InventoryFile> {
        let missing = || PluginError::not_configured("there is no inventory: give one with --inventory");
        self.0.inventory.as_ref().ok_or_else(missing)
    }
}

impl CloudProvider for Local {
    fn describe(&self) -> Description {
        let family = |family: &Family| match family {
            Family::V4 => v1::IpFamily::Ipv4.into(),
            Family::V6 => v1::IpFamily::Ipv6.into(),
        };
        let features = v1::Features {
            protocols: vec![v1::Protocol::Tcp.into(), v1::Protocol::Udp.into()],
            mixed_protocols: true,
            ip_families: self.0.families.iter().map(family).collect(),
            ip_modes: vec![v1::IpMode::Vip.into(), v1::IpMode::Proxy.into()],
            source_ranges: true,
            session_affinity: true,
            targets: v1::TargetKind::Address.into(),
            requested_addresses: true,
            ..v1::Features::default()
        };
        let limits = v1::Limits {
            max_targets_per_load_balancer: Some(MAX_TARGETS),
            ..v1::Limits::default()
        };
        let description = Description::new(PROVIDER, env!("CARGO_PKG_VERSION"))
            .capability(v1::Capability::Lb)
            .capability(v1::Capability::ResourcesList)
            .capability(v1::Capability::ResourcesDelete)
            .class("")
            .class(CLASS)
            .annotation(spec::PROXY_PROTOCOL, v1::KeyEffect::InPlace)
            .features(features)
            .limits(limits)
            .behaviour_digest(&self.0.behaviour);
        let description = resources::types()
            .into_iter()
            .fold(description, Description::resource_type);
        if self.0.inventory.is_none() {
            return description;
        }
        description
            .capability(v1::Capability::Instances)
            .capability(v1::Capability::InstancesList)
            .scheme_with_characters(SCHEME, v1::SchemeUse::Unique, "A-Za-z0-9._-")
    }

    /// Waits for the lock: a process that cannot write must not be asked to. A state that cannot be read
    /// is no reason to wait: instances are answered all the same.
    async fn initialise(&self, term: &Term) -> Result<()> {
        let mut phases = self.0.phase.subscribe();
        let usable = phases.wait_for(|phase| match phase {
            Phase::Serving | Phase::Unreadable(_) => true,
            Phase::Starting | Phase::Waiting(_) => false,
        });
        tokio::select! {
            _ = usable => Ok(()),
            () = term.ended().cancelled() => Err(PluginError::not_leading("the term is over")),
        }
    }

    async fn status(&self) -> v1::GetStatusResponse {
        status::answer(self).await
    }

    async fn get_instances(
        &self,
        _call: &Call,
        request: v1::GetInstancesRequest,
    ) -> Result<v1::GetInstancesResponse> {
        instances::get(self.inventory()?, request).await
    }

    async fn list_instances(
        &self,
        _call: &Call,
        request: v1::ListInstancesRequest,
    ) -> Result<v1::ListInstancesResponse> {
        instances::list(self.inventory()?, &request).await
    }

    async fn ensure_load_balancer(
        &self,
        call: &Call,
        request: v1::EnsureLoadBalancerRequest,
        nodes: Arc<v1::NodeSet>,
    ) -> Result<v1::EnsureLoadBalancerResponse> {
        balancers::ensure(self.world()?, call, request, &nodes).await
    }

    async fn update_targets(
        &self,
        call: &Call,
        updates: Vec<TargetUpdate>,
    ) -> Result<Vec<v1::UpdateTargetsResult>> {
        balancers::update(self.world()?, call, updates).await
    }

    async fn get_load_balancers(
        &self,
        call: &Call,
        request: v1::GetLoadBalancersRequest,
    ) -> Result<v1::GetLoadBalancersResponse> {
        balancers::get(self.world()?, call, request).await
    }

    async fn delete_load_balancer(
        &self,
        call: &Call,
        request: v1::DeleteLoadBalancerRequest,
    ) -> Result<v1::DeleteLoadBalancerResponse> {
        balancers::delete(self.world()?, call, request).await
    }

    async fn list_owned_resources(
        &self,
        call: &Call,
        request: v1::ListOwnedResourcesRequest,
    ) -> Result<v1::ListOwnedResourcesResponse> {
        resources::list(self.world()?, call, &request).await
    }

    async fn delete_owned_resources(
        &self,
        call: &Call,
        request: v1::DeleteOwnedResourcesRequest,
    ) -> Result<v1::DeleteOwnedResourcesResponse> {
        resources::delete(self.world()?, call, request.resources).await
    }
}
