//! Answers about load balancers.

use std::time::Duration;

use bulkhead_core::cloud::{
    Deleted, Ensured, LoadBalancerAnswer, Outcome, PortProblem, TargetProblem, TargetsAnswer,
};
use bulkhead_core::digest::Digest;
use bulkhead_core::ids::{NodeName, Uid};
use bulkhead_core::service::request::BalancerRef;
use bulkhead_core::service::spec::Protocol;
use bulkhead_core::service::view::{Ingress, IngressAddress, IpMode, PortStatus};
use bulkhead_proto::v1;
use bulkhead_proto::v1::load_balancer_observation::Observation;

use super::text::{NAME_MAX, clean, is_dns_name, line, word};
use super::{Parsed, Violation, absence, failure, known, list, port, resources, retry_after};

/// Most addresses of one load balancer.
const INGRESS_MAX: usize = 256;
/// Most ports of one Service.
const PORTS_MAX: usize = 4096;
/// Most nodes that are no targets.
const PROBLEMS_MAX: usize = 20_000;
/// Most fields that differ.
const FIELDS_MAX: usize = 1024;
/// Longest reason of a port: domain, slash, name.
const PORT_ERROR_MAX: usize = 316;

/// An answer to `EnsureLoadBalancer`.
pub(crate) fn ensured(answer: v1::EnsureLoadBalancerResponse) -> Parsed<Ensured> {
    let v1::EnsureLoadBalancerResponse {
        outcome: number,
        spec_digest,
        status,
        resources: all,
        target_problems,
        port_problems,
        progress,
        retry_after,
        error,
    } = answer;
    let ingress = status.map(ingress).transpose()?;
    let is_done = number == i32::from(v1::Outcome::Done);
    if is_done && ingress.is_none() {
        return Err(Violation::new(
            "status",
            "is not set although the outcome is DONE",
        ));
    }
    let failure = error.map(failure::from_body);
    Ok(Ensured {
        outcome: outcome(number, &progress, retry_after, failure.as_ref())?,
        spec_digest: Digest::received(word("spec_digest", spec_digest, NAME_MAX)?),
        ingress,
        resources: resources("resources", all)?,
        target_problems: problems(target_problems)?,
        port_problems: list("port_problems", port_problems, PORTS_MAX, port_problem)?,
        failure,
    })
}

/// One answer to `UpdateTargets` for each item, in their order.
pub(crate) fn updated(
    asked: &[&BalancerRef],
    response: v1::UpdateTargetsResponse,
) -> Parsed<Vec<TargetsAnswer>> {
    let results = response.results;
    let services = results.iter().map(|result| result.service.as_ref());
    check_echo("results", asked, services)?;
    list("results", results, asked.len(), target_result)
}

fn target_result(result: v1::UpdateTargetsResult) -> Parsed<TargetsAnswer> {
    let v1::UpdateTargetsResult {
        service: _,
        outcome: number,
        target_problems,
        retry_after,
        error,
        absent,
        created: _,
    } = result;
    let failure = error.map(failure::from_body);
    if let Some(proof) = absent {
        return Ok(TargetsAnswer::Absent(
            absence(proof).map_err(|violation| violation.inside("absent"))?,
        ));
    }
    match (number, failure) {
        (0, Some(failure)) => Ok(TargetsAnswer::Failed(failure)),
        (number, failure) => Ok(TargetsAnswer::Outcome {
            outcome: outcome(number, "", retry_after, failure.as_ref())?,
            target_problems: problems(target_problems)?,
        }),
    }
}

/// The answer to a `GetLoadBalancers` with one query.
pub(crate) fn looked(
    asked: &BalancerRef,
    response: v1::GetLoadBalancersResponse,
) -> Parsed<LoadBalancerAnswer> {
    let observations = response.observations;
    check_echo(
        "observations",
        &[asked],
        observations.iter().map(|it| it.service.as_ref()),
    )?;
    let observation = observations
        .into_iter()
        .next()
        .and_then(|observation| observation.observation);
    let unset = || Violation::new("observations[0].observation", "is not set");
    Ok(match observation.ok_or_else(unset)? {
        Observation::InSync(_) => LoadBalancerAnswer::InSync,
        Observation::Drifted(drifted) => {
            let field = |field: String| line("", field, NAME_MAX);
            LoadBalancerAnswer::Drifted(list(
                "observations[0].drifted.fields",
                drifted.fields,
                FIELDS_MAX,
                field,
            )?)
        }
        Observation::Unverified(_) => LoadBalancerAnswer::Unverified,
        Observation::Absent(proof) => LoadBalancerAnswer::Absent(
            absence(proof).map_err(|violation| violation.inside("observations[0].absent"))?,
        ),
        Observation::NotMine(not_mine) => LoadBalancerAnswer::NotMine {
            reason: clean(&not_mine.reason),
        },
        Observation::Error(error) => LoadBalancerAnswer::Failed(failure::from_body(error)),
    })
}

