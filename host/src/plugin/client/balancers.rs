//! The verbs of load balancers, and how their requests carry node sets.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::cloud::{
    Capability, Certainty, Deleted, Ensured, Failure, LoadBalancerAnswer, Reason, TargetsAnswer,
};
use bulkhead_core::digest::Digest;
use bulkhead_core::election::Epoch;
use bulkhead_core::service::node_set::NodeSet;
use bulkhead_core::service::request::{BalancerRef, Current, Intent};
use bulkhead_core::service::spec::{Circumstances, Spec};
use bulkhead_proto::v1;
use tokio_util::sync::CancellationToken;

use super::{PluginHandle, only};
use crate::plugin::call::{CallError, Class, own_failure, rpc};
use crate::plugin::convert::{balancers, requests};
use crate::plugin::link::{Ask, Link, Work};

const PUT_NODE_SET: Work = Work::new("PutNodeSet", Class::Handshake, Capability::LbNodesets);
const ENSURE: Work = Work::new("EnsureLoadBalancer", Class::Write, Capability::Lb);
const UPDATE_TARGETS: Work = Work::new("UpdateTargets", Class::Write, Capability::Lb);
const LOOK: Work = Work::new("GetLoadBalancers", Class::Look, Capability::Lb);
const DELETE: Work = Work::new("DeleteLoadBalancer", Class::Write, Capability::Lb);

/// Sets up to this many members go along in every request.
const INLINE_MEMBERS: usize = 8;

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

impl Right<'_> {
    /// As a request over `link` has it, for a slice of work of this length.
    fn wire(&self, link: &Link, soft_deadline: Duration) -> v1::Intent {
        requests::intent(self.intent, &link.name_of_terms.of(self.epoch), soft_deadline)
    }
}

impl PluginHandle {
    /// Makes a Service's load balancer what `what` says.
    ///
    /// # Errors
    /// The call failed; see `bulkhead_core::disposition` for what that means.
    pub async fn ensure(&self, what: Ensure<'_>, right: Right<'_>) -> Result<Ensured, Failure> {
        let link = self.link(ENSURE).await?;
        let spec = wire_spec(what.spec, what.balancer.current.as_ref());
        let request = |node_set, soft_deadline| v1::EnsureLoadBalancerRequest {
            cluster: Some(self.cluster()),
            intent: Some(right.wire(&link, soft_deadline)),
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
            intent: Some(right.wire(link, soft_deadline)),
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
            intent: Some(right.wire(&link, soft_deadline)),
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
