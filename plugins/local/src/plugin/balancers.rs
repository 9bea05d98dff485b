//! Load balancers: requests in, [`World`]'s answers out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::v1::load_balancer_observation::{Drifted, InSync, Observation, Unverified};
use bulkhead_plugin::{Call, Result, TargetUpdate, time, v1};

use super::spec::{REQUESTED, reference, targets, wanted};
use super::{MAX_TARGETS, resources};
use crate::balancer::{Balancer, Listen, Protocol, ProxyProtocol, Targets, plan};
use crate::cidr::Family;
use crate::forward::BindError;
use crate::pool::{Need, PoolError, Wish};
use crate::state::SaveError;
use crate::world::{EnsureError, Seen, World};

/// After a call that was cut short.
const SOON: Duration = Duration::from_secs(1);

pub(super) async fn ensure(
    world: &World,
    call: &Call,
    request: v1::EnsureLoadBalancerRequest,
    nodes: &v1::NodeSet,
) -> Result<v1::EnsureLoadBalancerResponse> {
    let of = reference(call, request.r#ref.as_ref())?;
    let spec = request
        .spec
        .ok_or_else(|| PluginError::invalid_spec("spec", "is missing"))?;
    let mark = of.mark.clone();
    let mut wanted = wanted(&call.cluster().uid, of, &spec, &request.spec_digest)?;
    let (to, target_problems) = targets(nodes, &wanted.wish.families, limit());
    wanted.targets = to;
    call.writing()?;
    let ensured = world.ensure(wanted).await;
    let failed = match ensured {
        Ok(seen) => {
            return Ok(v1::EnsureLoadBalancerResponse {
                outcome: v1::Outcome::Done.into(),
                spec_digest: request.spec_digest,
                status: Some(status(&seen)),
                resources: resources::of(&seen.balancer),
                target_problems,
                ..v1::EnsureLoadBalancerResponse::default()
            });
        }
        Err(error) => error,
    };
    let problems = port_problems(&failed);
    let error = refusal(failed);
    // What is there must be reported, and a status cannot carry it.
    let Some(seen) = world.get(&mark).await else {
        return Err(error);
    };
    Ok(v1::EnsureLoadBalancerResponse {
        outcome: v1::Outcome::Blocked.into(),
        spec_digest: request.spec_digest,
        status: Some(status(&seen)),
        resources: resources::of(&seen.balancer),
        target_problems,
        port_problems: problems,
        error: Some(error.into()),
        ..v1::EnsureLoadBalancerResponse::default()
    })
}

fn limit() -> usize {
    usize::try_from(MAX_TARGETS).unwrap_or(usize::MAX)
}

/// One write for all items.
pub(super) async fn update(
    world: &World,
    call: &Call,
    updates: Vec<TargetUpdate>,
) -> Result<Vec<v1::UpdateTargetsResult>> {
    let mut results = Vec::with_capacity(updates.len());
    let mut changes: BTreeMap<String, Targets> = BTreeMap::new();
    let mut marks = Vec::with_capacity(updates.len());
    for update in &updates {
        let mut result = v1::UpdateTargetsResult {
            service: update.reference.service.clone(),
            ..v1::UpdateTargetsResult::default()
        };
        match reference(call, Some(&update.reference)) {
            Ok(of) => {
                let families = served(world, &of.mark).await;
                let (to, problems) = targets(&update.nodes, &families, limit());
                result.target_problems = problems;
                if changes.insert(of.mark.clone(), to).is_some() {
                    return Err(PluginError::invalid_spec("items", "one Service is there twice"));
                }
                marks.push(Some(of.mark));
            }
            Err(error) => {
                result.error = Some(error.into());
                marks.push(None);
            }
        }
        results.push(result);
    }
    call.writing()?;
    let seen = world
        .update_targets(changes)
        .await
        .map_err(|error| not_saved(&error))?;
    for (result, mark) in results.iter_mut().zip(marks) {
        let Some(mark) = mark else { continue };
        match seen.get(&mark) {
            Some(Some(_)) => result.outcome = v1::Outcome::Done.into(),
            Some(None) | None => result.absent = Some(resources::absence()),
        }
    }
    Ok(results)
}

pub(super) async fn get(
    world: &World,
    call: &Call,
    request: v1::GetLoadBalancersRequest,
) -> Result<v1::GetLoadBalancersResponse> {
    let mut observations = Vec::with_capacity(request.queries.len());
    for query in request.queries {
        let reference = query.r#ref.unwrap_or_default();
        observations.push(observe(world, call, &reference).await);
    }
    Ok(v1::GetLoadBalancersResponse { observations })
}

async fn observe(world: &World, call: &Call, of: &v1::LoadBalancerRef) -> v1::LoadBalancerObservation {
    let answer = |observation| v1::LoadBalancerObservation {
        service: of.service.clone(),
        observation: Some(observation),
        ..v1::LoadBalancerObservation::default()
    };
    let known = match reference(call, Some(of)) {
        Ok(known) => known,
        Err(error) => return answer(Observation::Error(error.into())),
    };
    let Some(seen) = world.get(&known.mark).await else {
        return answer(Observation::Absent(resources::absence()));
    };
    let desired = of.applied.as_ref().map(|applied| {
        let digest = seen.balancer.spec_digest.clone();
        wanted(&call.cluster().uid, known, applied, &digest)
    });
    let observation = match desired {
        None => Observation::Unverified(Unverified {}),
        Some(Err(error)) => Observation::Error(error.into()),
        Some(Ok(desired)) => {
            let addresses = due(&desired.wish, &seen.balancer.addresses);
            let targets = Arc::clone(&seen.balancer.targets);
            let fields = drift(&seen, &desired.at(addresses, targets));
            if fields.is_empty() {
                Observation::InSync(InSync {})
            } else {
                Observation::Drifted(Drifted { fields })
            }
        }
    };
    v1::LoadBalancerObservation {
        status: Some(status(&seen)),
        resources: resources::of(&seen.balancer),
        ..answer(observation)
    }
}

/// The families that a load balancer has addresses of.
async fn served(world: &World, mark: &str) -> Vec<Family> {
    let seen = world.get(mark).await;
    let addresses = seen.map(|seen| seen.balancer.addresses).unwrap_or_default();
    addresses.into_iter().map(Family::of).collect()
}

/// The addresses that a wish makes of those that are there; an unspecified one stands for each that is
/// missing.
fn due(wish: &Wish, held: &[IpAddr]) -> Vec<IpAddr> {
    let its = |all: &[IpAddr], family| all.iter().copied().find(|one| Family::of(*one) == family);
    let due = wish.families.iter().filter_map(|family| {
        let missing = match (wish.need, family) {
            (Need::Any, _) => None,
            (Need::Every, Family::V4) => Some(IpAddr::from([0; 4])),
            (Need::Every, Family::V6) => Some(IpAddr::from([0; 16])),
        };
        its(&wish.requested, *family)
            .or_else(|| its(held, *family))
            .or(missing)
    });
    due.collect()
}

/// What of a load balancer is not as it was applied.
fn drift(seen: &Seen, desired: &Balancer) -> Vec<String> {
    let plan = plan(&seen.balancer, desired);
    let mut fields: Vec<String> = seen
        .unbound
        .keys()
        .map(|(_, at)| format!("resource:listener/{at}"))
        .collect();
    let mut differs = |differs: bool, field: &str| {
        if differs {
            fields.push(field.to_owned());
        }
    };
    let ports = !(plan.open.is_empty() && plan.close.is_empty() && plan.retarget.is_empty());
    differs(ports, "spec.ports");
    differs(plan.addresses.is_some(), REQUESTED);
    differs(plan.sources.is_some(), "spec.source_ranges");
    differs(plan.health_check.is_some(), "spec.health_check");
    differs(plan.affinity.is_some(), "spec.session_affinity");
    differs(plan.proxy_protocol.is_some(), "spec.annotations");
    fields
}

pub(super) async fn delete(
    world: &World,
    call: &Call,
    request: v1::DeleteLoadBalancerRequest,
) -> Result<v1::DeleteLoadBalancerResponse> {
    match request.policy() {
        v1::DeletePolicy::Delete => {}
        v1::DeletePolicy::KeepAddress => {
            return Err(PluginError::invalid_spec(
                "policy",
                "addresses are not kept by this plugin",
            ));
        }
        v1::DeletePolicy::Unspecified => return Err(PluginError::invalid_spec("policy", "is missing")),
    }
    let of = reference(call, request.r#ref.as_ref())?;
    if world.get(&of.mark).await.is_some() {
        call.writing()?;
        world.delete(&of.mark).await.map_err(|error| not_saved(&error))?;
    }
    let left = world.get(&of.mark).await;
    Ok(v1::DeleteLoadBalancerResponse {
        outcome: match left {
            None => v1::Outcome::Done.into(),
            Some(_) => v1::Outcome::InProgress.into(),
        },
        retry_after: left.is_some().then(|| time::duration(SOON)),
        remaining: left.map(|seen| resources::of(&seen.balancer)).unwrap_or_default(),
        ..v1::DeleteLoadBalancerResponse::default()
    })
}

/// The addresses. As a VIP where nothing is added to connections: kube-proxy then short-cuts traffic from
/// inside the cluster to the Service's endpoints, which is as good as this load balancer and works on
/// nodes from which its address, on this machine's loopback by default, cannot be reached. As a proxy
/// where targets expect a header that only this load balancer writes.
///
/// Ports are listed only when one has a problem: Kubernetes wants all of them or none.
fn status(seen: &Seen) -> v1::LoadBalancerStatus {
    let ip_mode = match seen.balancer.proxy_protocol {
        ProxyProtocol::Off => v1::IpMode::Vip,
        ProxyProtocol::V2 => v1::IpMode::Proxy,
    };
    let ingress = |address: &IpAddr| v1::Ingress {
        address: Some(v1::ingress::Address::Ip(address.to_string())),
        ip_mode: ip_mode.into(),
        ports: port_statuses(seen, *address),
    };
    v1::LoadBalancerStatus {
        ingress: seen.balancer.addresses.iter().map(ingress).collect(),
    }
}

fn port_statuses(seen: &Seen, address: IpAddr) -> Vec<v1::PortStatus> {
    if !seen.unbound.keys().any(|(unbound, _)| *unbound == address) {
        return Vec::new();
    }
    let port = |listen: &Listen| v1::PortStatus {
        port: listen.port.get().into(),
        protocol: protocol(*listen).into(),
        error: seen
            .unbound
            .get(&(address, *listen))
            .map(reason)
            .unwrap_or_default()
            .to_owned(),
    };
    seen.balancer.ports.keys().map(port).collect()
}

fn protocol(listen: Listen) -> v1::Protocol {
    match listen.protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
    }
}

/// A bind error in one word.
fn reason(error: &BindError) -> &'static str {
    match error {
        BindError::InUse { .. } => "PortInUse",
        BindError::Privileged { .. } => "PortNotPermitted",
        BindError::NoSuchAddress { .. } => "AddressNotLocal",
        BindError::OpenFiles { .. } => "TooManyOpenFiles",
        BindError::Other { .. } => "ListenFailed",
    }
}

