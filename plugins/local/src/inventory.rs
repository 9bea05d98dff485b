//! The instances of this provider: what the inventory file says.
//!
//! [`parse()`] turns a text into an [`Inventory`] or an error naming line and field; [`InventoryFile`]
//! follows a file and keeps the last good content while the present one is broken.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

mod file;
mod parse;

pub use file::{InventoryFile, Read, ReadError, View};
pub use parse::{ParseError, parse};

/// The URL scheme of provider IDs: `local://<id>`.
pub const SCHEME: &str = "local";

/// What an address is for; Kubernetes' own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum AddressKind {
    /// The machine's host name.
    Hostname,
    /// An IP address for use inside the cluster.
    InternalIP,
    /// An IP address for use from outside.
    ExternalIP,
    /// A name that resolves inside the cluster.
    InternalDNS,
    /// A name that resolves outside.
    ExternalDNS,
}

impl AddressKind {
    /// Whether addresses of this kind are IP addresses, not names.
    pub fn is_ip(self) -> bool {
        matches!(self, Self::InternalIP | Self::ExternalIP)
    }
}

/// One address of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// What it is for.
    pub kind: AddressKind,
    /// An IP address in canonical form, or a name.
    pub value: String,
}

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// Being made.
    Pending,
    /// Running; what an entry without a power state is.
    #[default]
    Running,
    /// On its way to stopped.
    Stopping,
    /// Off, and may run again.
    Stopped,
    /// Asleep, and may run again.
    Suspended,
    /// Being destroyed.
    Terminating,
    /// Destroyed: can never run again.
    Terminated,
    /// Broken.
    Faulted,
    /// Nobody knows.
    Unknown,
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The provider's own key: unique, and never that of another machine later.
    pub id: String,
    /// The node's name, as its kubelet registers it.
    pub name: String,
    /// In the order of the file.
    pub addresses: Vec<Address>,
    /// Empty if the file has none.
    pub instance_type: String,
    /// Empty if the file has none.
    pub zone: String,
    /// Empty if the file has none.
    pub region: String,
    /// What it does.
    pub power: Power,
    /// Labels for the node, beside those that follow from type, zone and region.
    pub labels: BTreeMap<String, String>,
}

impl Instance {
    /// The provider ID: made of the ID alone, never of a host name.
    pub fn provider_id(&self) -> String {
        format!("{SCHEME}://{}", self.id)
    }
}

/// All instances, by ID and by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    by_id: BTreeMap<String, Instance>,
    id_by_name: BTreeMap<String, String>,
}

impl Inventory {
    /// The instance with this ID.
    pub fn by_id(&self, id: &str) -> Option<&Instance> {
        self.by_id.get(id)
    }

    /// The instance with this name, whatever its case.
    pub fn by_name(&self, name: &str) -> Option<&Instance> {
        self.by_id(self.id_by_name.get(&name.to_ascii_lowercase())?)
    }

    /// Up to `limit` instances in the order of their IDs, from the first whose ID is greater than
    /// `after`.
    pub fn page<'a>(&'a self, after: &'a str, limit: usize) -> impl Iterator<Item = &'a Instance> {
        let from = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        self.by_id
            .range::<str, _>(from)
            .map(|(_, instance)| instance)
            .take(limit)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds an instance whose ID and name are known to be new.
    fn insert(&mut self, instance: Instance) {
        self.id_by_name
            .insert(instance.name.to_ascii_lowercase(), instance.id.clone());
        self.by_id.insert(instance.id.clone(), instance);
    }
}

/// What a provider ID names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderId {
    /// An instance ID of this provider.
    Ours(String),
    /// Another provider's scheme, or none.
    Foreign,
    /// Our scheme, but no instance can have this ID.
    Malformed,
}

impl ProviderId {
    /// Reads a node's provider ID.
    pub fn read(text: &str) -> Self {
        match text.split_once("://") {
            Some((SCHEME, id)) if parse::is_id(id) => Self::Ours(id.to_owned()),
            Some((SCHEME, _)) => Self::Malformed,
            Some(_) | None => Self::Foreign,
        }
    }
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ours("local://i-1", ProviderId::Ours("i-1".to_owned()))]
    #[case::another_cloud("aws:///eu-1a/i-1", ProviderId::Foreign)]
    #[case::no_scheme("i-1", ProviderId::Foreign)]
    #[case::a_longer_scheme("locality://i-1", ProviderId::Foreign)]
    #[case::no_id("local://", ProviderId::Malformed)]
    #[case::a_path("local:///i-1", ProviderId::Malformed)]
    fn provider_ids(#[case] text: &str, #[case] want: ProviderId) {
        assert_eq!(ProviderId::read(text), want);
    }

    #[test]
    fn names_are_found_whatever_their_case() {
        let inventory = parse("instances: [{id: i-1, name: Pool-A-1}]").unwrap();
        assert_eq!(inventory.by_name("pool-a-1").unwrap().id, "i-1");
        assert_eq!(inventory.by_name("pool-a-2"), None);
    }

    #[rstest]
    #[case::one_by_one(1)]
    #[case::two(2)]
    #[case::all_at_once(9)]
    fn pages_of_any_size_have_the_same_union(#[case] size: usize) {
        let entries: Vec<String> = (0..5).map(|n| format!("{{id: i-{n}, name: n-{n}}}")).collect();
        let inventory = parse(&format!("instances: [{}]", entries.join(", "))).unwrap();
        let mut seen: Vec<String> = Vec::new();
        loop {
            let after = seen.last().cloned().unwrap_or_default();
            let before = seen.len();
            seen.extend(inventory.page(&after, size).map(|instance| instance.id.clone()));
            if seen.len() == before {
                break;
            }
        }
        assert_eq!(seen, ["i-0", "i-1", "i-2", "i-3", "i-4"]);
    }
}
