//! Routes to pods, in the first route table. They carry the cluster's tag, and no mark of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::v1::route_operation::Operation;
use bulkhead_plugin::v1::route_result::{Deleted, Result as Done};
use bulkhead_plugin::{Result, v1};

use super::asking::{Asking, WriteError};
use super::instances::{Place, verdict};
use super::observed::CLUSTER;
use crate::cloud::{Change, ErrorCode, Kind, New, Object, Op, Power, Query};

/// The attribute with the id of the instance behind a route.
const INSTANCE: &str = "instance";

/// An IP range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    address: u128,
    /// Counted from the front of 128 bits, also for IPv4, whose addresses stand at the front.
    length: u32,
    ipv6: bool,
}

impl Cidr {
    pub(super) fn read(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let length: u32 = length.parse().ok()?;
        let (bits, address) = match address {
            IpAddr::V4(address) => (32, u128::from(u32::from(address)) << 96),
            IpAddr::V6(address) => (128, u128::from(address)),
        };
        let ipv6 = bits == 128;
        (length <= bits).then_some(Self {
            address,
            length,
            ipv6,
        })
    }

    fn contains(&self, other: &Self) -> bool {
        let mask = u128::MAX.checked_shl(128 - self.length).unwrap_or_default();
        self.ipv6 == other.ipv6 && self.length <= other.length && (self.address ^ other.address) & mask == 0
    }
}

pub(super) async fn list(
    asking: Asking<'_>,
    request: v1::ListRoutesRequest,
) -> Result<v1::ListRoutesResponse> {
    let mut ranges = Vec::new();
    for (index, range) in request.cluster_cidrs.iter().enumerate() {
        let field = || format!("cluster_cidrs[{index}]");
        let read = Cidr::read(range).ok_or_else(|| PluginError::invalid_spec(field(), "is no CIDR"))?;
        ranges.push(read);
    }
    let table = table(&asking).await?;
    let place = Place::read(&request.page_token)?;
    let page = asking
        .page(Query {
            page_size: request.page_size,
            page_token: place.after,
            ..routes(&table)
        })
        .await?;
    let inside = |route: &&Object| {
        let cidr = Cidr::read(&route.name);
        cidr.is_some_and(|cidr| ranges.iter().any(|range| range.contains(&cidr)))
    };
    let wanted: Vec<&Object> = page.objects.iter().filter(inside).collect();
    let instances = instances(
        &asking,
        wanted.iter().map(|route| route.attribute(INSTANCE).to_owned()),
    )
    .await?;
    let mut failed = place.failed;
    failed.extend(page.failed);
    let verdict = page.next.is_empty().then(|| verdict(page.scopes, &failed));
    let next = Place {
        snapshot: place.snapshot,
        failed,
        after: page.next,
    };
    Ok(v1::ListRoutesResponse {
        routes: wanted
            .into_iter()
            .map(|route| wire(&asking, route, &instances))
            .collect(),
        next_page_token: next.token(),
        verdict,
    })
}

fn routes(table: &str) -> Query {
    Query {
        kinds: vec![Kind::Route],
        parents: Some(BTreeSet::from([table.to_owned()])),
        ..Query::default()
    }
}

async fn table(asking: &Asking<'_>) -> Result<String> {
    let query = Query {
        kinds: vec![Kind::RouteTable],
        page_size: 1,
        ..Query::default()
    };
    let first = asking.page(query).await?.objects.into_iter().next();
    let missing = || PluginError::not_configured("the cloud has no route table");
    first.map(|table| table.id).ok_or_else(missing)
}

async fn instances(
    asking: &Asking<'_>,
    ids: impl Iterator<Item = String>,
) -> Result<BTreeMap<String, Object>> {
    let ids: BTreeSet<String> = ids.collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = Query {
        kinds: vec![Kind::Instance],
        ids: Some(ids),
        ..Query::default()
    };
    let found = asking.read(query).await?.objects;
    Ok(found
        .into_iter()
        .map(|object| (object.id.clone(), object))
        .collect())
}

