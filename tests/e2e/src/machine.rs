//! What the embedded plugin needs on this machine: an inventory, addresses, nodes that answer.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context, Result};
use bulkhead_harness::{LocalOptions, NodeStandIn, PluginProcess, Workspace};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;

use crate::SOON;

/// Machines with addresses of the workspace, known to the embedded plugin by its inventory file.
#[derive(Debug)]
pub struct Machine<'a> {
    workspace: &'a Workspace,
    nodes: Vec<NodeStandIn>,
    served: BTreeSet<u16>,
}

impl<'a> Machine<'a> {
    /// Machines of these names, at most 100.
    ///
    /// # Errors
    ///
    /// If the inventory cannot be written.
    pub fn new(workspace: &'a Workspace, names: &[&str]) -> Result<Self> {
        let mut nodes = Vec::new();
        for (number, name) in (1..).zip(names) {
            nodes.push(NodeStandIn::new(name, workspace.loopback(number)));
        }
        let machine = Self {
            workspace,
            nodes,
            served: BTreeSet::new(),
        };
        let instance = |node: &NodeStandIn| {
            json!({
                "id": format!("i-{}", node.name()),
                "name": node.name(),
                "addresses": [node.address()],
                "instanceType": "bare",
                "zone": "rack-1",
                "region": "home",
            })
        };
        let instances: Vec<_> = machine.nodes.iter().map(instance).collect();
        fs::write(machine.inventory(), json!({ "instances": instances }).to_string())?;
        Ok(machine)
    }

    /// The file that lists the machines.
    pub fn inventory(&self) -> PathBuf {
        self.workspace.join("inventory.json")
    }

    /// Starts the embedded plugin and waits until it listens.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub async fn plugin(&self) -> Result<PluginProcess> {
        self.plugin_with_pool(&format!("{}/27", self.workspace.loopback(128)))
            .await
    }

    /// As [`Machine::plugin`], with other addresses for load balancers: a CIDR or one address.
    ///
    /// # Errors
    ///
    /// If it does not listen.
    pub async fn plugin_with_pool(&self, pool: &str) -> Result<PluginProcess> {
        let mut options = LocalOptions::new(self.inventory());
        options.arguments = vec!["--pool".into(), pool.into()];
        let plugin = PluginProcess::local(self.workspace, &options)?;
        plugin.wait_listening(SOON).await?;
        Ok(plugin)
    }

    /// The address of the machine `name`.
    ///
    /// # Errors
    ///
    /// If there is no such machine.
    pub fn address(&self, name: &str) -> Result<String> {
        let node = self.nodes.iter().find(|node| node.name() == name);
        Ok(node
            .with_context(|| format!("no machine {name}"))?
            .address()
            .to_string())
    }

    /// Lets every machine answer at every node port of a Service that it does not serve yet.
    ///
    /// # Errors
    ///
    /// If a node port cannot be bound.
    pub async fn serve(&mut self, service: &Service) -> Result<()> {
        for node_port in node_ports(service)? {
            // TCP and UDP may share one.
            if self.served.insert(node_port) {
                for node in &mut self.nodes {
                    node.listen(node_port).await?;
                }
            }
        }
        Ok(())
    }

    /// Closes every node port that none of these Services has.
    ///
    /// # Errors
    ///
    /// If a node port is no port.
    pub async fn serve_only(&mut self, services: &[Service]) -> Result<()> {
        let mut wanted = BTreeSet::new();
        for service in services {
            wanted.extend(node_ports(service)?);
        }
        for node_port in self.served.difference(&wanted) {
            for node in &mut self.nodes {
                node.close(*node_port).await;
            }
        }
        self.served.retain(|node_port| wanted.contains(node_port));
        Ok(())
    }
}

/// The node ports of a Service.
fn node_ports(service: &Service) -> Result<Vec<u16>> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let chosen = ports.filter_map(|port| port.node_port);
    chosen.map(|port| Ok(u16::try_from(port)?)).collect()
}
