//! Runs calls: each in a task of its own, so that a dropped RPC never drops the work.
//!
//! A gRPC server drops a handler at any await when the client goes away or its timer fires. Between "created in the
//! cloud" and "remembered" that would lose a resource. So the handler only waits, and its end cancels a token.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Response, Status};

use crate::asked::Asked;
use crate::call::{Access, Call};
use crate::describe::Description;
use crate::error::{Certainty, PluginError, Result};
use crate::options::ServeOptions;
use crate::provider::CloudProvider;
use crate::service::epoch;
use crate::status::Conditions;
use crate::term::{Admission, Leadership};
use crate::{time, v1};

/// What the SDK knows about an RPC.
#[derive(Debug)]
pub(crate) struct Rpc {
    name: &'static str,
    capability: v1::Capability,
    access: Access,
    soft_deadline: Duration,
}

impl Rpc {
    pub(crate) const fn new(
        name: &'static str,
        capability: v1::Capability,
        access: Access,
        soft: u64,
    ) -> Self {
        Self {
            name,
            capability,
            access,
            soft_deadline: Duration::from_secs(soft),
        }
    }
}

/// The provider, its role and its running calls.
#[derive(Debug)]
pub(crate) struct Runner<P> {
    pub(crate) provider: Arc<P>,
    description: Description,
    leadership: Arc<Leadership>,
    slots: Arc<Semaphore>,
    calls_in_flight: u32,
    largest_answer: usize,
    tasks: TaskTracker,
    draining: CancellationToken,
    closing: CancellationToken,
    panicked: CancellationToken,
    pub(crate) conditions: Conditions,
}

impl<P: CloudProvider> Runner<P> {
    pub(crate) fn new(provider: Arc<P>, description: Description, options: &ServeOptions) -> Self {
        let calls_in_flight = options.calls_in_flight;
        Self {
            provider,
            description,
            leadership: Arc::new(Leadership::new()),
            slots: Arc::new(Semaphore::new(calls_in_flight as usize)),
            calls_in_flight,
            largest_answer: options.largest_answer,
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            panicked: CancellationToken::new(),
            conditions: Conditions::default(),
        }
    }

    pub(crate) fn leadership(&self) -> &Arc<Leadership> {
        &self.leadership
    }

    pub(crate) fn behaviour_digest(&self) -> &str {
        self.description.digest()
    }

