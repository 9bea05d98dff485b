//! The machines: what answers at a node port, and the inventory that the cloud of this demo is made of.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_harness::{NodeStandIn, Workspace};
use serde_json::json;

/// The first of the workspace's addresses that a machine gets.
const FIRST_ADDRESS: u8 = 11;

pub(crate) const REGION: &str = "here";
pub(crate) const INSTANCE_TYPE: &str = "stand-in";

/// One machine that is to be a node.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) zone: String,
    /// Answers at the node ports with the machine's name.
    pub(crate) stand_in: NodeStandIn,
}

impl Machine {
    /// The machine with this number, from 1; it serves nothing yet.
    pub(crate) fn new(workspace: &Workspace, number: u8) -> Self {
        let name = format!("node-{number}");
        let address = workspace.loopback(FIRST_ADDRESS + number - 1);
        Self {
            id: format!("m-{number:04}"),
            address,
            zone: format!("{REGION}-{}", if number.is_multiple_of(2) { 'b' } else { 'a' }),
            stand_in: NodeStandIn::new(&name, address),
            name,
        }
    }

    /// The provider ID that the node must get.
    pub(crate) fn provider_id(&self) -> String {
        format!("local://{}", self.id)
    }
}

/// The file that tells the plugin which machines there are.
#[derive(Debug)]
pub(crate) struct Inventory {
    path: PathBuf,
}

impl Inventory {
    pub(crate) fn new(workspace: &Workspace) -> Self {
        Self {
            path: workspace.join("inventory.yaml"),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content in one step. JSON is YAML too.
    pub(crate) fn write(&self, machines: &[Machine]) -> Result<()> {
        let instances: Vec<_> = machines.iter().map(entry).collect();
        let beside = self.path.with_extension("new");
        fs::write(&beside, format!("{:#}\n", json!({ "instances": instances })))
            .and_then(|()| fs::rename(&beside, &self.path))
            .with_context(|| format!("write {}", self.path.display()))
    }
}

fn entry(machine: &Machine) -> serde_json::Value {
    json!({
        "id": machine.id,
        "name": machine.name,
        "addresses": [machine.address],
        "instanceType": INSTANCE_TYPE,
        "zone": machine.zone,
        "region": REGION,
    })
}
