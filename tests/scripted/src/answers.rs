//! What an honest plugin answers.

use bulkhead_proto::v1;
use tonic::Status;

use crate::{
    cloud::{Cloud, provider_id},
    journal::Change,
    plugin::Options,
};

/// The plugin's word for a load balancer.
const BALANCER: &str = "balancer";

pub(crate) fn description(options: &Options, instance_id: &str) -> v1::DescribeResponse {
    let scheme = v1::Scheme {
        name: "scripted".to_owned(),
        r#use: v1::SchemeUse::Unique.into(),
        allowed_characters: String::new(),
    };
    let balancer = v1::ResourceType {
        r#type: BALANCER.to_owned(),
        class: v1::ResourceClass::LoadBalancer.into(),
        mark: v1::MarkKind::Tag.into(),
        listable: false,
    };
    v1::DescribeResponse {
        provider_name: "scripted".to_owned(),
        plugin_version: env!("CARGO_PKG_VERSION").to_owned(),
        instance_id: instance_id.to_owned(),
        protocol_revisions: vec![options.revision],
        capabilities: options
            .capabilities
            .iter()
            .map(|capability| (*capability).into())
            .collect(),
        schemes: vec![scheme],
        classes: vec![String::new()],
        features: Some(v1::Features {
            protocols: vec![v1::Protocol::Tcp.into(), v1::Protocol::Udp.into()],
            mixed_protocols: true,
            ip_families: vec![v1::IpFamily::Ipv4.into()],
            ip_modes: vec![v1::IpMode::Vip.into()],
            targets: v1::TargetKind::Instance.into(),
            ..v1::Features::default()
        }),
        limits: Some(v1::Limits::default()),
        resource_types: vec![balancer],
        behaviour_digest: "1".to_owned(),
        ..v1::DescribeResponse::default()
    }
}

pub(crate) fn instances(cloud: &Cloud, request: &v1::GetInstancesRequest) -> v1::GetInstancesResponse {
    let result = |node: &v1::Node| {
        let found = cloud.instance(&node.name).map(v1::instance_result::Result::Found);
        about(
            node,
            found.unwrap_or_else(|| v1::instance_result::Result::Absent(absence())),
        )
    };
    v1::GetInstancesResponse {
        results: request.nodes.iter().map(result).collect(),
    }
}

/// A result for `node`.
pub(crate) fn about(node: &v1::Node, result: v1::instance_result::Result) -> v1::InstanceResult {
    v1::InstanceResult {
        node_name: node.name.clone(),
        node_uid: node.uid.clone(),
        result: Some(result),
    }
}

fn absence() -> v1::AbsenceProof {
    let direct = v1::freshness::Kind::Direct(v1::freshness::Direct {});
    v1::AbsenceProof {
        complete: true,
        scopes_checked: vec!["region-1".to_owned()],
        freshness: Some(v1::Freshness { kind: Some(direct) }),
    }
}

