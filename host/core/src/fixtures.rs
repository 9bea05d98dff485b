//! Objects for tests: plain ones, to be changed in the one way that a test is about.

use std::collections::BTreeMap;

use crate::clock::Timestamp;
use crate::cloud::{AddressSource, Capability, Description, Instance, KeySet, PowerState, TargetKind};
use crate::ids::{NodeName, ProviderId, ServiceKey, Uid};
use crate::node::view::{AddressType, NodeAddress, NodeView, Taint, UNINITIALIZED_TAINT};
use crate::service::spec::{Circumstances, IpFamily, Port, Protocol, Spec};
use crate::service::view::ServiceView;
use crate::territory::{Claimant, Claims, Incumbents, Territory, divide};

/// A node as a kubelet registers it: tainted, without provider ID.
pub(crate) fn node(name: &str) -> NodeView {
    NodeView {
        name: NodeName(name.to_owned()),
        uid: Uid(format!("uid-{name}")),
        resource_version: "1".to_owned(),
        created_at: Timestamp(0),
        deleting: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        provider_id: None,
        taints: vec![Taint {
            key: UNINITIALIZED_TAINT.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        }],
        pod_cidrs: Vec::new(),
        unschedulable: false,
        addresses: vec![address(AddressType::Hostname, name)],
        conditions: Vec::new(),
        system_uuid: String::new(),
    }
}

/// A node as initialisation leaves it.
pub(crate) fn initialised_node(name: &str, address_text: &str) -> NodeView {
    let mut node = node(name);
    node.taints.clear();
    node.provider_id = Some(format!("local://i-{name}"));
    node.addresses = vec![
        address(AddressType::InternalIp, address_text),
        address(AddressType::Hostname, name),
    ];
    node
}

/// One address.
pub(crate) fn address(kind: AddressType, text: &str) -> NodeAddress {
    NodeAddress {
        kind,
        address: text.to_owned(),
    }
}

/// The instance of [`node`].
pub(crate) fn instance(name: &str) -> Instance {
    Instance {
        provider_id: ProviderId::parse(format!("local://i-{name}")).unwrap(),
        instance_id: format!("i-{name}"),
        name: name.to_owned(),
        instance_type: "small".to_owned(),
        zone: "z1".to_owned(),
        region: "r1".to_owned(),
        addresses: vec![
            address(AddressType::InternalIp, "10.0.0.1"),
            address(AddressType::Hostname, name),
        ],
        address_source: AddressSource::Cloud,
        power: Some(PowerState::Running),
        extra_labels: BTreeMap::new(),
    }
}

/// A plugin that serves Services without a class and of class "ours".
pub(crate) fn description() -> Description {
    Description {
        provider: "local".to_owned(),
        version: "1".to_owned(),
        instance_id: "p1".to_owned(),
        capabilities: vec![Capability::Instances, Capability::Lb],
        schemes: vec!["local".to_owned()],
        classes: vec![String::new(), "ours".to_owned()],
        targets: TargetKind::Address,
        mixed_protocols: true,
        without_node_ports: false,
        annotation_keys: KeySet(vec!["local.bulkhead.dev/".to_owned()]),
        label_keys: KeySet::default(),
        max_batch_nodes: 200,
        max_targets: None,
        behaviour_digest: "b1".to_owned(),
    }
}

/// Everything that a plugin with this description, and no other plugin beside it, owns.
pub(crate) fn territory_of(description: &Description) -> Territory {
    let claims = Claims::default();
    let claimant = Claimant {
        name: &description.provider,
        claims: &claims,
        description: Some(description),
    };
    divide(&[claimant], &Incumbents::default()).territories.remove(0)
}

/// The territory of [`description`].
pub(crate) fn territory() -> Territory {
    territory_of(&description())
}

/// Finalizer of the named classes of [`description`].
pub(crate) const CLASS_FINALIZER: &str = "local.bulkhead.dev/load-balancer";

/// A Service of type LoadBalancer as a user creates it.
pub(crate) fn service(name: &str) -> ServiceView {
    ServiceView {
        key: ServiceKey {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        },
        uid: Uid(format!("uid-{name}")),
        is_load_balancer: true,
        spec: Spec {
            name: name.to_owned(),
            ip_families: vec![IpFamily::V4],
            ports: vec![Port {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: Some(30080),
                target_port: "8080".to_owned(),
                app_protocol: String::new(),
            }],
            allocate_node_ports: true,
            ..Spec::default()
        },
        circumstances: Circumstances {
            resource_version: "1".to_owned(),
            ..Circumstances::default()
        },
        ingress: Vec::new(),
    }
}
