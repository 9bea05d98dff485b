//! Instances: by node, and all of them.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_plugin::error::{Certainty, PluginError};
use bulkhead_plugin::v1::instance_result::Result as Answer;
use bulkhead_plugin::{Result, time, v1};

use super::PluginConfig;
use super::asking::{Asking, Found};
use super::observed::absence;
use crate::cloud::{Instance, Kind, Object, Power, Query};

pub(super) async fn get(
    asking: Asking<'_>,
    request: v1::GetInstancesRequest,
) -> Result<v1::GetInstancesResponse> {
    if request.max_age.is_none() {
        return Err(PluginError::invalid_spec("max_age", "is missing"));
    }
    let config = asking.config();
    let ids: BTreeSet<String> = {
        let ids = request
            .nodes
            .iter()
            .filter_map(|node| config.instance_id(&node.provider_id));
        ids.map(str::to_owned).collect()
    };
    let by_id = if ids.is_empty() {
        Found::default()
    } else {
        let ids = Some(ids.clone());
        asking.read(Query { ids, ..instances() }).await?
    };
    let strange = by_id.objects.iter().any(|object| !ids.contains(&object.id));
    let unnamed: Vec<&v1::Node> = request
        .nodes
        .iter()
        .filter(|node| node.provider_id.is_empty())
        .collect();
    let by_name = candidates(&asking, &unnamed).await?;
    let known: BTreeMap<&str, &Object> = by_id
        .objects
        .iter()
        .map(|object| (object.id.as_str(), object))
        .collect();
    let results = request.nodes.iter().map(|node| {
        let result = if node.provider_id.is_empty() {
            named(config, node, &by_name)
        } else {
            let answer = identified(config, node, &known, &by_id);
            if strange && matches!(answer, Answer::Absent(_)) {
                Answer::Error(other_instances().into())
            } else {
                answer
            }
        };
        v1::InstanceResult {
            node_name: node.name.clone(),
            node_uid: node.uid.clone(),
            result: Some(result),
        }
    });
    Ok(v1::GetInstancesResponse {
        results: results.collect(),
    })
}

fn instances() -> Query {
    Query {
        kinds: vec![Kind::Instance],
        ..Query::default()
    }
}

/// What nodes without provider ID may be: by name, and where some has another hint than its name, all there is.
async fn candidates(asking: &Asking<'_>, nodes: &[&v1::Node]) -> Result<Found> {
    if nodes.is_empty() {
        return Ok(Found::default());
    }
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let names = Some(names);
    let found = asking.read(Query { names, ..instances() }).await?;
    let resolved = |node: &v1::Node| found.objects.iter().any(|object| object.name == node.name);
    let hinted = |node: &v1::Node| !node.system_uuid.is_empty() || !node.addresses.is_empty();
    if nodes.iter().any(|node| !resolved(node) && hinted(node)) {
        return asking.read(instances()).await;
    }
    Ok(found)
}

fn identified(
    config: &PluginConfig,
    node: &v1::Node,
    known: &BTreeMap<&str, &Object>,
    found: &Found,
) -> Answer {
    let Some(id) = config.instance_id(&node.provider_id) else {
        return Answer::NotMine(v1::NotMine {
            reason: "the provider ID is another provider's".to_owned(),
        });
    };
    match known.get(id) {
        Some(object) => Answer::Found(wire(config, object)),
        None => missing(found),
    }
}

/// Nothing is absent by an answer to another question.
fn other_instances() -> PluginError {
    let text = "the cloud answered about other instances than was asked";
    PluginError::provider_error(text).with_certainty(Certainty::NotApplied)
}

fn named(config: &PluginConfig, node: &v1::Node, found: &Found) -> Answer {
    let all = || found.objects.iter();
    let alive = |object: &&Object| object.attribute("power") != Power::Terminated.name();
    let uuid = |object: &&Object| {
        !node.system_uuid.is_empty() && object.attribute("system_uuid") == node.system_uuid
    };
    let address = |object: &&Object| {
        let own = Instance::of_object(object).addresses;
        node.addresses
            .iter()
            .any(|address| own.contains(&address.address))
    };
    let mut matching: Vec<&Object> = all().filter(|object| object.name == node.name).collect();
    if matching.is_empty() {
        matching = all().filter(uuid).collect();
    }
    if matching.is_empty() {
        matching = all().filter(address).collect();
    }
    // A machine that was replaced under its name is there beside its successor.
    if matching.len() > 1 {
        matching.retain(alive);
    }
    match matching.as_slice() {
        [] => missing(found),
        [one] => Answer::Found(wire(config, one)),
        [one, other, ..] => {
            let text = format!("{} and {} both match node {}", one.id, other.id, node.name);
            Answer::Error(
                PluginError::provider_error(text)
                    .with_certainty(Certainty::NotApplied)
                    .into(),
            )
        }
    }
}

/// Absent, unless a place where it could be was not read, or the cloud answered another question.
fn missing(found: &Found) -> Answer {
    if let Some(scope) = found.failed.first() {
        let text = format!("{scope} cannot be read, and it may be there");
        let error = PluginError::cloud_unavailable(text).with_certainty(Certainty::NotApplied);
        return Answer::Error(error.into());
    }
    Answer::Absent(absence(found.scopes.clone()))
}

