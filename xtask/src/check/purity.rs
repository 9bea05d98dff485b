//! The core decides and does nothing else: what does I/O must not be among its dependencies, however far away.

use std::collections::{BTreeSet, VecDeque};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{list, text};

const CORE: &str = "bulkhead-core";

/// Crates that must not be linked into the core. `kube` stands for its whole family.
const FORBIDDEN: &[&str] = &[
    "tokio",
    "kube",
    "kube-core",
    "kube-client",
    "kube-runtime",
    "k8s-openapi",
    "tonic",
    "prost",
];

pub(super) fn findings(metadata: &Value) -> Result<Vec<String>> {
    let linked = linked(metadata, CORE)?;
    let forbidden = FORBIDDEN.iter().filter(|name| linked.contains(**name));
    Ok(forbidden
        .map(|name| format!("{CORE} depends on {name}: move what needs it to the host"))
        .collect())
}

/// Names of all crates that are linked into `root`: dependencies of its tests do not count.
fn linked(metadata: &Value, root: &str) -> Result<BTreeSet<String>> {
    let packages = list(metadata, "packages")?;
    let name_of = |id: &str| {
        let package = packages
            .iter()
            .find(|package| text(package, "id").is_ok_and(|own| own == id));
        package
            .map_or("", |package| text(package, "name").unwrap_or_default())
            .to_owned()
    };
    let nodes = list(
        metadata.get("resolve").context("cargo metadata has no resolve")?,
        "nodes",
    )?;
    let start = nodes
        .iter()
        .find(|node| text(node, "id").is_ok_and(|id| name_of(id) == root));
    let mut queue = VecDeque::from([start.with_context(|| format!("there is no crate {root}"))?]);
    let mut seen = BTreeSet::new();
    while let Some(node) = queue.pop_front() {
        for dependency in list(node, "deps")?
            .iter()
            .filter(|dependency| is_linked(dependency))
        {
            let id = text(dependency, "pkg")?;
            if seen.insert(id) {
                queue.extend(
                    nodes
                        .iter()
                        .find(|node| text(node, "id").is_ok_and(|own| own == id)),
                );
            }
        }
    }
    Ok(seen.into_iter().map(name_of).collect())
}

/// A dependency that is not only one of tests (`dev`) or of the build script (`build`).
fn is_linked(dependency: &Value) -> bool {
    let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
    kinds.is_some_and(|kinds| {
        kinds
            .iter()
            .any(|kind| kind.get("kind").is_some_and(Value::is_null))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// bulkhead-core -> thiserror -> `through`, and -> tokio for tests only.
    fn metadata(through: &str) -> Value {
        let normal = json!([{"kind": null}]);
        json!({
            "packages": [
                {"id": "1", "name": "bulkhead-core"}, {"id": "2", "name": "thiserror"},
                {"id": "3", "name": through}, {"id": "4", "name": "tokio"},
            ],
            "resolve": {"nodes": [
                {"id": "1", "deps": [{"pkg": "2", "dep_kinds": normal}, {"pkg": "4", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "2", "deps": [{"pkg": "3", "dep_kinds": normal}]},
                {"id": "3", "deps": []}, {"id": "4", "deps": []},
            ]},
        })
    }

    #[test]
    fn a_forbidden_crate_is_found_however_far_away() {
        let found = findings(&metadata("prost")).expect("the metadata is complete");
        assert_eq!(
            found,
            ["bulkhead-core depends on prost: move what needs it to the host"]
        );
    }

    #[test]
    fn dependencies_of_tests_do_not_count() {
        assert_eq!(
            findings(&metadata("syn")).expect("the metadata is complete"),
            Vec::<String>::new()
        );
    }
}
