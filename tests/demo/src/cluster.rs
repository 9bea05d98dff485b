//! What the demo reads from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_harness::UNINITIALIZED_TAINT;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client, ResourceExt};

use crate::machine::{INSTANCE_TYPE, Machine, REGION};

pub(crate) const SERVICE: &str = "web";

pub(crate) fn nodes(client: Client) -> Api<Node> {
    Api::all(client)
}

pub(crate) fn services(client: Client) -> Api<Service> {
    Api::namespaced(client, "default")
}

/// Whether the node has the taint that keeps Pods away until its cloud has spoken.
pub(crate) fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == UNINITIALIZED_TAINT)
}

/// Fails unless the node has everything that its machine's entry in the inventory gives it.
pub(crate) fn ensure_complete(node: &Node, machine: &Machine) -> Result<()> {
    let spec = node.spec.as_ref().context("it has no spec")?;
    let expected = Some(machine.provider_id());
    ensure!(
        spec.provider_id == expected,
        "its provider ID is {:?}",
        spec.provider_id
    );
    let address = machine.address.to_string();
    let addresses = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    let has_address = addresses
        .into_iter()
        .any(|known| known.type_ == "InternalIP" && known.address == address);
    ensure!(has_address, "it has no InternalIP {address}");
    for (key, value) in labels(machine) {
        let found = node.labels().get(key);
        ensure!(
            found.is_some_and(|found| found == value),
            "its label {key} is {found:?}"
        );
    }
    Ok(())
}

/// The six labels of an initialised node.
fn labels(machine: &Machine) -> [(&'static str, &str); 6] {
    [
        ("node.kubernetes.io/instance-type", INSTANCE_TYPE),
        ("beta.kubernetes.io/instance-type", INSTANCE_TYPE),
        ("topology.kubernetes.io/zone", &machine.zone),
        ("failure-domain.beta.kubernetes.io/zone", &machine.zone),
        ("topology.kubernetes.io/region", REGION),
        ("failure-domain.beta.kubernetes.io/region", REGION),
    ]
}

/// The address in the Service's status.
pub(crate) fn external_address(service: &Service) -> Result<IpAddr> {
    let ingress = service
        .status
        .iter()
        .filter_map(|status| status.load_balancer.as_ref())
        .flat_map(|balancer| balancer.ingress.iter().flatten())
        .find_map(|ingress| ingress.ip.as_deref());
    let Some(address) = ingress else {
        bail!("Service {} has no address yet", service.name_any());
    };
    address
        .parse()
        .with_context(|| format!("read the address {address}"))
}

/// The node port that the API server chose for the Service's first port.
pub(crate) fn node_port(service: &Service) -> Result<u16> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let port = ports
        .into_iter()
        .find_map(|port| port.node_port)
        .context("the API server chose no node port")?;
    Ok(port.try_into()?)
}

/// The versions of all Nodes and of the Service: two that are equal mean that nobody wrote to any of them between.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Versions(BTreeMap<String, String>);

impl Versions {
    pub(crate) async fn read(client: &Client) -> Result<Self> {
        let mut versions = BTreeMap::new();
        for node in nodes(client.clone())
            .list(&kube::api::ListParams::default())
            .await?
        {
            versions.insert(format!("Node {}", node.name_any()), version(&node));
        }
        let service = services(client.clone()).get(SERVICE).await?;
        versions.insert(format!("Service {SERVICE}"), version(&service));
        Ok(Self(versions))
    }

    /// Fails, with the names of the objects, if any was written to, made or deleted since `before`.
    pub(crate) fn ensure_same_as(&self, before: &Self) -> Result<()> {
        let names: BTreeSet<_> = self.0.keys().chain(before.0.keys()).collect();
        let changed: Vec<_> = names
            .into_iter()
            .filter(|name| self.0.get(*name) != before.0.get(*name))
            .collect();
        ensure!(changed.is_empty(), "changed meanwhile: {changed:?}");
        Ok(())
    }

    /// How many Nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.0.len().saturating_sub(1)
    }
}

pub(crate) fn version(object: &impl ResourceExt) -> String {
    object.resource_version().unwrap_or_default()
}