/// Makes the load balancer what the request says, in as few writes as that takes.
pub(crate) fn ensure(
    cloud: &Cloud,
    plugin: &str,
    began: u64,
    request: &v1::EnsureLoadBalancerRequest,
) -> Result<v1::EnsureLoadBalancerResponse, Status> {
    let (reference, mark) = reference(request.r#ref.as_ref())?;
    let known = cloud.balancers().map_err(broken)?.remove(&mark);
    let address = match &known {
        Some(balancer) => balancer.address.clone(),
        None => cloud.create(plugin, began, &mark).map_err(broken)?,
    };
    let balancer = known.unwrap_or_default();
    let (ports, targets) = (ports(request.spec.as_ref())?, targets(request.node_set.as_ref())?);
    if (&balancer.ports, &balancer.targets) != (&ports, &targets) {
        let change = Change::Configured {
            mark: mark.clone(),
            ports,
            targets,
        };
        cloud.write(plugin, began, change).map_err(broken)?;
    }
    Ok(v1::EnsureLoadBalancerResponse {
        outcome: v1::Outcome::Done.into(),
        spec_digest: request.spec_digest.clone(),
        status: Some(status(&address)),
        resources: vec![resource(reference, mark, address)],
        ..v1::EnsureLoadBalancerResponse::default()
    })
}

pub(crate) fn update(
    cloud: &Cloud,
    plugin: &str,
    began: u64,
    item: &v1::UpdateTargetsItem,
) -> Result<v1::UpdateTargetsResult, Status> {
    let (reference, mark) = reference(item.r#ref.as_ref())?;
    let service = reference.service.clone();
    let Some(balancer) = cloud.balancers().map_err(broken)?.remove(&mark) else {
        return Ok(v1::UpdateTargetsResult {
            service,
            absent: Some(absence()),
            ..v1::UpdateTargetsResult::default()
        });
    };
    let targets = targets(item.node_set.as_ref())?;
    if balancer.targets != targets {
        let change = Change::Configured {
            mark,
            ports: balancer.ports,
            targets,
        };
        cloud.write(plugin, began, change).map_err(broken)?;
    }
    Ok(v1::UpdateTargetsResult {
        service,
        outcome: v1::Outcome::Done.into(),
        ..v1::UpdateTargetsResult::default()
    })
}

pub(crate) fn observe(
    cloud: &Cloud,
    query: &v1::LoadBalancerQuery,
) -> Result<v1::LoadBalancerObservation, Status> {
    use v1::load_balancer_observation::{Observation, Unverified};
    let (reference, mark) = reference(query.r#ref.as_ref())?;
    let balancer = cloud.balancers().map_err(broken)?.remove(&mark);
    let service = reference.service.clone();
    let answer = |observation| v1::LoadBalancerObservation {
        service,
        observation: Some(observation),
        ..v1::LoadBalancerObservation::default()
    };
    Ok(match balancer {
        None => answer(Observation::Absent(absence())),
        Some(balancer) => v1::LoadBalancerObservation {
            status: Some(status(&balancer.address)),
            resources: vec![resource(reference, mark, balancer.address)],
            ..answer(Observation::Unverified(Unverified {}))
        },
    })
}

pub(crate) fn delete(
    cloud: &Cloud,
    plugin: &str,
    began: u64,
    request: &v1::DeleteLoadBalancerRequest,
) -> Result<v1::DeleteLoadBalancerResponse, Status> {
    let (_, mark) = reference(request.r#ref.as_ref())?;
    if cloud.balancers().map_err(broken)?.contains_key(&mark) {
        cloud
            .write(plugin, began, Change::Deleted { mark })
            .map_err(broken)?;
    }
    Ok(v1::DeleteLoadBalancerResponse {
        outcome: v1::Outcome::Done.into(),
        ..v1::DeleteLoadBalancerResponse::default()
    })
}

/// The test's own machinery failed, or the host broke the protocol: a status that no honest plugin makes.
fn broken(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("{error:#}"))
}

fn reference(reference: Option<&v1::LoadBalancerRef>) -> Result<(&v1::LoadBalancerRef, String), Status> {
    let reference = reference.ok_or_else(|| broken("the request has no ref"))?;
    if reference.mark.len() != bulkhead_proto::mark::LENGTH {
        return Err(broken(format!("'{}' is no mark", reference.mark)));
    }
    Ok((reference, reference.mark.clone()))
}

fn ports(spec: Option<&v1::Spec>) -> Result<Vec<String>, Status> {
    let spec = spec.ok_or_else(|| broken("the request has no spec"))?;
    let text = |port: &v1::Port| {
        let protocol = port.protocol().as_str_name().trim_start_matches("PROTOCOL_");
        format!("{protocol}/{}", port.port)
    };
    Ok(sorted(spec.ports.iter().map(text)))
}

fn targets(nodes: Option<&v1::NodeSetRef>) -> Result<Vec<String>, Status> {
    match nodes.and_then(|nodes| nodes.set.as_ref()) {
        Some(v1::node_set_ref::Set::Inline(set)) => {
            Ok(sorted(set.nodes.iter().map(
                |node| match node.provider_id.as_str() {
                    "" => provider_id(&node.name),
                    given => given.to_owned(),
                },
            )))
        }
        _ => Err(broken(
            "the request has no node set in full, and no other was asked for",
        )),
    }
}

fn sorted(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<_> = texts.collect();
    texts.sort();
    texts
}

fn status(address: &str) -> v1::LoadBalancerStatus {
    let ingress = v1::Ingress {
        address: Some(v1::ingress::Address::Ip(address.to_owned())),
        ip_mode: v1::IpMode::Vip.into(),
        ..v1::Ingress::default()
    };
    v1::LoadBalancerStatus {
        ingress: vec![ingress],
    }
}

fn resource(reference: &v1::LoadBalancerRef, mark: String, address: String) -> v1::Resource {
    let service = reference.service.clone().unwrap_or_default();
    v1::Resource {
        id: address,
        r#type: BALANCER.to_owned(),
        class: v1::ResourceClass::LoadBalancer.into(),
        mark: Some(v1::Mark {
            value: mark,
            kind: v1::MarkKind::Tag.into(),
        }),
        owner: format!("{}/{}", service.namespace, service.name),
        origin: v1::ResourceOrigin::Created.into(),
        ..v1::Resource::default()
    }
}
