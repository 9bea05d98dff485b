//! One call: its deadline, what a failure of it means, and its count.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::cloud::{Certainty, Failure, Reason};
use bulkhead_core::disposition::{Again, CallKind, classify};
use bulkhead_proto::MAX_MESSAGE_BYTES;
use bulkhead_proto::v1::cloud_provider_client::CloudProviderClient;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::activity::Activity;
use super::connect::Connection;
use super::convert::failure;
use super::{Observer, Timing};
use crate::clock;

/// The plugin's client, as a call gets it.
pub(crate) type Client = CloudProviderClient<Channel>;

/// A method of the client, for [`Wire::send`]. Its future is large, so it lives on the heap.
macro_rules! rpc {
    ($method:ident) => {
        |mut client: $crate::plugin::call::Client, request| {
            Box::pin(async move { client.$method(request).await })
        }
    };
}
pub(crate) use rpc;

/// How much longer than the host itself the plugin is told that the host waits, at the least: the host owns the timer.
const TIMER_SLACK: Duration = Duration::from_secs(1);

/// How long the plugin is told that the host waits. Whole seconds, so that nearly every call says the same: what was said
/// before is one byte in HTTP/2, and what was not is a new entry in a table at both ends.
pub(crate) fn told(deadline: Duration) -> Duration {
    let least = deadline.saturating_add(TIMER_SLACK);
    let begun = u64::from(least.subsec_nanos() > 0);
    Duration::from_secs(least.as_secs().saturating_add(begun))
}

/// How long after its last call a connection may take to end.
const A_MOMENT: Duration = Duration::from_millis(50);

/// A verb of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verb {
    /// Its name, as metrics have it.
    pub(crate) name: &'static str,
    /// How long it may take.
    pub(crate) class: Class,
}

/// Verbs that may take equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Answered at once.
    Handshake,
    /// Answered from what the plugin knows.
    Status,
    /// Reads by object.
    Read,
    /// Reads of many things for each object.
    Look,
    /// May change something in the cloud.
    Write,
}

