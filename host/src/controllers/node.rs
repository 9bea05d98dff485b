//! The node controller: initialises nodes and keeps what it wrote on them.
//!
//! Reads the node store and the plugin's instances; decides in `bulkhead_core::node::plan`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{Capability, InstanceAnswer};
use bulkhead_core::election::Epoch;
use bulkhead_core::ids::{NodeName, Uid};
use bulkhead_core::node::plan::{
    Action, Conclusion, Need, Observed, Plan, complaint, conclude, need, plan, wakes,
};
use bulkhead_core::node::view::NodeView;
use bulkhead_core::outcome::{Next, Notice, Told, WriteFailure};
use bulkhead_core::territory::Territory;
use tokio::sync::watch;

use self::claims::{Claim, Claims};
use super::lane::Controller;
use super::{CONFLICTS, Effects, STEPS};
use crate::clock;
use crate::kube::events::{EventSpec, Regarding};
use crate::kube::stores::{Store, Subscription};
use crate::kube::writer::NodePatch;
use crate::loader::InstanceLoader;
use crate::metrics::NodeMetrics;
use crate::queue::Queue;

mod claims;

/// Initialises nodes and keeps what it wrote on them.
#[derive(Debug)]
pub struct NodeController {
    nodes: Store<NodeView>,
    loader: InstanceLoader,
    effects: Effects,
    queue: Queue<NodeName>,
    refresh: watch::Receiver<Duration>,
    metrics: NodeMetrics,
    memories: Mutex<HashMap<NodeName, Memory>>,
    claims: Claims,
    /// Keeps the queue up to date.
    _follows: Subscription,
}

/// What is remembered of one node.
#[derive(Debug)]
struct Memory {
    uid: Uid,
    told: Told,
    /// The version of the object that was found as it should be, and until when it need not be compared again.
    settled: Option<(String, Instant)>,
}

impl Memory {
    fn new(uid: Uid) -> Self {
        Self {
            uid,
            told: Told::default(),
            settled: None,
        }
    }
}

