//! Which nodes a load balancer may send traffic to.
//!
//! A node enters when it is initialised; readiness, cordons and network conditions never take it out: health checks
//! see those sooner and better.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cloud::{Description, TargetKind};
use crate::ids::NodeName;
use crate::node::view::{AddressType, NodeAddress, NodeView};
use crate::ownership::{NodeOwner, of_node};
use crate::service::node_set::{Member, NodeSet};
use crate::territory::Territory;

/// Label that keeps a node out of all load balancers: if its value parses as a boolean, exactly if that is true.
pub const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Taint of a node that the cluster autoscaler is about to delete.
const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Label with a node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Why a node is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// By the label.
    Label,
    /// It is being deleted.
    Deleting,
    /// The cluster autoscaler is about to delete it.
    Autoscaler,
    /// It waits to be initialised.
    Uninitialized,
    /// It has no provider ID.
    NoProviderId,
    /// It belongs to another provider.
    Foreign,
    /// Targets are addresses, and it has none.
    NoAddress,
}

impl Exclusion {
    /// For people, as in "2 being deleted".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Label => "excluded by label node.kubernetes.io/exclude-from-external-load-balancers",
            Self::Deleting => "being deleted",
            Self::Autoscaler => "about to be deleted by the cluster autoscaler",
            Self::Uninitialized => "not yet initialised",
            Self::NoProviderId => "without a provider ID",
            Self::Foreign => "of another provider",
            Self::NoAddress => "without an IP address",
        }
    }
}

/// The nodes to send traffic to, and why the others are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The targets.
    pub set: Arc<NodeSet>,
    /// Everybody else, by name.
    pub excluded: Vec<(NodeName, Exclusion)>,
}

/// Why `node` is no target for the plugin described, which owns `territory`; `None`: it is one.
pub fn exclusion(node: &NodeView, plugin: &Description, territory: &Territory) -> Option<Exclusion> {
    let has_ip = || node.addresses.iter().any(is_ip);
    if excluded_by_label(node) {
        Some(Exclusion::Label)
    } else if node.deleting {
        Some(Exclusion::Deleting)
    } else if node.taints.iter().any(|taint| taint.key == AUTOSCALER_TAINT) {
        Some(Exclusion::Autoscaler)
    } else if node.is_uninitialized() {
        Some(Exclusion::Uninitialized)
    } else if node.provider_id.is_none() {
        Some(Exclusion::NoProviderId)
    } else if of_node(node, territory) != NodeOwner::Ours {
        Some(Exclusion::Foreign)
    } else if plugin.targets == TargetKind::Address && !has_ip() {
        Some(Exclusion::NoAddress)
    } else {
        None
    }
}

fn excluded_by_label(node: &NodeView) -> bool {
    // What Go's ParseBool takes for false; everything else, the empty value too, excludes.
    node.labels
        .get(EXCLUDE_LABEL)
        .is_some_and(|value| !["0", "f", "F", "false", "False", "FALSE"].contains(&value.as_str()))
}

fn is_ip(address: &NodeAddress) -> bool {
    matches!(address.kind, AddressType::InternalIp | AddressType::ExternalIp)
        && address.address.parse::<IpAddr>().is_ok()
}

/// Picks the targets among all nodes.
pub fn select(nodes: &[Arc<NodeView>], plugin: &Description, territory: &Territory) -> Selection {
    let mut members = Vec::new();
    let mut excluded = Vec::new();
    for node in nodes {
        match exclusion(node, plugin, territory) {
            None => members.push(member(node, plugin)),
            Some(why) => excluded.push((node.name.clone(), why)),
        }
    }
    excluded.sort();
    Selection {
        set: Arc::new(NodeSet::of(members)),
        excluded,
    }
}

fn member(node: &NodeView, plugin: &Description) -> Member {
    Member {
        name: node.name.clone(),
        uid: node.uid.clone(),
        provider_id: node.provider_id.clone().unwrap_or_default(),
        addresses: node.addresses.clone(),
        zone: node.labels.get(ZONE_LABEL).cloned().unwrap_or_default(),
        labels: plugin.label_keys.of(&node.labels),
    }
}

/// Whether a change from `old` to `new` must reach the load balancers at once. An autoscaler's taint and a deletion
/// timestamp take effect with the next update: the deletion itself brings one.
pub fn matters(
    old: Option<&NodeView>,
    new: Option<&NodeView>,
    plugin: &Description,
    territory: &Territory,
) -> bool {
    let member_of = |node: Option<&NodeView>| {
        node.filter(|node| {
            let why = exclusion(node, plugin, territory);
            why.is_none() || matches!(why, Some(Exclusion::Deleting | Exclusion::Autoscaler))
        })
        .map(|node| member(node, plugin))
    };
    member_of(old) != member_of(new)
}

/// In words, why there is no target: `3 nodes: 2 being deleted, 1 without a provider ID`.
pub fn explain_empty(selection: &Selection) -> String {
    let mut reasons: Vec<(Exclusion, usize)> = Vec::new();
    for (_, why) in &selection.excluded {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((*why, 1)),
        }
    }
    if reasons.is_empty() {
        return "the cluster has no nodes".to_owned();
    }
    reasons.sort();
    let parts: Vec<String> = reasons
        .iter()
        .map(|(why, count)| format!("{count} {}", why.words()))
        .collect();
    format!("of {} nodes, {}", selection.excluded.len(), parts.join(", "))
}

#[cfg(test)]
mod tests;
