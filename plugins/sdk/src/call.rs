//! What a call brings along: how long it may take, whether it may write, whether anybody still waits for it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{PluginError, Result};
use crate::term::Term;
use crate::{mark, time, v1};

/// The circumstances of one call. Cheap to clone; a clone may be given to tasks of the author's own.
#[derive(Clone, Debug)]
pub struct Call {
    pub(crate) cluster: v1::Cluster,
    pub(crate) request_id: String,
    pub(crate) deadline: Duration,
    pub(crate) cancelled: CancellationToken,
    pub(crate) term: Term,
    pub(crate) access: Access,
}

/// Whether an RPC may change the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Why a call should answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nobody waits for the answer any more. Let the current cloud call finish, start nothing new.
    Cancelled,
    /// The term is over. Let the current cloud call finish, answer `IN_PROGRESS`.
    StandDown,
    /// The slice is used up: answer `IN_PROGRESS` with the resources so far.
    SoftDeadline,
}

impl Call {
    /// The cluster that asks.
    pub fn cluster(&self) -> &v1::Cluster {
        &self.cluster
    }

    /// UUID of the intent behind a write; the same until the intent is concluded, so that it may serve as the cloud's
    /// client token. Empty for reads.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Time left until the soft deadline. Zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_sub(time::boot_time())
    }

    /// Cancelled when nobody waits for the answer any more. The work is never dropped: it ends by itself.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// The term in which this call runs.
    pub fn term(&self) -> &Term {
        &self.term
    }

    /// Whether a cloud write may start now. In the middle of a slice, answer `IN_PROGRESS` with the resources so far
    /// when it may not.
    pub fn may_write(&self) -> bool {
        self.writing().is_ok()
    }

    /// Asks for the right to start one cloud write now, for `?`. Ask before *each*; once resources exist,
    /// [`may_write`](Self::may_write) lets the answer name them.
    ///
    /// # Errors
    ///
    /// `NOT_LEADING` once the lead ran out or ended, or in a read; `OPERATION_IN_PROGRESS` once the caller has gone.
    pub fn writing(&self) -> Result<()> {
        const SOON: Duration = Duration::from_secs(1);
        if self.access == Access::Read {
            return Err(PluginError::not_leading("a read may not write to the cloud"));
        }
        if self.cancelled.is_cancelled() {
            return Err(PluginError::operation_in_progress(
                "the caller has gone: nothing new is started",
                SOON,
            ));
        }
        if !self.term.may_write() {
            return Err(PluginError::not_leading(
                "the lead ran out: no cloud write is started",
            ));
        }
        Ok(())
    }

    /// Resolves when the call should answer, with the reason. Meant for `tokio::select!` beside a wait for the cloud.
    pub async fn ending(&self) -> Ending {
        tokio::select! {
            () = self.cancelled.cancelled() => Ending::Cancelled,
            () = self.term.ended().cancelled() => Ending::StandDown,
            () = tokio::time::sleep(self.remaining()) => Ending::SoftDeadline,
        }
    }

    /// The mark of one resource of a Service: [`mark::mark`] with this call's cluster. `role` is a stable slot as
    /// `listener/tcp/443`, empty for the load balancer itself.
    pub fn mark(&self, service_uid: &str, role: &str) -> String {
        mark::mark(&self.cluster.uid, service_uid, role)
    }
}
