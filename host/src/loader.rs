//! Batching without batch controllers: controllers ask for one instance at a time, the loader merges what is asked
//! within a few milliseconds into one call. A thousand nodes that join cost tens of calls.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::cloud::{Certainty, Failure, InstanceAnswer, Reason};
use bulkhead_core::node::view::NodeView;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::plugin::{Aspect, PluginHandle};

/// How long the first question of a batch waits for others.
const GATHER: Duration = Duration::from_millis(5);
/// Questions that wait to be gathered; whoever asks more waits with them.
const WAITING: usize = 1024;
/// Batches in flight at once.
const BATCHES: usize = 8;
/// Nodes gathered into one batch; the plugin's own limit splits it further.
const BATCH: usize = 200;

/// Asks a plugin for instances. Clones share the batches.
#[derive(Clone, Debug)]
pub struct InstanceLoader {
    questions: mpsc::Sender<Question>,
}

#[derive(Debug)]
struct Question {
    node: Arc<NodeView>,
    answer: oneshot::Sender<InstanceAnswer>,
}

/// The task behind an [`InstanceLoader`].
#[derive(Debug)]
pub struct Batches {
    questions: mpsc::Receiver<Question>,
    plugin: PluginHandle,
}

/// A loader and its task.
pub fn loader(plugin: PluginHandle) -> (InstanceLoader, Batches) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (InstanceLoader { questions: sender }, Batches { questions: receiver, plugin })
}

impl InstanceLoader {
    /// What the plugin says of `node`'s instance, asked now.
    pub async fn load(&self, node: Arc<NodeView>) -> InstanceAnswer {
        let (answer, answered) = oneshot::channel();
        if self.questions.send(Question { node, answer }).await.is_err() {
            return InstanceAnswer::Failed(ended());
        }
        answered.await.unwrap_or_else(|_| InstanceAnswer::Failed(ended()))
    }
}

/// The loader's task has ended: so does the host.
fn ended() -> Failure {
    Failure {
        reason: Some(Reason::Cancelled),
        certainty: Certainty::NotApplied,
        message: "the host is about to end".to_owned(),
        retry_after: None,
    }
}

impl Batches {
    /// Asks until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut in_flight = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = in_flight.next() => {}
                Some(first) = self.questions.recv(), if in_flight.len() < BATCHES => {
                    let batch = self.gather(first).await;
                    in_flight.push(ask(self.plugin.clone(), batch));
                }
                // Nobody is left to ask, and nothing is in flight.
                else => return stop.cancelled().await,
            }
        }
    }

    /// `first`, and what comes within [`GATHER`].
    async fn gather(&mut self, first: Question) -> Vec<Question> {
        let mut batch = vec![first];
        let end = tokio::time::sleep(GATHER);
        tokio::pin!(end);
        while batch.len() < BATCH {
            tokio::select! {
                () = &mut end => break,
                question = self.questions.recv() => match question {
                    Some(question) => batch.push(question),
                    None => break,
                },
            }
        }
        batch
    }
}

/// Asks about one batch and hands out the answers.
async fn ask(plugin: PluginHandle, batch: Vec<Question>) {
    let nodes: Vec<Arc<NodeView>> = batch.iter().map(|question| Arc::clone(&question.node)).collect();
    let aspects = [Aspect::Existence, Aspect::Power, Aspect::Metadata];
    let answers = match plugin.get_instances(&nodes, &aspects, Duration::ZERO).await {
        Ok(answers) => answers,
        Err(failure) => vec![InstanceAnswer::Failed(failure); batch.len()],
    };
    for (question, answer) in batch.into_iter().zip(answers) {
        // Whoever asked may have given up: nobody is left to tell.
        drop(question.answer.send(answer));
    }
}
