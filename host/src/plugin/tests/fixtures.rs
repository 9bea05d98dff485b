//! Plain objects, to be changed in the one way that a test is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::ids::{Mark, NodeName, ServiceKey, Uid};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::service::request::BalancerRef;
use bulkhead_proto::v1;

/// A node about which nothing is known.
pub(in crate::plugin) fn node(name: &str) -> Arc<NodeView> {
    Arc::new(NodeView {
        name: NodeName(name.to_owned()),
        uid: Uid(format!("uid-{name}")),
        resource_version: "1".to_owned(),
        created_at: Timestamp(0),
        deleting: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        provider_id: None,
        taints: Vec::new(),
        pod_cidrs: Vec::new(),
        unschedulable: false,
        addresses: Vec::new(),
        conditions: Vec::new(),
        system_uuid: String::new(),
    })
}

/// A load balancer that was never ensured.
pub(in crate::plugin) fn balancer() -> BalancerRef {
    BalancerRef {
        service: ServiceKey {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        uid: Uid("uid-web".to_owned()),
        mark: Mark("bh-mark".to_owned()),
        applied: None,
        current: None,
        resources: Vec::new(),
    }
}

/// Its Service.
pub(in crate::plugin) fn service() -> v1::ServiceKey {
    v1::ServiceKey {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        uid: "uid-web".to_owned(),
    }
}