fn port_problems(error: &EnsureError) -> Vec<v1::PortProblem> {
    match error {
        EnsureError::Bind(bind) => vec![v1::PortProblem {
            port: bind.at().port().into(),
            protocol: match bind.protocol() {
                Protocol::Tcp => v1::Protocol::Tcp.into(),
                Protocol::Udp => v1::Protocol::Udp.into(),
            },
            reason: reason(bind).to_owned(),
            message: bind.to_string(),
        }],
        EnsureError::Pool(_) | EnsureError::Save(_) | EnsureError::ForeignOwner { .. } => Vec::new(),
    }
}

fn refusal(error: EnsureError) -> PluginError {
    let text = error.to_string();
    match error {
        EnsureError::Pool(PoolError::Exhausted { .. }) => PluginError::quota_exceeded(text),
        EnsureError::Pool(PoolError::NotInPool { .. }) => PluginError::invalid_spec(REQUESTED, text),
        EnsureError::Pool(PoolError::Taken { .. }) => {
            PluginError::in_use(format!("{REQUESTED}: {text}")).with_field(REQUESTED, text)
        }
        EnsureError::Bind(BindError::InUse { .. }) => PluginError::in_use(text),
        EnsureError::Bind(
            BindError::Privileged { .. }
            | BindError::NoSuchAddress { .. }
            | BindError::OpenFiles { .. }
            | BindError::Other { .. },
        ) => PluginError::not_configured(text),
        EnsureError::Save(error) => not_saved(&error),
        EnsureError::ForeignOwner { .. } => PluginError::foreign_owner(text),
    }
}

fn not_saved(error: &SaveError) -> PluginError {
    let text = error.to_string();
    match error {
        // The new content may be in place even if making it durable failed.
        SaveError::Write { .. } => PluginError::cloud_unavailable(text),
        SaveError::Encode(_) | SaveError::Interrupted(_) => PluginError::plugin_bug(text),
    }
}
