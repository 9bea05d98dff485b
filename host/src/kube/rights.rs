//! Asks the API server, once at the start, whether it grants what this host's configuration needs.
//!
//! What is missing is told and nothing else: rights may be granted later, and whatever meets the lack says so too.

use std::time::Duration;

use ::kube::api::{Api, PostParams};
use ::kube::{Client, Error};
use bulkhead_core::controllers::Verdict;
use bulkhead_core::rights::{Purpose, RIGHTS, Right, Verb};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};

use crate::config::Config;
use crate::telemetry::Chain;

/// For all questions together: nothing waits longer for an answer that only informs.
const DEADLINE: Duration = Duration::from_secs(5);
/// Questions asked at once.
const AT_ONCE: usize = 8;

/// A right that this configuration needs, and where.
#[derive(Debug, PartialEq)]
struct Need<'a> {
    right: &'static Right,
    /// The configuration's, where that decides.
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

/// Logs one line for each right that this configuration needs and the API server does not grant. Says nothing if the
/// API server does not tell.
pub async fn report_missing(client: &Client, config: &Config) {
    let needs = needs(config);
    let lines = match tokio::time::timeout(DEADLINE, missing(client, &needs)).await {
        Ok(Ok(lines)) => lines,
        Ok(Err(error)) => {
            return tracing::debug!("cannot tell whether rights are missing: {}", Chain(&error));
        }
        Err(_) => {
            return tracing::debug!(
                "cannot tell whether rights are missing: no answer within {}s",
                DEADLINE.as_secs()
            );
        }
    };
    for line in &lines {
        tracing::warn!("{line}");
    }
    if !lines.is_empty() {
        tracing::warn!(
            "{} rights are missing: the host goes on without what needs them, and takes it up once they are granted",
            lines.len()
        );
    }
}

/// What this configuration needs of the table.
fn needs(config: &Config) -> Vec<Need<'_>> {
    let is_needed = |right: &&'static Right| match right.purpose {
        Purpose::ClusterId => config.cluster_id.is_none(),
        Purpose::Events => true,
        Purpose::Reviews => reviews(config, right),
        Purpose::Election => config.election.is_some(),
        Purpose::Controller(controller) => config.controllers.selection.verdict(controller) == Verdict::On,
    };
    RIGHTS
        .iter()
        .filter(is_needed)
        .map(|right| match (right.purpose, &config.election) {
            (Purpose::Election, Some(election)) => Need {
                right,
                namespace: Some(&election.namespace),
                name: right.name.map(|_| &*election.name),
            },
            _ => Need {
                right,
                namespace: right.namespace,
                name: right.name,
            },
        })
        .collect()
}

/// Whether this host asks for such reviews under its own name.
fn reviews(config: &Config, right: &Right) -> bool {
    config.admin.as_ref().is_some_and(|admin| {
        let others = match right.resource {
            "tokenreviews" => &admin.access.authentication_kubeconfig,
            _ => &admin.access.authorization_kubeconfig,
        };
        others.is_none()
    })
}

/// One line for each need that is not granted in full.
async fn missing(client: &Client, needs: &[Need<'_>]) -> Result<Vec<String>, Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let questions = needs
        .iter()
        .flat_map(|need| need.right.verbs.iter().map(move |verb| (need, *verb)));
    let denied: Vec<(&Need<'_>, Option<Verb>)> = stream::iter(questions)
        .map(|(need, verb)| {
            let (reviews, question) = (reviews.clone(), question(need, verb));
            async move {
                let answer = reviews.create(&PostParams::default(), &question).await?;
                let allowed = answer.status.is_some_and(|status| status.allowed);
                Ok::<_, Error>((need, (!allowed).then_some(verb)))
            }
        })
        // In order, so that a need's verbs stand together.
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(denied
        .chunk_by(|(one, _), (other, _)| std::ptr::eq(*one, *other))
        .filter_map(|answers| {
            let (need, _) = answers.first()?;
            let verbs: Vec<Verb> = answers.iter().filter_map(|(_, verb)| *verb).collect();
            (!verbs.is_empty()).then(|| need.right.lacking(&verbs, need.namespace))
        })
        .collect())
}

fn question(need: &Need<'_>, verb: Verb) -> SelfSubjectAccessReview {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: text(need.right.group),
                resource: text(need.right.resource),
                subresource: text(need.right.subresource),
                namespace: need.namespace.and_then(text),
                name: need.name.and_then(text),
                verb: Some(verb.to_string()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests;
