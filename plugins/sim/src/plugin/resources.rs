//! What the cloud holds for a cluster, as the protocol counts it.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::v1::delete_owned_result::{
    Absent, Done, InProgress, NotOurs, Protected, Result as Deleted,
};
use bulkhead_plugin::{Result, v1};

use super::asking::{Asking, WriteError, failure};
use super::instances::{Place, verdict};
use super::observed::{CLUSTER, MARK, MARKED, OWNER, ROLE, SERVICE, is_marked};
use crate::cloud::{ErrorCode, Kind, Object, Op, Query};

/// For `Describe`: routes are not among them, since they are nobody's load balancer.
pub(super) fn types() -> impl Iterator<Item = v1::ResourceType> {
    let marked = MARKED.into_iter().map(|kind| (kind, v1::MarkKind::Tag));
    let unmarked = [Kind::FirewallRule, Kind::Target].map(|kind| (kind, v1::MarkKind::None));
    marked.chain(unmarked).map(|(kind, mark)| v1::ResourceType {
        r#type: kind.name().to_owned(),
        class: class(kind).into(),
        mark: mark.into(),
        listable: mark == v1::MarkKind::Tag,
    })
}

const fn class(kind: Kind) -> v1::ResourceClass {
    match kind {
        Kind::LoadBalancer => v1::ResourceClass::LoadBalancer,
        Kind::Listener => v1::ResourceClass::Listener,
        Kind::Pool => v1::ResourceClass::Pool,
        Kind::Target => v1::ResourceClass::Target,
        Kind::HealthCheck => v1::ResourceClass::HealthCheck,
        Kind::Address => v1::ResourceClass::Address,
        Kind::Firewall => v1::ResourceClass::Firewall,
        Kind::FirewallRule => v1::ResourceClass::FirewallRule,
        Kind::Route => v1::ResourceClass::Route,
        Kind::Instance | Kind::RouteTable => v1::ResourceClass::Other,
    }
}

/// A part with a mark.
pub(super) fn wire(object: &Object) -> v1::Resource {
    v1::Resource {
        role: object.tag(ROLE).to_owned(),
        mark: Some(v1::Mark {
            value: object.tag(MARK).to_owned(),
            kind: v1::MarkKind::Tag.into(),
        }),
        ..wire_part(object, object.tag(OWNER))
    }
}

/// A part without a place for a mark: it belongs to what it is part of.
pub(super) fn wire_part(object: &Object, owner: &str) -> v1::Resource {
    v1::Resource {
        id: object.id.clone(),
        r#type: object.kind.name().to_owned(),
        class: class(object.kind).into(),
        role: format!("{}/{}", object.kind.name(), object.name),
        mark: Some(v1::Mark {
            value: String::new(),
            kind: v1::MarkKind::None.into(),
        }),
        owner: owner.to_owned(),
        origin: v1::ResourceOrigin::Created.into(),
        revision: object.revision.to_string(),
    }
}

pub(super) async fn list(
    asking: Asking<'_>,
    request: v1::ListOwnedResourcesRequest,
) -> Result<v1::ListOwnedResourcesResponse> {
    let asked = |kind: &Kind| request.classes.is_empty() || request.classes.contains(&class(*kind).into());
    let kinds: Vec<Kind> = MARKED.into_iter().filter(asked).collect();
    let cluster = asking.call.cluster().uid.clone();
    let place = Place::read(&request.page_token)?;
    let page = asking
        .page(Query {
            kinds: kinds.clone(),
            tags: BTreeMap::from([(CLUSTER.to_owned(), BTreeSet::from([cluster.clone()]))]),
            page_size: request.page_size,
            page_token: place.after,
            ..Query::default()
        })
        .await?;
    let mut failed = place.failed;
    failed.extend(page.failed);
    let verdicts = if page.next.is_empty() {
        let one = verdict(page.scopes, &failed);
        let of_kind = |kind: Kind| v1::TypeVerdict {
            r#type: kind.name().to_owned(),
            verdict: Some(one.clone()),
        };
        MARKED.into_iter().map(of_kind).collect()
    } else {
        Vec::new()
    };
    let next = Place {
        snapshot: place.snapshot,
        failed,
        after: page.next,
    };
    Ok(v1::ListOwnedResourcesResponse {
        resources: page
            .objects
            .iter()
            .filter(|object| is_marked(object, &cluster))
            .map(wire)
            .collect(),
        next_page_token: next.token(),
        verdicts,
    })
}

