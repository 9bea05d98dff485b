//! The live session, as controllers use it: gates, budgets, cancellation, sizes.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bulkhead_core::breaker::Subject;
use bulkhead_core::cloud::{Capability, Certainty, Failure, Reason};
use bulkhead_core::disposition::CallKind;
use bulkhead_core::gate::Why;
use futures::FutureExt as _;
use prost::Message;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::budget::{NoRoom, Room};
use super::call::{CallError, Class, Client, Verb, Wire, late, own_failure};
use super::convert::Parsed;
use super::convert::description::Limits;
use super::gatekeeper::Gatekeeper;
use super::node_sets::SentSets;
use super::session::TermNames;
use super::{Settings, Timing};
use crate::clock;

/// A verb that controllers use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Which.
    pub(super) verb: Verb,
    /// What the plugin must be able to do, and whose gate it passes.
    pub(super) needs: Capability,
}

impl Work {
    pub(super) const fn new(name: &'static str, class: Class, needs: Capability) -> Self {
        Self {
            verb: Verb { name, class },
            needs,
        }
    }
}

/// One call to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    /// What is to be done.
    pub(super) work: Work,
    /// What it is about.
    pub(super) subject: Subject<'a>,
    /// Cancelled when the call is to be given up.
    pub(super) cancel: &'a CancellationToken,
}

/// A session after `Describe`.
#[derive(Debug)]
pub(crate) struct Link {
    wire: Wire,
    timing: Timing,
    room: Room,
    gatekeeper: Arc<Gatekeeper>,
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
    pub(crate) fn new(settings: &Settings, wire: Wire, limits: Limits, gatekeeper: Arc<Gatekeeper>) -> Self {
        let budget = settings.budget.calls_in_flight;
        let size = budget.map_or(limits.calls_in_flight, |most| {
            limits.calls_in_flight.min(most.get())
        });
        Self {
            wire,
            timing: settings.timing,
            room: Room::new(size, gatekeeper.pace.clone()),
            gatekeeper,
            users: watch::Sender::new(0),
            name_of_terms: TermNames::default(),
            limits,
            sent_sets: SentSets::default(),
        }
    }

    /// Makes a call when there is room for it, if its gate lets it through. Waiting for room counts towards the
    /// deadline, so `message` is told how long a slice of writing may take from now; `ask.cancel` ends the wait at any
    /// time. An answer that `read` does not take is a failure of the call.
    pub(super) async fn call<Q, A, T, F>(
        &self,
        ask: Ask<'_>,
        message: impl FnOnce(Duration) -> Q,
        rpc: impl FnOnce(Client, Request<Q>) -> F,
        read: impl FnOnce(A) -> Parsed<T>,
    ) -> Result<T, CallError>
    where
        Q: Message,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let verb = ask.work.verb;
        let admission = OnceLock::new();
        let certainty = || {
            if admission.get().is_some() {
                Certainty::Unknown
            } else {
                Certainty::NotApplied
            }
        };
        let hard = verb.class.deadline(&self.timing);
        let started = clock::now();
        let work = Box::pin(async {
            let _slot = self.slot(ask.work).await?;
            let spent = clock::now().saturating_since(started);
            let slice = self.timing.write_soft.saturating_sub(spent);
            if slice.is_zero() && verb.class == Class::Write {
                return Err(no_room(verb));
            }
            let message = message(slice);
            self.check_size(message.encoded_len())?;
            let admitted = self.gatekeeper.begin(ask.work.needs);
            let admitted = admitted.map_err(|why| shut(verb, why))?;
            // It is the only one.
            admission.get_or_init(|| admitted);
            self.wire.send(hard.saturating_sub(spent), message, rpc).await
        });
        let bounded = async {
            let answer = tokio::select! {
                biased;
                () = ask.cancel.cancelled() => Err(given_up(verb, certainty())),
                result = timeout(hard, work) => result.unwrap_or_else(|_| Err(late(verb, hard, certainty()))),
            };
            answer.and_then(|answer| checked(read(answer)))
        };
        let result = self.wire.counted(verb, bounded).await;
        if let Some(admission) = admission.into_inner() {
            admission.ended(
                ask.subject,
                kind(verb),
                result.as_ref().err().map(|error| &error.failure),
            );
        }
        result
    }

    /// Room for a call. A write that would have no time left for a slice of work is not worth waiting for.
    async fn slot(&self, work: Work) -> Result<SemaphorePermit<'_>, CallError> {
        let Work { verb, needs } = work;
        // Nobody waits for what would be refused.
        if let Some(why) = self.gatekeeper.refuses(needs) {
            return Err(shut(verb, why));
        }
        let slot = self.enter();
        let slot = match verb.class {
            Class::Write => timeout(self.timing.write_soft, slot)
                .await
                .map_err(|_| no_room(verb))?,
            Class::Handshake | Class::Status | Class::Read | Class::Look => slot.await,
        };
        slot.map_err(|why| match why {
            NoRoom::Closed => closed(verb),
            NoRoom::Crowded => {
                self.gatekeeper.crowded_out();
                no_room(verb)
            }
        })
    }

    /// Enters the room, and counts how long that took if it was not at once.
    async fn enter(&self) -> Result<SemaphorePermit<'_>, NoRoom> {
        let mut slot = pin!(self.room.enter());
        if let Some(at_once) = slot.as_mut().now_or_never() {
            return at_once;
        }
        let started = clock::now();
        let slot = slot.await;
        self.gatekeeper.waited(clock::now().saturating_since(started));
        slot
    }

    /// Lets no new call begin, and waits until none is in flight.
    pub(crate) async fn close(&self) {
        self.room.close().await;
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

/// A violation is a failure of the call, and worth a line: the plugin needs mending.
fn checked<T>(parsed: Parsed<T>) -> Result<T, CallError> {
    parsed.map_err(|violation| {
        tracing::warn!(%violation, "an answer is not used");
        CallError::from(Failure::from(violation))
    })
}

const fn kind(verb: Verb) -> CallKind {
    match verb.class {
        Class::Write => CallKind::Write,
        Class::Handshake | Class::Status | Class::Read | Class::Look => CallKind::Read,
    }
}

fn shut(verb: Verb, why: Why) -> CallError {
    let message = format!("no {}: the plugin is left alone: {}", verb.name, why.sentence());
    own_failure(Reason::Shut, Certainty::NotApplied, message).into()
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
