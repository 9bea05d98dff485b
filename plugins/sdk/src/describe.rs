//! Who a plugin is: a builder for the answer to `Describe`.

use crate::{time, v1};

/// What a plugin says about itself. The SDK adds the instance id, the start time, the protocol's revisions, that it
/// checks its peer, and limits of its own.
///
/// ```
/// use bulkhead_plugin::describe::Description;
/// use bulkhead_plugin::v1::{Capability, SchemeUse};
///
/// let description = Description::new("example", env!("CARGO_PKG_VERSION"))
///     .capability(Capability::Instances)
///     .scheme("example", SchemeUse::Unique);
/// ```
#[derive(Clone, Debug)]
pub struct Description(v1::DescribeResponse);

/// What is wrong with a [`Description`].
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Hosts tell plugins apart by this name.
    #[error("the provider name {name:?} is no DNS label: use a-z, 0-9 and -, at most 63 characters")]
    ProviderName {
        /// The name.
        name: String,
    },
    /// Provider IDs could not be parsed.
    #[error("the scheme {scheme:?} is none: use a lower-case letter, then a-z, 0-9, +, - and .")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A host could not choose targets.
    #[error(
        "capability lb is declared, but not how targets are named: call targets() with INSTANCE (by provider ID) or \
         ADDRESS (by an address of the node)"
    )]
    Targets,
    /// Nothing could ever be sent.
    #[error("the limit {limit} is zero: leave it out or declare at least one")]
    ZeroLimit {
        /// The field of `Limits`.
        limit: &'static str,
    },
}

/// What the items of a batch are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Batch {
    Nodes,
    LoadBalancers,
    Operations,
}

impl Description {
    /// A plugin without capabilities. `provider` is a DNS label, the same for every process of this plugin.
    pub fn new(provider: impl Into<String>, version: impl Into<String>) -> Self {
        let version = version.into();
        Self(v1::DescribeResponse {
            provider_name: provider.into(),
            behaviour_digest: version.clone(),
            plugin_version: version,
            ..Default::default()
        })
    }

    /// Declares a capability: everything behind it must be implemented.
    #[must_use]
    pub fn capability(mut self, capability: v1::Capability) -> Self {
        if !self.declares(capability) {
            self.0.capabilities.push(capability.into());
        }
        if capability == v1::Capability::Lb {
            // Node sets by digest are the SDK's own work.
            return self.capability(v1::Capability::LbNodesets);
        }
        self
    }

    /// Declares a provider ID scheme: the part before `://`.
    #[must_use]
    pub fn scheme(self, name: impl Into<String>, usage: v1::SchemeUse) -> Self {
        self.scheme_with_characters(name, usage, "")
    }

    /// As [`scheme`](Self::scheme), with the characters allowed behind `://` as a class without brackets.
    #[must_use]
    pub fn scheme_with_characters(
        mut self,
        name: impl Into<String>,
        usage: v1::SchemeUse,
        allowed: impl Into<String>,
    ) -> Self {
        self.0.schemes.push(v1::Scheme {
            name: name.into(),
            r#use: usage.into(),
            allowed_characters: allowed.into(),
        });
        self
    }

    /// Declares a load-balancer class; the empty name stands for Services without one.
    #[must_use]
    pub fn class(mut self, name: impl Into<String>) -> Self {
        self.0.classes.push(name.into());
        self
    }

    /// Says what the load balancers can do. `checks_peer` is set by the SDK.
    #[must_use]
    pub fn features(mut self, features: v1::Features) -> Self {
        self.0.features = Some(features);
        self
    }

    /// Says how targets of load balancers are named: by provider ID, or by an address of the node.
    #[must_use]
    pub fn targets(mut self, kind: v1::TargetKind) -> Self {
        self.0.features.get_or_insert_default().targets = kind.into();
        self
    }

    /// Bounds that the host must keep. Message size and calls in flight are set by the SDK.
    #[must_use]
    pub fn limits(mut self, limits: v1::Limits) -> Self {
        self.0.limits = Some(limits);
        self
    }

    /// Declares an annotation key that the plugin reads; one ending in `/` or `*` stands for all with that prefix.
    #[must_use]
    pub fn annotation(mut self, key: impl Into<String>, effect: v1::KeyEffect) -> Self {
        self.0.annotation_keys.push(v1::KeyUse {
            key: key.into(),
            effect: effect.into(),
        });
        self
    }

