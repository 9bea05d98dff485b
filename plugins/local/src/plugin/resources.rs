//! What a load balancer consists of, as the protocol counts it: itself, its addresses, and a listener for
//! every port of every address.

use std::collections::BTreeMap;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::v1::delete_owned_result::{Absent, Done, NotOurs, Result as Deleted};
use bulkhead_plugin::{Call, Result, mark, v1};

use crate::balancer::Balancer;
use crate::cidr::Family;
use crate::world::World;

const BALANCER: &str = "balancer";
const LISTENER: &str = "listener";
const ADDRESS: &str = "address";

/// What a page holds if the host does not say, and at most.
const PAGE: usize = 500;

const TYPES: [(&str, v1::ResourceClass); 3] = [
    (BALANCER, v1::ResourceClass::LoadBalancer),
    (LISTENER, v1::ResourceClass::Listener),
    (ADDRESS, v1::ResourceClass::Address),
];

/// For `Describe`.
pub(super) fn types() -> Vec<v1::ResourceType> {
    let known = TYPES.iter().map(|(name, class)| v1::ResourceType {
        r#type: (*name).to_owned(),
        class: (*class).into(),
        mark: v1::MarkKind::Tag.into(),
        listable: true,
    });
    known.collect()
}

/// The proof that something is not among what is stored: nothing else can hold it.
pub(super) fn absence() -> v1::AbsenceProof {
    let direct = v1::freshness::Kind::Direct(v1::freshness::Direct {});
    v1::AbsenceProof {
        complete: true,
        scopes_checked: vec!["state".to_owned()],
        freshness: Some(v1::Freshness { kind: Some(direct) }),
    }
}

/// All of one load balancer, children first.
pub(super) fn of(balancer: &Balancer) -> Vec<v1::Resource> {
    let resource = |kind: &str, class: v1::ResourceClass, id: String, role: String| v1::Resource {
        id,
        r#type: kind.to_owned(),
        class: class.into(),
        mark: Some(v1::Mark {
            value: mark::mark(&balancer.cluster, &balancer.service.uid, &role),
            kind: v1::MarkKind::Tag.into(),
        }),
        role,
        owner: balancer.service.to_string(),
        origin: v1::ResourceOrigin::Created.into(),
        revision: String::new(),
    };
    let mut all: Vec<v1::Resource> = Vec::new();
    for address in &balancer.addresses {
        // The roles of a second family are named for it; those of the first are as if there were one.
        let slot = match (balancer.addresses.first(), Family::of(*address)) {
            (Some(first), _) if first == address => String::new(),
            (_, Family::V4) => "/ipv4".to_owned(),
            (_, Family::V6) => "/ipv6".to_owned(),
        };
        for listen in balancer.ports.keys() {
            let id = format!("{LISTENER}/{address}/{listen}");
            let role = format!("listener/{listen}{slot}");
            all.push(resource(LISTENER, v1::ResourceClass::Listener, id, role));
        }
        let id = format!("{ADDRESS}/{address}");
        let role = format!("address{slot}");
        all.push(resource(ADDRESS, v1::ResourceClass::Address, id, role));
    }
    let id = format!("{BALANCER}/{}", balancer.mark);
    all.push(resource(
        BALANCER,
        v1::ResourceClass::LoadBalancer,
        id,
        String::new(),
    ));
    all
}

/// Everything of a cluster, by id.
async fn all_of(world: &World, cluster: &str) -> BTreeMap<String, v1::Resource> {
    let seen = world.list(cluster).await;
    let all = seen.iter().flat_map(|seen| of(&seen.balancer));
    all.map(|resource| (resource.id.clone(), resource)).collect()
}

/// One page, in the order of ids; the token is the last page's last id.
pub(super) async fn list(
    world: &World,
    call: &Call,
    request: &v1::ListOwnedResourcesRequest,
) -> Result<v1::ListOwnedResourcesResponse> {
    let token = &request.page_token;
    if !token.is_empty() && !TYPES.iter().any(|(kind, _)| token.starts_with(kind)) {
        return Err(PluginError::bad_page_token("this plugin made no such page token"));
    }
    let size = match usize::try_from(request.page_size) {
        Ok(size) if (1..PAGE).contains(&size) => size,
        Ok(_) | Err(_) => PAGE,
    };
    let asked =
        |resource: &v1::Resource| request.classes.is_empty() || request.classes.contains(&resource.class);
    let all = all_of(world, &call.cluster().uid).await;
    let mut rest = all
        .into_values()
        .filter(asked)
        .filter(|resource| resource.id > *token);
    let resources: Vec<v1::Resource> = rest.by_ref().take(size).collect();
    let last = resources.last().map(|resource| resource.id.clone());
    let next = last.filter(|_| rest.next().is_some()).unwrap_or_default();
    let complete = v1::Verdict {
        complete: true,
        ..v1::Verdict::default()
    };
    let verdicts = TYPES.iter().map(|(kind, _)| v1::TypeVerdict {
        r#type: (*kind).to_owned(),
        verdict: Some(complete.clone()),
    });
    let verdicts = if next.is_empty() {
        verdicts.collect()
    } else {
        Vec::new()
    };
    Ok(v1::ListOwnedResourcesResponse {
        resources,
        next_page_token: next,
        verdicts,
    })
}

/// Deletes load balancers. A listener and an address live and go with theirs, so that they are absent
/// after it and in use before.
pub(super) async fn delete(
    world: &World,
    call: &Call,
    requests: Vec<v1::DeleteOwnedResource>,
) -> Result<v1::DeleteOwnedResourcesResponse> {
    let before = all_of(world, &call.cluster().uid).await;
    let mut results = Vec::with_capacity(requests.len());
    for request in &requests {
        let known = before.get(&request.id);
        let result = match known {
            None => Some(Deleted::Absent(Absent {})),
            Some(known) if known.mark != request.expected_mark || !request.expected_revision.is_empty() => {
                Some(Deleted::NotOurs(NotOurs {}))
            }
            Some(known) if known.r#type == BALANCER => Some(delete_one(world, call, known).await),
            // Known only when all load balancers of this request are gone.
            Some(_) => None,
        };
        results.push(v1::DeleteOwnedResult {
            id: request.id.clone(),
            result,
        });
    }
    let after = all_of(world, &call.cluster().uid).await;
    for result in &mut results {
        let gone = !after.contains_key(&result.id);
        result.result.get_or_insert_with(|| {
            if gone {
                return Deleted::Done(Done {});
            }
            let text = format!("{} belongs to a load balancer: delete that", result.id);
            Deleted::Error(PluginError::in_use(text).into())
        });
    }
    Ok(v1::DeleteOwnedResourcesResponse { results })
}

async fn delete_one(world: &World, call: &Call, known: &v1::Resource) -> Deleted {
    let mark = known
        .mark
        .as_ref()
        .map(|mark| mark.value.clone())
        .unwrap_or_default();
    if let Err(error) = call.writing() {
        return Deleted::Error(error.into());
    }
    match world.delete(&mark).await {
        Ok(true) => Deleted::Done(Done {}),
        Ok(false) => Deleted::Absent(Absent {}),
        Err(error) => Deleted::Error(PluginError::cloud_unavailable(error.to_string()).into()),
    }
}