impl NodeController {
    /// A controller whose queue follows `nodes` from now on. Initialised nodes are compared with their instances
    /// every `refresh`.
    pub fn new(
        nodes: Store<NodeView>,
        loader: InstanceLoader,
        effects: Effects,
        queue: Queue<NodeName>,
        refresh: watch::Receiver<Duration>,
        metrics: NodeMetrics,
    ) -> Arc<Self> {
        let keys = queue.clone();
        let follows = nodes.on_change(move |old, new| match (old, new) {
            // Somebody waits for a new node.
            (None, Some(new)) if wakes(None, new) => keys.add_now(new.name.clone()),
            (Some(old), Some(new)) if wakes(Some(old), new) => keys.add(new.name.clone()),
            (Some(old), None) => keys.retry(old.name.clone()),
            _ => {}
        });
        Arc::new(Self {
            nodes,
            loader,
            effects,
            queue,
            refresh,
            metrics,
            memories: Mutex::default(),
            claims: Claims::default(),
            _follows: follows,
        })
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<NodeName, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long `node`, which needs no more than a refresh, may still be left alone: what this process wrote comes back
    /// as a change, and must not cost another question to the cloud.
    fn settled_for(&self, node: &NodeView) -> Option<Duration> {
        let memories = self.memories();
        let memory = memories.get(&node.name).filter(|memory| memory.uid == node.uid)?;
        let (version, until) = memory.settled.as_ref()?;
        let left = until.saturating_since(clock::now());
        (*version == node.resource_version && !left.is_zero()).then_some(left)
    }

    fn settle(&self, node: &NodeView, pause: Duration) {
        if let Some(memory) = self.memories().get_mut(&node.name) {
            memory.settled = Some((node.resource_version.clone(), clock::now() + pause));
        }
    }

    /// The node is there and the plugin has been asked: plans and performs until there is nothing left to do now.
    async fn converge(
        &self,
        mut node: Arc<NodeView>,
        answer: &InstanceAnswer,
        territory: &Territory,
    ) -> Next {
        // Held until the store knows what was written.
        let claim = self.claim(&node, answer);
        let refresh = *self.refresh.borrow();
        let mut conflicts = 0;
        for _ in 0..STEPS {
            let planned = plan(&Observed {
                node: &node,
                answer,
                territory,
                claimed_by: claim.as_ref().err(),
                refresh,
                age: age(&node),
            });
            let action = match planned {
                Plan::Write(action) => action,
                Plan::Rest { notices, next } => {
                    let next = spread(next, refresh);
                    let is_well = notices.is_empty();
                    self.tell(&node, &notices, next);
                    if let Next::After(pause) = next
                        && is_well
                    {
                        self.settle(&node, pause);
                    }
                    return next;
                }
            };
            let written = self.perform(&node.name, &action).await;
            match conclude(&action, written.as_ref().map(|_| ())) {
                Conclusion::Again { notices } => {
                    self.record(&node, &action, notices);
                    let Ok(view) = written else {
                        return Next::RETRY;
                    };
                    self.nodes.absorb(view.clone());
                    node = Arc::new(view);
                }
                Conclusion::Reread if conflicts == CONFLICTS => return Next::RETRY,
                Conclusion::Reread => match self.effects.writer.read_node(&node.name).await {
                    Ok(Some(view)) if view.uid == node.uid && need(&view, territory) != Need::Nothing => {
                        conflicts += 1;
                        self.nodes.absorb(view.clone());
                        node = Arc::new(view);
                    }
                    // Gone, or another node of that name: the watch brings the key back.
                    Ok(_) => return Next::AwaitChange,
                    Err(error) => {
                        tracing::debug!(node = %node.name, %error, "reading the node failed");
                        return Next::RETRY;
                    }
                },
                Conclusion::Rest { notices, next } => {
                    if let Err(failure) = &written {
                        tracing::debug!(node = %node.name, ?failure, "writing the node failed");
                    }
                    self.tell(&node, &notices, next);
                    return next;
                }
            }
        }
        Next::RETRY
    }

    async fn perform(&self, name: &NodeName, action: &Action) -> Result<NodeView, WriteFailure> {
        let writer = &self.effects.writer;
        match action {
            Action::WriteAddresses { uid, addresses } => {
                self.effects
                    .write(writer.patch_node_addresses(name, uid, addresses))
                    .await
            }
            Action::Initialise {
                guard,
                provider_id,
                labels,
                taints,
            } => {
                let patch = NodePatch {
                    provider_id: provider_id.clone().map(String::from),
                    labels: labels
                        .iter()
                        .map(|(key, value)| (key.clone(), Some(value.clone())))
                        .collect(),
                    taints: Some(taints.clone()),
                };
                self.effects.write(writer.patch_node(name, guard, &patch)).await
            }
            Action::RepairLabels { guard, labels } => {
                let patch = NodePatch {
                    labels: labels
                        .iter()
                        .map(|(key, value)| (key.clone(), Some(value.clone())))
                        .collect(),
                    ..NodePatch::default()
                };
                self.effects.write(writer.patch_node(name, guard, &patch)).await
            }
        }
    }

    /// Claims the provider ID that the plugin gives for a node without one; or the node that it belongs to, or is
    /// about to.
    fn claim(&self, node: &NodeView, answer: &InstanceAnswer) -> Result<Option<Claim<'_>>, NodeName> {
        let InstanceAnswer::Found(instance) = answer else {
            return Ok(None);
        };
        if node.provider_id.is_some() {
            return Ok(None);
        }
        let claim = self.claims.claim(&instance.provider_id, &node.name)?;
        // After the claim: whoever held it before is in the store now.
        let owns = |other: &Arc<NodeView>| {
            other.name != node.name && other.provider_id.as_deref() == Some(instance.provider_id.as_str())
        };
        match self.nodes.find(owns) {
            Some(owner) => Err(owner.name.clone()),
            None => Ok(Some(claim)),
        }
    }

