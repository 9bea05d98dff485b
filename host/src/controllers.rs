//! The controllers: each pass observes, plans, performs, concludes and records, for one key at a time. All decisions
//! are in `bulkhead-core`.

pub mod lane;
pub mod node;
pub mod service;

use std::sync::Arc;

use bulkhead_core::cloud::Description;
use bulkhead_core::outcome::WriteFailure;
use bulkhead_core::territory::Territory;
use tokio::sync::watch;

use crate::kube::events::EventRecorder;
use crate::kube::views::View;
use crate::kube::writer::{Write, Writer};
use crate::leader::{Leadership, Permit};
use crate::plugin::PluginHandle;

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
    /// What is the plugin's own; `None` until that is known.
    pub territory: watch::Receiver<Option<Arc<Territory>>>,
    /// The API server.
    pub writer: Writer,
    /// Events, under the controller's own component name.
    pub events: EventRecorder,
}

/// The plugin as one pass sees it.
#[derive(Clone, Debug)]
pub struct Sight {
    /// What it said of itself.
    pub description: Arc<Description>,
    /// What is its own.
    pub territory: Arc<Territory>,
}

impl Sight {
    /// Whether the plugin was seen as it is now: what was made from one sight is good for the other.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.description, &other.description) && Arc::ptr_eq(&self.territory, &other.territory)
    }
}

impl Effects {
    /// The plugin as it is now; `None` while there is no session with it, or nobody has said yet what is its own.
    pub fn sight(&self) -> Option<Sight> {
        let description = self.plugin.description()?;
        let territory = self.territory.borrow().clone()?;
        Some(Sight {
            description,
            territory,
        })
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
