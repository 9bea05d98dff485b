//! How the plugin is: one cheap call of the cloud, and what earlier calls were told.

use std::time::Duration;

use bulkhead_plugin::status::condition;
use bulkhead_plugin::time;
use bulkhead_plugin::v1::{self, ConditionStatus, PluginConditionType};
use prost_types::Timestamp;

use super::Inner;
use crate::cloud::{Account, Answer, Caller, CloudError, ErrorCode, Kind, Op};

/// `GetStatus` is to be answered within a second.
const PATIENCE: Duration = Duration::from_millis(700);

/// What calls were told that `GetStatus` passes on.
#[derive(Debug, Default)]
pub(super) struct Known {
    throttled_until: Option<Timestamp>,
}

impl Known {
    pub(super) fn remember(&mut self, error: &CloudError) {
        if let (ErrorCode::Throttled, Some(wait)) = (error.code, error.retry_after) {
            let mut until = time::timestamp();
            let later = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
            until.seconds = until.seconds.saturating_add(later).saturating_add(1);
            self.throttled_until = Some(until);
        }
    }
}

pub(super) async fn answer(plugin: &Inner) -> v1::GetStatusResponse {
    let caller = Caller {
        plugin: plugin.name(),
        rpc: "GetStatus".to_owned(),
        ..Caller::default()
    };
    let asked = plugin.api.call(&caller, &Op::Account, PATIENCE).await;
    let mut known = plugin.known();
    if let Err(error) = &asked {
        known.remember(error);
    }
    let now = time::timestamp();
    let throttled_until = known.throttled_until.filter(|until| until.seconds >= now.seconds);
    v1::GetStatusResponse {
        conditions: match asked {
            Ok(Answer::Account(account)) => well(&account),
            Ok(_) => Vec::new(),
            Err(error) => ill(&error),
        },
        throttled_until,
        ..v1::GetStatusResponse::default()
    }
}

fn well(account: &Account) -> Vec<v1::PluginCondition> {
    let mut conditions = vec![
        fine(PluginConditionType::CredentialsValid, "Accepted"),
        fine(PluginConditionType::CloudReachable, "Answered"),
        fine(PluginConditionType::ConfigurationValid, "Valid"),
    ];
    let used_up: Vec<&str> = account.used_up.iter().copied().map(Kind::name).collect();
    conditions.push(if used_up.is_empty() {
        fine(PluginConditionType::QuotaAvailable, "Available")
    } else {
        let text = format!("no more can be made of: {}", used_up.join(", "));
        condition(
            PluginConditionType::QuotaAvailable,
            ConditionStatus::False,
            "QuotaUsedUp",
            text,
        )
    });
    if !account.outages.is_empty() {
        let text = format!("away: {}", account.outages.join(", "));
        conditions.push(condition(
            PluginConditionType::Degraded,
            ConditionStatus::True,
            "ScopeAway",
            text,
        ));
    }
    conditions
}

fn ill(error: &CloudError) -> Vec<v1::PluginCondition> {
    let text = error.to_string();
    let wrong = |kind, reason| condition(kind, ConditionStatus::False, reason, text.as_str());
    let refused = |reason| {
        vec![
            wrong(PluginConditionType::CredentialsValid, reason),
            fine(PluginConditionType::CloudReachable, "Answered"),
        ]
    };
    if error.code == ErrorCode::CredentialsExpired {
        refused("Expired")
    } else if error.code == ErrorCode::CredentialsInvalid {
        refused("Refused")
    } else if error.code == ErrorCode::Throttled {
        vec![fine(PluginConditionType::CloudReachable, "Throttled")]
    } else {
        vec![wrong(PluginConditionType::CloudReachable, "NoAnswer")]
    }
}

fn fine(kind: PluginConditionType, reason: &str) -> v1::PluginCondition {
    condition(kind, ConditionStatus::True, reason, "")
}
