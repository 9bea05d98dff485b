//! The questions that are asked, and their answers.

use std::collections::BTreeMap;
use std::fmt;
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
const PROVIDER_ID: &str = "bench://i-0123456789abcdef0";
const ADDRESS: &str = "192.0.2.7";
const EVERYTHING: [v1::Aspect; 3] = [v1::Aspect::Existence, v1::Aspect::Power, v1::Aspect::Metadata];
const TAINT: [&str; 3] = [
    "node.cloudprovider.kubernetes.io/uninitialized",
    "true",
    "NoSchedule",
];

/// What is asked about one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether the instance of a node exists of which nothing is told but its names: as little as a call can carry.
    Small,
    /// All that the host wants to know of a node that has just joined, told with what a kubelet registers.
    Joined,
}

/// The cluster that asks.
pub(super) fn cluster() -> Cluster {
    Cluster {
        uid: UID.to_owned(),
        name: "kubernetes".to_owned(),
    }
}

impl Question {
    /// What the host wants to know.
    pub(super) const fn aspects(self) -> &'static [Aspect] {
        match self {
            Self::Small => &[Aspect::Existence],
            Self::Joined => &[Aspect::Existence, Aspect::Power, Aspect::Metadata],
        }
    }

    /// The node as the host holds it.
    pub(super) fn node(self) -> Arc<NodeView> {
        let [key, value, effect] = TAINT.map(ToOwned::to_owned);
        let address = |kind, address: &str| NodeAddress {
            kind,
            address: address.to_owned(),
        };
        let small = NodeView {
            name: NodeName(NAME.to_owned()),
            uid: Uid(UID.to_owned()),
            resource_version: "4711".to_owned(),
            created_at: Timestamp(0),
            deleting: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            provider_id: Some(PROVIDER_ID.to_owned()),
            taints: Vec::new(),
            pod_cidrs: Vec::new(),
            unschedulable: false,
            addresses: Vec::new(),
            conditions: Vec::new(),
            system_uuid: String::new(),
        };
        Arc::new(match self {
            Self::Small => small,
            Self::Joined => NodeView {
                provider_id: None,
                labels: labels(),
                taints: vec![Taint {
                    key,
                    value: Some(value),
                    effect,
                    time_added: None,
                }],
                addresses: vec![
                    address(AddressType::InternalIp, ADDRESS),
                    address(AddressType::Hostname, NAME),
                ],
                system_uuid: UID.to_owned(),
                ..small
            },
        })
    }

    /// The same question as it goes over the wire.
    pub(super) fn request(self) -> v1::GetInstancesRequest {
        let [key, value, effect] = TAINT.map(ToOwned::to_owned);
        let small = v1::Node {
            name: NAME.to_owned(),
            uid: UID.to_owned(),
            provider_id: PROVIDER_ID.to_owned(),
            created_at: Some(prost_types::Timestamp::default()),
            ..v1::Node::default()
        };
        let (node, aspects) = match self {
            Self::Small => (small, vec![v1::Aspect::Existence.into()]),
            Self::Joined => (
                v1::Node {
                    provider_id: String::new(),
                    labels: labels(),
                    addresses: addresses(),
                    taints: vec![v1::Taint { key, value, effect }],
                    system_uuid: UID.to_owned(),
                    ..small
                },
                EVERYTHING.map(Into::into).to_vec(),
            ),
        };
        let cluster = cluster();
        v1::GetInstancesRequest {
            cluster: Some(v1::Cluster {
                uid: cluster.uid,
                name: cluster.name,
            }),
            nodes: vec![node],
            aspects,
            max_age: Some(prost_types::Duration::default()),
        }
    }
}

/// The answer: one instance for each node asked about, with what is asked of it.
pub(super) fn answer(request: v1::GetInstancesRequest) -> v1::GetInstancesResponse {
    let is_all = request.aspects.len() == EVERYTHING.len();
    let answer = |node: v1::Node| {
        let name = node.name.clone();
        let found = if is_all { instance(name) } else { existing(name) };
        v1::InstanceResult {
            result: Some(v1::instance_result::Result::Found(found)),
            node_name: node.name,
            node_uid: node.uid,
        }
    };
    v1::GetInstancesResponse {
        results: request.nodes.into_iter().map(answer).collect(),
    }
}

/// Whether an answer is the one to the request, as far as a caller of tonic would look.
pub(super) fn check(response: &v1::GetInstancesResponse) -> Result<()> {
    let found = response.results.iter().all(|result| result.node_name == NAME);
    ensure!(
        found && response.results.len() == 1,
        "not the answer: {response:?}"
    );
    Ok(())
}

impl fmt::Display for Question {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (there, back) = (self.request(), answer(self.request()));
        let what = match self {
            Self::Small => "whether one instance exists",
            Self::Joined => "all about a node that has just joined",
        };
        write!(
            formatter,
            "{what}: {} bytes there, {} back",
            there.encoded_len(),
            back.encoded_len()
        )
    }
}

fn existing(name: String) -> v1::Instance {
    v1::Instance {
        provider_id: PROVIDER_ID.to_owned(),
        instance_id: "i-0123456789abcdef0".to_owned(),
        name,
        ..v1::Instance::default()
    }
}

fn instance(name: String) -> v1::Instance {
    v1::Instance {
        instance_type: "m1.large".to_owned(),
        zone: "here-1a".to_owned(),
        region: "here-1".to_owned(),
        addresses: addresses(),
        address_source: v1::AddressSource::Cloud.into(),
        power_state: v1::PowerState::Running.into(),
        ..existing(name)
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
