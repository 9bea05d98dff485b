//! What the host keeps of a Service.

use crate::ids::{Guard, ServiceKey, Uid};
use crate::service::spec::{Circumstances, IpFamily, Protocol, Spec};

/// A Service, as far as any decision or plugin reads it.
///
/// The store keeps Services of type LoadBalancer and those that carry a finalizer of ours; all others are dropped
/// when they are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Namespace and name.
    pub key: ServiceKey,
    /// `metadata.uid`.
    pub uid: Uid,
    /// Whether `spec.type` is LoadBalancer.
    pub is_load_balancer: bool,
    /// What it asks for.
    pub spec: Spec,
    /// What else the wire carries.
    pub circumstances: Circumstances,
    /// `status.loadBalancer.ingress`, in order.
    pub ingress: Vec<Ingress>,
}

impl ServiceView {
    /// The guard of a write that was decided on this view.
    pub fn guard(&self) -> Guard {
        Guard {
            uid: self.uid.clone(),
            resource_version: self.circumstances.resource_version.clone(),
        }
    }

    /// Whether `metadata.deletionTimestamp` is set.
    pub const fn is_deleting(&self) -> bool {
        self.circumstances.deleted_at.is_some()
    }

    /// Whether a load balancer of some plugin is asked for, or held by a finalizer.
    pub fn concerns_a_plugin(&self) -> bool {
        let is_held = |finalizer: &String| {
            finalizer == CLEANUP_FINALIZER || finalizer.ends_with(CLASS_FINALIZER_SUFFIX)
        };
        self.is_load_balancer || self.circumstances.finalizers.iter().any(is_held)
    }

    /// Whether `finalizer` is on.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.circumstances
            .finalizers
            .iter()
            .any(|present| present == finalizer)
    }
}

/// Finalizer of Services without a class, as upstream names it.
pub const CLEANUP_FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// How the finalizers of Services with a class of ours end, behind the plugin's name: the API server clears the class
/// when the type changes, so nothing else would tell whose it is.
pub const CLASS_FINALIZER_SUFFIX: &str = ".bulkhead.dev/load-balancer";

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// Where clients reach the Service.
    pub address: IngressAddress,
    /// Ports, where the provider says something about them.
    pub ports: Vec<PortStatus>,
}

/// Where clients reach a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngressAddress {
    /// An IP address, and how traffic to it is to be treated inside the cluster.
    Ip(std::net::IpAddr, IpMode),
    /// A DNS name.
    Hostname(String),
}

impl IngressAddress {
    /// The address's family, if it is an address.
    pub const fn family(&self) -> Option<IpFamily> {
        match self {
            Self::Ip(std::net::IpAddr::V4(_), _) => Some(IpFamily::V4),
            Self::Ip(std::net::IpAddr::V6(_), _) => Some(IpFamily::V6),
            Self::Hostname(_) => None,
        }
    }
}

/// `ipMode` of an ingress address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpMode {
    /// Nodes may short-circuit traffic to the address.
    Vip,
    /// All traffic must go through the load balancer.
    Proxy,
}

/// What a provider says about one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// The port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// CamelCase or domain/CamelCase; `None`: fine.
    pub error: Option<String>,
}
