//! Instances out of the inventory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::v1::instance_result::Result as Answer;
use bulkhead_plugin::{Result, time, v1};

use crate::inventory::{Address, AddressKind, Instance, InventoryFile, Power, ProviderId, Read, View};

/// Where instances can be: the name of the one scope.
const SCOPE: &str = "inventory";

/// A new content is taken after that.
const SETTLING: Duration = Duration::from_secs(1);

/// What a page holds if the host does not say, and at most.
const PAGE: usize = 500;

pub(super) async fn get(
    file: &InventoryFile,
    request: v1::GetInstancesRequest,
) -> Result<v1::GetInstancesResponse> {
    let missing = || PluginError::invalid_spec("max_age", "is missing");
    let max_age = request.max_age.ok_or_else(missing)?;
    let asked = max_age.seconds == 0 && max_age.nanos == 0;
    let view = if asked { file.look().await } else { file.view() };
    let results = request.nodes.into_iter().map(|node| {
        let result = Some(answer(&view, asked, &node));
        v1::InstanceResult {
            node_name: node.name,
            node_uid: node.uid,
            result,
        }
    });
    Ok(v1::GetInstancesResponse {
        results: results.collect(),
    })
}

/// What is known of one node. A file that is broken or has just changed still finds what its last good
/// content had, but nothing is absent by it.
fn answer(view: &View, asked: bool, node: &v1::Node) -> Answer {
    let Some(good) = &view.good else {
        return Answer::Error(broken(view).into());
    };
    let found = match ProviderId::read(&node.provider_id) {
        ProviderId::Ours(id) => good.inventory.by_id(&id),
        ProviderId::Foreign if node.provider_id.is_empty() => good.inventory.by_name(&node.name),
        ProviderId::Foreign => {
            return Answer::NotMine(v1::NotMine {
                reason: "the provider ID is another provider's".to_owned(),
            });
        }
        ProviderId::Malformed => {
            return Answer::NotMine(v1::NotMine {
                reason: "no local instance can have this ID".to_owned(),
            });
        }
    };
    match found {
        Some(instance) => Answer::Found(wire(instance)),
        None if view.broken.is_some() => Answer::Error(broken(view).into()),
        None if view.settling => Answer::Pending(v1::Pending {
            retry_after: Some(time::duration(SETTLING)),
            reason: "the inventory has just changed".to_owned(),
        }),
        None => Answer::Absent(absence(good, asked)),
    }
}

fn absence(good: &Read, asked: bool) -> v1::AbsenceProof {
    let kind = if asked {
        v1::freshness::Kind::Direct(v1::freshness::Direct {})
    } else {
        v1::freshness::Kind::CachedAsOf(good.as_of.into())
    };
    v1::AbsenceProof {
        complete: true,
        scopes_checked: vec![SCOPE.to_owned()],
        freshness: Some(v1::Freshness { kind: Some(kind) }),
    }
}

fn broken(view: &View) -> PluginError {
    match &view.broken {
        Some((error, _)) => PluginError::not_configured(error.to_string()),
        None => PluginError::not_configured("the inventory has not been read yet"),
    }
}

/// One page. The token carries which content and which look at it the list is of, so that all pages of
/// a list show one time.
pub(super) async fn list(
    file: &InventoryFile,
    request: &v1::ListInstancesRequest,
) -> Result<v1::ListInstancesResponse> {
    let view = if request.page_token.is_empty() {
        file.look().await
    } else {
        file.view()
    };
    let good = view.good.as_ref().ok_or_else(|| broken(&view))?;
    let at = match request.page_token.as_str() {
        "" => Place {
            taken: nanos(good.taken),
            as_of: nanos(good.as_of),
            after: String::new(),
        },
        token => Place::read(token)?,
    };
    if at.taken != nanos(good.taken) {
        return Err(PluginError::snapshot_expired(
            "the inventory has changed: start the list again",
        ));
    }
    let size = match usize::try_from(request.page_size) {
        Ok(size) if (1..PAGE).contains(&size) => size,
        Ok(_) | Err(_) => PAGE,
    };
    let instances: Vec<v1::Instance> = good.inventory.page(&at.after, size).map(wire).collect();
    let last = instances.last().map(|instance| instance.instance_id.clone());
    let more = last.filter(|last| good.inventory.page(last, 1).next().is_some());
    let snapshot = v1::Snapshot {
        token: format!("{}.{}", at.taken, at.as_of),
        as_of: Some((UNIX_EPOCH + Duration::from_nanos(at.as_of)).into()),
        kind: v1::SnapshotKind::PointInTime.into(),
    };
    let verdict = more.is_none().then(|| verdict(&view, good));
    let next = more.map(|after| Place { after, ..at }.token());
    Ok(v1::ListInstancesResponse {
        instances,
        next_page_token: next.unwrap_or_default(),
        snapshot: Some(snapshot),
        verdict,
    })
}

fn verdict(view: &View, good: &Read) -> v1::Verdict {
    let error = view.broken.is_some().then(|| broken(view).into());
    v1::Verdict {
        complete: view.is_current(),
        total: i64::try_from(good.inventory.len()).ok(),
        scopes: vec![v1::Scope {
            name: SCOPE.to_owned(),
            error,
        }],
    }
}

/// Where in which list a page begins.
struct Place {
    taken: u64,
    as_of: u64,
    after: String,
}

impl Place {
    fn token(&self) -> String {
        format!("{}.{}/{}", self.taken, self.as_of, self.after)
    }

    fn read(text: &str) -> Result<Self> {
        let read = || {
            let (list, after) = text.split_once('/')?;
            let (taken, as_of) = list.split_once('.')?;
            Some(Self {
                taken: taken.parse().ok()?,
                as_of: as_of.parse().ok()?,
                after: after.to_owned(),
            })
        };
        read().ok_or_else(|| PluginError::bad_page_token("this plugin made no such page token"))
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn wire(instance: &Instance) -> v1::Instance {
    v1::Instance {
        provider_id: instance.provider_id(),
        instance_id: instance.id.clone(),
        name: instance.name.clone(),
        instance_type: instance.instance_type.clone(),
        zone: instance.zone.clone(),
        region: instance.region.clone(),
        addresses: instance.addresses.iter().map(address).collect(),
        // An entry without addresses leaves them to the kubelet.
        address_source: if instance.addresses.is_empty() {
            v1::AddressSource::Node.into()
        } else {
            v1::AddressSource::Cloud.into()
        },
        power_state: power(instance.power).into(),
        extra_labels: instance.labels.clone().into_iter().collect(),
        ..v1::Instance::default()
    }
}

fn address(address: &Address) -> v1::Address {
    let kind = match address.kind {
        AddressKind::Hostname => v1::AddressType::Hostname,
        AddressKind::InternalIP => v1::AddressType::InternalIp,
        AddressKind::ExternalIP => v1::AddressType::ExternalIp,
        AddressKind::InternalDNS => v1::AddressType::InternalDns,
        AddressKind::ExternalDNS => v1::AddressType::ExternalDns,
    };
    v1::Address {
        r#type: kind.into(),
        address: address.value.clone(),
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
