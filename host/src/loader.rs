//! Batching without batch controllers: controllers ask for one instance at a time, the loader merges what is asked
//! within a few milliseconds into one call, and asks about nodes whose turn to be initialised is still to come in the
//! same breath. A thousand nodes that join cost tens of calls, however few of them are worked on at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{Certainty, Failure, InstanceAnswer, Reason};
use bulkhead_core::ids::Uid;
use bulkhead_core::node::plan::{Need, need};
use bulkhead_core::node::view::NodeView;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::controllers::Effects;
use crate::kube::stores::Store;
use crate::plugin::{Aspect, PluginHandle};

/// How long the first question of a batch waits for others.
const GATHER: Duration = Duration::from_millis(5);
/// Questions that wait to be gathered; whoever asks more waits with them.
const WAITING: usize = 1024;
/// Batches in flight at once.
const BATCHES: usize = 8;
/// Nodes gathered into one batch; the plugin's own limit splits it further.
const BATCH: usize = 200;
/// How long an answer that was asked for ahead of its node's turn is good for that turn.
const FRESH: Duration = Duration::from_secs(10);

/// Asks a plugin for instances. Clones share the batches.
#[derive(Clone, Debug)]
pub struct InstanceLoader {
    questions: mpsc::Sender<Question>,
    ahead: Ahead,
}

/// Answers that nobody has asked for yet, with the time of the question.
type Ahead = Arc<Mutex<HashMap<Uid, (Instant, oneshot::Receiver<InstanceAnswer>)>>>;

#[derive(Debug)]
struct Question {
    node: Arc<NodeView>,
    answer: oneshot::Sender<InstanceAnswer>,
}

/// The task behind an [`InstanceLoader`].
#[derive(Debug)]
pub struct Batches {
    questions: mpsc::Receiver<Question>,
    effects: Effects,
    nodes: Store<NodeView>,
    ahead: Ahead,
    /// When a node's instance was last asked for.
    asked: HashMap<Uid, Instant>,
}

/// A loader and its task. Of `nodes`, those that wait to be initialised are asked about ahead of their turn.
pub fn loader(effects: Effects, nodes: Store<NodeView>) -> (InstanceLoader, Batches) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let ahead = Ahead::default();
    let loader = InstanceLoader {
        questions: sender,
        ahead: Arc::clone(&ahead),
    };
    (
        loader,
        Batches {
            questions: receiver,
            effects,
            nodes,
            ahead,
            asked: HashMap::new(),
        },
    )
}

impl InstanceLoader {
    /// What the plugin says of `node`'s instance: asked now, or, if it was found, a few seconds ahead.
    pub async fn load(&self, node: Arc<NodeView>) -> InstanceAnswer {
        if let Some(found) = self.found_ahead(&node.uid).await {
            return found;
        }
        let (answer, answered) = oneshot::channel();
        if self.questions.send(Question { node, answer }).await.is_err() {
            return InstanceAnswer::Failed(ended());
        }
        answered.await.unwrap_or_else(|_| InstanceAnswer::Failed(ended()))
    }

    /// The answer that was asked for ahead, once, if it is fresh and the instance was found.
    async fn found_ahead(&self, uid: &Uid) -> Option<InstanceAnswer> {
        let ahead = self
            .ahead
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
        let (asked, answered) = ahead?;
        let answer = answered.await.ok()?;
        let is_good = matches!(answer, InstanceAnswer::Found(_)) && is_fresh(asked, clock::now());
        is_good.then_some(answer)
    }
}

fn is_fresh(asked: Instant, now: Instant) -> bool {
    now.saturating_since(asked) < FRESH
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
                    in_flight.push(ask(self.effects.plugin.clone(), batch));
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
        self.add_those_to_come(&mut batch);
        batch
    }

    /// Fills a batch with nodes that wait to be initialised and were not asked about lately.
    fn add_those_to_come(&mut self, batch: &mut Vec<Question>) {
        let now = clock::now();
        self.asked.retain(|_, asked| is_fresh(*asked, now));
        self.asked
            .extend(batch.iter().map(|question| (question.node.uid.clone(), now)));
        let (Some(plugin), true) = (
            self.effects.sight(),
            batch.iter().any(|question| question.node.is_uninitialized()),
        ) else {
            return;
        };
        let waits = |node: &Arc<NodeView>| {
            !self.asked.contains_key(&node.uid) && need(node, &plugin.territory) == Need::Initialise
        };
        let room = BATCH.saturating_sub(batch.len());
        let to_come: Vec<_> = self
            .nodes
            .snapshot()
            .into_iter()
            .filter(waits)
            .take(room)
            .collect();
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.retain(|_, (asked, _)| is_fresh(*asked, now));
        for node in to_come {
            let (answer, answered) = oneshot::channel();
            ahead.insert(node.uid.clone(), (now, answered));
            self.asked.insert(node.uid.clone(), now);
            batch.push(Question { node, answer });
        }
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
