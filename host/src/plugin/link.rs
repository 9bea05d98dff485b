//! The live session, as controllers use it: bounded calls in flight, cancellation, sizes.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_core::cloud::{Certainty, Reason};
use prost::Message;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::call::{CallError, Class, Client, Verb, Wire, late, own_failure};
use super::convert::description::Limits;
use super::node_sets::SentSets;
use super::session::TermNames;
use super::{Settings, Timing};
use crate::clock;

/// A session after `Describe`.
#[derive(Debug)]
pub(crate) struct Link {
    wire: Wire,
    timing: Timing,
    slots: Semaphore,
    /// How many calls, of however many steps, are made over it.
    pub(crate) users: watch::Sender<usize>,
    /// Under which name the plugin knows the terms of this host.
    pub(crate) name_of_terms: TermNames,
    /// Bounds that the plugin set.
    pub(crate) limits: Limits,
    /// The node sets it got.
    pub(crate) sent_sets: SentSets,
}

impl Link {
    pub(crate) fn new(settings: &Settings, wire: Wire, limits: Limits) -> Self {
        Self {
            wire,
            timing: settings.timing,
            slots: Semaphore::new(limits.calls_in_flight),
            users: watch::Sender::new(0),
            name_of_terms: TermNames::default(),
            limits,
            sent_sets: SentSets::default(),
        }
    }

    /// Makes a call when there is room for it. Waiting for room counts towards the deadline, so `message` is told
    /// how long a slice of writing may take from now; `cancel` ends the wait at any time.
    pub(crate) async fn call<Q, A, F>(
        &self,
        verb: Verb,
        cancel: &CancellationToken,
        message: impl FnOnce(Duration) -> Q,
        rpc: impl FnOnce(Client, Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        Q: Message,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let underway = AtomicBool::new(false);
        let certainty = || {
            if underway.load(Ordering::Relaxed) {
                Certainty::Unknown
            } else {
                Certainty::NotApplied
            }
        };
        let hard = verb.class.deadline(&self.timing);
        let started = clock::now();
        let work = Box::pin(async {
            let _slot = self.slot(verb).await?;
            let spent = clock::now().saturating_since(started);
            let slice = self.timing.write_soft.saturating_sub(spent);
            if slice.is_zero() && verb.class == Class::Write {
                return Err(no_room(verb));
            }
            let message = message(slice);
            self.check_size(message.encoded_len())?;
            underway.store(true, Ordering::Relaxed);
            self.wire.send(hard.saturating_sub(spent), message, rpc).await
        });
        let bounded = async {
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(given_up(verb, certainty())),
                result = timeout(hard, work) => result.unwrap_or_else(|_| Err(late(verb, hard, certainty()))),
            }
        };
        self.wire.counted(verb, bounded).await
    }

    /// Room for a call. A write that would have no time left for a slice of work is not worth waiting for.
    async fn slot(&self, verb: Verb) -> Result<SemaphorePermit<'_>, CallError> {
        let slot = self.slots.acquire();
        let slot = match verb.class {
            Class::Write => timeout(self.timing.write_soft, slot)
                .await
                .map_err(|_| no_room(verb))?,
            Class::Handshake | Class::Status | Class::Read | Class::Look => slot.await,
        };
        slot.map_err(|_| closed(verb))
    }

    /// Lets no new call begin, and waits until none is in flight.
    pub(crate) async fn close(&self) {
        let all = u32::try_from(self.limits.calls_in_flight).unwrap_or(u32::MAX);
        drop(self.slots.acquire_many(all).await);
        self.slots.close();
    }

    fn check_size(&self, bytes: usize) -> Result<(), CallError> {
        let limit = self.limits.message_bytes;
        if bytes <= limit {
            return Ok(());
        }
        let message = format!("the request has {bytes} bytes, the plugin takes {limit}");
        Err(own_failure(Reason::MessageTooLarge, Certainty::NotApplied, message).into())
    }
}

fn closed(verb: Verb) -> CallError {
    let message = format!("no {}: the plugin is about to end", verb.name);
    own_failure(Reason::Disconnected, Certainty::NotApplied, message).into()
}

fn no_room(verb: Verb) -> CallError {
    let message = format!(
        "no {} yet: the plugin is busy with as many calls as it takes",
        verb.name
    );
    own_failure(Reason::OperationInProgress, Certainty::NotApplied, message).into()
}

fn given_up(verb: Verb, certainty: Certainty) -> CallError {
    let message = format!("{} was given up: this host no longer leads, or stops", verb.name);
    own_failure(Reason::Cancelled, certainty, message).into()
}
