//! Reads of an eventually consistent cloud miss what was just written: nobody reads for a Service until they do not.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_plugin::error::PluginError;
use bulkhead_plugin::{Call, Result};

use crate::clock;

/// Until when reads may be old.
#[derive(Debug, Default)]
pub(super) struct Settling(Mutex<Until>);

#[derive(Debug, Default)]
struct Until {
    /// For everybody: what another process wrote before this one led.
    all: Duration,
    /// How old reads can be, as the cloud said last.
    lag: Duration,
    /// By Service; those that have passed are dropped.
    services: BTreeMap<String, Duration>,
}

impl Settling {
    fn until(&self) -> MutexGuard<'_, Until> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody may have written for any Service until now.
    pub(super) fn all(&self, lag: Duration) {
        let mut until = self.until();
        until.lag = lag;
        until.all = clock::boot() + lag;
    }

    /// Something was written for a Service.
    pub(super) fn note(&self, service: &str, lag: Duration) {
        let mut until = self.until();
        until.lag = lag;
        if !lag.is_zero() {
            let now = clock::boot();
            until.services.retain(|_, at| *at > now);
            until.services.insert(service.to_owned(), now + lag);
        }
    }

    /// Something may have been written for a Service, and the answer did not say.
    pub(super) fn note_unknown(&self, service: &str) {
        let lag = self.until().lag;
        self.note(service, lag);
    }

    /// Waits until reads see all that was written for a Service.
    pub(super) async fn wait(&self, call: &Call, service: &str) -> Result<()> {
        let wait = {
            let until = self.until();
            let own = until.services.get(service).copied().unwrap_or_default();
            own.max(until.all).saturating_sub(clock::boot())
        };
        if wait.is_zero() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            _ = call.ending() => {
                let text = "the cloud does not show yet what was just written";
                Err(PluginError::operation_in_progress(text, wait))
            }
        }
    }
}