    /// All tasks of this process, also those that nobody waits for any more.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Cancelled when the process was asked to end. It still answers everything.
    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled when nothing new is taken any more.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Whether a call of this process has panicked.
    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked.is_cancelled()
    }

    /// Calls that run now.
    pub(crate) fn in_flight(&self) -> u32 {
        let free = u32::try_from(self.slots.available_permits()).unwrap_or_default();
        self.calls_in_flight.saturating_sub(free)
    }

    /// Resolves when no call runs.
    pub(crate) async fn idle(&self) {
        // The semaphore is never closed, so that getting all slots is all there is.
        drop(self.slots.acquire_many(self.calls_in_flight).await);
    }

    /// Runs one call, if it may start, and waits for its answer.
    pub(crate) async fn run<Q, A, W, F>(
        &self,
        rpc: &Rpc,
        request: Q,
        work: W,
    ) -> std::result::Result<Response<A>, Status>
    where
        Q: Asked + Send + 'static,
        A: Message + 'static,
        W: FnOnce(Arc<P>, Call, Q) -> F,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        const BUSY: Duration = Duration::from_secs(1);
        self.check_takes(rpc, &request)?;
        let slot = Arc::clone(&self.slots)
            .try_acquire_owned()
            .map_err(|_| PluginError::rate_limited("too many calls are running in the plugin", BUSY))?;
        let (call, running) = self.admit(rpc, &request)?;
        let cancelled = call.cancelled.clone();
        let name = rpc.name;
        let request_id = call.request_id.clone();
        let work = work(Arc::clone(&self.provider), call, request);
        let abandoned = cancelled.clone();
        let task = self.tasks.spawn(async move {
            let _held = (slot, running);
            let result = work.await;
            if abandoned.is_cancelled() {
                let error = result.as_ref().err().map(tracing::field::display);
                tracing::info!(
                    rpc = name,
                    request_id,
                    error,
                    "finished a call that nobody waits for"
                );
            }
            result
        });
        let guard = cancelled.drop_guard();
        let result = task.await;
        guard.disarm();
        let result = result.unwrap_or_else(|error| {
            self.panicked.cancel();
            Err(panicked(name, error))
        });
        match result.and_then(|answer| measured(answer, rpc.access, self.largest_answer)) {
            Ok(answer) => Ok(Response::new(answer)),
            // Nothing was asked to be applied.
            Err(error) if rpc.access == Access::Read => {
                Err(error.with_certainty(Certainty::NotApplied).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether this plugin has the RPC, takes so many items, and is not ending.
    fn check_takes<Q: Asked>(&self, rpc: &Rpc, request: &Q) -> Result<()> {
        if !self.description.declares(rpc.capability) {
            return Err(PluginError::unimplemented(rpc.name));
        }
        if self.closing.is_cancelled() {
            return Err(PluginError::draining());
        }
        match request
            .batch()
            .map(|(batch, items)| (items, self.description.batch_limit(batch)))
        {
            Some((items, limit)) if items > limit => Err(PluginError::batch_too_large(items, limit)),
            _ => Ok(()),
        }
    }

    fn admit<Q: Asked>(&self, rpc: &Rpc, request: &Q) -> Result<(Call, impl Send + 'static)> {
        let intent = request.intent();
        let Admission { term, running } = match rpc.access {
            Access::Read => self.leadership.admit_read()?,
            Access::Write => {
                let epoch = epoch(intent.and_then(|intent| intent.epoch.as_ref()), "intent.epoch")?;
                self.leadership.admit_write(&epoch)?
            }
        };
        let cluster = request
            .cluster()
            .filter(|cluster| !cluster.uid.is_empty())
            .cloned();
        let call = Call {
            cluster: cluster.ok_or_else(|| PluginError::invalid_spec("cluster.uid", "is missing"))?,
            request_id: intent.map(|intent| intent.request_id.clone()).unwrap_or_default(),
            deadline: time::boot_time().saturating_add(soft_deadline(rpc, intent)),
            cancelled: CancellationToken::new(),
            term,
            access: rpc.access,
        };
        Ok((call, running))
    }
}

/// The host's wish, where it has one that can be read; no time at all is one.
fn soft_deadline(rpc: &Rpc, intent: Option<&v1::Intent>) -> Duration {
    intent
        .and_then(|intent| intent.soft_deadline)
        .and_then(|wish| Duration::try_from(wish).ok())
        .unwrap_or(rpc.soft_deadline)
}

/// A too large answer would be refused by the library with a status that says nothing.
fn measured<A: Message>(answer: A, access: Access, most: usize) -> Result<A> {
    let bytes = answer.encoded_len();
    match access {
        _ if bytes <= most => Ok(answer),
        Access::Read => Err(PluginError::message_too_large(bytes)),
        // The write is done; sending half of it again would not make the answer smaller.
        Access::Write => Err(PluginError::plugin_bug(format!(
            "an answer of {bytes} bytes does not fit into one message"
        ))),
    }
}

/// The text goes into the log only: it may quote what the author's code had in hand.
pub(crate) fn panicked(what: &'static str, error: tokio::task::JoinError) -> PluginError {
    match error.try_into_panic() {
        Ok(payload) => {
            tracing::error!(call = what, panic = text(&*payload), "a call panicked");
            PluginError::panicked(format!("{what} panicked; the plugin's log says where"))
        }
        Err(_) => PluginError::plugin_bug(format!("the task of {what} was aborted")),
    }
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}
