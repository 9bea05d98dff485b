//! Which labels an instance gives its node.

use std::collections::BTreeMap;

use crate::cloud::Instance;

/// Longest label value, and longest name part of a label key, in bytes (Kubernetes' bound).
const LABEL_MAX: usize = 63;
/// Longest prefix of a label key in bytes (Kubernetes' bound).
const PREFIX_MAX: usize = 253;

const TYPE_LABELS: [&str; 2] = [
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];
const ZONE_LABELS: [&str; 2] = [
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
];
const REGION_LABELS: [&str; 2] = [
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/region",
];

/// The labels that the host owns on the node of `instance`: type, zone and region, each under its current and its
/// beta name, for what the cloud knows. Values that Kubernetes would refuse are made legal.
pub fn owned(instance: &Instance) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let known = [
        (&instance.instance_type, TYPE_LABELS),
        (&instance.zone, ZONE_LABELS),
        (&instance.region, REGION_LABELS),
    ];
    for (value, keys) in known {
        let value = legal_value(value);
        if !value.is_empty() {
            labels.extend(keys.map(|key| (key.to_owned(), value.clone())));
        }
    }
    labels
}

/// The labels to write on a node that is being initialised: owned ones that differ, and the provider's extra ones
/// that the node does not have and may have.
pub fn to_initialise(present: &BTreeMap<String, String>, instance: &Instance) -> BTreeMap<String, String> {
    let mut labels = owned(instance);
    labels.retain(|key, value| present.get(key) != Some(value));
    let extra = instance
        .extra_labels
        .iter()
        .filter(|(key, _)| !present.contains_key(*key) && is_free(key));
    for (key, value) in extra {
        labels.entry(key.clone()).or_insert_with(|| legal_value(value));
    }
    labels
}

/// The owned labels that an initialised node has lost. One with another value is left: it may be a user's wish, and
/// volumes may be bound to it.
pub fn lost(present: &BTreeMap<String, String>, instance: &Instance) -> BTreeMap<String, String> {
    let mut labels = owned(instance);
    labels.retain(|key, _| !present.contains_key(key));
    labels
}

/// Makes `text` a legal label value: illegal characters become `-`, ends are trimmed to letters and digits, and at
/// most 63 bytes stay.
fn legal_value(text: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let replaced: String = text.chars().map(|c| if legal(c) { c } else { '-' }).collect();
    let start = replaced.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let cut: String = start.chars().take(LABEL_MAX).collect();
    cut.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// Whether a provider may put a label of this key on a node: a legal key outside Kubernetes' own namespaces.
fn is_free(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let reserved = prefix.is_some_and(|prefix| {
        ["kubernetes.io", "k8s.io"]
            .iter()
            .any(|own| prefix == *own || prefix.ends_with(&format!(".{own}")))
    });
    let legal_prefix = prefix.is_none_or(|prefix| {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        prefix.len() <= PREFIX_MAX
            && prefix.chars().all(legal)
            && prefix
                .split('.')
                .all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-'))
    });
    !reserved && legal_prefix && !name.is_empty() && legal_value(name) == name
}

#[cfg(test)]
mod tests;
