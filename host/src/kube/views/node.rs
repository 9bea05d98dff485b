//! Node to [`NodeView`].

use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_core::clock::Timestamp;
use bulkhead_core::ids::{NodeName, Uid};
use bulkhead_core::node::view::{AddressType, ConditionStatus, NodeAddress, NodeCondition, NodeView, Taint};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::lenient;
use super::metadata::Metadata;

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawNode {
    metadata: Option<Metadata>,
    spec: Option<RawSpec>,
    status: Option<RawStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    #[serde(rename = "providerID", deserialize_with = "lenient::value")]
    provider_id: String,
    #[serde(deserialize_with = "lenient::list")]
    taints: Vec<Taint>,
    #[serde(rename = "podCIDRs", deserialize_with = "lenient::list")]
    pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "lenient::value")]
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    #[serde(deserialize_with = "lenient::list")]
    addresses: Vec<RawAddress>,
    #[serde(deserialize_with = "lenient::list")]
    conditions: Vec<RawCondition>,
    node_info: Option<RawNodeInfo>,
}

#[derive(Deserialize)]
struct RawAddress {
    #[serde(rename = "type")]
    kind: Value,
    address: String,
}

#[derive(Deserialize)]
struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: ConditionStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawNodeInfo {
    #[serde(rename = "systemUUID", deserialize_with = "lenient::value")]
    system_uuid: String,
}

pub(super) fn decode<'de, D: Deserializer<'de>>(from: D) -> Result<NodeView, D::Error> {
    let raw = RawNode::deserialize(from)?;
    let (metadata, spec, status) = (
        raw.metadata.unwrap_or_default(),
        raw.spec.unwrap_or_default(),
        raw.status.unwrap_or_default(),
    );
    Ok(NodeView {
        created_at: metadata.created_at().unwrap_or(Timestamp(0)),
        deleting: metadata.deleted_at().is_some(),
        name: NodeName(metadata.name),
        uid: Uid(metadata.uid),
        resource_version: metadata.resource_version,
        labels: metadata.labels,
        annotations: metadata.annotations,
        provider_id: Some(spec.provider_id).filter(|id| !id.is_empty()),
        taints: spec.taints,
        pod_cidrs: spec.pod_cidrs,
        unschedulable: spec.unschedulable,
        addresses: status.addresses.into_iter().filter_map(address).collect(),
        conditions: status
            .conditions
            .into_iter()
            .map(|condition| NodeCondition {
                kind: condition.kind,
                status: condition.status,
            })
            .collect(),
        system_uuid: status.node_info.unwrap_or_default().system_uuid,
    })
}

static UNKNOWN_TYPES: AtomicU64 = AtomicU64::new(0);

/// How many addresses of a type that Kubernetes does not have were left out of views so far.
pub fn unknown_address_types() -> u64 {
    UNKNOWN_TYPES.load(Ordering::Relaxed)
}

fn address(raw: RawAddress) -> Option<NodeAddress> {
    if let Ok(kind) = AddressType::deserialize(&raw.kind) {
        return Some(NodeAddress {
            kind,
            address: raw.address,
        });
    }
    let count = UNKNOWN_TYPES.fetch_add(1, Ordering::Relaxed) + 1;
    // The same node says it with every heartbeat: ever fewer lines, with the count.
    if count.is_power_of_two() {
        tracing::warn!(kind = %raw.kind, address = raw.address, count, "a node has an address of an unknown type; it is ignored");
    }
    None
}
