//! Applies manifests as `kubectl apply --server-side` does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::discovery::Scope,
    discovery::Discovery,
};
use serde_json::Value;

const FIELD_MANAGER: &str = "bulkhead-harness";

/// Applies every document of every `*.yaml` file in `folder`, files in the order of their names, and returns
/// `Kind/name` of each. Unknown fields are errors.
///
/// # Errors
///
/// If there is no such file, one is not YAML, or the server refuses an object; naming file and object.
pub async fn apply_manifests(client: &Client, folder: &Path) -> Result<Vec<String>> {
    let mut kinds = Discovery::new(client.clone())
        .run()
        .await
        .context("discover the server's kinds")?;
    let mut applied = Vec::new();
    for path in yaml_files(folder)? {
        for object in read(&path)? {
            let context = || format!("apply {} of {}", title(&object), path.display());
            if kinds.resolve_object(&object).is_none() {
                // A kind may have come with a document before.
                kinds = kinds.run().await?;
            }
            apply(client, &kinds, &object).await.with_context(context)?;
            applied.push(title(&object));
        }
    }
    Ok(applied)
}

fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        bail!("{} holds no manifest", folder.display());
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Vec<DynamicObject>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("read {} as YAML", path.display()))?;
    documents
        .into_iter()
        // What stands between two separators may be a comment only.
        .filter(|document| !document.is_null())
        .map(|document| {
            serde_json::from_value(document).with_context(|| format!("read an object of {}", path.display()))
        })
        .collect()
}

async fn apply(client: &Client, kinds: &Discovery, object: &DynamicObject) -> Result<()> {
    let (resource, capabilities) = kinds
        .resolve_object(object)
        .context("the server has no such kind")?;
    let namespace = object.metadata.namespace.as_deref();
    let api: Api<DynamicObject> = match (capabilities.scope, namespace) {
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), namespace, &resource),
        (Scope::Namespaced, None) => bail!("a namespace is missing"),
    };
    let params = PatchParams {
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::apply(FIELD_MANAGER)
    };
    api.patch(&object.name_any(), &params, &Patch::Apply(object))
        .await?;
    Ok(())
}

fn title(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("?", |types| types.kind.as_str());
    format!("{kind}/{}", object.name_any())
}
