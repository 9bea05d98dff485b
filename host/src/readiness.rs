//! Health as other processes ask for it: conditions of readiness, heartbeats of the loops, states of plugins.
//!
//! `/readyz` depends on conditions only, `/livez` on heartbeats only. Plugins are shown, never counted: an
//! outage of one cloud must not block the host's rollout or restart it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_core::clock::{Instant, Timestamp};
use serde_json::Value;

use crate::clock;

/// The health of the whole host. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Health {
    conditions: Arc<Mutex<BTreeMap<&'static str, Result<(), String>>>>,
    heartbeats: Arc<Mutex<BTreeMap<Arc<str>, Beat>>>,
    plugins: Arc<Mutex<BTreeMap<String, PluginState>>>,
}

/// The answer of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The check's name, as in `?exclude=`.
    pub name: String,
    /// Fine, or why not.
    pub verdict: Result<(), String>,
}

/// A plugin as `/readyz/plugins` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginState {
    /// The plugin's name.
    pub name: String,
    /// The session's state, in the protocol's words.
    pub state: &'static str,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Why, for people; sanitised. Empty if there is nothing to say.
    pub message: String,
    /// What of it is held back, and why; one sentence for each gate that is not open.
    pub held_back: Vec<String>,
    /// Whatever else helps, by name.
    pub details: BTreeMap<String, Value>,
}

#[derive(Clone, Copy, Debug)]
struct Beat {
    last: Instant,
    max_age: Duration,
}

impl Health {
    /// Adds a condition of readiness; it is not met until told otherwise.
    pub fn condition(&self, name: &'static str) -> Condition {
        let condition = Condition {
            health: self.clone(),
            name,
        };
        condition.not_met("not yet");
        condition
    }

    /// Adds a loop that beats at least every `max_age`; the first beat is now. It is forgotten when dropped.
    pub fn heartbeat(&self, name: impl Into<Arc<str>>, max_age: Duration) -> Heartbeat {
        let heartbeat = Heartbeat {
            health: self.clone(),
            name: name.into(),
            max_age,
        };
        heartbeat.beat();
        heartbeat
    }

    /// Puts a plugin's state in place of the one that was shown under its name.
    pub fn show_plugin(&self, state: PluginState) {
        lock(&self.plugins).insert(state.name.clone(), state);
    }

    /// Shows the plugin no longer.
    pub fn forget_plugin(&self, name: &str) {
        lock(&self.plugins).remove(name);
    }

    /// Every plugin, by name.
    pub fn plugins(&self) -> Vec<PluginState> {
        lock(&self.plugins).values().cloned().collect()
    }

    /// Every condition of readiness, by name.
    pub fn readiness(&self) -> Vec<Check> {
        let conditions = lock(&self.conditions);
        let check = |(name, verdict): (&&'static str, &Result<(), String>)| Check {
            name: (*name).to_owned(),
            verdict: verdict.clone(),
        };
        conditions.iter().map(check).collect()
    }

    /// Every heartbeat, by name: red if its last beat is too long before `now`.
    pub fn liveness(&self, now: Instant) -> Vec<Check> {
        let heartbeats = lock(&self.heartbeats);
        let check = |(name, beat): (&Arc<str>, &Beat)| {
            let age = now.saturating_since(beat.last);
            let verdict = if age > beat.max_age {
                Err(format!(
                    "no sign of life for {}s, at most {}s",
                    age.as_secs(),
                    beat.max_age.as_secs()
                ))
            } else {
                Ok(())
            };
            Check {
                name: name.to_string(),
                verdict,
            }
        };
        heartbeats.iter().map(check).collect()
    }
}

/// One condition of readiness.
#[derive(Debug)]
pub struct Condition {
    health: Health,
    name: &'static str,
}

impl Condition {
    /// The condition is met.
    pub fn met(&self) {
        self.set(Ok(()));
    }

    /// The condition is not met, because of `reason`.
    pub fn not_met(&self, reason: impl Into<String>) {
        self.set(Err(reason.into()));
    }

    fn set(&self, verdict: Result<(), String>) {
        lock(&self.health.conditions).insert(self.name, verdict);
    }
}

/// The sign of life of one loop.
#[derive(Debug)]
pub struct Heartbeat {
    health: Health,
    name: Arc<str>,
    max_age: Duration,
}

impl Heartbeat {
    /// The loop is alive now.
    pub fn beat(&self) {
        let beat = Beat {
            last: clock::now(),
            max_age: self.max_age,
        };
        lock(&self.health.heartbeats).insert(Arc::clone(&self.name), beat);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        lock(&self.health.heartbeats).remove(&self.name);
    }
}

/// Whole values are inserted and removed under these locks: a panic elsewhere leaves them good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(checks: &[Check]) -> Vec<&str> {
        checks
            .iter()
            .filter(|check| check.verdict.is_err())
            .map(|check| check.name.as_str())
            .collect()
    }

    #[test]
    fn a_condition_counts_from_the_moment_it_is_added() {
        let health = Health::default();
        let stores = health.condition("stores");
        let election = health.condition("election");
        assert_eq!(failing(&health.readiness()), ["election", "stores"]);
        stores.met();
        assert_eq!(failing(&health.readiness()), ["election"]);
        election.met();
        stores.not_met("watch lost");
        assert_eq!(
            health.readiness().last(),
            Some(&Check {
                name: "stores".into(),
                verdict: Err("watch lost".into())
            })
        );
    }

    #[test]
    fn a_loop_is_stuck_once_its_beat_is_older_than_it_may_be() {
        let health = Health::default();
        let heartbeat = health.heartbeat("queue", Duration::from_mins(1));
        heartbeat.beat();
        let now = clock::now();
        assert!(failing(&health.liveness(now)).is_empty());
        assert!(failing(&health.liveness(now + Duration::from_secs(55))).is_empty());
        assert_eq!(
            failing(&health.liveness(now + Duration::from_secs(61))),
            ["queue"]
        );
        drop(heartbeat);
        assert!(health.liveness(now + Duration::from_secs(61)).is_empty());
    }

    #[test]
    fn plugins_are_shown_and_never_counted() {
        let health = Health::default();
        let state = PluginState {
            name: "local".into(),
            state: "Gone",
            since: Timestamp(0),
            message: "connection refused".into(),
            held_back: Vec::new(),
            details: BTreeMap::new(),
        };
        health.show_plugin(state.clone());
        assert_eq!(health.plugins(), [state]);
        assert!(health.readiness().is_empty() && health.liveness(clock::now()).is_empty());
        health.forget_plugin("local");
        assert!(health.plugins().is_empty());
    }
}
