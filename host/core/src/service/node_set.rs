//! The nodes that a load balancer may send traffic to.

use crate::ids::{NodeName, Uid};
use crate::node::view::NodeAddress;
use std::collections::BTreeMap;

/// One node of a set: only what decides about targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node's name.
    pub name: NodeName,
    /// Its UID.
    pub uid: Uid,
    /// Its provider ID.
    pub provider_id: String,
    /// Its addresses.
    pub addresses: Vec<NodeAddress>,
    /// Its zone; empty if unknown.
    pub zone: String,
    /// Labels whose keys the plugin declared.
    pub labels: BTreeMap<String, String>,
}

/// A set of nodes, sorted by name, with its digest (SPEC.md section 7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet {
    /// The members, by name.
    pub members: Vec<Member>,
    /// sha256 over the members, in lower-case hexadecimal.
    pub digest: String,
}
