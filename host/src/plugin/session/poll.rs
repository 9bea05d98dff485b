//! Asking the plugin how it is: health, then its status.

use std::time::Duration;

use bulkhead_core::gate;
use bulkhead_proto::{SERVICE_NAME, v1};
use tokio::time::sleep;
use tonic::Request;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::board::Board;
use super::{End, describe};
use crate::clock;
use crate::plugin::Settings;
use crate::plugin::call::{CallError, Class, Verb, Wire, rpc, told};
use crate::plugin::convert::text::clean;

const HEALTH: Verb = Verb {
    name: "Health",
    class: Class::Status,
};
const STATUS: Verb = Verb {
    name: "GetStatus",
    class: Class::Status,
};
/// A session ends when so many health checks in a row came to nothing.
const MISSES: u32 = 3;
/// What is told of a plugin that meets too many bugs of its own.
const UNSOUND: &str = "five of its calls or more within ten minutes ended in a bug or panic of its own";
/// Most conditions that are read.
const CONDITIONS_MAX: usize = 64;

/// Asks again and again, until the plugin no longer answers.
pub(crate) async fn poll(settings: &Settings, board: &Board, wire: &Wire) -> End {
    let mut misses = 0;
    loop {
        let led = board.unconfirmed();
        let pause = match check(settings, wire).await {
            Ok(serving) => {
                misses = 0;
                if let Some(led) = led.as_ref().filter(|_| serving) {
                    board.update(|facts| facts.lead.confirm(led));
                }
                if let Err(end) = read_status(settings, board, wire, serving).await {
                    return end;
                }
                if serving {
                    settings.timing.poll
                } else {
                    settings.timing.poll_warming
                }
            }
            Err(error) => {
                misses += 1;
                if misses == MISSES {
                    return End::Health {
                        last: error.failure.message,
                    };
                }
                settings.timing.poll
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            // What it said before it was led is no answer to whether it is ready to be.
            () = board.takes_other_than(led.as_ref()) => {}
        }
    }
}

/// Whether the service is ready to work.
async fn check(settings: &Settings, wire: &Wire) -> Result<bool, CallError> {
    let mut client = HealthClient::new(wire.connection.channel.clone());
    let deadline = settings.timing.status;
    let mut request = Request::new(HealthCheckRequest {
        service: SERVICE_NAME.to_owned(),
    });
    request.set_timeout(told(deadline));
    let answer = wire
        .within(HEALTH, deadline, wire.answer(Box::pin(client.check(request))))
        .await?;
    Ok(answer.status() == ServingStatus::Serving)
}

/// Reads the status and tells the board both. A status that cannot be had leaves the last one standing.
async fn read_status(settings: &Settings, board: &Board, wire: &Wire, serving: bool) -> Result<(), End> {
    let cluster = &settings.cluster;
    let request = v1::GetStatusRequest {
        cluster: Some(v1::Cluster {
            uid: cluster.uid.clone(),
            name: cluster.name.clone(),
        }),
    };
    let deadline = settings.timing.status;
    let send = rpc!(get_status);
    let Ok(status) = wire
        .within(STATUS, deadline, wire.send(deadline, request, send))
        .await
    else {
        board.update(|facts| facts.serving = serving);
        return Ok(());
    };
    follow_behaviour(settings, board, wire, &status.behaviour_digest).await?;
    let report = Report::read(status.conditions);
    let is_unsound = board.reported(gate::Report {
        credentials: report.credentials,
        throttled_for: status.throttled_until.and_then(time_until),
    });
    let drains = report.drains;
    board.update(|facts| {
        facts.serving = serving;
        facts.drains = report.drains;
        facts
            .unready
            .clone_from(report.trouble.as_ref().unwrap_or(&report.unready));
        facts.trouble = report.trouble.or_else(|| is_unsound.then(|| UNSOUND.to_owned()));
    });
    if drains {
        board.end_calls().await;
        return Err(End::Drained);
    }
    Ok(())
}

/// A plugin that translates otherwise than it described itself is described anew.
async fn follow_behaviour(settings: &Settings, board: &Board, wire: &Wire, digest: &str) -> Result<(), End> {
    let Some(known) = board.view().description else {
        return Ok(());
    };
    if digest.is_empty() || digest == known.behaviour_digest {
        return Ok(());
    }
    let new = match describe(settings, wire).await {
        Ok(described) => described.description,
        // Health checks tell soon enough whether it answers at all.
        Err(End::NoDescription(_)) => return Ok(()),
        Err(end) => return Err(end),
    };
    if (&new.provider, &new.instance_id) != (&known.provider, &known.instance_id) {
        return Err(End::AnotherProcess);
    }
    board.redescribed(new);
    Ok(())
}

/// What conditions come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    drains: bool,
    trouble: Option<String>,
    unready: String,
    /// Whether the cloud accepts its credentials; `None`: it does not say.
    credentials: Option<bool>,
}

