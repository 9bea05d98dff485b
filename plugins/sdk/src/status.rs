//! The answer to `GetStatus`: the provider's own words, and what only the SDK knows.

use std::sync::{Arc, Mutex, PoisonError};
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
    status.operations_in_flight = status.operations_in_flight.max(runner.in_flight());
    if status.behaviour_digest.is_empty() {
        runner.behaviour_digest().clone_into(&mut status.behaviour_digest);
    }
    for known in known_here(runner) {
        status
            .conditions
            .retain(|condition| condition.r#type != known.r#type);
        status.conditions.push(known);
    }
    status.conditions = runner.conditions.remember(status.conditions);
    status
}

/// What only the SDK knows.
fn known_here<P: CloudProvider>(runner: &Runner<P>) -> impl Iterator<Item = v1::PluginCondition> {
    let truly = |kind, reason, message: &str| condition(kind, ConditionStatus::True, reason, message);
    let initialising = runner.leadership().problem();
    let initialising =
        initialising.map(|problem| truly(PluginConditionType::Degraded, "InitialisationFailed", &problem));
    let tainted = runner.has_panicked().then(|| {
        let message = "a call panicked; what it held in memory may be wrong";
        truly(PluginConditionType::Tainted, "Panic", message)
    });
    let draining = runner.draining().is_cancelled().then(|| {
        let message = "the process was asked to end and waits for its last session";
        truly(PluginConditionType::Draining, "AskedToEnd", message)
    });
    [initialising, tainted, draining].into_iter().flatten()
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

/// Since when each condition has been as it is, so that providers need not remember it.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Mutex<Vec<v1::PluginCondition>>);

impl Conditions {
    /// Gives each condition the time at which its status and reason became what they are.
    fn remember(&self, mut now: Vec<v1::PluginCondition>) -> Vec<v1::PluginCondition> {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for condition in &mut now {
            let same = |old: &&v1::PluginCondition| {
                (old.r#type, old.status, &old.reason)
                    == (condition.r#type, condition.status, &condition.reason)
            };
            let since = before.iter().find(same).and_then(|old| old.since);
            condition.since = since.or(condition.since).or_else(|| Some(time::timestamp()));
        }
        before.clone_from(&now);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, status: ConditionStatus) -> v1::PluginCondition {
        let since = Some(prost_types::Timestamp { seconds, nanos: 0 });
        v1::PluginCondition {
            since,
            ..condition(PluginConditionType::Degraded, status, "Why", "")
        }
    }

    #[test]
    fn a_condition_keeps_its_time_while_it_stays_and_gets_a_new_one_when_it_changes() {
        let conditions = Conditions::default();
        let seconds = |now| {
            let remembered = conditions.remember(vec![now]);
            remembered
                .first()
                .and_then(|condition| condition.since)
                .map(|since| since.seconds)
        };
        assert_eq!(seconds(at(1, ConditionStatus::True)), Some(1));
        assert_eq!(seconds(at(2, ConditionStatus::True)), Some(1));
        assert_eq!(seconds(at(3, ConditionStatus::False)), Some(3));
        assert_eq!(seconds(at(4, ConditionStatus::True)), Some(4));
    }
}
