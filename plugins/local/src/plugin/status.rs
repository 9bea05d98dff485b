//! How the plugin is.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use bulkhead_plugin::status::condition;
use bulkhead_plugin::v1::{self, ConditionStatus, PluginConditionType};
use prost_types::Timestamp;

use super::Local;
use crate::world::Phase;

/// Since when each condition has been as it is.
#[derive(Debug, Default)]
pub(super) struct Since(BTreeMap<i32, (i32, String, Option<Timestamp>)>);

impl Since {
    /// Gives a condition the time at which it became what it is.
    fn remember(&mut self, mut now: v1::PluginCondition) -> v1::PluginCondition {
        match self.0.get(&now.r#type) {
            Some((status, reason, since)) if *status == now.status && *reason == now.reason => {
                now.since = *since;
            }
            _ => {
                self.0
                    .insert(now.r#type, (now.status, now.reason.clone(), now.since));
            }
        }
        now
    }
}

pub(super) async fn answer(plugin: &Local) -> v1::GetStatusResponse {
    let degraded = degraded(plugin).await;
    let mut since = plugin.0.since.lock().unwrap_or_else(PoisonError::into_inner);
    let conditions = [configuration(plugin), degraded]
        .map(|now| since.remember(now))
        .to_vec();
    v1::GetStatusResponse {
        conditions,
        ..v1::GetStatusResponse::default()
    }
}

fn configuration(plugin: &Local) -> v1::PluginCondition {
    let say = |status, reason, message: &str| {
        condition(PluginConditionType::ConfigurationValid, status, reason, message)
    };
    let view = plugin
        .0
        .inventory
        .as_ref()
        .map(crate::inventory::InventoryFile::view);
    match view.and_then(|view| view.broken) {
        Some((error, _)) => say(ConditionStatus::False, "InventoryBroken", &error.to_string()),
        None => say(ConditionStatus::True, "Valid", ""),
    }
}

async fn degraded(plugin: &Local) -> v1::PluginCondition {
    let say =
        |status, reason, message: &str| condition(PluginConditionType::Degraded, status, reason, message);
    let phase = plugin.0.phase.borrow().clone();
    match phase {
        Phase::Starting => say(
            ConditionStatus::True,
            "Starting",
            "the load balancers are being restored",
        ),
        Phase::Waiting(holder) => {
            let message = format!("the state directory is in use by {holder}: nothing is forwarded here");
            say(ConditionStatus::True, "StateLocked", &message)
        }
        Phase::Unreadable(problem) => say(ConditionStatus::True, "StateUnreadable", &problem),
        Phase::Serving => {
            let unbound = match plugin.0.world.get() {
                Some(world) => world.unbound().await,
                None => Vec::new(),
            };
            match unbound.first() {
                Some(first) => {
                    let message = format!("{first}; {} ports are not served", unbound.len());
                    say(ConditionStatus::True, "PortsUnavailable", &message)
                }
                None => say(ConditionStatus::False, "Serving", ""),
            }
        }
    }
}