impl Report {
    /// Reads conditions; the first trouble is the one told.
    fn read(conditions: Vec<v1::PluginCondition>) -> Self {
        let mut report = Self {
            unready: "it is not ready yet".to_owned(),
            ..Self::default()
        };
        for condition in conditions.into_iter().take(CONDITIONS_MAX) {
            let (is_true, is_false) = match v1::ConditionStatus::try_from(condition.status) {
                Ok(v1::ConditionStatus::True) => (true, false),
                Ok(v1::ConditionStatus::False) => (false, true),
                Ok(v1::ConditionStatus::Unspecified | v1::ConditionStatus::Unknown) | Err(_) => continue,
            };
            let (is_trouble, name) = match v1::PluginConditionType::try_from(condition.r#type) {
                Ok(v1::PluginConditionType::Draining) => {
                    report.drains |= is_true;
                    continue;
                }
                Ok(v1::PluginConditionType::CredentialsValid) => {
                    report.credentials = Some(is_true);
                    (is_false, "its credentials are refused")
                }
                Ok(v1::PluginConditionType::CloudReachable) => (is_false, "it cannot reach its cloud"),
                Ok(v1::PluginConditionType::QuotaAvailable) => (is_false, "a quota is used up"),
                Ok(v1::PluginConditionType::ConfigurationValid) => (is_false, "its configuration is wrong"),
                Ok(v1::PluginConditionType::Degraded) => (is_true, "it works with restrictions"),
                Ok(v1::PluginConditionType::Tainted) => (is_true, "it needs a restart"),
                Ok(v1::PluginConditionType::Unspecified) | Err(_) => continue,
            };
            if is_trouble && report.trouble.is_none() {
                report.trouble = Some(sentence(name, &condition));
            }
        }
        report
    }
}

/// The time from now until `when`; `None` if it is over, or no time.
fn time_until(when: prost_types::Timestamp) -> Option<Duration> {
    let until = Duration::new(u64::try_from(when.seconds).ok()?, u32::try_from(when.nanos).ok()?);
    let now = Duration::from_micros(u64::try_from(clock::wall().0).ok()?);
    until.checked_sub(now).filter(|left| !left.is_zero())
}

fn sentence(what: &str, condition: &v1::PluginCondition) -> String {
    match (clean(&condition.reason), clean(&condition.message)) {
        (reason, message) if reason.is_empty() && message.is_empty() => what.to_owned(),
        (reason, message) if message.is_empty() => format!("{what} ({reason})"),
        (reason, message) if reason.is_empty() => format!("{what}: {message}"),
        (reason, message) => format!("{what} ({reason}): {message}"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use v1::ConditionStatus::{False, True, Unknown};
    use v1::PluginConditionType::{CloudReachable, CredentialsValid, Degraded, Draining, Tainted};

    fn condition(kind: v1::PluginConditionType, status: v1::ConditionStatus) -> v1::PluginCondition {
        v1::PluginCondition {
            r#type: kind.into(),
            status: status.into(),
            ..v1::PluginCondition::default()
        }
    }

    #[rstest]
    #[case::well(&[(CredentialsValid, True), (Degraded, False)], false, None)]
    #[case::unknown_is_no_trouble(&[(CredentialsValid, Unknown)], false, None)]
    #[case::bad_credentials(&[(CredentialsValid, False)], false, Some("its credentials are refused"))]
    #[case::first_trouble_is_told(&[(CloudReachable, False), (Tainted, True)], false, Some("it cannot reach its cloud"))]
    #[case::tainted(&[(Tainted, True)], false, Some("it needs a restart"))]
    #[case::draining(&[(Draining, True)], true, None)]
    #[case::not_draining(&[(Draining, False)], false, None)]
    fn conditions_are_summed_up(
        #[case] conditions: &[(v1::PluginConditionType, v1::ConditionStatus)],
        #[case] drains: bool,
        #[case] trouble: Option<&str>,
    ) {
        let report = Report::read(
            conditions
                .iter()
                .map(|(kind, status)| condition(*kind, *status))
                .collect(),
        );
        assert_eq!((report.drains, report.trouble.as_deref()), (drains, trouble));
    }

    #[test]
    fn a_troubles_text_is_cleaned() {
        let condition = v1::PluginCondition {
            reason: "Locked".into(),
            message: "by pid 7\nERROR forged".into(),
            ..condition(Degraded, True)
        };
        let trouble = Report::read(vec![condition]).trouble;
        assert_eq!(
            trouble.as_deref(),
            Some("it works with restrictions (Locked): by pid 7 ERROR forged")
        );
    }
}
