//! Load balancers: what the host asks, in terms of what is wanted, what is observed, and the steps between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_plugin::error::{ErrorReason, PluginError};
use bulkhead_plugin::v1::load_balancer_observation::{Drifted, InSync, NotMine, Observation, Unverified};
use bulkhead_plugin::v1::{Outcome, ResourceClass};
use bulkhead_plugin::{Result, TargetUpdate, time, v1};

use super::PluginConfig;
use super::asking::{Asking, SOON};
use super::observed::{Observed, Sight, absence, observe};
use super::perform::Work;
use super::steps::{plan, removal};
use super::wanted::{POOL, families, targets, wanted};
use crate::cloud::State;

/// How long a host waits for what the cloud makes or deletes.
const SLOW: Duration = Duration::from_secs(2);

/// The Service of a reference.
fn service(asking: &Asking<'_>, of: Option<&v1::LoadBalancerRef>) -> Result<v1::ServiceKey> {
    let missing = |field: &str| PluginError::invalid_spec(field, "is missing");
    let of = of.ok_or_else(|| missing("ref"))?;
    let service = of.service.clone().filter(|service| !service.uid.is_empty());
    let service = service.ok_or_else(|| missing("ref.service.uid"))?;
    if of.mark != asking.call.mark(&service.uid, "") {
        return Err(PluginError::invalid_spec(
            "ref.mark",
            "is not the mark of this cluster and Service",
        ));
    }
    Ok(service)
}

/// The load balancer of one Service, once reads show all that was written. A cloud that cannot be read is no empty one.
async fn look(asking: &Asking<'_>, service: &v1::ServiceKey) -> Result<Observed> {
    asking.settled(&service.uid).await?;
    let mut sight = observe(asking, BTreeSet::from([service.uid.clone()]), true).await?;
    readable(&sight)?;
    Ok(sight.balancers.remove(&service.uid).unwrap_or_default())
}

fn readable(sight: &Sight) -> Result<()> {
    match sight.failed.first() {
        None => Ok(()),
        Some(scope) => {
            let text = format!("{scope} cannot be read");
            Err(PluginError::cloud_unavailable(text)
                .with_certainty(bulkhead_plugin::error::Certainty::NotApplied))
        }
    }
}

