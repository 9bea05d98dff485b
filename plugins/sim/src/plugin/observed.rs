//! What a Service's load balancer consists of, as the cloud shows it: found by mark, never by name.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_plugin::{Result, mark, v1};

use super::asking::Asking;
use super::resources;
use super::wanted::{FIREWALL, POOL};
use crate::cloud::{Kind, Object, Query};

/// Tag with the mark.
pub(super) const MARK: &str = "bulkhead.dev/mark";
/// Tag with the cluster's uid.
pub(super) const CLUSTER: &str = "bulkhead.dev/cluster";
/// Tag with the Service's uid.
pub(super) const SERVICE: &str = "bulkhead.dev/service-uid";
/// Tag with the Service's namespace and name, for people.
pub(super) const OWNER: &str = "bulkhead.dev/service";
/// Tag with the stable slot.
pub(super) const ROLE: &str = "bulkhead.dev/role";

/// The kinds that carry marks of Services.
pub(super) const MARKED: [Kind; 6] = [
    Kind::Listener,
    Kind::LoadBalancer,
    Kind::Pool,
    Kind::HealthCheck,
    Kind::Firewall,
    Kind::Address,
];

/// One load balancer in the cloud.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// By role.
    pub(super) parts: BTreeMap<String, Object>,
    /// The firewall's rules by name.
    pub(super) rules: BTreeMap<String, Object>,
    /// The pool's targets by instance.
    pub(super) targets: BTreeMap<String, Object>,
}

impl Observed {
    pub(super) fn balancer(&self) -> Option<&Object> {
        self.parts.get("")
    }

    /// Whether the load balancer itself refers to an object, or there is no load balancer to say.
    pub(super) fn uses(&self, id: &str) -> bool {
        let refers = |balancer: &Object| balancer.attributes.values().any(|value| value == id);
        self.balancer().is_none_or(refers)
    }

    /// What is to be reported: all but targets, which the cloud counts.
    pub(super) fn resources(&self) -> Vec<v1::Resource> {
        let unmarked = self.rules.values().map(|rule| {
            let firewall = self.parts.get(FIREWALL);
            resources::wire_part(rule, firewall.map_or("", |firewall| firewall.tag(OWNER)))
        });
        self.parts.values().map(resources::wire).chain(unmarked).collect()
    }
}

/// What was found for several Services.
#[derive(Debug, Default)]
pub(super) struct Sight {
    pub(super) balancers: BTreeMap<String, Observed>,
    pub(super) scopes: Vec<String>,
    /// Scopes that could not be read.
    pub(super) failed: Vec<String>,
}

/// Reads the load balancers of Services, by uid; one that is not there is not in the answer.
pub(super) async fn observe(asking: &Asking<'_>, services: BTreeSet<String>, targets: bool) -> Result<Sight> {
    let cluster = asking.call.cluster().uid.clone();
    let query = Query {
        kinds: MARKED.to_vec(),
        tags: BTreeMap::from([
            (CLUSTER.to_owned(), BTreeSet::from([cluster.clone()])),
            (SERVICE.to_owned(), services),
        ]),
        ..Query::default()
    };
    let found = asking.read(query).await?;
    let mut sight = Sight {
        balancers: BTreeMap::new(),
        scopes: found.scopes,
        failed: found.failed,
    };
    for object in found
        .objects
        .into_iter()
        .filter(|object| is_marked(object, &cluster))
    {
        let observed = sight.balancers.entry(object.tag(SERVICE).to_owned()).or_default();
        observed.parts.insert(object.tag(ROLE).to_owned(), object);
    }
    let mut kinds = vec![Kind::FirewallRule];
    if targets {
        kinds.push(Kind::Target);
    }
    let parents: BTreeMap<String, String> = parents(&sight.balancers, targets);
    if !parents.is_empty() {
        let query = Query {
            kinds,
            parents: Some(parents.keys().cloned().collect()),
            ..Query::default()
        };
        for object in asking.read(query).await?.objects {
            let service = object.parent.as_ref().and_then(|parent| parents.get(parent));
            let Some(observed) = service.and_then(|service| sight.balancers.get_mut(service)) else {
                continue;
            };
            let named = if object.kind == Kind::Target {
                &mut observed.targets
            } else {
                &mut observed.rules
            };
            named.insert(object.name.clone(), object);
        }
    }
    Ok(sight)
}

/// The ids of firewalls and pools, and whose they are.
fn parents(balancers: &BTreeMap<String, Observed>, targets: bool) -> BTreeMap<String, String> {
    let roles: &[&str] = if targets { &[FIREWALL, POOL] } else { &[FIREWALL] };
    let mut parents = BTreeMap::new();
    for (service, observed) in balancers {
        let ids = roles.iter().filter_map(|role| observed.parts.get(*role));
        parents.extend(ids.map(|object| (object.id.clone(), service.clone())));
    }
    parents
}

/// Whether an object carries the mark that its other tags lead to.
pub(super) fn is_marked(object: &Object, cluster: &str) -> bool {
    let (service, role) = (object.tag(SERVICE), object.tag(ROLE));
    object.tag(CLUSTER) == cluster
        && !service.is_empty()
        && object.tag(MARK) == mark::mark(cluster, service, role)
}

/// The proof that something is nowhere in these scopes, which were read to their ends for this answer.
pub(super) fn absence(scopes_checked: Vec<String>) -> v1::AbsenceProof {
    let direct = v1::freshness::Kind::Direct(v1::freshness::Direct {});
    v1::AbsenceProof {
        complete: true,
        scopes_checked,
        freshness: Some(v1::Freshness { kind: Some(direct) }),
    }
}