fn wire(asking: &Asking<'_>, route: &Object, instances: &BTreeMap<String, Object>) -> v1::Route {
    let id = route.attribute(INSTANCE);
    let instance = instances
        .get(id)
        .filter(|it| it.attribute("power") != Power::Terminated.name());
    let owner = match route.tag(CLUSTER) {
        cluster if cluster == asking.call.cluster().uid => v1::RouteOwner::Ours,
        _ => v1::RouteOwner::Foreign,
    };
    v1::Route {
        id: route.id.clone(),
        cidr: route.name.clone(),
        target_node: instance.map(|it| it.name.clone()).unwrap_or_default(),
        target_provider_id: if id.is_empty() {
            String::new()
        } else {
            asking.config().provider_id(id)
        },
        target_addresses: Vec::new(),
        blackhole: instance.is_none(),
        owner: owner.into(),
    }
}

/// The routes of one request, as they are while it is carried out.
struct Table<'a> {
    asking: Asking<'a>,
    id: String,
    /// By CIDR.
    routes: BTreeMap<String, Object>,
}

pub(super) async fn apply(
    asking: Asking<'_>,
    request: v1::ApplyRoutesRequest,
) -> Result<v1::ApplyRoutesResponse> {
    let mut ids = BTreeSet::new();
    if let Some(twice) = request.operations.iter().find(|one| !ids.insert(one.id.as_str())) {
        let text = format!("{:?} is there twice", twice.id);
        return Err(PluginError::invalid_spec("operations.id", text));
    }
    let id = table(&asking).await?;
    let names = request
        .operations
        .iter()
        .filter_map(|one| cidr(one).map(str::to_owned))
        .collect();
    let query = Query {
        names: Some(names),
        ..routes(&id)
    };
    let found = asking.read(query).await?.objects;
    let mut table = Table {
        asking,
        id,
        routes: found
            .into_iter()
            .map(|route| (route.name.clone(), route))
            .collect(),
    };
    let mut failed: BTreeSet<String> = BTreeSet::new();
    let mut results = Vec::with_capacity(request.operations.len());
    for one in &request.operations {
        let cidr = cidr(one).unwrap_or_default();
        let result = if failed.contains(cidr) {
            Err(PluginError::conflict(format!(
                "an earlier operation on {cidr} failed"
            )))
        } else {
            table.carry_out(one).await
        };
        let result = result.unwrap_or_else(|error| {
            failed.insert(cidr.to_owned());
            Done::Error(error.into())
        });
        results.push(v1::RouteResult {
            id: one.id.clone(),
            result: Some(result),
        });
    }
    Ok(v1::ApplyRoutesResponse { results })
}

/// The CIDR that an operation is about.
fn cidr(operation: &v1::RouteOperation) -> Option<&str> {
    match operation.operation.as_ref()? {
        Operation::Create(create) => Some(&create.cidr),
        Operation::Replace(replace) => replace.old.as_ref().map(|old| old.cidr.as_str()),
        Operation::Delete(delete) => delete.route.as_ref().map(|route| route.cidr.as_str()),
    }
}

