//! Instances as people and tests write them, and the objects that they are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::object::{Object, State};

/// What keys of attributes begin with that hold a label of the instance.
const LABEL: &str = "label/";

/// What a machine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as in the protocol")]
pub enum Power {
    Pending,
    #[default]
    Running,
    Stopping,
    Stopped,
    Suspended,
    Terminating,
    Terminated,
    Faulted,
    Unknown,
}

impl Power {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Running,
        Self::Stopping,
        Self::Stopped,
        Self::Suspended,
        Self::Terminating,
        Self::Terminated,
        Self::Faulted,
        Self::Unknown,
    ];

    /// The name in files and attributes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Suspended => "suspended",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
            Self::Faulted => "faulted",
            Self::Unknown => "unknown",
        }
    }

    /// The state of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|power| power.name() == name)
    }
}

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Instance {
    /// The cloud's key; the provider ID is made from it.
    pub id: String,
    /// The name of its node.
    pub name: String,
    /// Where it is: a scope of the cloud.
    #[serde(default = "zone")]
    pub zone: String,
    /// What its zone is part of.
    #[serde(default = "region")]
    pub region: String,
    /// As the cloud sells it.
    #[serde(default = "instance_type")]
    pub instance_type: String,
    /// In the order in which they are to be on the node: an IP address, or `Type=value`, as `ExternalIP=192.0.2.7`. None: the
    /// cloud has no say on addresses.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// What it does.
    #[serde(default)]
    pub power: Power,
    /// Labels for its node.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// As the firmware reports it.
    #[serde(default)]
    pub system_uuid: String,
    /// The pods' addresses, where the cloud gives them.
    #[serde(default, rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

fn zone() -> String {
    "zone-a".to_owned()
}

fn region() -> String {
    "region-1".to_owned()
}

fn instance_type() -> String {
    "sim.small".to_owned()
}

impl Instance {
    /// A running one with an address.
    pub fn new(id: impl Into<String>, name: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            zone: zone(),
            region: region(),
            instance_type: instance_type(),
            addresses: vec![address.into()],
            ..Self::default()
        }
    }

    /// As the cloud keeps it.
    pub(crate) fn object(self) -> Object {
        let mut attributes = BTreeMap::from([
            ("region".to_owned(), self.region),
            ("type".to_owned(), self.instance_type),
            ("power".to_owned(), self.power.name().to_owned()),
            ("addresses".to_owned(), self.addresses.join(",")),
            ("system_uuid".to_owned(), self.system_uuid),
            ("pod_cidrs".to_owned(), self.pod_cidrs.join(",")),
        ]);
        let labels = self.labels.into_iter();
        attributes.extend(labels.map(|(key, value)| (format!("{LABEL}{key}"), value)));
        attributes.retain(|_, value| !value.is_empty());
        Object {
            id: self.id,
            kind: Kind::Instance,
            name: self.name,
            parent: None,
            scope: self.zone,
            tags: BTreeMap::new(),
            attributes,
            revision: 0,
            state: State::Active,
        }
    }

    /// As the cloud gives it.
    pub fn of_object(object: &Object) -> Self {
        let list = |key: &str| -> Vec<String> {
            let all = object.attribute(key).split(',');
            all.filter(|one| !one.is_empty()).map(str::to_owned).collect()
        };
        let label =
            |(key, value): (&String, &String)| Some((key.strip_prefix(LABEL)?.to_owned(), value.clone()));
        Self {
            id: object.id.clone(),
            name: object.name.clone(),
            zone: object.scope.clone(),
            region: object.attribute("region").to_owned(),
            instance_type: object.attribute("type").to_owned(),
            addresses: list("addresses"),
            power: Power::of_name(object.attribute("power")).unwrap_or(Power::Unknown),
            labels: object.attributes.iter().filter_map(label).collect(),
            system_uuid: object.attribute("system_uuid").to_owned(),
            pod_cidrs: list("pod_cidrs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_comes_back_as_it_went() {
        let instance = Instance {
            power: Power::Stopped,
            labels: BTreeMap::from([("example.com/rack".to_owned(), "7".to_owned())]),
            addresses: vec!["192.0.2.7".to_owned(), "Hostname=n".to_owned()],
            ..Instance::new("i-1", "node-1", "")
        };
        assert_eq!(Instance::of_object(&instance.clone().object()), instance);
    }
}
