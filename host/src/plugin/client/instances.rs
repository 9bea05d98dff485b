//! Questions about instances: in as many calls as the plugin's limits ask for, each within its patience.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{Capability, Certainty, Failure, InstanceAnswer, Reason};
use bulkhead_core::node::view::NodeView;
use bulkhead_proto::v1;
use futures::future::{self, BoxFuture};
use futures::{FutureExt as _, StreamExt as _, stream};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::{PluginHandle, only};
use crate::clock;
use crate::plugin::Aspect;
use crate::plugin::call::{CallError, Class, own_failure, rpc};
use crate::plugin::convert::{instances, requests};
use crate::plugin::link::{Ask, Link, Work};

const GET_INSTANCES: Work = Work::new("GetInstances", Class::Read, Capability::Instances);

/// Batches of one question in flight at once.
const BATCHES: usize = 4;
/// Requests are split above this size.
const BATCH_BYTES: usize = 3 << 20;

impl PluginHandle {
    /// Reads the instances of `nodes`: an answer for each, in their order. `max_age` zero asks the cloud itself.
    ///
    /// Goes out in as many calls as the plugin's limits ask for, a few at a time, and is over within twice the deadline of
    /// one: nothing is asked any more when one was not answered in time, or that time has passed.
    ///
    /// # Errors
    /// The first failure, if every call failed. If some passed, the nodes of the others have failed answers.
    pub async fn get_instances(
        &self,
        nodes: &[Arc<NodeView>],
        aspects: &[Aspect],
        max_age: Duration,
    ) -> Result<Vec<InstanceAnswer>, Failure> {
        let link = self.link(GET_INSTANCES).await?;
        let limit = self
            .view
            .borrow()
            .description
            .as_ref()
            .map_or(1, |it| it.max_batch_nodes);
        let question = Question {
            aspects,
            max_age,
            patience: Patience::new(self.settings.timing.read),
        };
        let parts = match *batches(nodes, limit) {
            [batch] => self.ask_batch(&link, batch, &question).await,
            ref batches => {
                let calls: Vec<BoxFuture<'_, Vec<Part<'_>>>> = batches
                    .iter()
                    .map(|batch| self.ask_batch(&link, batch, &question).boxed())
                    .collect();
                stream::iter(calls).buffered(BATCHES).concat().await
            }
        };
        let all_failed = parts.iter().all(|part| part.answers.is_err());
        match parts.iter().find_map(|part| part.answers.as_ref().err()) {
            Some(failure) if all_failed => Err(failure.clone()),
            _ => Ok(parts.into_iter().flat_map(Part::into_items).collect()),
        }
    }

    /// Asks about one batch; in two halves, once, if fewer nodes might pass.
    async fn ask_batch<'a>(
        &self,
        link: &Link,
        batch: &'a [Arc<NodeView>],
        question: &Question<'_>,
    ) -> Vec<Part<'a>> {
        let (left, right) = batch.split_at(batch.len() / 2);
        let parts = match self.ask(link, batch, question).await {
            Err(error) if batch.len() > 1 && error.might_pass_in_parts() => {
                let halves = future::join(self.ask(link, left, question), self.ask(link, right, question));
                // Rare, and larger than all else here.
                let answers = halves.boxed().await;
                vec![(left, answers.0), (right, answers.1)]
            }
            whole => vec![(batch, whole)],
        };
        let part = |(nodes, answers): (&'a [Arc<NodeView>], Result<_, CallError>)| Part {
            nodes,
            answers: answers.map_err(|error| error.failure),
        };
        parts.into_iter().map(part).collect()
    }

    /// One call, unless there is no point in it any more.
    async fn ask(
        &self,
        link: &Link,
        nodes: &[Arc<NodeView>],
        question: &Question<'_>,
    ) -> Result<Vec<InstanceAnswer>, CallError> {
        question.patience.check()?;
        let result = self.call_instances(link, nodes, question).await;
        if let Err(error) = &result {
            question.patience.met(&error.failure);
        }
        result
    }

    async fn call_instances(
        &self,
        link: &Link,
        nodes: &[Arc<NodeView>],
        question: &Question<'_>,
    ) -> Result<Vec<InstanceAnswer>, CallError> {
        let request = v1::GetInstancesRequest {
            cluster: Some(self.cluster()),
            nodes: nodes.iter().map(|node| requests::node(node)).collect(),
            aspects: question
                .aspects
                .iter()
                .map(|aspect| wire_aspect(*aspect).into())
                .collect(),
            max_age: Some(requests::duration(question.max_age)),
        };
        let never = CancellationToken::new();
        let ask = Ask {
            work: GET_INSTANCES,
            subject: only(nodes).map(|node| node.name.0.as_str()),
            cancel: &never,
        };
        let read = |response| instances::answers(nodes, question.aspects, response);
        link.call(ask, |_| request, rpc!(get_instances), read).await
    }
}

/// What is asked about each node.
struct Question<'a> {
    aspects: &'a [Aspect],
    max_age: Duration,
    patience: Patience,
}

/// Nodes that were asked about in one call, and what it came to.
struct Part<'a> {
    nodes: &'a [Arc<NodeView>],
    answers: Result<Vec<InstanceAnswer>, Failure>,
}

impl Part<'_> {
    fn into_items(self) -> Vec<InstanceAnswer> {
        self.answers
            .unwrap_or_else(|failure| vec![InstanceAnswer::Failed(failure); self.nodes.len()])
    }
}

/// How long a plugin is asked on.
struct Patience {
    started: Instant,
    limit: Duration,
    /// What said that the plugin does not answer.
    silence: OnceLock<Failure>,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self {
            started: clock::now(),
            limit,
            silence: OnceLock::new(),
        }
    }

    /// A call failed.
    fn met(&self, failure: &Failure) {
        if matches!(
            failure.reason,
            Some(Reason::DeadlineExceeded | Reason::Disconnected | Reason::Shut)
        ) {
            self.silence.get_or_init(|| failure.clone());
        }
    }

    /// Whether there is a point in one more call.
    fn check(&self) -> Result<(), Failure> {
        if let Some(failure) = self.silence.get() {
            return Err(failure.clone());
        }
        if clock::now().saturating_since(self.started) < self.limit {
            return Ok(());
        }
        let message = format!("not asked: others took longer than {:?}", self.limit);
        Err(own_failure(
            Reason::DeadlineExceeded,
            Certainty::NotApplied,
            message,
        ))
    }
}

/// Splits `nodes` so that no part has more than `limit` items, or more than [`BATCH_BYTES`] unless it is one item.
fn batches(nodes: &[Arc<NodeView>], limit: usize) -> Vec<&[Arc<NodeView>]> {
    if nodes.len() == 1 {
        return vec![nodes];
    }
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0_usize);
    for (index, node) in nodes.iter().enumerate() {
        let size = requests::node(node).encoded_len();
        let is_full = index - start >= limit || bytes.saturating_add(size) > BATCH_BYTES;
        if is_full && index > start {
            parts.extend(nodes.get(start..index));
            (start, bytes) = (index, 0);
        }
        bytes = bytes.saturating_add(size);
    }
    parts.extend(nodes.get(start..).filter(|rest| !rest.is_empty()));
    parts
}

const fn wire_aspect(aspect: Aspect) -> v1::Aspect {
    match aspect {
        Aspect::Existence => v1::Aspect::Existence,
        Aspect::Power => v1::Aspect::Power,
        Aspect::Metadata => v1::Aspect::Metadata,
    }
}
