//! What a plugin says of itself.

use bulkhead_core::cloud::{Capability, Description, KeySet, TargetKind};
use bulkhead_core::ids::ProviderId;
use bulkhead_proto::{MAX_MESSAGE_BYTES, REVISION, v1};

use super::text::{ID_MAX, NAME_MAX, is_dns_label, line, word};
use super::{Parsed, Violation, known, list};

/// Nodes in one `GetInstances` where the plugin sets no limit.
const BATCH_NODES: u32 = 200;
/// Load balancers in one call where the plugin sets no limit.
const BATCH_BALANCERS: u32 = 100;
/// Calls in flight where the plugin sets no limit.
const CALLS_IN_FLIGHT: u32 = 16;
/// The most calls in flight, whatever the plugin allows.
const CALLS_IN_FLIGHT_MAX: u32 = 1024;
/// Most capabilities, schemes, classes or keys.
const LIST_MAX: usize = 512;

/// Bounds of the session that only the runtime needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Largest request in bytes.
    pub(crate) message_bytes: usize,
    /// Calls in flight.
    pub(crate) calls_in_flight: usize,
    /// Items of one call about load balancers.
    pub(crate) batch_balancers: usize,
}

/// Why no session can be had with a plugin that answered `Describe`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Incompatible {
    /// No common revision.
    #[error("it speaks protocol revisions {theirs:?}, this host speaks {REVISION}")]
    Revision {
        /// What the plugin speaks.
        theirs: Vec<u32>,
    },
    /// Another provider than the configured one.
    #[error("it is provider {reported:?}, but --cloud-provider is {expected:?}")]
    Provider {
        /// What it reports.
        reported: String,
        /// What is configured.
        expected: String,
    },
    /// The answer breaks the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// Reads an answer to `Describe`. `expected` is the configured provider name.
pub(crate) fn description(
    answer: v1::DescribeResponse,
    expected: Option<&str>,
) -> Result<(Description, Limits), Incompatible> {
    if !answer.protocol_revisions.contains(&REVISION) {
        let mut theirs = answer.protocol_revisions;
        theirs.truncate(16);
        return Err(Incompatible::Revision { theirs });
    }
    if !is_dns_label(&answer.provider_name) {
        return Err(Violation::new("provider_name", "is no DNS label").into());
    }
    if let Some(expected) = expected.filter(|expected| *expected != answer.provider_name) {
        let reported = answer.provider_name;
        return Err(Incompatible::Provider {
            reported,
            expected: expected.to_owned(),
        });
    }
    Ok(parts(answer)?)
}

fn parts(answer: v1::DescribeResponse) -> Parsed<(Description, Limits)> {
    if answer.instance_id.is_empty() {
        return Err(Violation::new("instance_id", "is empty"));
    }
    let limits = answer.limits.unwrap_or_default();
    let features = answer.features.unwrap_or_default();
    let capabilities = capabilities(&answer.capabilities)?;
    let bound = |field, limit: Option<u32>, default| at_least_one(field, limit.unwrap_or(default));
    let description = Description {
        provider: answer.provider_name,
        version: line("plugin_version", answer.plugin_version, NAME_MAX)?,
        instance_id: word("instance_id", answer.instance_id, NAME_MAX)?,
        schemes: list("schemes", answer.schemes, LIST_MAX, scheme)?,
        classes: list("classes", answer.classes, LIST_MAX, |class| {
            word("", class, NAME_MAX)
        })?,
        targets: targets(features.targets, &capabilities)?,
        mixed_protocols: features.mixed_protocols,
        without_node_ports: features.without_node_ports,
        annotation_keys: keys("annotation_keys", answer.annotation_keys)?,
        label_keys: keys("label_keys", answer.label_keys)?,
        max_batch_nodes: bound("limits.max_batch_nodes", limits.max_batch_nodes, BATCH_NODES)?,
        max_targets: limits
            .max_targets_per_load_balancer
            .map(|max| usize::try_from(max).unwrap_or(usize::MAX)),
        behaviour_digest: line("behaviour_digest", answer.behaviour_digest, ID_MAX)?,
        capabilities,
    };
    let in_flight = bound(
        "limits.max_calls_in_flight",
        limits.max_calls_in_flight,
        CALLS_IN_FLIGHT,
    )?;
    let message_bytes = limits
        .max_message_bytes
        .map_or(MAX_MESSAGE_BYTES, |max| max.try_into().unwrap_or(usize::MAX));
    let limits = Limits {
        message_bytes: message_bytes.min(MAX_MESSAGE_BYTES),
        calls_in_flight: in_flight.min(CALLS_IN_FLIGHT_MAX as usize),
        batch_balancers: bound(
            "limits.max_batch_load_balancers",
            limits.max_batch_load_balancers,
            BATCH_BALANCERS,
        )?,
    };
    Ok((description, limits))
}

