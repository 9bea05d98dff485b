//! The one question that is asked, and its answer: what the host asks of a node that has just joined.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use bulkhead::plugin::{Aspect, Cluster};
use bulkhead_core::clock::Timestamp;
use bulkhead_core::ids::{NodeName, Uid};
use bulkhead_core::node::view::{AddressType, NodeAddress, NodeView, Taint};
use bulkhead_proto::v1;
use prost::Message as _;

const NAME: &str = "node-1.example.com";
const UID: &str = "0b3c3f8e-5a0f-4a5e-8d53-6f0a3a9d1c55";
const ADDRESS: &str = "192.0.2.7";
const TAINT: [&str; 3] = [
    "node.cloudprovider.kubernetes.io/uninitialized",
    "true",
    "NoSchedule",
];

/// All that the host wants to know of instances.
pub(super) const ASPECTS: [Aspect; 3] = [Aspect::Existence, Aspect::Power, Aspect::Metadata];

/// The cluster that asks.
pub(super) fn cluster() -> Cluster {
    Cluster {
        uid: UID.to_owned(),
        name: "kubernetes".to_owned(),
    }
}

/// The node as the host holds it, with what a kubelet registers.
pub(super) fn node() -> Arc<NodeView> {
    let [key, value, effect] = TAINT.map(ToOwned::to_owned);
    let address = |kind, address: &str| NodeAddress {
        kind,
        address: address.to_owned(),
    };
    Arc::new(NodeView {
        name: NodeName(NAME.to_owned()),
        uid: Uid(UID.to_owned()),
        resource_version: "4711".to_owned(),
        created_at: Timestamp(0),
        deleting: false,
        labels: labels(),
        annotations: BTreeMap::new(),
        provider_id: None,
        taints: vec![Taint {
            key,
            value: Some(value),
            effect,
            time_added: None,
        }],
        pod_cidrs: Vec::new(),
        unschedulable: false,
        addresses: vec![
            address(AddressType::InternalIp, ADDRESS),
            address(AddressType::Hostname, NAME),
        ],
        conditions: Vec::new(),
        system_uuid: UID.to_owned(),
    })
}

/// The same question as it goes over the wire.
pub(super) fn request() -> v1::GetInstancesRequest {
    let [key, value, effect] = TAINT.map(ToOwned::to_owned);
    let node = v1::Node {
        name: NAME.to_owned(),
        uid: UID.to_owned(),
        labels: labels(),
        addresses: addresses(),
        taints: vec![v1::Taint { key, value, effect }],
        system_uuid: UID.to_owned(),
        created_at: Some(prost_types::Timestamp::default()),
        ..v1::Node::default()
    };
    let cluster = cluster();
    v1::GetInstancesRequest {
        cluster: Some(v1::Cluster {
            uid: cluster.uid,
            name: cluster.name,
        }),
        nodes: vec![node],
        aspects: [v1::Aspect::Existence, v1::Aspect::Power, v1::Aspect::Metadata]
            .map(Into::into)
            .to_vec(),
        max_age: Some(prost_types::Duration::default()),
    }
}

/// The answer: one instance for each node asked about.
pub(super) fn answer(request: v1::GetInstancesRequest) -> v1::GetInstancesResponse {
    let answer = |node: v1::Node| v1::InstanceResult {
        result: Some(v1::instance_result::Result::Found(instance(node.name.clone()))),
        node_name: node.name,
        node_uid: node.uid,
    };
    v1::GetInstancesResponse {
        results: request.nodes.into_iter().map(answer).collect(),
    }
}

/// Whether an answer is the one to [`request`], as far as a caller of tonic would look.
pub(super) fn check(response: &v1::GetInstancesResponse) -> Result<()> {
    let found = response.results.iter().all(|result| result.node_name == NAME);
    ensure!(
        found && response.results.len() == 1,
        "not the answer: {response:?}"
    );
    Ok(())
}

/// What travels, for people.
pub(super) fn sizes() -> String {
    format!(
        "GetInstances about one node over a unix socket: {} bytes there, {} back",
        request().encoded_len(),
        answer(request()).encoded_len()
    )
}

fn instance(name: String) -> v1::Instance {
    v1::Instance {
        provider_id: "bench://i-0123456789abcdef0".to_owned(),
        instance_id: "i-0123456789abcdef0".to_owned(),
        name,
        instance_type: "m1.large".to_owned(),
        zone: "here-1a".to_owned(),
        region: "here-1".to_owned(),
        addresses: addresses(),
        address_source: v1::AddressSource::Cloud.into(),
        power_state: v1::PowerState::Running.into(),
        ..v1::Instance::default()
    }
}

fn addresses() -> Vec<v1::Address> {
    let address = |kind: v1::AddressType, address: &str| v1::Address {
        r#type: kind.into(),
        address: address.to_owned(),
    };
    vec![
        address(v1::AddressType::InternalIp, ADDRESS),
        address(v1::AddressType::Hostname, NAME),
    ]
}

fn labels() -> BTreeMap<String, String> {
    let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let labels = [
        ("beta.kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", NAME),
        ("kubernetes.io/os", "linux"),
    ];
    labels.map(label).into()
}