/// An answer to `DeleteLoadBalancer`.
pub(crate) fn deleted(answer: v1::DeleteLoadBalancerResponse) -> Parsed<Deleted> {
    let v1::DeleteLoadBalancerResponse {
        outcome: number,
        remaining,
        progress,
        retry_after,
        error,
    } = answer;
    let failure = error.map(failure::from_body);
    Ok(Deleted {
        outcome: outcome(number, &progress, retry_after, failure.as_ref())?,
        remaining: resources("remaining", remaining)?,
    })
}

/// Sees to it that each answer is about the Service it was asked for.
fn check_echo<'a>(
    field: &'static str,
    asked: &[&BalancerRef],
    answered: impl ExactSizeIterator<Item = Option<&'a v1::ServiceKey>>,
) -> Parsed<()> {
    if answered.len() != asked.len() {
        return Err(Violation::new(
            field,
            "has another number of items than the request",
        ));
    }
    for (index, (service, asked)) in answered.zip(asked).enumerate() {
        let is_echo = service.is_some_and(|service| {
            service.namespace == asked.service.namespace
                && service.name == asked.service.name
                && service.uid == asked.uid.0
        });
        if !is_echo {
            let field = format!("{field}[{index}].service");
            return Err(Violation::new(field, "is another Service than the request's"));
        }
    }
    Ok(())
}

fn outcome(
    number: i32,
    progress: &str,
    wait: Option<prost_types::Duration>,
    failure: Option<&bulkhead_core::cloud::Failure>,
) -> Parsed<Outcome> {
    let explained = || {
        let unset = || Violation::new("error", "is not set although the outcome needs a reason");
        failure.cloned().ok_or_else(unset)
    };
    let wait: Option<Duration> = retry_after(wait)?;
    match known("outcome", number)? {
        v1::Outcome::Unspecified => Err(Violation::new("outcome", "is unspecified")),
        v1::Outcome::Done => Ok(Outcome::Done),
        v1::Outcome::InProgress => Ok(Outcome::InProgress {
            progress: clean(progress),
            retry_after: wait,
        }),
        v1::Outcome::Elsewhere => Ok(Outcome::Elsewhere),
        v1::Outcome::Blocked => Ok(Outcome::Blocked(explained()?)),
        v1::Outcome::Protected => Ok(Outcome::Protected(explained()?)),
    }
}

fn ingress(status: v1::LoadBalancerStatus) -> Parsed<Vec<Ingress>> {
    list("status.ingress", status.ingress, INGRESS_MAX, one_ingress)
}

fn one_ingress(ingress: v1::Ingress) -> Parsed<Ingress> {
    let address = match ingress
        .address
        .ok_or_else(|| Violation::new("address", "is not set"))?
    {
        v1::ingress::Address::Ip(text) => {
            let ip = text
                .parse()
                .map_err(|_| Violation::new("ip", "is no IP address"))?;
            IngressAddress::Ip(ip, ip_mode(ingress.ip_mode))
        }
        v1::ingress::Address::Hostname(name) if is_dns_name(&name) && !is_ip(&name) => {
            IngressAddress::Hostname(name)
        }
        v1::ingress::Address::Hostname(_) => return Err(Violation::new("hostname", "is no DNS name")),
    };
    Ok(Ingress {
        address,
        ports: list("ports", ingress.ports, PORTS_MAX, port_status)?,
    })
}

fn is_ip(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

/// Kubernetes' own default is VIP, so a mode that is unset or unknown is one.
fn ip_mode(number: i32) -> IpMode {
    match v1::IpMode::try_from(number) {
        Ok(v1::IpMode::Unspecified | v1::IpMode::Vip) | Err(_) => IpMode::Vip,
        Ok(v1::IpMode::Proxy) => IpMode::Proxy,
    }
}

fn port_status(status: v1::PortStatus) -> Parsed<PortStatus> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
    if status.error.len() > PORT_ERROR_MAX || !status.error.chars().all(legal) {
        return Err(Violation::new("error", "is not CamelCase or domain/CamelCase"));
    }
    Ok(PortStatus {
        port: port(status.port)?,
        protocol: protocol(status.protocol)?,
        error: Some(status.error).filter(|error| !error.is_empty()),
    })
}

fn protocol(number: i32) -> Parsed<Protocol> {
    match known("protocol", number)? {
        v1::Protocol::Unspecified => Err(Violation::new("protocol", "is unspecified")),
        v1::Protocol::Tcp => Ok(Protocol::Tcp),
        v1::Protocol::Udp => Ok(Protocol::Udp),
        v1::Protocol::Sctp => Ok(Protocol::Sctp),
    }
}

fn problems(problems: Vec<v1::TargetProblem>) -> Parsed<Vec<TargetProblem>> {
    list("target_problems", problems, PROBLEMS_MAX, |problem| {
        Ok(TargetProblem {
            node: NodeName(word("node_name", problem.node_name, NAME_MAX)?),
            uid: Uid(word("node_uid", problem.node_uid, NAME_MAX)?),
            reason: word("reason", problem.reason, NAME_MAX)?,
            message: clean(&problem.message),
        })
    })
}

fn port_problem(problem: v1::PortProblem) -> Parsed<PortProblem> {
    Ok(PortProblem {
        port: port(problem.port)?,
        protocol: protocol(problem.protocol)?,
        reason: word("reason", problem.reason, NAME_MAX)?,
        message: clean(&problem.message),
    })
}
