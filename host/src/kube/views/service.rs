//! Service to [`ServiceView`].

use std::net::IpAddr;
use std::time::Duration;

use bulkhead_core::ids::{ServiceKey, Uid};
use bulkhead_core::service::field::{comma_list, requested_by_annotation};
use bulkhead_core::service::spec::{
    Circumstances, IpFamily, IpFamilyPolicy, Port, Protocol, Spec, TrafficPolicy,
};
use bulkhead_core::service::view::{Ingress, IngressAddress, IpMode, PortStatus, ServiceView};
use serde::{Deserialize, Deserializer};

use super::lenient;
use super::metadata::Metadata;

/// Upstream's annotation, for Services made before `spec.loadBalancerSourceRanges` was there.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// kubectl's copy of the whole object: it says nothing new, and changes with everything.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Kubernetes' default of the client IP affinity's timeout: three hours.
const AFFINITY_SECONDS: u64 = 10_800;

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawService {
    metadata: Option<Metadata>,
    spec: Option<RawSpec>,
    status: Option<RawStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    #[serde(rename = "type", deserialize_with = "lenient::value")]
    kind: String,
    #[serde(deserialize_with = "lenient::value")]
    load_balancer_class: String,
    #[serde(deserialize_with = "lenient::list")]
    ports: Vec<RawPort>,
    #[serde(deserialize_with = "lenient::list")]
    ip_families: Vec<IpFamily>,
    #[serde(deserialize_with = "lenient::value")]
    ip_family_policy: Option<IpFamilyPolicy>,
    #[serde(rename = "clusterIPs", deserialize_with = "lenient::list")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs", deserialize_with = "lenient::list")]
    external_ips: Vec<String>,
    #[serde(rename = "loadBalancerIP", deserialize_with = "lenient::value")]
    load_balancer_ip: String,
    #[serde(deserialize_with = "lenient::list")]
    load_balancer_source_ranges: Vec<String>,
    #[serde(deserialize_with = "lenient::value")]
    session_affinity: String,
    #[serde(deserialize_with = "lenient::value")]
    session_affinity_config: Option<RawAffinityConfig>,
    #[serde(deserialize_with = "lenient::value")]
    external_traffic_policy: TrafficPolicy,
    #[serde(deserialize_with = "lenient::value")]
    internal_traffic_policy: TrafficPolicy,
    #[serde(deserialize_with = "lenient::value")]
    traffic_distribution: String,
    #[serde(deserialize_with = "lenient::value")]
    publish_not_ready_addresses: bool,
    #[serde(deserialize_with = "lenient::value")]
    health_check_node_port: u16,
    #[serde(deserialize_with = "lenient::value")]
    allocate_load_balancer_node_ports: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    #[serde(default, deserialize_with = "lenient::value")]
    name: String,
    /// A port of an odd protocol must not become a TCP port: it is left out whole.
    protocol: Option<Protocol>,
    port: u16,
    #[serde(default, deserialize_with = "lenient::value")]
    node_port: u16,
    target_port: Option<TargetPort>,
    #[serde(default, deserialize_with = "lenient::value")]
    app_protocol: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TargetPort {
    Number(u16),
    Name(String),
}

#[derive(Deserialize)]
struct RawAffinityConfig {
    #[serde(rename = "clientIP")]
    client_ip: Option<RawClientIp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawClientIp {
    timeout_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    load_balancer: Option<RawLoadBalancer>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawLoadBalancer {
    #[serde(deserialize_with = "lenient::list")]
    ingress: Vec<RawIngress>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawIngress {
    #[serde(deserialize_with = "lenient::value")]
    ip: Option<IpAddr>,
    #[serde(deserialize_with = "lenient::value")]
    ip_mode: String,
    #[serde(deserialize_with = "lenient::value")]
    hostname: String,
    #[serde(deserialize_with = "lenient::list")]
    ports: Vec<RawPortStatus>,
}

#[derive(Deserialize)]
struct RawPortStatus {
    port: u16,
    protocol: Protocol,
    error: Option<String>,
}

pub(super) fn decode<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceView, D::Error> {
    let raw = RawService::deserialize(from)?;
    let (metadata, spec, status) = (
        raw.metadata.unwrap_or_default(),
        raw.spec.unwrap_or_default(),
        raw.status.unwrap_or_default(),
    );
    Ok(ServiceView {
        key: ServiceKey {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        },
        uid: Uid(metadata.uid.clone()),
        is_load_balancer: spec.kind == "LoadBalancer",
        circumstances: Circumstances {
            finalizers: metadata.finalizers.clone(),
            created_at: metadata.created_at(),
            deleted_at: metadata.deleted_at(),
            resource_version: metadata.resource_version.clone(),
        },
        spec: convert(metadata, spec),
        ingress: status
            .load_balancer
            .unwrap_or_default()
            .ingress
            .into_iter()
            .filter_map(ingress)
            .collect(),
    })
}

fn convert(metadata: Metadata, raw: RawSpec) -> Spec {
    let mut annotations = metadata.annotations;
    annotations.remove(LAST_APPLIED);
    let local = raw.external_traffic_policy == TrafficPolicy::Local;
    Spec {
        name: metadata.name,
        class: raw.load_balancer_class,
        labels: metadata.labels,
        requested_addresses: first_of(
            requested_by_annotation(&annotations),
            comma_list(Some(&raw.load_balancer_ip)),
        ),
        source_ranges: first_of(
            raw.load_balancer_source_ranges,
            comma_list(annotations.get(SOURCE_RANGES)),
        ),
        annotations,
        ports: raw.ports.into_iter().map(port).collect(),
        ip_families: raw.ip_families,
        ip_family_policy: raw.ip_family_policy,
        cluster_ips: raw.cluster_ips,
        external_ips: raw.external_ips,
        client_ip_affinity: (raw.session_affinity == "ClientIP")
            .then(|| affinity(raw.session_affinity_config)),
        external_traffic_policy: raw.external_traffic_policy,
        internal_traffic_policy: raw.internal_traffic_policy,
        traffic_distribution: raw.traffic_distribution,
        publish_not_ready_addresses: raw.publish_not_ready_addresses,
        health_check_node_port: some_port(raw.health_check_node_port).filter(|_| local),
        allocate_node_ports: raw.allocate_load_balancer_node_ports.unwrap_or(true),
    }
}

fn first_of(list: Vec<String>, other: Vec<String>) -> Vec<String> {
    if list.is_empty() { other } else { list }
}

fn affinity(config: Option<RawAffinityConfig>) -> Duration {
    let seconds = config.and_then(|config| config.client_ip?.timeout_seconds);
    Duration::from_secs(seconds.unwrap_or(AFFINITY_SECONDS))
}

/// In Kubernetes a port of zero is none.
fn some_port(port: u16) -> Option<u16> {
    (port != 0).then_some(port)
}

fn port(raw: RawPort) -> Port {
    Port {
        name: raw.name,
        protocol: raw.protocol.unwrap_or(Protocol::Tcp),
        port: raw.port,
        node_port: some_port(raw.node_port),
        target_port: match raw.target_port {
            Some(TargetPort::Name(name)) => name,
            Some(TargetPort::Number(number)) if number != 0 => number.to_string(),
            Some(TargetPort::Number(_)) | None => raw.port.to_string(),
        },
        app_protocol: raw.app_protocol,
    }
}

fn ingress(raw: RawIngress) -> Option<Ingress> {
    let address = match raw.ip {
        Some(ip) => IngressAddress::Ip(
            ip,
            if raw.ip_mode == "Proxy" {
                IpMode::Proxy
            } else {
                IpMode::Vip
            },
        ),
        None if !raw.hostname.is_empty() => IngressAddress::Hostname(raw.hostname),
        None => return None,
    };
    let ports = raw.ports.into_iter().map(|port| PortStatus {
        port: port.port,
        protocol: port.protocol,
        error: port.error,
    });
    Some(Ingress {
        address,
        ports: ports.collect(),
    })
}
