//! The answer to `GetStatus`: the provider's own words, and what only the SDK knows.

use std::sync::Arc;
use std::time::Duration;

use crate::provider::CloudProvider;
use crate::runner::Runner;
use crate::time;
use crate::v1::{self, ConditionStatus, PluginConditionType};

/// How long the provider may take; hosts wait two seconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// One condition, true, false or unknown since now.
///
/// `reason` is `CamelCase` for machines, `message` for people, without secrets.
pub fn condition(
    kind: PluginConditionType,
    status: ConditionStatus,
    reason: impl Into<String>,
    message: impl Into<String>,
) -> v1::PluginCondition {
    v1::PluginCondition {
        r#type: kind.into(),
        status: status.into(),
        reason: reason.into(),
        since: Some(time::timestamp()),
        message: message.into(),
    }
}

pub(crate) async fn collect<P: CloudProvider>(runner: &Runner<P>) -> v1::GetStatusResponse {
    let provider = Arc::clone(&runner.provider);
    let asked = runner
        .tasks()
        .spawn(async move { tokio::time::timeout(PATIENCE, provider.status()).await });
    let mut status = match asked.await {
        Ok(Ok(status)) => status,
        Ok(Err(_)) => unknown(
            "StatusTimeout",
            "the provider did not say within a second how it is",
        ),
        Err(_) => unknown("StatusPanicked", "asking the provider how it is panicked"),
    };
    status.operations_in_flight = runner.in_flight();
    if status.behaviour_digest.is_empty() {
        runner.behaviour_digest().clone_into(&mut status.behaviour_digest);
    }
    if let Some(problem) = runner.leadership().problem() {
        status.conditions.push(condition(
            PluginConditionType::Degraded,
            ConditionStatus::True,
            "InitialisationFailed",
            problem,
        ));
    }
    if runner.draining().is_cancelled() {
        status.conditions.push(condition(
            PluginConditionType::Draining,
            ConditionStatus::True,
            "AskedToEnd",
            "the process was asked to end and waits for its last session",
        ));
    }
    status
}

fn unknown(reason: &str, message: &str) -> v1::GetStatusResponse {
    let reachable = condition(
        PluginConditionType::CloudReachable,
        ConditionStatus::Unknown,
        reason,
        message,
    );
    v1::GetStatusResponse {
        conditions: vec![reachable],
        ..Default::default()
    }
}
