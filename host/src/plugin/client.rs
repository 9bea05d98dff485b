//! What controllers hold of a plugin: its state, and its verbs as functions over the core's values.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{
    Capability, Certainty, Deleted, Description, Ensured, Failure, InstanceAnswer, LoadBalancerAnswer,
    Reason, TargetsAnswer,
};
use bulkhead_core::digest::Digest;
use bulkhead_core::election::Epoch;
use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::gate::GateView;
use bulkhead_core::node::view::NodeView;
use bulkhead_core::service::node_set::NodeSet;
use bulkhead_core::service::request::{BalancerRef, Current, Intent};
use bulkhead_core::service::spec::{Circumstances, Spec};
use bulkhead_proto::v1;
use futures::future::{self, BoxFuture};
use futures::{FutureExt as _, StreamExt as _, stream};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::access::{Access, LinkUse};
use super::activity::{Activity, Calls};
use super::call::{CallError, Class, Verb, own_failure, rpc};
use super::convert::text::clean;
use super::convert::{balancers, instances, requests};
use super::front::Front;
use super::link::{Ask, Link, Work};
use super::session::SessionView;
use super::{Aspect, Settings};
use crate::clock;

const GET_INSTANCES: Work = work("GetInstances", Class::Read, Capability::Instances);
const PUT_NODE_SET: Work = work("PutNodeSet", Class::Handshake, Capability::LbNodesets);
const ENSURE: Work = work("EnsureLoadBalancer", Class::Write, Capability::Lb);
const UPDATE_TARGETS: Work = work("UpdateTargets", Class::Write, Capability::Lb);
const LOOK: Work = work("GetLoadBalancers", Class::Look, Capability::Lb);
const DELETE: Work = work("DeleteLoadBalancer", Class::Write, Capability::Lb);

const fn work(name: &'static str, class: Class, needs: Capability) -> Work {
    Work {
        verb: Verb { name, class },
        needs,
    }
}

/// Batches of one question in flight at once.
const BATCHES: usize = 4;
/// Requests are split above this size.
const BATCH_BYTES: usize = 3 << 20;
/// Sets up to this many members go along in every request.
const INLINE_MEMBERS: usize = 8;

/// A plugin, whatever its state. Clones are the same plugin.
#[derive(Clone, Debug)]
pub struct PluginHandle {
    settings: Arc<Settings>,
    view: watch::Receiver<SessionView>,
    gates: watch::Receiver<GateView>,
    access: watch::Receiver<Access>,
    activity: Arc<Activity>,
}

/// What a load balancer is to become.
#[derive(Clone, Copy, Debug)]
pub struct Ensure<'a> {
    /// Whose it is, and what is known of it.
    pub balancer: &'a BalancerRef,
    /// What it is to be.
    pub spec: &'a Spec,
    /// The spec's digest.
    pub spec_digest: &'a Digest,
    /// Where it may send traffic.
    pub targets: &'a Arc<NodeSet>,
}

/// The right and the wish to write.
#[derive(Clone, Copy, Debug)]
pub struct Right<'a> {
    /// The wish.
    pub intent: &'a Intent,
    /// The term of leadership that gives the right.
    pub epoch: &'a Epoch,
    /// Cancelled when the right is lost: the call is given up.
    pub cancel: &'a CancellationToken,
}

impl PluginHandle {
    pub(crate) fn new(settings: Arc<Settings>, front: &Front) -> Self {
        Self {
            settings,
            view: front.subscribe(),
            gates: front.gatekeeper().subscribe(),
            access: front.access(),
            activity: Arc::clone(&front.gatekeeper().activity),
        }
    }

    /// The plugin's name in metrics and logs.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The state of the session, now and in future.
    pub fn subscribe(&self) -> watch::Receiver<SessionView> {
        self.view.clone()
    }

    /// What the plugin says of itself; `None` without a session.
    pub fn description(&self) -> Option<Arc<Description>> {
        self.view.borrow().description.clone()
    }

    /// The gates, now and in future. They are the same from session to session.
    pub fn gates(&self) -> watch::Receiver<GateView> {
        self.gates.clone()
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.settings.endpoint
    }

    /// What the calls to it come to lately.
    pub fn calls(&self) -> Calls {
        self.activity.calls(clock::now())
    }

    /// Waits until no process may write by a `Lead` of this host: each has answered `Lead(0)`, or was a child and is
    /// dead, or its time is over.
    pub async fn stood_down(&self) {
        let mut view = self.view.clone();
        loop {
            let Some(until) = view.borrow_and_update().led.until() else {
                return;
            };
            let left = until.saturating_since(clock::now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(left) => {}
                // Without an owner nothing changes any more.
                Ok(()) = view.changed() => {}
            }
        }
    }

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
        let calls: Vec<BoxFuture<'_, Vec<Part<'_>>>> = batches(nodes, limit)
            .into_iter()
            .map(|batch| self.ask_batch(&link, batch, &question).boxed())
            .collect();
        let parts = stream::iter(calls).buffered(BATCHES).concat().await;
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
                let halves = (self.ask(link, left, question), self.ask(link, right, question));
                let answers = future::join(halves.0, halves.1).await;
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

