//! The bodies of patches, one function for each row of the write table.
//!
//! Lists are sent whole: a JSON merge patch replaces them, and the guard sees to it that nobody else's change is
//! lost with that.

use bulkhead_core::ids::{Guard, Uid};
use bulkhead_core::node::view::NodeAddress;
use bulkhead_core::service::view::{Ingress, IngressAddress, IpMode};
use serde_json::{Map, Value, json};

use super::writer::NodePatch;

/// JSON merge patch of `nodes/status`.
pub(super) fn node_addresses(uid: &Uid, addresses: &[NodeAddress]) -> Value {
    json!({ "metadata": { "uid": uid }, "status": { "addresses": addresses } })
}

/// JSON merge patch of `nodes`; a label of `None` is removed.
pub(super) fn node(guard: &Guard, patch: &NodePatch) -> Value {
    let mut metadata = guarded(guard);
    if !patch.labels.is_empty() {
        metadata.insert("labels".into(), json!(patch.labels));
    }
    let mut spec = Map::new();
    if let Some(id) = &patch.provider_id {
        spec.insert("providerID".into(), json!(id));
    }
    if let Some(taints) = &patch.taints {
        spec.insert("taints".into(), json!(taints));
    }
    let mut body = Map::from_iter([("metadata".into(), metadata.into())]);
    if !spec.is_empty() {
        body.insert("spec".into(), spec.into());
    }
    body.into()
}

/// JSON merge patch of `services/status`.
pub(super) fn service_finalizers(guard: &Guard, finalizers: &[String]) -> Value {
    let mut metadata = guarded(guard);
    metadata.insert("finalizers".into(), json!(finalizers));
    json!({ "metadata": metadata })
}

/// Strategic merge patch of `services/status`: ingress is replaced whole.
pub(super) fn service_ingress(uid: &Uid, ingress: &[Ingress]) -> Value {
    // An empty list would merge as no change at all.
    let list: Value = if ingress.is_empty() {
        Value::Null
    } else {
        ingress.iter().map(entry).collect()
    };
    json!({ "metadata": { "uid": uid }, "status": { "loadBalancer": { "ingress": list } } })
}

fn guarded(guard: &Guard) -> Map<String, Value> {
    Map::from_iter([
        ("uid".into(), json!(guard.uid)),
        ("resourceVersion".into(), json!(guard.resource_version)),
    ])
}

fn entry(ingress: &Ingress) -> Value {
    let mut entry = match &ingress.address {
        IngressAddress::Ip(ip, IpMode::Vip) => json!({ "ip": ip, "ipMode": "VIP" }),
        IngressAddress::Ip(ip, IpMode::Proxy) => json!({ "ip": ip, "ipMode": "Proxy" }),
        IngressAddress::Hostname(name) => json!({ "hostname": name }),
    };
    if let (Some(entry), false) = (entry.as_object_mut(), ingress.ports.is_empty()) {
        let ports = ingress.ports.iter().map(|port| match &port.error {
            Some(error) => json!({ "port": port.port, "protocol": port.protocol, "error": error }),
            None => json!({ "port": port.port, "protocol": port.protocol }),
        });
        entry.insert("ports".into(), ports.collect());
    }
    entry
}

#[cfg(test)]
mod tests;