impl Table<'_> {
    async fn carry_out(&mut self, one: &v1::RouteOperation) -> Result<Done> {
        let missing = |field: &str| PluginError::invalid_spec(format!("operations.{field}"), "is missing");
        let cidr = cidr(one).filter(|cidr| Cidr::read(cidr).is_some());
        let cidr = cidr.ok_or_else(|| missing("cidr"))?;
        if self
            .routes
            .get(cidr)
            .is_some_and(|route| route.tag(CLUSTER) != self.asking.call.cluster().uid)
        {
            return Err(PluginError::foreign_owner(format!(
                "the route to {cidr} is not this cluster's"
            )));
        }
        match one.operation.as_ref().ok_or_else(|| missing("operation"))? {
            Operation::Create(create) => self.create(cidr, create.node.as_ref()).await,
            Operation::Replace(replace) => self.replace(cidr, replace.node.as_ref()).await,
            Operation::Delete(_) => self.delete(cidr).await,
        }
    }

    fn instance(&self, node: Option<&v1::RouteNode>) -> Result<String> {
        let node = node.ok_or_else(|| PluginError::invalid_spec("operations.node", "is missing"))?;
        let id = self.asking.config().instance_id(&node.provider_id);
        let foreign = || {
            PluginError::invalid_spec(
                "operations.node.provider_id",
                "is no provider ID of this provider",
            )
        };
        id.map(str::to_owned).ok_or_else(foreign)
    }

    async fn create(&mut self, cidr: &str, node: Option<&v1::RouteNode>) -> Result<Done> {
        let instance = self.instance(node)?;
        if let Some(route) = self.routes.get(cidr) {
            if route.attribute(INSTANCE) == instance {
                return self.done(cidr).await;
            }
            return Err(PluginError::conflict(format!(
                "there is a route to {cidr} with another target"
            )));
        }
        let new = New {
            kind: Kind::Route,
            name: cidr.to_owned(),
            parent: Some(self.id.clone()),
            tags: BTreeMap::from([(CLUSTER.to_owned(), self.asking.call.cluster().uid.clone())]),
            attributes: BTreeMap::from([(INSTANCE.to_owned(), instance)]),
        };
        let made = self.asking.write("", Op::Create(vec![new])).await?;
        self.routes
            .extend(made.into_iter().map(|route| (route.name.clone(), route)));
        self.done(cidr).await
    }

    async fn replace(&mut self, cidr: &str, node: Option<&v1::RouteNode>) -> Result<Done> {
        let Some(route) = self.routes.get(cidr) else {
            return self.create(cidr, node).await;
        };
        let instance = self.instance(node)?;
        if route.attribute(INSTANCE) != instance {
            let change = Change {
                kind: Kind::Route,
                id: route.id.clone(),
                attributes: BTreeMap::from([(INSTANCE.to_owned(), instance)]),
                revision: Some(route.revision),
            };
            let changed = self.asking.write("", Op::Update(change)).await?;
            self.routes
                .extend(changed.into_iter().map(|route| (route.name.clone(), route)));
        }
        self.done(cidr).await
    }

    async fn delete(&mut self, cidr: &str) -> Result<Done> {
        if let Some(route) = self.routes.remove(cidr) {
            let op = Op::Delete {
                kind: Kind::Route,
                ids: vec![route.id],
            };
            match self.asking.write("", op).await {
                Ok(_) => {}
                Err(WriteError::Cloud(error)) if error.code == ErrorCode::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Done::Deleted(Deleted {}))
    }

    async fn done(&self, cidr: &str) -> Result<Done> {
        let gone = || PluginError::conflict(format!("the route to {cidr} is gone"));
        let route = self.routes.get(cidr).ok_or_else(gone)?;
        let instances = instances(
            &self.asking,
            std::iter::once(route.attribute(INSTANCE).to_owned()),
        )
        .await?;
        Ok(Done::Done(wire(&self.asking, route, &instances)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::inside("10.0.0.0/8", "10.1.2.0/24", true)]
    #[case::itself("10.0.0.0/8", "10.0.0.0/8", true)]
    #[case::larger("10.1.0.0/16", "10.0.0.0/8", false)]
    #[case::beside("10.1.0.0/16", "10.2.0.0/24", false)]
    #[case::everything("0.0.0.0/0", "10.2.0.0/24", true)]
    #[case::another_family("0.0.0.0/0", "fd00::/64", false)]
    #[case::ipv6("fd00::/48", "fd00::1:0:0:0:0/64", true)]
    fn a_range_contains_what_lies_in_it(#[case] range: &str, #[case] other: &str, #[case] contains: bool) {
        let read = |text| Cidr::read(text).expect("a CIDR");
        assert_eq!(read(range).contains(&read(other)), contains);
    }
}
