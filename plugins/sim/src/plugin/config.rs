//! Who the plugin says it is.

use bulkhead_plugin::{Description, v1};
use serde::{Deserialize, Serialize};

use super::resources;

/// More targets than any one load balancer of a real cloud takes.
const MAX_TARGETS: u32 = 1000;

/// Raised whenever the same Spec leads to another result.
const TRANSLATION: u32 = 1;

/// Who the plugin says it is, and what it can do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct PluginConfig {
    /// The provider's name, a DNS label.
    pub provider: String,
    /// The scheme of provider IDs; the provider's name if not given.
    pub scheme: Option<String>,
    /// Whether a provider ID may name another instance later.
    pub reusable_ids: bool,
    /// The load-balancer classes that it serves; the empty one stands for Services without.
    pub classes: Vec<String>,
    /// Capabilities that it does not have.
    pub without: Vec<Capability>,
    /// The IP families of its load balancers.
    pub ip_families: Vec<Family>,
    /// Most targets of a load balancer.
    pub max_targets: u32,
    /// Most nodes in one question; the protocol's own if not given.
    pub max_batch_nodes: Option<u32>,
    /// Any text: another one stands for another translation of the same Spec.
    pub behaviour: String,
}

/// A capability of the protocol that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in the protocol")]
pub enum Capability {
    #[serde(rename = "instances")]
    Instances,
    #[serde(rename = "instances.list")]
    InstancesList,
    #[serde(rename = "lb")]
    Lb,
    #[serde(rename = "routes")]
    Routes,
    #[serde(rename = "resources.list")]
    ResourcesList,
    #[serde(rename = "resources.delete")]
    ResourcesDelete,
}

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "named as in the protocol")]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// As attributes and roles have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }

    pub(super) const fn wire(self) -> v1::IpFamily {
        match self {
            Self::Ipv4 => v1::IpFamily::Ipv4,
            Self::Ipv6 => v1::IpFamily::Ipv6,
        }
    }
}

impl Default for PluginConfig {
    fn default() -> Self {
        Self {
            provider: "sim".to_owned(),
            scheme: None,
            reusable_ids: false,
            classes: vec![String::new(), "bulkhead.dev/sim".to_owned()],
            without: Vec::new(),
            ip_families: vec![Family::Ipv4],
            max_targets: MAX_TARGETS,
            max_batch_nodes: None,
            behaviour: String::new(),
        }
    }
}

impl PluginConfig {
    /// What its provider IDs begin with, before `://`.
    pub fn scheme(&self) -> &str {
        self.scheme.as_deref().unwrap_or(&self.provider)
    }

    /// The provider ID of an instance.
    pub(super) fn provider_id(&self, instance: &str) -> String {
        format!("{}://{instance}", self.scheme())
    }

    /// The instance of a provider ID; none if it is another provider's.
    pub(super) fn instance_id<'a>(&self, provider_id: &'a str) -> Option<&'a str> {
        let (scheme, id) = provider_id.split_once("://")?;
        (scheme == self.scheme() && !id.is_empty()).then_some(id)
    }

    pub(super) fn describe(&self) -> Description {
        let features = v1::Features {
            protocols: vec![v1::Protocol::Tcp.into(), v1::Protocol::Udp.into()],
            mixed_protocols: true,
            ip_families: self
                .ip_families
                .iter()
                .map(|family| family.wire().into())
                .collect(),
            ip_modes: vec![v1::IpMode::Vip.into()],
            source_ranges: true,
            session_affinity: true,
            targets: v1::TargetKind::Instance.into(),
            requested_addresses: true,
            keep_address: true,
            ..v1::Features::default()
        };
        let limits = v1::Limits {
            max_targets_per_load_balancer: Some(self.max_targets),
            max_batch_nodes: self.max_batch_nodes,
            ..v1::Limits::default()
        };
        let uses = if self.reusable_ids {
            v1::SchemeUse::Reusable
        } else {
            v1::SchemeUse::Unique
        };
        let mut description = Description::new(&self.provider, env!("CARGO_PKG_VERSION"))
            .scheme(self.scheme(), uses)
            .features(features)
            .limits(limits)
            .behaviour_digest(format!("sim-{TRANSLATION} {}", self.behaviour));
        let all = [
            (Capability::Instances, v1::Capability::Instances),
            (Capability::InstancesList, v1::Capability::InstancesList),
            (Capability::Lb, v1::Capability::Lb),
            (Capability::Routes, v1::Capability::Routes),
            (Capability::ResourcesList, v1::Capability::ResourcesList),
            (Capability::ResourcesDelete, v1::Capability::ResourcesDelete),
        ];
        for (ours, wire) in all {
            if !self.without.contains(&ours) {
                description = description.capability(wire);
            }
        }
        for class in &self.classes {
            description = description.class(class);
        }
        resources::types().fold(description, Description::resource_type)
    }
}
