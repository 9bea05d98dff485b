//! What the host keeps of a Node. Managed fields, images and the like never get in here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::ids::{Guard, NodeName, Uid};

/// A Node, as far as any decision or plugin reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.creationTimestamp`.
    pub created_at: Timestamp,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.providerID` as it stands there, whatever it looks like; `None` if empty.
    pub provider_id: Option<String>,
    /// `spec.taints`, whole and in order: the list is written back whole.
    pub taints: Vec<Taint>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// `status.addresses`, in order.
    pub addresses: Vec<NodeAddress>,
    /// `status.conditions`, type and status only.
    pub conditions: Vec<NodeCondition>,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: String,
}

impl NodeView {
    /// The guard of a write that was decided on this view.
    pub fn guard(&self) -> Guard {
        Guard {
            uid: self.uid.clone(),
            resource_version: self.resource_version.clone(),
        }
    }

    /// Whether the taint `node.cloudprovider.kubernetes.io/uninitialized` is on, with whatever value and effect.
    pub fn is_uninitialized(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT)
    }
}

/// Taint that a kubelet started with `--cloud-provider=external` registers its Node with.
pub const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// A taint, with everything that must survive being written back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// The taint's key.
    pub key: String,
    /// The taint's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    /// As the API server wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// The five types of node addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AddressType {
    /// The machine's host name.
    Hostname,
    /// An address inside the cluster's network.
    #[serde(rename = "InternalIP")]
    InternalIp,
    /// An address from outside.
    #[serde(rename = "ExternalIP")]
    ExternalIp,
    /// A name inside the cluster's network.
    #[serde(rename = "InternalDNS")]
    InternalDns,
    /// A name from outside.
    #[serde(rename = "ExternalDNS")]
    ExternalDns,
}

/// One entry of `status.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeAddress {
    /// What kind of address it is.
    #[serde(rename = "type")]
    pub kind: AddressType,
    /// The address or name.
    pub address: String,
}

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody knows.
    Unknown,
}

/// A Node condition's type and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Its type, as `Ready`.
    pub kind: String,
    /// Its status.
    pub status: ConditionStatus,
}