    /// Declares a label key of nodes or Services that the plugin reads.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, effect: v1::KeyEffect) -> Self {
        self.0.label_keys.push(v1::KeyUse {
            key: key.into(),
            effect: effect.into(),
        });
        self
    }

    /// Declares a type of cloud resource that the plugin makes.
    #[must_use]
    pub fn resource_type(mut self, resource_type: v1::ResourceType) -> Self {
        self.0.resource_types.push(resource_type);
        self
    }

    /// Sets what changes whenever the same Spec would be translated differently: a digest over configuration and
    /// build. Without it the plugin's version is used.
    #[must_use]
    pub fn behaviour_digest(mut self, digest: impl Into<String>) -> Self {
        self.0.behaviour_digest = digest.into();
        self
    }

    /// Whether `capability` is declared.
    pub fn declares(&self, capability: v1::Capability) -> bool {
        self.0.capabilities.contains(&capability.into())
    }

    pub(crate) fn digest(&self) -> &str {
        &self.0.behaviour_digest
    }

    /// Most items in one call, by what the items are.
    pub(crate) fn batch_limit(&self, batch: Batch) -> usize {
        let limits = self.0.limits.unwrap_or_default();
        let (declared, usual) = match batch {
            Batch::Nodes => (limits.max_batch_nodes, 200),
            Batch::LoadBalancers => (limits.max_batch_load_balancers, 100),
            Batch::Operations => (limits.max_batch_operations, 100),
        };
        usize::try_from(declared.unwrap_or(usual)).unwrap_or(usize::MAX)
    }

    /// Checks the names and adds what the SDK knows.
    pub(crate) fn finish(&self, calls_in_flight: u32) -> Result<v1::DescribeResponse, DescriptionError> {
        let mut answer = self.0.clone();
        if !is_dns_label(&answer.provider_name) {
            return Err(DescriptionError::ProviderName {
                name: answer.provider_name,
            });
        }
        if let Some(wrong) = answer.schemes.iter().find(|scheme| !is_scheme(&scheme.name)) {
            return Err(DescriptionError::Scheme {
                scheme: wrong.name.clone(),
            });
        }
        let names_targets = |it: &v1::Features| it.targets() != v1::TargetKind::Unspecified;
        if self.declares(v1::Capability::Lb) && !answer.features.as_ref().is_some_and(names_targets) {
            return Err(DescriptionError::Targets);
        }
        if let Some(limit) = zero_limit(&answer.limits.unwrap_or_default()) {
            return Err(DescriptionError::ZeroLimit { limit });
        }
        answer.instance_id = uuid::Uuid::new_v4().to_string();
        answer.started_at = Some(time::timestamp());
        answer.protocol_revisions = vec![bulkhead_proto::REVISION];
        answer.features.get_or_insert_default().checks_peer = true;
        let limits = answer.limits.get_or_insert_default();
        limits.max_message_bytes = u64::try_from(bulkhead_proto::MAX_MESSAGE_BYTES).ok();
        limits.max_calls_in_flight = Some(calls_in_flight);
        Ok(answer)
    }
}

fn zero_limit(limits: &v1::Limits) -> Option<&'static str> {
    let declared = [
        ("max_batch_nodes", limits.max_batch_nodes),
        ("max_page_size", limits.max_page_size),
        (
            "max_targets_per_load_balancer",
            limits.max_targets_per_load_balancer,
        ),
        ("max_routes", limits.max_routes),
        ("max_batch_load_balancers", limits.max_batch_load_balancers),
        ("max_batch_operations", limits.max_batch_operations),
    ];
    declared
        .into_iter()
        .find(|(_, value)| *value == Some(0))
        .map(|(name, _)| name)
}

fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn is_scheme(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_balancers_bring_node_sets_by_digest_along() {
        let description = Description::new("example", "1").capability(v1::Capability::Lb);
        assert!(description.declares(v1::Capability::LbNodesets));
        assert!(!description.declares(v1::Capability::Instances));
    }

    #[rstest::rstest]
    #[case::upper_case("Example", "example")]
    #[case::empty("", "example")]
    #[case::leading_dash("-example", "example")]
    #[case::scheme_with_slashes("example", "example://")]
    #[case::scheme_empty("example", "")]
    fn illegal_names_are_refused(#[case] provider: &str, #[case] scheme: &str) {
        let description = Description::new(provider, "1").scheme(scheme, v1::SchemeUse::Unique);
        assert!(description.finish(1).is_err());
    }

    #[test]
    fn load_balancers_without_a_way_to_name_targets_are_refused() {
        let description = Description::new("example", "1").capability(v1::Capability::Lb);
        assert!(matches!(description.finish(1), Err(DescriptionError::Targets)));
        assert!(description.targets(v1::TargetKind::Instance).finish(1).is_ok());
    }

    #[test]
    fn a_limit_of_zero_is_refused_by_name() {
        let limits = v1::Limits {
            max_batch_operations: Some(0),
            ..Default::default()
        };
        let error = Description::new("example", "1")
            .limits(limits)
            .finish(1)
            .expect_err("zero");
        assert!(error.to_string().contains("max_batch_operations"), "{error}");
    }

    #[test]
    fn the_sdk_adds_what_it_knows() {
        let answer = Description::new("example", "1.2").finish(7).expect("legal");
        assert_eq!(answer.protocol_revisions, [bulkhead_proto::REVISION]);
        assert_eq!(answer.limits.expect("set").max_calls_in_flight, Some(7));
        assert!(answer.features.expect("set").checks_peer);
        assert_eq!(answer.behaviour_digest, "1.2");
        assert_eq!(answer.instance_id.len(), 36);
    }
}
