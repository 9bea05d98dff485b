//! The controllers: each pass observes, plans, performs, concludes and records, for one key at a time. All decisions
//! are in `bulkhead-core`.

pub mod lane;
pub mod node;
pub mod service;

use std::sync::Arc;

use bulkhead_core::cloud::Description;
use bulkhead_core::outcome::WriteFailure;
use bulkhead_core::territory::Territory;

use crate::kube::events::EventRecorder;
use crate::kube::views::View;
use crate::kube::writer::{Write, Writer};
use crate::leader::{Leadership, Permit};
use crate::plugin::PluginHandle;
use crate::router::Router;

/// Steps of one pass before the key is put back; the longest way to rest has five.
const STEPS: usize = 12;
/// How often one pass reads its object again after a conflict (design: five times, then the queue).
const CONFLICTS: usize = 5;

/// What every controller performs its effects with.
#[derive(Clone, Debug)]
pub struct Effects {
    /// The right to perform them.
    pub leadership: Leadership,
    /// The plugin.
    pub plugin: PluginHandle,
    /// Which plugin owns what.
    pub router: Router,
    /// The API server.
    pub writer: Writer,
    /// Events, under the controller's own component name.
    pub events: EventRecorder,
}

/// What a plugin last said of itself, and what it owns.
#[derive(Clone, Debug)]
pub struct Party {
    /// What it said.
    pub description: Arc<Description>,
    /// What it owns.
    pub territory: Arc<Territory>,
}

impl Party {
    /// The plugin of `handle`, if it ever described itself.
    pub fn of(handle: &PluginHandle, router: &Router) -> Option<Self> {
        let description = handle.subscribe().borrow().description.clone()?;
        let territory = router.territory(handle.name(), &description);
        Some(Self {
            description,
            territory,
        })
    }

    /// Whether `other` is the same, as of the same time.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.description, &other.description) && Arc::ptr_eq(&self.territory, &other.territory)
    }
}

impl Effects {
    /// The plugin, if it ever described itself.
    pub fn party(&self) -> Option<Party> {
        Party::of(&self.plugin, &self.router)
    }

    /// Performs one write to the API server under a permit of its own, asked for when nothing is left to wait for. It is
    /// given up when the permit is lost.
    async fn write<V: View>(&self, write: Write<V>) -> Result<V, WriteFailure> {
        let placed = write.place().await?;
        let Some(Permit { lost, .. }) = self.leadership.permit() else {
            return Err(WriteFailure::NotLeading);
        };
        tokio::select! {
            () = lost.cancelled() => Err(WriteFailure::NotLeading),
            result = placed.send() => result.map_err(WriteFailure::from),
        }
    }
}
