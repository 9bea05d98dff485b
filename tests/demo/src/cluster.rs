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

#[cfg(test)]
mod tests {
    use bulkhead_harness::{Workspace, node};
    use k8s_openapi::api::core::v1::NodeAddress;

    use super::*;

    fn complete(machine: &Machine) -> Node {
        let mut node = node(&machine.name);
        let labels = labels(machine).map(|(key, value)| (key.to_owned(), value.to_owned()));
        node.labels_mut().extend(labels);
        node.spec.as_mut().unwrap().provider_id = Some(machine.provider_id());
        node.status.as_mut().unwrap().addresses = Some(vec![NodeAddress {
            type_: "InternalIP".to_owned(),
            address: machine.address.to_string(),
        }]);
        node
    }

    #[test]
    fn a_node_that_lacks_anything_of_its_machine_is_not_complete() {
        let workspace = Workspace::new("demo-complete").unwrap();
        let machine = Machine::new(&workspace, 1);
        assert!(ensure_complete(&complete(&machine), &machine).is_ok());

        let spoils: [fn(&mut Node); 4] = [
            |node| node.spec.as_mut().unwrap().provider_id = None,
            |node| node.status.as_mut().unwrap().addresses = None,
            |node| drop(node.labels_mut().remove("topology.kubernetes.io/region")),
            |node| {
                let zone = "failure-domain.beta.kubernetes.io/zone".to_owned();
                node.labels_mut().insert(zone, "elsewhere".to_owned());
            },
        ];
        for (number, spoil) in spoils.iter().enumerate() {
            let mut node = complete(&machine);
            spoil(&mut node);
            assert!(
                ensure_complete(&node, &machine).is_err(),
                "spoil {number} was not seen"
            );
        }
    }

    #[test]
    fn versions_that_differ_are_named() {
        let versions = |pairs: &[(&str, &str)]| {
            let owned = pairs
                .iter()
                .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
            Versions(owned.collect())
        };
        let before = versions(&[("Node a", "1"), ("Node b", "2"), ("Service web", "3")]);
        assert!(before.ensure_same_as(&before).is_ok());
        let after = versions(&[("Node a", "1"), ("Node c", "5"), ("Service web", "4")]);
        let error = after.ensure_same_as(&before).unwrap_err().to_string();
        assert_eq!(error, r#"changed meanwhile: ["Node b", "Node c", "Service web"]"#);
    }
}