/// A list of the cloud in pages of its own, each as it was when it was read.
pub(super) async fn list(
    asking: Asking<'_>,
    request: &v1::ListInstancesRequest,
) -> Result<v1::ListInstancesResponse> {
    let place = Place::read(&request.page_token)?;
    let page = asking
        .page(Query {
            page_size: request.page_size,
            page_token: place.after.clone(),
            ..instances()
        })
        .await?;
    let mut failed = place.failed;
    failed.extend(page.failed);
    let token = if place.snapshot.is_empty() {
        crate::clock::boot().as_nanos().to_string()
    } else {
        place.snapshot
    };
    let config = asking.config();
    let instances = page.objects.iter().map(|object| wire(config, object)).collect();
    let verdict = page.next.is_empty().then(|| verdict(page.scopes, &failed));
    let snapshot = v1::Snapshot {
        token: token.clone(),
        as_of: Some(time::timestamp()),
        kind: v1::SnapshotKind::PerPage.into(),
    };
    let next = Place {
        snapshot: token,
        failed,
        after: page.next,
    };
    Ok(v1::ListInstancesResponse {
        instances,
        next_page_token: next.token(),
        snapshot: Some(snapshot),
        verdict,
    })
}

/// Complete, unless a scope failed on any page.
pub(super) fn verdict(scopes: Vec<String>, failed: &BTreeSet<String>) -> v1::Verdict {
    let scope = |name: String| {
        let error = failed.contains(&name).then(|| {
            let text = format!("{name} cannot be read");
            PluginError::cloud_unavailable(text)
                .with_certainty(Certainty::NotApplied)
                .into()
        });
        v1::Scope { name, error }
    };
    let mut all: BTreeSet<String> = scopes.into_iter().collect();
    all.extend(failed.iter().cloned());
    v1::Verdict {
        complete: failed.is_empty(),
        total: None,
        scopes: all.into_iter().map(scope).collect(),
    }
}

/// Where a page of a list begins, and what of it was missing so far.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) snapshot: String,
    pub(super) failed: BTreeSet<String>,
    pub(super) after: String,
}

impl Place {
    /// Empty at the end of the list.
    pub(super) fn token(&self) -> String {
        if self.after.is_empty() {
            return String::new();
        }
        let failed: Vec<&str> = self.failed.iter().map(String::as_str).collect();
        format!("{};{};{}", self.snapshot, failed.join(","), self.after)
    }

    pub(super) fn read(token: &str) -> Result<Self> {
        if token.is_empty() {
            return Ok(Self::default());
        }
        let mut parts = token.splitn(3, ';');
        let (Some(snapshot), Some(failed), Some(after)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(PluginError::bad_page_token("this plugin made no such page token"));
        };
        let failed = failed.split(',').filter(|scope| !scope.is_empty());
        Ok(Self {
            snapshot: snapshot.to_owned(),
            failed: failed.map(str::to_owned).collect(),
            after: after.to_owned(),
        })
    }
}

fn wire(config: &PluginConfig, object: &Object) -> v1::Instance {
    let instance = Instance::of_object(object);
    let source = if instance.addresses.is_empty() {
        v1::AddressSource::Node
    } else {
        v1::AddressSource::Cloud
    };
    v1::Instance {
        provider_id: config.provider_id(&object.id),
        instance_id: object.id.clone(),
        name: instance.name,
        instance_type: instance.instance_type,
        region: instance.region,
        zone: instance.zone,
        addresses: instance.addresses.iter().map(|text| address(text)).collect(),
        address_source: source.into(),
        power_state: power(instance.power).into(),
        extra_labels: instance.labels,
        pod_cidrs: instance.pod_cidrs,
        revision: object.revision.to_string(),
        created_at: None,
    }
}

fn address(text: &str) -> v1::Address {
    let (kind, address) = text.split_once('=').unwrap_or(("InternalIP", text));
    let kind = match kind {
        "ExternalIP" => v1::AddressType::ExternalIp,
        "Hostname" => v1::AddressType::Hostname,
        "InternalDNS" => v1::AddressType::InternalDns,
        "ExternalDNS" => v1::AddressType::ExternalDns,
        _ => v1::AddressType::InternalIp,
    };
    v1::Address {
        r#type: kind.into(),
        address: address.to_owned(),
    }
}

fn power(power: Power) -> v1::PowerState {
    match power {
        Power::Pending => v1::PowerState::Pending,
        Power::Running => v1::PowerState::Running,
        Power::Stopping => v1::PowerState::Stopping,
        Power::Stopped => v1::PowerState::Stopped,
        Power::Suspended => v1::PowerState::Suspended,
        Power::Terminating => v1::PowerState::Terminating,
        Power::Terminated => v1::PowerState::Terminated,
        Power::Faulted => v1::PowerState::Faulted,
        Power::Unknown => v1::PowerState::Unknown,
    }
}
