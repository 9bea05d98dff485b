//! From an object's JSON to the small view that is kept of it.
//!
//! Decoding never fails on what an API server may send: what cannot be understood is left out, with a debug line,
//! because one odd object must not end the watch of all. Whatever no view keeps is skipped while parsing and never
//! takes memory.

use std::borrow::Cow;
use std::fmt;

use ::kube::Resource;
use ::kube::core::DynamicResourceScope;
use bulkhead_core::ids::{NodeName, ServiceKey, Uid};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::service::view::ServiceView;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};

pub use self::node::unknown_address_types;

mod lenient;
mod metadata;
mod node;
mod service;

/// What the host keeps of one kind of object. The kinds are all of API group `""`, version `v1`.
pub trait View: Clone + fmt::Debug + Send + Sync + 'static {
    /// What identifies an object of this kind.
    type Key: Clone + Ord + fmt::Debug + fmt::Display + Send + Sync + 'static;
    /// The kind's name.
    const KIND: &'static str;
    /// The kind's name in paths.
    const PLURAL: &'static str;

    /// Decodes an object.
    fn decode<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
    /// What identifies the object.
    fn key(&self) -> Self::Key;
    /// The object's namespace; `None` for kinds without.
    fn namespace(&self) -> Option<&str>;
    /// The object's name.
    fn name(&self) -> &str;
    /// `metadata.uid`.
    fn uid(&self) -> &Uid;
    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> &str;
    /// Whether a store keeps it.
    fn matters(&self) -> bool;
}

impl View for NodeView {
    type Key = NodeName;
    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "nodes";

    fn decode<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        node::decode(from)
    }

    fn key(&self) -> NodeName {
        self.name.clone()
    }

    fn namespace(&self) -> Option<&str> {
        None
    }

    fn name(&self) -> &str {
        &self.name.0
    }

    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn matters(&self) -> bool {
        true
    }
}

impl View for ServiceView {
    type Key = ServiceKey;
    const KIND: &'static str = "Service";
    const PLURAL: &'static str = "services";

    fn decode<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        service::decode(from)
    }

    fn key(&self) -> ServiceKey {
        self.key.clone()
    }

    fn namespace(&self) -> Option<&str> {
        Some(&self.key.namespace)
    }

    fn name(&self) -> &str {
        &self.key.name
    }

    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.circumstances.resource_version
    }

    /// Most Services of a cluster are none of a cloud's business.
    fn matters(&self) -> bool {
        self.concerns_a_plugin()
    }
}

/// A view in the form in which kube's `Api` and watcher take objects.
#[derive(Clone, Debug)]
pub struct Watched<V> {
    /// What the watcher reads: names and `resourceVersion`.
    meta: ObjectMeta,
    /// The view.
    pub view: V,
}

impl<'de, V: View> Deserialize<'de> for Watched<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let view = V::decode(from)?;
        let meta = ObjectMeta {
            name: Some(view.name().to_owned()),
            namespace: view.namespace().map(str::to_owned),
            resource_version: Some(view.resource_version().to_owned()),
            ..ObjectMeta::default()
        };
        Ok(Self { meta, view })
    }
}

impl<V: View> Resource for Watched<V> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        V::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        V::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests;
