//! The controllers: each pass observes, plans, performs, concludes and records, for one key at a time. All decisions
//! are in `bulkhead-core`.

pub mod lane;
pub mod node;
pub mod service;

use bulkhead_core::outcome::WriteFailure;

use crate::kube::error::ApiError;
use crate::kube::events::EventRecorder;
use crate::kube::writer::Writer;
use crate::leader::{Leadership, Permit};
use crate::plugin::PluginHandle;

/// Conflicts in one pass before the key is put back.
const ROUNDS: usize = 12;

/// What every controller performs its effects with.
#[derive(Clone, Debug)]
pub struct Effects {
    /// The right to perform them.
    pub leadership: Leadership,
    /// The plugin.
    pub plugin: PluginHandle,
    /// The API server.
    pub writer: Writer,
    /// Events, under the controller's own component name.
    pub events: EventRecorder,
}

impl Effects {
    /// Performs one write to the API server under a permit of its own. It is given up when the permit is lost.
    async fn write<V>(
        &self,
        call: impl Future<Output = Result<V, ApiError>>,
    ) -> Result<V, WriteFailure> {
        let Some(Permit { lost, .. }) = self.leadership.permit() else {
            return Err(WriteFailure::NotLeading);
        };
        tokio::select! {
            () = lost.cancelled() => Err(WriteFailure::NotLeading),
            result = call => result.map_err(WriteFailure::from),
        }
    }
}
