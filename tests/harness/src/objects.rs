//! Kubernetes objects as the tests begin with them. All fields are public: change what a test needs.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Service, ServicePort, ServiceSpec, Taint},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};

/// The taint that a kubelet with an external cloud provider registers its node with.
pub const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// A node as its kubelet registers it: tainted as uninitialized, Ready, without provider ID and addresses.
pub fn node(name: &str) -> Node {
    let labels = [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
    ];
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(strings(&labels)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(vec![Taint {
                key: UNINITIALIZED_TAINT.to_owned(),
                value: Some("true".to_owned()),
                effect: "NoSchedule".to_owned(),
                time_added: None,
            }]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                reason: Some("KubeletReady".to_owned()),
                ..NodeCondition::default()
            }]),
            ..NodeStatus::default()
        }),
    }
}

/// A Service of type `LoadBalancer` in namespace `default` with TCP port 80.
pub fn service_lb(name: &str) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some("LoadBalancer".to_owned()),
            selector: Some(strings(&[("app", name)])),
            ports: Some(vec![port("http", "TCP", 80)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// A port of a Service; the API server chooses the node port. `protocol` is `TCP` or `UDP`.
pub fn port(name: &str, protocol: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: number.into(),
        target_port: Some(IntOrString::Int(number.into())),
        ..ServicePort::default()
    }
}

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