fn at_least_one(field: &'static str, limit: u32) -> Parsed<usize> {
    match usize::try_from(limit) {
        Ok(0) => Err(Violation::new(field, "is zero")),
        Ok(limit) => Ok(limit),
        Err(_) => Ok(usize::MAX),
    }
}

/// Capabilities of later revisions are passed over.
fn capabilities(numbers: &[i32]) -> Parsed<Vec<Capability>> {
    let mut capabilities = Vec::new();
    for (index, number) in numbers.iter().enumerate() {
        let Ok(wire) = v1::Capability::try_from(*number) else {
            continue;
        };
        let capability = match wire {
            v1::Capability::Unspecified => {
                return Err(Violation::new(format!("capabilities[{index}]"), "is unspecified"));
            }
            v1::Capability::Instances => Capability::Instances,
            v1::Capability::InstancesList => Capability::InstancesList,
            v1::Capability::Lb => Capability::Lb,
            v1::Capability::LbNodesets => Capability::LbNodesets,
            v1::Capability::Routes => Capability::Routes,
            v1::Capability::ResourcesList => Capability::ResourcesList,
            v1::Capability::ResourcesDelete => Capability::ResourcesDelete,
        };
        if !capabilities.contains(&capability) {
            capabilities.push(capability);
        }
    }
    Ok(capabilities)
}

fn scheme(scheme: v1::Scheme) -> Parsed<String> {
    let _: v1::SchemeUse = known("use", scheme.r#use)?;
    let is_legal = scheme.name.len() <= 63 && ProviderId::parse(format!("{}://x", scheme.name)).is_ok();
    // A name that holds the separator would parse as a shorter scheme.
    if is_legal && !scheme.name.contains(':') {
        Ok(scheme.name)
    } else {
        Err(Violation::new("name", "is no provider ID scheme"))
    }
}

/// Only a plugin with load balancers has targets.
fn targets(number: i32, capabilities: &[Capability]) -> Parsed<TargetKind> {
    let kind = match v1::TargetKind::try_from(number) {
        Ok(v1::TargetKind::Instance) => Some(TargetKind::Instance),
        Ok(v1::TargetKind::Address) => Some(TargetKind::Address),
        Ok(v1::TargetKind::Unspecified) | Err(_) => None,
    };
    match kind {
        None if capabilities.contains(&Capability::Lb) => Err(Violation::new(
            "features.targets",
            "is neither instance nor address",
        )),
        kind => Ok(kind.unwrap_or(TargetKind::Instance)),
    }
}

fn keys(field: &'static str, keys: Vec<v1::KeyUse>) -> Parsed<KeySet> {
    let key = |key: v1::KeyUse| {
        if key.key.is_empty() {
            Err(Violation::new("key", "is empty"))
        } else {
            word("key", key.key, ID_MAX)
        }
    };
    list(field, keys, LIST_MAX, key).map(KeySet)
}