    /// Makes a Service's load balancer what `what` says.
    ///
    /// # Errors
    /// The call failed; see `bulkhead_core::disposition` for what that means.
    pub async fn ensure(&self, what: Ensure<'_>, right: Right<'_>) -> Result<Ensured, Failure> {
        let link = self.link(ENSURE).await?;
        let spec = wire_spec(what.spec, what.balancer.current.as_ref());
        let request = |node_set, soft_deadline| v1::EnsureLoadBalancerRequest {
            cluster: Some(self.cluster()),
            intent: Some(requests::intent(
                right.intent,
                &link.name_of_terms.of(right.epoch),
                soft_deadline,
            )),
            r#ref: Some(requests::balancer(what.balancer)),
            spec: Some(spec.clone()),
            spec_digest: what.spec_digest.to_string(),
            node_set: Some(node_set),
        };
        let service = what.balancer.service.to_string();
        let ask = Ask {
            work: ENSURE,
            subject: Some(&service),
            cancel: right.cancel,
        };
        let call = async |node_set| {
            let send = rpc!(ensure_load_balancer);
            link.call(ask, |soft| request(node_set, soft), send, balancers::ensured)
                .await
        };
        let node_set = self.reference(&link, what.targets, right.cancel).await?;
        match call(node_set).await {
            Err(error) if error.wants_the_node_set() => {
                link.sent_sets.forget(what.targets.digest.as_str());
                call(inline(what.targets)).await
            }
            result => result,
        }
        .map_err(|error| error.failure)
    }

    /// Changes the targets of load balancers, an answer for each item, in their order.
    ///
    /// Goes out in one call: more items than the plugin takes are refused.
    ///
    /// # Errors
    /// The whole call failed.
    pub async fn update_targets(
        &self,
        items: &[(&BalancerRef, &Arc<NodeSet>)],
        right: Right<'_>,
    ) -> Result<Vec<TargetsAnswer>, Failure> {
        let link = self.link(UPDATE_TARGETS).await?;
        if items.len() > link.limits.batch_balancers {
            let message = format!(
                "{} items, the plugin takes {}",
                items.len(),
                link.limits.batch_balancers
            );
            return Err(own_failure(Reason::BatchTooLarge, Certainty::NotApplied, message));
        }
        let mut referred = Vec::with_capacity(items.len());
        for (_, set) in items {
            referred.push(self.reference(&link, set, right.cancel).await?);
        }
        match self.send_targets(&link, items, referred, right).await {
            Err(error) if error.wants_the_node_set() => {
                for (_, set) in items {
                    link.sent_sets.forget(set.digest.as_str());
                }
                let in_full = items.iter().map(|(_, set)| inline(set)).collect();
                self.send_targets(&link, items, in_full, right).await
            }
            result => result,
        }
        .map_err(|error| error.failure)
    }

    async fn send_targets(
        &self,
        link: &Link,
        items: &[(&BalancerRef, &Arc<NodeSet>)],
        sets: Vec<v1::NodeSetRef>,
        right: Right<'_>,
    ) -> Result<Vec<TargetsAnswer>, CallError> {
        let item =
            |((balancer, _), set): (&(&BalancerRef, &Arc<NodeSet>), v1::NodeSetRef)| v1::UpdateTargetsItem {
                r#ref: Some(requests::balancer(balancer)),
                node_set: Some(set),
            };
        let request = |soft_deadline| v1::UpdateTargetsRequest {
            cluster: Some(self.cluster()),
            intent: Some(requests::intent(
                right.intent,
                &link.name_of_terms.of(right.epoch),
                soft_deadline,
            )),
            items: items.iter().zip(sets).map(item).collect(),
        };
        let asked: Vec<&BalancerRef> = items.iter().map(|(balancer, _)| *balancer).collect();
        let service = only(&asked).map(|balancer| balancer.service.to_string());
        let ask = Ask {
            work: UPDATE_TARGETS,
            subject: service.as_deref(),
            cancel: right.cancel,
        };
        let read = |response| balancers::updated(&asked, response);
        link.call(ask, request, rpc!(update_targets), read).await
    }

