//! The nodes that a load balancer may send traffic to, as they go over the wire.

use std::collections::BTreeMap;

use crate::digest::{Canonical, Digest, Record};
use crate::ids::{NodeName, Uid};
use crate::node::view::{AddressType, NodeAddress};

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

/// A set of nodes with its digest (SPEC.md section 7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet {
    /// The members, by name.
    pub members: Vec<Member>,
    /// Digest of the members.
    pub digest: Digest,
}

impl NodeSet {
    /// The set of `members`, in whatever order they come.
    pub fn of(mut members: Vec<Member>) -> Self {
        members.sort_by(|one, other| (&one.name, &one.uid).cmp(&(&other.name, &other.uid)));
        let digest = digest(&members);
        Self { members, digest }
    }
}

fn digest(members: &[Member]) -> Digest {
    let mut canonical = Canonical::new();
    canonical.list(members, |canonical, member| {
        canonical.record(|record| write_member(record, member));
    });
    canonical.finish()
}

fn write_member(record: &mut Record<'_>, member: &Member) {
    record
        .string("name", &member.name.0)
        .string("uid", &member.uid.0)
        .map("labels", &member.labels)
        .string("provider_id", &member.provider_id)
        .list("addresses", &member.addresses, |canonical, address| {
            canonical.record(|record| {
                record
                    .integer("type", wire_number(address.kind))
                    .string("address", &address.address);
            });
        })
        .string("zone", &member.zone);
}

/// The number of an address type in the protocol.
const fn wire_number(kind: AddressType) -> i32 {
    match kind {
        AddressType::Hostname => 1,
        AddressType::InternalIp => 2,
        AddressType::ExternalIp => 3,
        AddressType::InternalDns => 4,
        AddressType::ExternalDns => 5,
    }
}
