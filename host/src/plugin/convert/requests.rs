//! The core's values as the wire carries them.

use std::time::Duration;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::cloud::Resource;
use bulkhead_core::election::Epoch;
use bulkhead_core::ids::ServiceKey;
use bulkhead_core::node::view::{AddressType, ConditionStatus, NodeAddress, NodeCondition, NodeView, Taint};
use bulkhead_core::service::node_set::{Member, NodeSet};
use bulkhead_core::service::request::{BalancerRef, Current, Intent, IntentReason};
use bulkhead_core::service::spec::{
    Circumstances, HEALTH_CHECK_PATH, IpFamily, IpFamilyPolicy, Port, Protocol, Spec, TrafficPolicy,
};
use bulkhead_core::service::targets::ZONE_LABEL;
use bulkhead_core::service::view::{Ingress, IngressAddress, IpMode, PortStatus};
use bulkhead_proto::v1;

/// A whole node.
pub(crate) fn node(view: &NodeView) -> v1::Node {
    let NodeView {
        name,
        uid,
        resource_version: _,
        created_at,
        deleting: _,
        labels,
        annotations,
        provider_id,
        taints,
        pod_cidrs,
        unschedulable,
        addresses,
        conditions,
        system_uuid,
    } = view;
    v1::Node {
        name: name.0.clone(),
        uid: uid.0.clone(),
        labels: labels.clone(),
        annotations: annotations.clone(),
        provider_id: provider_id.clone().unwrap_or_default(),
        addresses: addresses.iter().map(address).collect(),
        zone: labels.get(ZONE_LABEL).cloned().unwrap_or_default(),
        taints: taints.iter().map(taint).collect(),
        conditions: conditions.iter().map(condition).collect(),
        system_uuid: system_uuid.clone(),
        pod_cidrs: pod_cidrs.clone(),
        unschedulable: *unschedulable,
        created_at: Some(timestamp(*created_at)),
    }
}

/// A node set in full.
pub(crate) fn node_set(set: &NodeSet) -> v1::NodeSet {
    let NodeSet { members, digest } = set;
    v1::NodeSet {
        nodes: members.iter().map(member).collect(),
        digest: digest.to_string(),
    }
}

fn member(member: &Member) -> v1::Node {
    let Member {
        name,
        uid,
        provider_id,
        addresses,
        zone,
        labels,
    } = member;
    v1::Node {
        name: name.0.clone(),
        uid: uid.0.clone(),
        provider_id: provider_id.clone(),
        addresses: addresses.iter().map(address).collect(),
        zone: zone.clone(),
        labels: labels.clone(),
        ..v1::Node::default()
    }
}

fn address(address: &NodeAddress) -> v1::Address {
    let kind = match address.kind {
        AddressType::Hostname => v1::AddressType::Hostname,
        AddressType::InternalIp => v1::AddressType::InternalIp,
        AddressType::ExternalIp => v1::AddressType::ExternalIp,
        AddressType::InternalDns => v1::AddressType::InternalDns,
        AddressType::ExternalDns => v1::AddressType::ExternalDns,
    };
    v1::Address {
        r#type: kind.into(),
        address: address.address.clone(),
    }
}

fn taint(taint: &Taint) -> v1::Taint {
    let Taint {
        key,
        value,
        effect,
        time_added: _,
    } = taint;
    v1::Taint {
        key: key.clone(),
        value: value.clone().unwrap_or_default(),
        effect: effect.clone(),
    }
}

fn condition(condition: &NodeCondition) -> v1::NodeCondition {
    let status = match condition.status {
        ConditionStatus::True => v1::ConditionStatus::True,
        ConditionStatus::False => v1::ConditionStatus::False,
        ConditionStatus::Unknown => v1::ConditionStatus::Unknown,
    };
    v1::NodeCondition {
        r#type: condition.kind.clone(),
        status: status.into(),
    }
}

/// One Service's load balancer, with all that is known of it.
pub(crate) fn balancer(balancer: &BalancerRef) -> v1::LoadBalancerRef {
    let BalancerRef {
        service,
        uid,
        mark,
        applied,
        current,
        resources,
    } = balancer;
    v1::LoadBalancerRef {
        service: Some(v1::ServiceKey {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            uid: uid.0.clone(),
        }),
        mark: mark.0.clone(),
        applied: applied
            .as_deref()
            .map(|applied| spec(applied, &Circumstances::default(), None)),
        current: current.as_ref().map(current_spec),
        resources: resources.iter().map(|it| resource(it, service)).collect(),
    }
}

/// What a Service says now.
pub(crate) fn current_spec(current: &Current) -> v1::Spec {
    spec(&current.spec, &current.circumstances, Some(&current.ingress))
}

fn resource(resource: &Resource, owner: &ServiceKey) -> v1::Resource {
    let Resource {
        id,
        kind,
        class,
        role,
        mark,
        origin,
        revision,
    } = resource;
    v1::Resource {
        id: id.clone(),
        r#type: kind.clone(),
        class: *class,
        role: role.clone(),
        mark: mark.as_ref().map(|(value, kind)| v1::Mark {
            value: value.0.clone(),
            kind: *kind,
        }),
        owner: owner.to_string(),
        origin: *origin,
        revision: revision.clone(),
    }
}

