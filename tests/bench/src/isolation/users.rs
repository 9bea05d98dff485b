//! People and machines: Services come and go, nodes join and leave, one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_e2e::{Cluster, Simulated, ingress, is_uninitialised};
use bulkhead_harness::Stopwatch;
use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::sight::Sight;
use crate::sample::Sample;

/// Services of each healthy plugin that are worked on at once.
const SERVICES_AT_ONCE: usize = 3;

/// What comes to the plugin that has the fault, at the beginning of each measurement.
const BROUGHT_SERVICES: usize = 8;
const BROUGHT_NODES: usize = 4;

/// An object that somebody made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Service(String),
    Node(String),
}

/// Everybody who uses the cluster.
pub(super) struct Users {
    services_api: Api<Service>,
    nodes_api: Api<Node>,
    services: Sight,
    nodes: Sight,
    names: AtomicUsize,
}

impl Users {
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self {
            services_api: cluster.services(),
            nodes_api: cluster.nodes(),
            services: Sight::follow(cluster.services(), |service| !ingress(service).is_empty()),
            nodes: Sight::follow(cluster.nodes(), |node| !is_uninitialised(node)),
            names: AtomicUsize::new(0),
        }
    }

    /// Uses `plugins` for so long: how long it took until a Service had its address, until it was gone, and until a
    /// node was initialised.
    pub(super) async fn use_for(&self, lasting: Duration, plugins: &[Simulated<'_>]) -> Result<Sample> {
        let watch = Stopwatch::start();
        let mut work: Vec<BoxFuture<'_, Result<Vec<Duration>>>> = Vec::new();
        for plugin in plugins {
            for _ in 0..SERVICES_AT_ONCE {
                work.push(self.services_of(plugin, watch, lasting).boxed());
            }
            work.push(self.nodes_of(plugin, watch, lasting).boxed());
        }
        let times = try_join_all(work).await?.concat();
        Sample::new(times).context("nothing was done")
    }

    async fn services_of(
        &self,
        plugin: &Simulated<'_>,
        watch: Stopwatch,
        lasting: Duration,
    ) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        while watch.elapsed() < lasting {
            let name = self.name(plugin);
            let making = Stopwatch::start();
            self.make_service(plugin, &name).await?;
            self.services.served(&name).await?;
            times.push(making.elapsed());
            let removing = Stopwatch::start();
            self.services_api.delete(&name, &DeleteParams::default()).await?;
            self.services.gone(&name).await?;
            times.push(removing.elapsed());
        }
        Ok(times)
    }

    async fn nodes_of(
        &self,
        plugin: &Simulated<'_>,
        watch: Stopwatch,
        lasting: Duration,
    ) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        while watch.elapsed() < lasting {
            let name = self.name(plugin);
            let node = plugin.machine(&name).await?;
            let joining = Stopwatch::start();
            self.nodes_api.create(&PostParams::default(), &node).await?;
            self.nodes.served(&name).await?;
            times.push(joining.elapsed());
            self.nodes_api.delete(&name, &DeleteParams::default()).await?;
        }
        Ok(times)
    }

    /// Gives `plugin` a node that stays, which its Services can send traffic to, and waits until it is initialised.
    pub(super) async fn settle(&self, plugin: &Simulated<'_>) -> Result<Object> {
        let node = self.bring_node(plugin).await?;
        self.served(&node).await?;
        Ok(node)
    }

    /// Brings work to `plugin`, and waits for nothing.
    pub(super) async fn bring(&self, plugin: &Simulated<'_>) -> Result<Vec<Object>> {
        let mut brought = Vec::new();
        for _ in 0..BROUGHT_SERVICES {
            let name = self.name(plugin);
            self.make_service(plugin, &name).await?;
            brought.push(Object::Service(name));
        }
        for _ in 0..BROUGHT_NODES {
            brought.push(self.bring_node(plugin).await?);
        }
        Ok(brought)
    }

    async fn bring_node(&self, plugin: &Simulated<'_>) -> Result<Object> {
        let name = self.name(plugin);
        let node = plugin.machine(&name).await?;
        self.nodes_api.create(&PostParams::default(), &node).await?;
        Ok(Object::Node(name))
    }

    /// Waits until the host has given `object` what it is to have.
    pub(super) async fn served(&self, object: &Object) -> Result<()> {
        match object {
            Object::Service(name) => self.services.served(name).await,
            Object::Node(name) => self.nodes.served(name).await,
        }
    }

    /// Whether it has.
    pub(super) fn is_served(&self, object: &Object) -> bool {
        match object {
            Object::Service(name) => self.services.is_served(name),
            Object::Node(name) => self.nodes.is_served(name),
        }
    }

    /// Takes `object` away, whoever would hold it.
    pub(super) async fn remove(&self, object: &Object) -> Result<()> {
        match object {
            Object::Service(name) => {
                let free = json!({ "metadata": { "finalizers": null } });
                let patch = Patch::Merge(&free);
                self.services_api.delete(name, &DeleteParams::default()).await?;
                // Without a finalizer it is gone already.
                match self
                    .services_api
                    .patch_metadata(name, &PatchParams::default(), &patch)
                    .await
                {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    result => drop(result?),
                }
            }
            Object::Node(name) => drop(self.nodes_api.delete(name, &DeleteParams::default()).await?),
        }
        Ok(())
    }

    async fn make_service(&self, plugin: &Simulated<'_>, name: &str) -> Result<()> {
        let service = plugin.service(name);
        self.services_api.create(&PostParams::default(), &service).await?;
        Ok(())
    }

    fn name(&self, plugin: &Simulated<'_>) -> String {
        format!("{}-{}", plugin.name(), self.names.fetch_add(1, Ordering::Relaxed))
    }
}