impl Class {
    /// The hard deadline.
    pub(crate) const fn deadline(self, timing: &Timing) -> Duration {
        match self {
            Self::Handshake => timing.handshake,
            Self::Status => timing.status,
            Self::Read => timing.read,
            Self::Look => timing.look,
            Self::Write => timing.write,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct CallError {
    /// In the core's terms.
    pub(crate) failure: Failure,
    /// The status, if one came.
    pub(crate) code: Option<Code>,
}

impl CallError {
    /// Whether fewer items might pass: the plugin says so, or refuses the whole for what may be one item, or a library
    /// made the status that it makes of what is too large.
    pub(crate) fn might_pass_in_parts(&self) -> bool {
        match self.failure.reason {
            Some(reason) => {
                reason == Reason::InvalidSpec || classify(&self.failure, CallKind::Read).again == Again::Halve
            }
            None => matches!(
                self.code,
                Some(Code::OutOfRange | Code::Internal | Code::ResourceExhausted)
            ),
        }
    }

    /// Whether the plugin wants a node set in full.
    pub(crate) fn wants_the_node_set(&self) -> bool {
        classify(&self.failure, CallKind::Write).again == Again::ResendNodeSet
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        Self { failure, code: None }
    }
}

/// A failure that the host itself gives a call.
pub(crate) fn own_failure(reason: Reason, certainty: Certainty, message: impl Into<String>) -> Failure {
    Failure {
        reason: Some(reason),
        certainty,
        message: message.into(),
        retry_after: None,
    }
}

/// One connection, and whoever counts its calls.
#[derive(Clone)]
pub(crate) struct Wire {
    plugin: Arc<str>,
    pub(crate) connection: Connection,
    observer: Arc<dyn Observer>,
    activity: Arc<Activity>,
}

impl Wire {
    pub(crate) fn new(
        plugin: Arc<str>,
        connection: Connection,
        observer: Arc<dyn Observer>,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            plugin,
            connection,
            observer,
            activity,
        }
    }

    /// Sends `message` and waits for the answer, at the longest until the connection ends. The plugin is told
    /// that the host waits for `deadline`; keeping it is the caller's.
    pub(crate) async fn send<Q, A, F>(
        &self,
        deadline: Duration,
        message: Q,
        send: impl FnOnce(Client, Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let client = CloudProviderClient::new(self.connection.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let mut request = Request::new(message);
        request.set_timeout(told(deadline));
        self.answer(send(client, request)).await
    }

    /// Waits for `rpc`, at the longest until the connection ends.
    pub(crate) async fn answer<A>(
        &self,
        rpc: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, CallError> {
        let status = tokio::select! {
            // An answer that came with the last bytes of the stream counts.
            biased;
            result = rpc => match result {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => status,
            },
            () = self.connection.gone.cancelled() => return Err(disconnected().into()),
        };
        Err(Box::pin(self.refused(&status)).await)
    }

    /// A call of the session itself: ended and counted after `deadline`.
    pub(crate) async fn within<A>(
        &self,
        verb: Verb,
        deadline: Duration,
        call: impl Future<Output = Result<A, CallError>>,
    ) -> Result<A, CallError> {
        let timed = async {
            timeout(deadline, call)
                .await
                .unwrap_or_else(|_| Err(late(verb, deadline, Certainty::Unknown)))
        };
        self.counted(verb, timed).await
    }

    async fn refused(&self, status: &Status) -> CallError {
        let failure = failure::from_status(status);
        if failure.reason.is_none() && self.has_ended(status).await {
            return disconnected().into();
        }
        CallError {
            failure,
            code: Some(status.code()),
        }
    }

    /// Whether the connection has ended. A status that was made on this side may be the first that is seen of it: whoever
    /// drives the connection ends its calls before itself.
    async fn has_ended(&self, status: &Status) -> bool {
        let gone = &self.connection.gone;
        let was_made_here = std::error::Error::source(status).is_some();
        gone.is_cancelled() || was_made_here && timeout(A_MOMENT, gone.cancelled()).await.is_ok()
    }

    /// Counts what `call` comes to, and how long it took.
    pub(crate) async fn counted<A>(
        &self,
        verb: Verb,
        call: impl Future<Output = Result<A, CallError>>,
    ) -> Result<A, CallError> {
        let started = clock::now();
        let result = call.await;
        let label = result
            .as_ref()
            .map_or_else(|error| failure::label(&error.failure), |_| "ok");
        let now = clock::now();
        self.observer
            .call(&self.plugin, verb.name, label, now.saturating_since(started));
        let failure = result.as_ref().err().map(|error| &error.failure);
        self.activity.ended(verb.name, failure, now);
        result
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Wire")
            .field("plugin", &self.plugin)
            .finish_non_exhaustive()
    }
}

/// The host's deadline for a call has passed.
pub(crate) fn late(verb: Verb, deadline: Duration, certainty: Certainty) -> CallError {
    let message = format!("{} took longer than {deadline:?}", verb.name);
    own_failure(Reason::DeadlineExceeded, certainty, message).into()
}

fn disconnected() -> Failure {
    own_failure(
        Reason::Disconnected,
        Certainty::Unknown,
        "the connection to the plugin ended during the call",
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole_seconds(15_000, 16)]
    #[case::a_little_was_spent(14_999, 16)]
    #[case::half(14_500, 16)]
    #[case::a_second_was_spent(14_000, 15)]
    #[case::nothing_left(0, 1)]
    fn a_plugin_is_told_whole_seconds_and_at_least_one_more_than_the_host_waits(
        #[case] millis: u64,
        #[case] seconds: u64,
    ) {
        assert_eq!(told(Duration::from_millis(millis)), Duration::from_secs(seconds));
    }
}
