//! Answers to `GetInstances`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_core::cloud::{AddressSource, Instance, InstanceAnswer, PowerState};
use bulkhead_core::ids::ProviderId;
use bulkhead_core::node::view::{AddressType, NodeAddress, NodeView};
use bulkhead_proto::v1;
use bulkhead_proto::v1::instance_result::Result as Wire;

use super::text::{ID_MAX, NAME_MAX, clean, line, word};
use super::{Parsed, Violation, absence, failure, known, list, retry_after};
use crate::plugin::Aspect;

/// Most addresses of one instance.
const ADDRESSES_MAX: usize = 256;
/// Most labels that a provider adds to one node, and the longest key or value in bytes.
const LABELS_MAX: usize = 128;
const LABEL_MAX: usize = 512;

/// One answer for each node asked about, in their order.
///
/// Results in a wrong number or order make all of them worthless: the violation is of the whole answer. What is
/// wrong with one result concerns its own node only.
pub(crate) fn answers(
    asked: &[Arc<NodeView>],
    aspects: &[Aspect],
    response: v1::GetInstancesResponse,
) -> Parsed<Vec<InstanceAnswer>> {
    let results = response.results;
    if results.len() != asked.len() {
        return Err(Violation::new(
            "results",
            "has another number of items than the request has nodes",
        ));
    }
    for (index, (result, node)) in results.iter().zip(asked).enumerate() {
        if result.node_name != node.name.0 || result.node_uid != node.uid.0 {
            return Err(Violation::new(
                format!("results[{index}]"),
                "is about another node than the request",
            ));
        }
    }
    let parse = |(index, result): (usize, v1::InstanceResult)| {
        answer(result.result, aspects).unwrap_or_else(|violation| {
            InstanceAnswer::Failed(violation.inside(format_args!("results[{index}]")).into())
        })
    };
    Ok(results.into_iter().enumerate().map(parse).collect())
}

fn answer(result: Option<Wire>, aspects: &[Aspect]) -> Parsed<InstanceAnswer> {
    Ok(
        match result.ok_or_else(|| Violation::new("result", "is not set"))? {
            Wire::Found(found) => {
                let found = instance(found, aspects).map_err(|violation| violation.inside("found"))?;
                InstanceAnswer::Found(Box::new(found))
            }
            Wire::Absent(proof) => {
                InstanceAnswer::Absent(absence(proof).map_err(|error| error.inside("absent"))?)
            }
            Wire::NotMine(not_mine) => InstanceAnswer::NotMine {
                reason: clean(&not_mine.reason),
            },
            Wire::Pending(pending) => InstanceAnswer::Pending {
                retry_after: retry_after(pending.retry_after).map_err(|error| error.inside("pending"))?,
                reason: clean(&pending.reason),
            },
            Wire::Error(error) => InstanceAnswer::Failed(failure::from_body(error)),
        },
    )
}

fn instance(instance: v1::Instance, aspects: &[Aspect]) -> Parsed<Instance> {
    let v1::Instance {
        provider_id,
        instance_id,
        name,
        instance_type,
        zone,
        region,
        addresses,
        address_source,
        power_state,
        extra_labels,
        pod_cidrs: _,
        revision: _,
        created_at: _,
    } = instance;
    if instance_id.is_empty() {
        return Err(Violation::new("instance_id", "is empty"));
    }
    Ok(Instance {
        provider_id: ProviderId::parse(provider_id)
            .map_err(|_| Violation::new("provider_id", "is no provider ID"))?,
        instance_id: word("instance_id", instance_id, ID_MAX)?,
        name: line("name", name, NAME_MAX)?,
        instance_type: line("instance_type", instance_type, NAME_MAX)?,
        zone: line("zone", zone, NAME_MAX)?,
        region: line("region", region, NAME_MAX)?,
        addresses: list("addresses", addresses, ADDRESSES_MAX, address)?,
        address_source: source(address_source, aspects)?,
        power: power(power_state, aspects)?,
        extra_labels: labels(extra_labels)?,
    })
}

fn address(address: v1::Address) -> Parsed<NodeAddress> {
    let kind = match known("type", address.r#type)? {
        v1::AddressType::Hostname => AddressType::Hostname,
        v1::AddressType::InternalIp => AddressType::InternalIp,
        v1::AddressType::ExternalIp => AddressType::ExternalIp,
        v1::AddressType::InternalDns => AddressType::InternalDns,
        v1::AddressType::ExternalDns => AddressType::ExternalDns,
        v1::AddressType::Unspecified => return Err(Violation::new("type", "is unspecified")),
    };
    let text = word("address", address.address, NAME_MAX)?;
    let is_legal = match kind {
        AddressType::InternalIp | AddressType::ExternalIp => text.parse::<IpAddr>().is_ok(),
        AddressType::Hostname | AddressType::InternalDns | AddressType::ExternalDns => !text.is_empty(),
    };
    if is_legal {
        Ok(NodeAddress { kind, address: text })
    } else {
        Err(Violation::new("address", "is no address of its type"))
    }
}

/// Without a say on addresses, unless metadata was asked for.
fn source(number: i32, aspects: &[Aspect]) -> Parsed<AddressSource> {
    if number == 0 && !aspects.contains(&Aspect::Metadata) {
        return Ok(AddressSource::Node);
    }
    match known("address_source", number)? {
        v1::AddressSource::Cloud => Ok(AddressSource::Cloud),
        v1::AddressSource::Node => Ok(AddressSource::Node),
        v1::AddressSource::Unspecified => Err(Violation::new("address_source", "is unspecified")),
    }
}

fn power(number: i32, aspects: &[Aspect]) -> Parsed<Option<PowerState>> {
    if number == 0 && !aspects.contains(&Aspect::Power) {
        return Ok(None);
    }
    Ok(Some(match known("power_state", number)? {
        v1::PowerState::Unspecified => return Err(Violation::new("power_state", "is unspecified")),
        v1::PowerState::Pending => PowerState::Pending,
        v1::PowerState::Running => PowerState::Running,
        v1::PowerState::Stopping => PowerState::Stopping,
        v1::PowerState::Stopped => PowerState::Stopped,
        v1::PowerState::Suspended => PowerState::Suspended,
        v1::PowerState::Terminating => PowerState::Terminating,
        v1::PowerState::Terminated => PowerState::Terminated,
        v1::PowerState::Faulted => PowerState::Faulted,
        v1::PowerState::Unknown => PowerState::Unknown,
    }))
}

/// Values that are no label values are the core's to mend; here only the amount is bounded.
fn labels(labels: BTreeMap<String, String>) -> Parsed<BTreeMap<String, String>> {
    let is_long = |(key, value): (&String, &String)| key.len() > LABEL_MAX || value.len() > LABEL_MAX;
    if labels.len() > LABELS_MAX || labels.iter().any(is_long) {
        return Err(Violation::new("extra_labels", "has more than any node can carry"));
    }
    Ok(labels)
}