pub(super) async fn delete(
    asking: Asking<'_>,
    request: v1::DeleteOwnedResourcesRequest,
) -> Result<v1::DeleteOwnedResourcesResponse> {
    let query = Query {
        kinds: MARKED.to_vec(),
        ids: Some(request.resources.iter().map(|one| one.id.clone()).collect()),
        ..Query::default()
    };
    let found = asking.read(query).await?;
    let known: BTreeMap<&str, &Object> = found
        .objects
        .iter()
        .map(|object| (object.id.as_str(), object))
        .collect();
    let cluster = asking.call.cluster().uid.as_str();
    let mut results = Vec::with_capacity(request.resources.len());
    for one in &request.resources {
        let result = match known.get(one.id.as_str()) {
            None => match found.failed.first() {
                None => Deleted::Absent(Absent {}),
                Some(scope) => {
                    Deleted::Error(PluginError::cloud_unavailable(format!("{scope} cannot be read")).into())
                }
            },
            Some(object) if is_ours(object, one, cluster) => delete_one(&asking, object).await,
            Some(_) => Deleted::NotOurs(NotOurs {}),
        };
        results.push(v1::DeleteOwnedResult {
            id: one.id.clone(),
            result: Some(result),
        });
    }
    Ok(v1::DeleteOwnedResourcesResponse { results })
}

fn is_ours(object: &Object, asked: &v1::DeleteOwnedResource, cluster: &str) -> bool {
    let mark = asked
        .expected_mark
        .as_ref()
        .map_or("", |mark| mark.value.as_str());
    let revision = object.revision.to_string();
    is_marked(object, cluster)
        && object.tag(MARK) == mark
        && (asked.expected_revision.is_empty() || asked.expected_revision == revision)
}

/// Deletes an object, and what is part of it and can carry no mark: nobody could ever ask for that.
async fn delete_one(asking: &Asking<'_>, object: &Object) -> Deleted {
    match delete_whole(asking, object).await {
        Ok(()) => Deleted::Done(Done {}),
        Err(WriteError::Cloud(error)) if error.code == ErrorCode::NotFound => Deleted::Absent(Absent {}),
        Err(WriteError::Cloud(error)) if error.code == ErrorCode::Protected => {
            Deleted::Protected(Protected {})
        }
        Err(WriteError::Cloud(error)) if error.code == ErrorCode::Busy => Deleted::InProgress(InProgress {}),
        Err(WriteError::Cloud(error)) => Deleted::Error(failure(error).into()),
        Err(WriteError::NotStarted(error)) => Deleted::Error(error.into()),
    }
}

async fn delete_whole(asking: &Asking<'_>, object: &Object) -> std::result::Result<(), WriteError> {
    let service = object.tag(SERVICE);
    for kind in [Kind::FirewallRule, Kind::Target] {
        if kind.parent() != Some(object.kind) {
            continue;
        }
        let query = Query {
            kinds: vec![kind],
            parents: Some(BTreeSet::from([object.id.clone()])),
            ..Query::default()
        };
        let parts = asking.read(query).await.map_err(WriteError::NotStarted)?;
        let ids: Vec<String> = parts.objects.into_iter().map(|part| part.id).collect();
        if !ids.is_empty() {
            asking.write(service, Op::Delete { kind, ids }).await?;
        }
    }
    let op = Op::Delete {
        kind: object.kind,
        ids: vec![object.id.clone()],
    };
    asking.write(service, op).await.map(drop)
}