pub(super) async fn ensure(
    asking: Asking<'_>,
    request: v1::EnsureLoadBalancerRequest,
    nodes: &v1::NodeSet,
) -> Result<v1::EnsureLoadBalancerResponse> {
    let service = service(&asking, request.r#ref.as_ref())?;
    let spec = request
        .spec
        .ok_or_else(|| PluginError::invalid_spec("spec", "is missing"))?;
    let config = asking.config();
    // Refused before anything is asked of the cloud.
    wanted(config, &spec, &Observed::default())?;
    let observed = look(&asking, &service).await?;
    let mut wanted = wanted(config, &spec, &observed)?;
    let (instances, mut problems) = targets(config, nodes);
    wanted.targets = Some(instances);
    let steps = plan(&wanted, &observed);
    let mut work = Work::new(asking, service, observed);
    let done = work.perform(steps).await;
    problems.extend(unknown(config, nodes, &work.unknown));
    let mut answer = v1::EnsureLoadBalancerResponse {
        spec_digest: request.spec_digest,
        status: status(config, &spec, &work.observed)?,
        resources: work.observed.resources(),
        target_problems: problems,
        ..v1::EnsureLoadBalancerResponse::default()
    };
    match done {
        Ok(()) => match work
            .observed
            .parts
            .values()
            .find(|object| object.state != State::Active)
        {
            None => answer.outcome = Outcome::Done.into(),
            Some(object) => {
                answer.outcome = Outcome::InProgress.into();
                answer.progress = format!("{} is {}", object.id, object.state.name());
                answer.retry_after = Some(time::duration(SLOW));
            }
        },
        Err(error) => {
            let unfinished = unfinished(error, work.wrote)?;
            answer.outcome = unfinished.outcome.into();
            answer.progress = unfinished.progress;
            answer.retry_after = Some(time::duration(unfinished.retry_after));
            answer.error = unfinished.error;
        }
    }
    Ok(answer)
}

/// How a call ends whose work did not.
struct Unfinished {
    outcome: Outcome,
    progress: String,
    retry_after: Duration,
    error: Option<v1::Error>,
}

/// A failure is a status, unless something was made that a status cannot carry. Work that merely goes on is no failure.
fn unfinished(error: PluginError, wrote: bool) -> Result<Unfinished> {
    let in_progress = |error: &PluginError, told: bool| Unfinished {
        outcome: Outcome::InProgress,
        progress: error.message().to_owned(),
        retry_after: error.retry_after().unwrap_or(SOON),
        error: told.then(|| error.clone().into()),
    };
    let reason = error.reason();
    let goes_on = reason == ErrorReason::OperationInProgress;
    if !wrote && !goes_on {
        return Err(error);
    }
    if goes_on || reason == ErrorReason::NotLeading {
        return Ok(in_progress(&error, false));
    }
    let passes = [
        ErrorReason::RateLimited,
        ErrorReason::CloudUnavailable,
        ErrorReason::Conflict,
    ];
    let unfinished = in_progress(&error, true);
    if passes.contains(&reason) {
        return Ok(unfinished);
    }
    Ok(Unfinished {
        outcome: Outcome::Blocked,
        ..unfinished
    })
}

/// The nodes whose instances the cloud does not know.
fn unknown(config: &PluginConfig, nodes: &v1::NodeSet, unknown: &BTreeSet<String>) -> Vec<v1::TargetProblem> {
    let is_unknown = |node: &&v1::Node| {
        config
            .instance_id(&node.provider_id)
            .is_some_and(|id| unknown.contains(id))
    };
    let problem = |node: &v1::Node| v1::TargetProblem {
        node_name: node.name.clone(),
        node_uid: node.uid.clone(),
        reason: "InstanceUnknown".to_owned(),
        message: format!("the cloud knows no instance {}", node.provider_id),
    };
    nodes.nodes.iter().filter(is_unknown).map(problem).collect()
}

/// The addresses that the load balancer has, in the order of the Service's families.
fn status(
    config: &PluginConfig,
    spec: &v1::Spec,
    observed: &Observed,
) -> Result<Option<v1::LoadBalancerStatus>> {
    let Some(balancer) = observed.balancer() else {
        return Ok(None);
    };
    let mut ingress = Vec::new();
    for family in families(config, spec)? {
        let id = balancer.attribute(&format!("address_{}", family.name()));
        let address = observed.parts.values().find(|object| object.id == id);
        ingress.extend(address.map(|address| v1::Ingress {
            address: Some(v1::ingress::Address::Ip(address.attribute("ip").to_owned())),
            ip_mode: v1::IpMode::Vip.into(),
            ports: Vec::new(),
        }));
    }
    Ok(Some(v1::LoadBalancerStatus { ingress }))
}

pub(super) async fn update(
    asking: Asking<'_>,
    updates: Vec<TargetUpdate>,
) -> Result<Vec<v1::UpdateTargetsResult>> {
    let mut services = BTreeSet::new();
    for update in &updates {
        let uid = update
            .reference
            .service
            .as_ref()
            .map(|service| service.uid.clone())
            .unwrap_or_default();
        if !services.insert(uid.clone()) {
            return Err(PluginError::invalid_spec("items", "one Service is there twice"));
        }
        asking.settled(&uid).await?;
    }
    let mut sight = observe(&asking, services, true).await?;
    let mut results = Vec::with_capacity(updates.len());
    for update in updates {
        let mut result = v1::UpdateTargetsResult {
            service: update.reference.service.clone(),
            ..v1::UpdateTargetsResult::default()
        };
        if let Err(error) = update_one(asking, &update, &mut sight, &mut result).await {
            match unfinished(error, false) {
                Ok(unfinished) => {
                    result.outcome = unfinished.outcome.into();
                    result.retry_after = Some(time::duration(unfinished.retry_after));
                }
                Err(error) => result.error = Some(error.into()),
            }
        }
        results.push(result);
    }
    Ok(results)
}

async fn update_one(
    asking: Asking<'_>,
    update: &TargetUpdate,
    sight: &mut Sight,
    result: &mut v1::UpdateTargetsResult,
) -> Result<()> {
    let service = service(&asking, Some(&update.reference))?;
    let observed = sight.balancers.remove(&service.uid).unwrap_or_default();
    let (Some(_), Some(pool)) = (observed.balancer(), observed.parts.get(POOL)) else {
        readable(sight)?;
        result.absent = Some(absence(sight.scopes.clone()));
        return Ok(());
    };
    let (instances, problems) = targets(asking.config(), &update.nodes);
    result.target_problems = problems;
    let wanted = super::wanted::Wanted {
        parts: vec![super::wanted::Part {
            role: POOL.to_owned(),
            kind: pool.kind,
            parent: None,
            attributes: BTreeMap::new(),
        }],
        rules: observed.rules.keys().cloned().collect(),
        targets: Some(instances),
    };
    let only_targets = Observed {
        parts: BTreeMap::from([(POOL.to_owned(), pool.clone())]),
        ..observed
    };
    let steps = plan(&wanted, &only_targets);
    let mut work = Work::new(asking, service, only_targets);
    work.perform(steps).await?;
    result
        .target_problems
        .extend(unknown(asking.config(), &update.nodes, &work.unknown));
    result.outcome = Outcome::Done.into();
    Ok(())
}

pub(super) async fn get(
    asking: Asking<'_>,
    request: v1::GetLoadBalancersRequest,
) -> Result<v1::GetLoadBalancersResponse> {
    let references = || {
        request
            .queries
            .iter()
            .filter_map(|query| query.r#ref.as_ref()?.service.as_ref())
    };
    let services = references().map(|service| service.uid.clone()).collect();
    let sight = observe(&asking, services, false).await?;
    let observations = request.queries.iter().map(|query| {
        let of = query.r#ref.clone().unwrap_or_default();
        compare(&asking, &of, &sight)
    });
    Ok(v1::GetLoadBalancersResponse {
        observations: observations.collect(),
    })
}

fn compare(asking: &Asking<'_>, of: &v1::LoadBalancerRef, sight: &Sight) -> v1::LoadBalancerObservation {
    let mut answer = v1::LoadBalancerObservation {
        service: of.service.clone(),
        ..v1::LoadBalancerObservation::default()
    };
    let observation = match service(asking, Some(of)) {
        Ok(service) => observed_as(asking, of, &service, sight, &mut answer),
        Err(error) => Err(error),
    };
    answer.observation = Some(observation.unwrap_or_else(|error| Observation::Error(error.into())));
    answer
}

fn observed_as(
    asking: &Asking<'_>,
    of: &v1::LoadBalancerRef,
    service: &v1::ServiceKey,
    sight: &Sight,
    answer: &mut v1::LoadBalancerObservation,
) -> Result<Observation> {
    let config = asking.config();
    let served = |spec: &v1::Spec| config.classes.contains(&spec.class);
    if of.applied.as_ref().is_some_and(|applied| !served(applied)) {
        let reason = "the class is another provider's".to_owned();
        return Ok(Observation::NotMine(NotMine { reason }));
    }
    let Some(observed) = sight.balancers.get(&service.uid) else {
        readable(sight)?;
        return Ok(Observation::Absent(absence(sight.scopes.clone())));
    };
    answer.resources = observed.resources();
    let Some(applied) = &of.applied else {
        return Ok(Observation::Unverified(Unverified {}));
    };
    answer.status = status(config, applied, observed)?;
    let steps = plan(&wanted(config, applied, observed)?, observed);
    if steps.is_empty() {
        return Ok(Observation::InSync(InSync {}));
    }
    let fields: BTreeSet<String> = steps.iter().map(super::steps::Step::field).collect();
    Ok(Observation::Drifted(Drifted {
        fields: fields.into_iter().collect(),
    }))
}

pub(super) async fn delete(
    asking: Asking<'_>,
    request: v1::DeleteLoadBalancerRequest,
) -> Result<v1::DeleteLoadBalancerResponse> {
    let keep = match request.policy() {
        v1::DeletePolicy::Delete => false,
        v1::DeletePolicy::KeepAddress => true,
        v1::DeletePolicy::Unspecified => return Err(PluginError::invalid_spec("policy", "is missing")),
    };
    let service = service(&asking, request.r#ref.as_ref())?;
    let observed = look(&asking, &service).await?;
    let steps = removal(&observed, keep);
    let mut work = Work::new(asking, service.clone(), observed);
    let done = work.perform(steps).await;
    let mut answer = v1::DeleteLoadBalancerResponse::default();
    if let Err(error) = done {
        if error.reason() == ErrorReason::Protected {
            answer.outcome = Outcome::Protected.into();
            answer.remaining = work.observed.resources();
            answer.error = Some(error.into());
            return Ok(answer);
        }
        // What is in use is so for as long as the cloud takes to delete what uses it.
        let waits = error.reason() == ErrorReason::InUse && is_ending(&work).await?;
        if !waits {
            let unfinished = unfinished(error, work.wrote)?;
            answer.outcome = unfinished.outcome.into();
            answer.remaining = work.observed.resources();
            answer.progress = unfinished.progress;
            answer.retry_after = Some(time::duration(unfinished.retry_after));
            answer.error = unfinished.error;
            return Ok(answer);
        }
    }
    answer.remaining = match look(&asking, &service).await {
        Ok(left) => left.resources(),
        // Not known yet: what was there before the work.
        Err(error) if error.reason() == ErrorReason::OperationInProgress => {
            answer.outcome = Outcome::InProgress.into();
            error.message().clone_into(&mut answer.progress);
            answer.retry_after = error.retry_after().map(time::duration);
            answer.remaining = work.observed.resources();
            return Ok(answer);
        }
        Err(error) => return Err(error),
    };
    let kept = |resource: &v1::Resource| keep && resource.class() == ResourceClass::Address;
    if answer.remaining.iter().all(kept) {
        answer.outcome = Outcome::Done.into();
    } else {
        answer.outcome = Outcome::InProgress.into();
        "the cloud is deleting".clone_into(&mut answer.progress);
        answer.retry_after = Some(time::duration(SLOW));
    }
    Ok(answer)
}

/// Whether the cloud is deleting something of this load balancer.
async fn is_ending(work: &Work<'_>) -> Result<bool> {
    let service = BTreeSet::from([work.service.uid.clone()]);
    let sight = observe(&work.asking, service, false).await?;
    let mut parts = sight
        .balancers
        .values()
        .flat_map(|observed| observed.parts.values());
    Ok(parts.any(|object| object.state == State::Deleting))
}