    fn record(&self, node: &NodeView, action: &Action, notices: Vec<Notice>) {
        match action {
            Action::Initialise { .. } => {
                let age = age(node).as_secs_f64();
                self.metrics.initial_sync_delay.observe(age);
                self.metrics.taint_removal_delay.observe(age);
                tracing::info!(node = %node.name, "node initialised");
            }
            Action::WriteAddresses { .. } | Action::RepairLabels { .. } => {
                tracing::debug!(node = %node.name, ?action, "node written");
            }
        }
        self.emit(node, notices);
    }

    /// Tells what was not told before; a node at rest has nothing left to complain about.
    fn tell(&self, node: &NodeView, notices: &[Notice], next: Next) {
        let news = {
            let mut memories = self.memories();
            let memory = memories
                .entry(node.name.clone())
                .or_insert_with(|| Memory::new(node.uid.clone()));
            if memory.uid != node.uid || (notices.is_empty() && !matches!(next, Next::Backoff(_))) {
                *memory = Memory::new(node.uid.clone());
            }
            memory.told.news(notices)
        };
        for notice in &news {
            tracing::warn!(node = %node.name, "{}", notice.note);
        }
        self.emit(node, news);
    }

    fn emit(&self, node: &NodeView, notices: Vec<Notice>) {
        for notice in notices {
            let regarding = Regarding::node(&node.name, &node.uid);
            self.effects
                .events
                .emit(EventSpec::from_notice(regarding, "Initialise", notice));
        }
    }
}

impl Controller for NodeController {
    type Key = NodeName;

    const NAME: &'static str = "cloud-node-controller";
    const CAPABILITY: Capability = Capability::Instances;

    fn queue(&self) -> &Queue<NodeName> {
        &self.queue
    }

    fn begin_term(&self, _epoch: &Epoch) {
        self.memories().clear();
    }

    fn add_all(&self) {
        for node in self.nodes.snapshot() {
            self.queue.add(node.name.clone());
        }
    }

    fn tick(&self) {
        let Some(plugin) = self.effects.sight() else {
            return;
        };
        let waits = |node: &&Arc<NodeView>| need(node, &plugin.territory) == Need::Initialise;
        let waiting = self.nodes.snapshot().iter().filter(waits).count();
        self.metrics
            .uninitialized(self.effects.plugin.name())
            .set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    async fn pass(&self, name: &NodeName) -> Next {
        let Some(node) = self.nodes.get(name) else {
            self.memories().remove(name);
            return Next::AwaitChange;
        };
        let Some(plugin) = self.effects.sight() else {
            return Next::RETRY;
        };
        let territory = &*plugin.territory;
        match need(&node, territory) {
            Need::Nothing => {
                let notices: Vec<Notice> = complaint(&node, territory).into_iter().collect();
                self.tell(&node, &notices, Next::AwaitChange);
                return Next::AwaitChange;
            }
            Need::Initialise => {}
            Need::Refresh => {
                if let Some(left) = self.settled_for(&node) {
                    return Next::After(left);
                }
            }
        }
        let answer = self.loader.load(Arc::clone(&node)).await;
        // The object may have changed while the cloud was asked: decide on what it is now.
        match self.nodes.get(name) {
            Some(now) if now.uid == node.uid => {
                if need(&now, territory) == Need::Nothing {
                    return Next::AwaitChange;
                }
                self.converge(now, &answer, territory).await
            }
            Some(_) => Next::After(Duration::ZERO),
            None => Next::AwaitChange,
        }
    }
}

/// How long ago the Node was created, by this machine's wall clock.
fn age(node: &NodeView) -> Duration {
    let micros = clock::wall().0.saturating_sub(node.created_at.0);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Nodes that were initialised together are not refreshed together.
fn spread(next: Next, refresh: Duration) -> Next {
    match next {
        Next::After(pause) if pause == refresh => Next::After(refresh.mul_f64(rand::random_range(0.8..1.2))),
        Next::AwaitChange | Next::After(_) | Next::Backoff(_) => next,
    }
}
