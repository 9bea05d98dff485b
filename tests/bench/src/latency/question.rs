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

    /// The node as the host holds it: what the wire has of it, and nothing else.
    pub(super) fn node(self) -> Arc<NodeView> {
        let node = self.wire_node();
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        Arc::new(NodeView {
            name: NodeName(node.name),
            uid: Uid(node.uid),
            resource_version: "4711".to_owned(),
            created_at: Timestamp(0),
            deleting: false,
            labels: node.labels,
            annotations: node.annotations,
            provider_id: text(node.provider_id),
            taints: node.taints.into_iter().map(taint).collect(),
            pod_cidrs: node.pod_cidrs,
            unschedulable: node.unschedulable,
            addresses: node.addresses.into_iter().map(address).collect(),
            conditions: Vec::new(),
            system_uuid: node.system_uuid,
        })
    }

    /// The same question as it goes over the wire.
    pub(super) fn request(self) -> v1::GetInstancesRequest {
        let aspect = |aspect: &Aspect| match aspect {
            Aspect::Existence => v1::Aspect::Existence.into(),
            Aspect::Power => v1::Aspect::Power.into(),
            Aspect::Metadata => v1::Aspect::Metadata.into(),
        };
        let cluster = cluster();
        v1::GetInstancesRequest {
            cluster: Some(v1::Cluster {
                uid: cluster.uid,
                name: cluster.name,
            }),
            nodes: vec![self.wire_node()],
            aspects: self.aspects().iter().map(aspect).collect(),
            max_age: Some(prost_types::Duration::default()),
        }
    }

    fn wire_node(self) -> v1::Node {
        let [key, value, effect] = TAINT.map(ToOwned::to_owned);
        let named = v1::Node {
            name: NAME.to_owned(),
            uid: UID.to_owned(),
            created_at: Some(prost_types::Timestamp::default()),
            ..v1::Node::default()
        };
        match self {
            Self::Small => v1::Node {
                provider_id: PROVIDER_ID.to_owned(),
                ..named
            },
            Self::Joined => v1::Node {
                labels: labels(),
                addresses: addresses(),
                taints: vec![v1::Taint { key, value, effect }],
                system_uuid: UID.to_owned(),
                ..named
            },
        }
    }
}

fn taint(taint: v1::Taint) -> Taint {
    Taint {
        key: taint.key,
        value: Some(taint.value),
        effect: taint.effect,
        time_added: None,
    }
}

/// One of [`addresses`].
fn address(address: v1::Address) -> NodeAddress {
    let kind = if address.r#type() == v1::AddressType::Hostname {
        AddressType::Hostname
    } else {
        AddressType::InternalIp
    };
    NodeAddress {
        kind,
        address: address.address,
    }
}

/// The answer: one instance for each node asked about, with what is asked of it.
pub(super) fn answer(request: v1::GetInstancesRequest) -> v1::GetInstancesResponse {
    let is_all = request.aspects().any(|aspect| aspect == v1::Aspect::Metadata);
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