    /// Reads one load balancer and compares it with `fingerprint`, without writing.
    ///
    /// # Errors
    /// The call failed.
    pub async fn look(
        &self,
        balancer: &BalancerRef,
        fingerprint: &str,
    ) -> Result<LoadBalancerAnswer, Failure> {
        let link = self.link(LOOK).await?;
        let query = v1::LoadBalancerQuery {
            r#ref: Some(requests::balancer(balancer)),
            fingerprint: fingerprint.to_owned(),
        };
        let request = v1::GetLoadBalancersRequest {
            cluster: Some(self.cluster()),
            queries: vec![query],
        };
        let (service, never) = (balancer.service.to_string(), CancellationToken::new());
        let ask = Ask {
            work: LOOK,
            subject: Some(&service),
            cancel: &never,
        };
        let read = |response| balancers::looked(balancer, response);
        link.call(ask, |_| request, rpc!(get_load_balancers), read)
            .await
            .map_err(|error| error.failure)
    }

    /// Removes a load balancer with everything that belongs to it.
    ///
    /// # Errors
    /// The call failed.
    pub async fn delete(&self, balancer: &BalancerRef, right: Right<'_>) -> Result<Deleted, Failure> {
        let link = self.link(DELETE).await?;
        let request = |soft_deadline| v1::DeleteLoadBalancerRequest {
            cluster: Some(self.cluster()),
            intent: Some(requests::intent(
                right.intent,
                &link.name_of_terms.of(right.epoch),
                soft_deadline,
            )),
            r#ref: Some(requests::balancer(balancer)),
            policy: v1::DeletePolicy::Delete.into(),
        };
        let service = balancer.service.to_string();
        let ask = Ask {
            work: DELETE,
            subject: Some(&service),
            cancel: right.cancel,
        };
        link.call(ask, request, rpc!(delete_load_balancer), balancers::deleted)
            .await
            .map_err(|error| error.failure)
    }

    /// How a request names `set`: in full if it is small or the plugin knows no other way, else by digest, after the
    /// plugin got it in this session.
    async fn reference(
        &self,
        link: &Link,
        set: &Arc<NodeSet>,
        cancel: &CancellationToken,
    ) -> Result<v1::NodeSetRef, Failure> {
        let by_digest = self
            .view
            .borrow()
            .description
            .as_ref()
            .is_some_and(|it| it.can(Capability::LbNodesets));
        if !by_digest || set.members.len() <= INLINE_MEMBERS {
            return Ok(inline(set));
        }
        let put = async {
            let request = v1::PutNodeSetRequest {
                cluster: Some(self.cluster()),
                node_set: Some(requests::node_set(set)),
            };
            let ask = Ask {
                work: PUT_NODE_SET,
                subject: None,
                cancel,
            };
            link.call(ask, |_| request, rpc!(put_node_set), |_| Ok(())).await
        };
        match link.sent_sets.ensure_put(set.digest.as_str(), put).await {
            Ok(()) => Ok(v1::NodeSetRef {
                set: Some(v1::node_set_ref::Set::Digest(set.digest.to_string())),
            }),
            // A plugin that does not take sets as it should still gets them in full.
            Err(error) if error.failure.reason == Some(Reason::Shut) => Ok(inline(set)),
            // Giving the set beforehand changes nothing in the cloud, whatever came of it.
            Err(error) => Err(Failure {
                certainty: Certainty::NotApplied,
                ..error.failure
            }),
        }
    }

    /// The session, if it takes work: a plugin that is not ready, or not led by this host, is only asked how it is.
    /// While one process replaces another, calls wait for it as long as they might take themselves.
    async fn link(&self, work: Work) -> Result<LinkUse, Failure> {
        let patience = work.verb.class.deadline(&self.settings.timing);
        let link = timeout(patience, Access::pass(self.access.clone()))
            .await
            .ok()
            .flatten();
        let state = self.view.borrow().state;
        link.filter(|_| state.takes_work()).ok_or_else(|| {
            let message = format!("no {}: plugin {} is {state}", work.verb.name, self.name());
            own_failure(Reason::Disconnected, Certainty::NotApplied, clean(&message))
        })
    }

    fn cluster(&self) -> v1::Cluster {
        let cluster = &self.settings.cluster;
        v1::Cluster {
            uid: cluster.uid.clone(),
            name: cluster.name.clone(),
        }
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

fn wire_spec(spec: &Spec, current: Option<&Current>) -> v1::Spec {
    match current {
        Some(current) => requests::spec(spec, &current.circumstances, Some(&current.ingress)),
        None => requests::spec(spec, &Circumstances::default(), None),
    }
}

fn inline(set: &NodeSet) -> v1::NodeSetRef {
    v1::NodeSetRef {
        set: Some(v1::node_set_ref::Set::Inline(requests::node_set(set))),
    }
}

/// The only one, if there is one only.
const fn only<T>(items: &[T]) -> Option<&T> {
    match items {
        [only] => Some(only),
        _ => None,
    }
}