/// A spec with its circumstances; `status` is the Service's, where it is known.
pub(crate) fn spec(spec: &Spec, circumstances: &Circumstances, status: Option<&[Ingress]>) -> v1::Spec {
    let Spec {
        name,
        class,
        labels,
        annotations,
        ports,
        ip_families,
        ip_family_policy,
        cluster_ips,
        external_ips,
        requested_addresses,
        source_ranges,
        client_ip_affinity,
        external_traffic_policy,
        internal_traffic_policy,
        traffic_distribution,
        publish_not_ready_addresses,
        health_check_node_port,
        allocate_node_ports,
    } = spec;
    let Circumstances {
        finalizers,
        created_at,
        deleted_at,
        resource_version,
    } = circumstances;
    let affinity = match client_ip_affinity {
        Some(_) => v1::SessionAffinity::ClientIp,
        None => v1::SessionAffinity::None,
    };
    v1::Spec {
        name: name.clone(),
        class: class.clone(),
        labels: labels.clone(),
        annotations: annotations.clone(),
        finalizers: finalizers.clone(),
        created_at: created_at.map(timestamp),
        deleted_at: deleted_at.map(timestamp),
        resource_version: resource_version.clone(),
        ports: ports.iter().map(port).collect(),
        ip_families: ip_families.iter().map(|it| family(*it).into()).collect(),
        ip_family_policy: family_policy(*ip_family_policy).into(),
        cluster_ips: cluster_ips.clone(),
        external_ips: external_ips.clone(),
        requested_addresses: requested_addresses.clone(),
        source_ranges: source_ranges.clone(),
        session_affinity: affinity.into(),
        session_affinity_timeout: client_ip_affinity.map(duration),
        external_traffic_policy: traffic_policy(*external_traffic_policy).into(),
        internal_traffic_policy: traffic_policy(*internal_traffic_policy).into(),
        traffic_distribution: traffic_distribution.clone(),
        publish_not_ready_addresses: *publish_not_ready_addresses,
        health_check: health_check_node_port.map(health_check),
        allocate_node_ports: Some(*allocate_node_ports),
        current_status: status.map(|status| v1::LoadBalancerStatus {
            ingress: status.iter().map(ingress).collect(),
        }),
    }
}

fn health_check(node_port: u16) -> v1::HealthCheck {
    v1::HealthCheck {
        node_port: node_port.into(),
        path: HEALTH_CHECK_PATH.to_owned(),
    }
}

fn port(port: &Port) -> v1::Port {
    let Port {
        name,
        protocol: transport,
        port,
        node_port,
        target_port,
        app_protocol,
    } = port;
    v1::Port {
        name: name.clone(),
        protocol: protocol(*transport).into(),
        port: (*port).into(),
        node_port: node_port.map(u32::from),
        target_port: target_port.clone(),
        app_protocol: app_protocol.clone(),
    }
}

const fn protocol(protocol: Protocol) -> v1::Protocol {
    match protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    }
}

const fn family(family: IpFamily) -> v1::IpFamily {
    match family {
        IpFamily::V4 => v1::IpFamily::Ipv4,
        IpFamily::V6 => v1::IpFamily::Ipv6,
    }
}

const fn family_policy(policy: Option<IpFamilyPolicy>) -> v1::IpFamilyPolicy {
    match policy {
        None => v1::IpFamilyPolicy::Unspecified,
        Some(IpFamilyPolicy::SingleStack) => v1::IpFamilyPolicy::SingleStack,
        Some(IpFamilyPolicy::PreferDualStack) => v1::IpFamilyPolicy::PreferDualStack,
        Some(IpFamilyPolicy::RequireDualStack) => v1::IpFamilyPolicy::RequireDualStack,
    }
}

const fn traffic_policy(policy: TrafficPolicy) -> v1::TrafficPolicy {
    match policy {
        TrafficPolicy::Cluster => v1::TrafficPolicy::Cluster,
        TrafficPolicy::Local => v1::TrafficPolicy::Local,
    }
}

fn ingress(ingress: &Ingress) -> v1::Ingress {
    let (address, mode) = match &ingress.address {
        IngressAddress::Ip(ip, IpMode::Vip) => (v1::ingress::Address::Ip(ip.to_string()), v1::IpMode::Vip),
        IngressAddress::Ip(ip, IpMode::Proxy) => {
            (v1::ingress::Address::Ip(ip.to_string()), v1::IpMode::Proxy)
        }
        IngressAddress::Hostname(name) => (
            v1::ingress::Address::Hostname(name.clone()),
            v1::IpMode::Unspecified,
        ),
    };
    v1::Ingress {
        address: Some(address),
        ip_mode: mode.into(),
        ports: ingress.ports.iter().map(port_status).collect(),
    }
}

fn port_status(status: &PortStatus) -> v1::PortStatus {
    let PortStatus {
        port,
        protocol: transport,
        error,
    } = status;
    v1::PortStatus {
        port: (*port).into(),
        protocol: protocol(*transport).into(),
        error: error.clone().unwrap_or_default(),
    }
}

/// The right and the wish to write; the slice may take `soft_deadline` from its arrival.
pub(crate) fn intent(intent: &Intent, term: &Epoch, soft_deadline: Duration) -> v1::Intent {
    let reason = match intent.reason {
        IntentReason::Changed => v1::IntentReason::Changed,
        IntentReason::Drift => v1::IntentReason::Drift,
        IntentReason::Takeover => v1::IntentReason::Takeover,
        IntentReason::Retry => v1::IntentReason::Retry,
    };
    v1::Intent {
        request_id: intent.request_id.clone(),
        epoch: Some(epoch(term)),
        reason: reason.into(),
        soft_deadline: Some(duration(soft_deadline)),
    }
}

/// A term of leadership.
pub(crate) fn epoch(epoch: &Epoch) -> v1::Epoch {
    v1::Epoch {
        lease_uid: epoch.lease_uid.clone(),
        transitions: epoch.transitions,
    }
}

/// A span of time.
pub(crate) fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or_default(),
    }
}

fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let nanos = time.0.rem_euclid(1_000_000) * 1000;
    prost_types::Timestamp {
        seconds: time.0.div_euclid(1_000_000),
        nanos: i32::try_from(nanos).unwrap_or_default(),
    }
}
