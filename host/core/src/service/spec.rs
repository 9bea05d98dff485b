//! What a Service asks of a cloud. The one form in which it is digested, remembered and sent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::cloud::Description;
use crate::digest::{Canonical, Digest, Record};

/// Everything a provider may read from a Service, as the protocol's `Spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// `metadata.name`.
    pub name: String,
    /// `spec.loadBalancerClass`; empty if unset.
    pub class: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.ports`, in order.
    pub ports: Vec<Port>,
    /// `spec.ipFamilies`, in order.
    pub ip_families: Vec<IpFamily>,
    /// `spec.ipFamilyPolicy`.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// `spec.clusterIPs`.
    pub cluster_ips: Vec<String>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<String>,
    /// Annotation `bulkhead.dev/load-balancer-ips` (comma list), else `spec.loadBalancerIP`.
    pub requested_addresses: Vec<String>,
    /// `spec.loadBalancerSourceRanges`, else upstream's annotation; empty: everybody.
    pub source_ranges: Vec<String>,
    /// Whether `spec.sessionAffinity` is `ClientIP`, and its timeout.
    pub client_ip_affinity: Option<Duration>,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.trafficDistribution`; empty if unset.
    pub traffic_distribution: String,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready_addresses: bool,
    /// `spec.healthCheckNodePort`, where the external traffic policy is Local.
    pub health_check_node_port: Option<u16>,
    /// `spec.allocateLoadBalancerNodePorts`.
    pub allocate_node_ports: bool,
}

/// What of a Service goes over the wire but says nothing about what is wanted: it is never digested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// `metadata.creationTimestamp`.
    pub created_at: Option<Timestamp>,
    /// `metadata.deletionTimestamp`.
    pub deleted_at: Option<Timestamp>,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name; empty if it has none.
    pub name: String,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The port on the load balancer.
    pub port: u16,
    /// The port on every node, where node ports are allocated.
    pub node_port: Option<u16>,
    /// The port on the pod: a number or a name.
    pub target_port: String,
    /// `appProtocol`; empty if unset.
    pub app_protocol: String,
}

/// Transport protocols of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP.
    #[serde(rename = "UDP")]
    Udp,
    /// SCTP.
    #[serde(rename = "SCTP")]
    Sctp,
}

/// IP families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IpFamily {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

/// How many families a Service wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IpFamilyPolicy {
    /// One.
    SingleStack,
    /// Two where there are two.
    PreferDualStack,
    /// Two.
    RequireDualStack,
}

/// Where traffic may go on from the node it arrives at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Any node's endpoints.
    #[default]
    Cluster,
    /// This node's endpoints only.
    Local,
}

impl Spec {
    /// The digest of what the plugin described reads of this Spec (SPEC.md section 7.3): of labels and annotations
    /// only those whose keys it declared, so that nobody else's annotation costs a cloud call.
    pub fn digest(&self, plugin: &Description) -> Digest {
        let mut canonical = Canonical::new();
        canonical.record(|record| self.write(record, plugin));
        canonical.finish()
    }

    fn write(&self, record: &mut Record<'_>, plugin: &Description) {
        let texts = |canonical: &mut Canonical, text: &String| canonical.string(text);
        record
            .string("name", &self.name)
            .string("class", &self.class)
            .map("labels", &plugin.label_keys.of(&self.labels))
            .map("annotations", &plugin.annotation_keys.of(&self.annotations))
            .list("ports", &self.ports, |canonical, port| {
                canonical.record(|record| port.write(record));
            })
            .list("ip_families", &self.ip_families, |canonical, family| {
                canonical.integer(family.wire_number());
            })
            .integer(
                "ip_family_policy",
                self.ip_family_policy.map_or(0, IpFamilyPolicy::wire_number),
            )
            .list("cluster_ips", &self.cluster_ips, texts)
            .list("external_ips", &self.external_ips, texts)
            .list("requested_addresses", &self.requested_addresses, texts)
            .list("source_ranges", &self.source_ranges, texts)
            .integer(
                "session_affinity",
                if self.client_ip_affinity.is_some() { 2 } else { 1 },
            )
            .duration("session_affinity_timeout", self.client_ip_affinity)
            .integer(
                "external_traffic_policy",
                self.external_traffic_policy.wire_number(),
            )
            .integer(
                "internal_traffic_policy",
                self.internal_traffic_policy.wire_number(),
            )
            .string("traffic_distribution", &self.traffic_distribution)
            .boolean("publish_not_ready_addresses", self.publish_not_ready_addresses);
        if let Some(port) = self.health_check_node_port {
            record.record("health_check", |record| {
                record
                    .integer("node_port", port)
                    .string("path", HEALTH_CHECK_PATH);
            });
        }
        record.optional_boolean("allocate_node_ports", Some(self.allocate_node_ports));
    }
}

/// Path that kube-proxy serves on a Service's health-check node port.
pub const HEALTH_CHECK_PATH: &str = "/healthz";

impl Port {
    fn write(&self, record: &mut Record<'_>) {
        record
            .string("name", &self.name)
            .integer("protocol", self.protocol.wire_number())
            .integer("port", self.port)
            .optional_integer("node_port", self.node_port)
            .string("target_port", &self.target_port)
            .string("app_protocol", &self.app_protocol);
    }
}

impl Protocol {
    /// Its number in the protocol.
    pub const fn wire_number(self) -> i64 {
        match self {
            Self::Tcp => 1,
            Self::Udp => 2,
            Self::Sctp => 3,
        }
    }
}

impl IpFamily {
    /// Its number in the protocol.
    pub const fn wire_number(self) -> i64 {
        match self {
            Self::V4 => 1,
            Self::V6 => 2,
        }
    }
}

impl IpFamilyPolicy {
    /// Its number in the protocol.
    pub const fn wire_number(self) -> i64 {
        match self {
            Self::SingleStack => 1,
            Self::PreferDualStack => 2,
            Self::RequireDualStack => 3,
        }
    }
}

impl TrafficPolicy {
    /// Its number in the protocol.
    pub const fn wire_number(self) -> i64 {
        match self {
            Self::Cluster => 1,
            Self::Local => 2,
        }
    }
}
