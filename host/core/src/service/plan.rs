//! What one Service needs next: the whole policy of the service controller, readable top to bottom.
//!
//! A load balancer exists only while a finalizer of ours is on the Service: the finalizer goes on before the first
//! cloud call and comes off when nothing is left. A plan has at most one step; what it returns is in the memory or
//! the next observation, and the plan after a finished one is empty.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::cloud::{Description, Failure, LoadBalancerAnswer, Resource};
use crate::digest::Digest;
use crate::disposition::{CallKind, after_failure, deserves_notice};
use crate::ids::{Guard, Mark, ServiceKey, Uid};
use crate::outcome::{Next, Notice, SLOW, Told, message_of};
use crate::ownership::{ServiceOwner, of_service, our_finalizers};
use crate::service::request::{BalancerRef, Current, Intent, IntentReason};
use crate::service::spec::Spec;
use crate::service::targets::{Selection, explain_empty};
use crate::service::view::{Ingress, ServiceView};
use crate::territory::Territory;

mod conclude;

pub use conclude::{Conclusion, Performed, Then, conclude};

/// How long upstream's finalizer on a Service that is no LoadBalancer is kept, although the plugin knows no load
/// balancer of it: another controller may be about to use it (design.md 7).
const UNKNOWN_FINALIZER_GRACE: Duration = Duration::from_secs(600);

/// What this process remembers of one Service, by its UID. All of it can be lost: then the plugin finds by mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What was last sent to Ensure, whatever came of it.
    pub sent: Option<Arc<Spec>>,
    /// What is known to stand in the cloud.
    pub standing: Standing,
    /// Every cloud resource that the plugin reported.
    pub resources: Vec<Resource>,
    /// The write that has not concluded.
    pub open: Option<Open>,
    /// The last write may have been applied: the next step is a read.
    pub is_unsure: bool,
    /// It waits for room in the cloud: a quota, or an address.
    pub is_starved: bool,
    /// What people were told.
    pub told: Told,
    /// When the plugin first said that it knows nothing behind upstream's finalizer.
    pub unknown_since: Option<Instant>,
}

/// What is known to stand in the cloud for a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// This process has not seen a write conclude.
    #[default]
    Unknown,
    /// The load balancer, as of this.
    Balancer(Box<Applied>),
    /// It stood, and somebody removed it.
    Vanished,
    /// Another controller does it.
    Elsewhere {
        /// Digest of the spec for which the plugin said so.
        spec_digest: Digest,
    },
    /// Nothing.
    Nothing,
}

/// What a load balancer was last made from, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Digest of the spec.
    pub spec_digest: Digest,
    /// The plugin's behaviour digest at that time.
    pub behaviour_digest: String,
    /// Digest of the node set.
    pub node_set_digest: Digest,
    /// The addresses.
    pub ingress: Vec<Ingress>,
}

/// A write that has not concluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// What it is for.
    pub purpose: Purpose,
    /// Its request id.
    pub intent: Intent,
}

/// What an intent is for: another purpose is another intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Ensure a spec, by digest.
    Ensure(Digest),
    /// Give the load balancer a node set, by digest.
    Targets(Digest),
    /// Delete.
    Delete,
}

/// Whether a change from `old` to `new` asks for something else, so that earlier failures no longer count.
pub fn is_another_wish(old: Option<&ServiceView>, new: Option<&ServiceView>, plugin: &Description) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.uid != new.uid
                || old.is_deleting() != new.is_deleting()
                || old.is_load_balancer != new.is_load_balancer
                || old.spec.digest(plugin) != new.spec.digest(plugin)
        }
        (None, _) | (_, None) => true,
    }
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The Service; `None`: it is gone.
    pub service: Option<&'a ServiceView>,
    /// Its key, also where it is gone.
    pub key: &'a ServiceKey,
    /// The UID that this pass is about.
    pub uid: &'a Uid,
    /// The mark of role "" for that UID.
    pub mark: &'a Mark,
    /// What this process remembers of that UID.
    pub memory: &'a Memory,
    /// What the plugin said of itself.
    pub plugin: &'a Description,
    /// What the plugin owns.
    pub territory: &'a Territory,
    /// The nodes to send traffic to.
    pub targets: &'a Selection,
    /// What a [`Step::Look`] of this pass showed.
    pub looked: Option<&'a LoadBalancerAnswer>,
    /// A request id that was never used, for a new intent.
    pub fresh_request_id: &'a str,
    /// Now.
    pub now: Instant,
}

/// What to do now, and what to tell people before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The step.
    pub step: Step,
    /// What to tell people before it is taken.
    pub notices: Vec<Notice>,
}

/// One step of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Rest(Next),
    /// Nothing is left that this process should remember.
    Forget,
    /// Replaces `metadata.finalizers`.
    WriteFinalizers {
        /// The version it was decided on.
        guard: Guard,
        /// The whole list.
        finalizers: Vec<String>,
    },
    /// Replaces `status.loadBalancer.ingress`.
    WriteStatus {
        /// The object it was decided for.
        uid: Uid,
        /// The whole list.
        ingress: Vec<Ingress>,
    },
    /// Reads the load balancer from the cloud.
    Look(Box<BalancerRef>),
    /// Makes the load balancer what the spec says.
    Ensure {
        /// Which one.
        reference: Box<BalancerRef>,
        /// What it is to be.
        spec: Arc<Spec>,
        /// The spec's digest.
        spec_digest: Digest,
        /// With what right.
        intent: Intent,
    },
    /// Changes its targets only.
    UpdateTargets {
        /// Which one.
        reference: Box<BalancerRef>,
        /// With what right.
        intent: Intent,
    },
    /// Removes it with all its children.
    Delete {
        /// Which one.
        reference: Box<BalancerRef>,
        /// With what right.
        intent: Intent,
    },
}

/// Decides what to do about one Service.
pub fn plan(observed: &Observed<'_>) -> Plan {
    let remembers = observed.memory.remembers();
    let Some(service) = observed.service else {
        return if remembers {
            tear_down(observed, None)
        } else {
            quiet(Step::Forget)
        };
    };
    match of_service(service, observed.territory) {
        ServiceOwner::Wants(finalizer) if service.has_finalizer(finalizer) => keep(observed, service),
        ServiceOwner::Wants(finalizer) => quiet(with_finalizer(service, finalizer)),
        ServiceOwner::Leaves => tear_down(observed, Some(service)),
        // What this process made is removed, whatever the Service has become since.
        ServiceOwner::MayLeave | ServiceOwner::Foreign if remembers => tear_down(observed, Some(service)),
        ServiceOwner::MayLeave => may_leave(observed, service),
        ServiceOwner::Foreign => quiet(Step::Forget),
    }
}

/// There is to be no load balancer: removes it, then every finalizer of ours.
fn tear_down(observed: &Observed<'_>, service: Option<&ServiceView>) -> Plan {
    if observed.memory.standing != Standing::Nothing {
        return delete(observed, service);
    }
    match service {
        // Whoever holds the object now must not show an address that is given to others next.
        Some(service) if service.is_deleting() && !service.ingress.is_empty() => quiet(Step::WriteStatus {
            uid: service.uid.clone(),
            ingress: Vec::new(),
        }),
        Some(service) if !our_finalizers(service, observed.territory).is_empty() => {
            quiet(without_finalizers(observed, service))
        }
        Some(_) | None => quiet(Step::Forget),
    }
}

/// The Service wants a load balancer, and our finalizer is on.
fn keep(observed: &Observed<'_>, service: &ServiceView) -> Plan {
    let digest = service.spec.digest(observed.plugin);
    match &observed.memory.standing {
        Standing::Elsewhere { spec_digest } if *spec_digest == digest => quiet(Step::Rest(Next::AwaitChange)),
        Standing::Balancer(applied)
            if applied.spec_digest == digest
                && applied.behaviour_digest == observed.plugin.behaviour_digest =>
        {
            follow(observed, service, applied)
        }
        Standing::Unknown
        | Standing::Balancer(_)
        | Standing::Vanished
        | Standing::Elsewhere { .. }
        | Standing::Nothing => ensure(observed, service, digest),
    }
}

/// The load balancer stands as the spec says: its targets follow the nodes, the status follows the load balancer.
fn follow(observed: &Observed<'_>, service: &ServiceView, applied: &Applied) -> Plan {
    if service.ingress != applied.ingress {
        return quiet(Step::WriteStatus {
            uid: service.uid.clone(),
            ingress: applied.ingress.clone(),
        });
    }
    if observed.targets.set.digest == applied.node_set_digest {
        return quiet(Step::Rest(Next::AwaitChange));
    }
    let purpose = Purpose::Targets(observed.targets.set.digest.clone());
    let step = Step::UpdateTargets {
        reference: Box::new(reference(observed, Some(service))),
        intent: intent(observed, &purpose, IntentReason::Changed),
    };
    Plan {
        step,
        notices: no_targets(observed.targets),
    }
}

fn ensure(observed: &Observed<'_>, service: &ServiceView, digest: Digest) -> Plan {
    if observed.memory.is_unsure {
        match observed.looked {
            None => return quiet(Step::Look(Box::new(reference(observed, Some(service))))),
            Some(LoadBalancerAnswer::Failed(failure)) => return unreadable(failure),
            // Whatever stands there, Ensure makes it what it is to be.
            Some(_) => {}
        }
    }
    let purpose = Purpose::Ensure(digest.clone());
    let intent = intent(observed, &purpose, reason_to_ensure(observed, service));
    let mut notices = no_targets(observed.targets);
    match intent.reason {
        IntentReason::Changed => notices.push(Notice::normal(ENSURING, "Ensuring load balancer")),
        IntentReason::Drift => notices.push(Notice::normal(
            ENSURING,
            "Ensuring load balancer: it was removed from the cloud and is made anew",
        )),
        // After a restart it most likely stands already: that is no news to anybody.
        IntentReason::Takeover | IntentReason::Retry => {}
    }
    let step = Step::Ensure {
        reference: Box::new(reference(observed, Some(service))),
        spec: Arc::new(service.spec.clone()),
        spec_digest: digest,
        intent,
    };
    Plan { step, notices }
}

fn reason_to_ensure(observed: &Observed<'_>, service: &ServiceView) -> IntentReason {
    match observed.memory.standing {
        Standing::Vanished => IntentReason::Drift,
        Standing::Unknown if !service.ingress.is_empty() => IntentReason::Takeover,
        Standing::Unknown | Standing::Balancer(_) | Standing::Elsewhere { .. } | Standing::Nothing => {
            IntentReason::Changed
        }
    }
}

/// The plugin cannot say what stands in the cloud.
fn unreadable(failure: &Failure) -> Plan {
    let notices = if deserves_notice(failure) {
        vec![Notice::warning(
            SYNC_FAILED,
            format!("Error syncing load balancer: {}", message_of(failure)),
        )]
    } else {
        Vec::new()
    };
    Plan {
        step: Step::Rest(after_failure(failure, CallKind::Read)),
        notices,
    }
}

/// Upstream's finalizer on a Service that is no LoadBalancer, of which this process remembers nothing.
fn may_leave(observed: &Observed<'_>, service: &ServiceView) -> Plan {
    let finalizer = crate::service::view::CLEANUP_FINALIZER;
    match observed.looked {
        None => quiet(Step::Look(Box::new(reference(observed, Some(service))))),
        Some(
            LoadBalancerAnswer::InSync | LoadBalancerAnswer::Drifted(_) | LoadBalancerAnswer::Unverified,
        ) => delete(observed, Some(service)),
        Some(LoadBalancerAnswer::Absent(proof)) if proof.complete => {
            let since = observed.memory.unknown_since.unwrap_or(observed.now);
            let waited = observed.now.saturating_since(since);
            if waited >= UNKNOWN_FINALIZER_GRACE {
                return quiet(without_finalizers(observed, service));
            }
            let note = format!(
                "The Service is no LoadBalancer any more and the cloud has none of it, but finalizer {finalizer} is \
                 still on. It will be removed in {} minutes, unless another controller is using it",
                UNKNOWN_FINALIZER_GRACE
                    .saturating_sub(waited)
                    .as_secs()
                    .div_ceil(60)
            );
            let next = Next::After(UNKNOWN_FINALIZER_GRACE.saturating_sub(waited));
            // A deletion must not wait for a finalizer that nobody seems to need.
            if service.is_deleting() {
                return quiet(without_finalizers(observed, service));
            }
            Plan {
                step: Step::Rest(next),
                notices: vec![Notice::warning(SYNC_FAILED, note)],
            }
        }
        Some(LoadBalancerAnswer::Absent(_)) => quiet(Step::Rest(Next::RETRY)),
        Some(LoadBalancerAnswer::NotMine { reason }) => Plan {
            step: Step::Rest(Next::After(SLOW)),
            notices: vec![Notice::warning(
                SYNC_FAILED,
                format!("The load balancer is not ours: {reason}"),
            )],
        },
        Some(LoadBalancerAnswer::Failed(failure)) => unreadable(failure),
    }
}

fn delete(observed: &Observed<'_>, service: Option<&ServiceView>) -> Plan {
    let intent = intent(observed, &Purpose::Delete, IntentReason::Changed);
    let notices = match intent.reason {
        IntentReason::Changed => vec![Notice::normal(DELETING, "Deleting load balancer")],
        IntentReason::Drift | IntentReason::Takeover | IntentReason::Retry => Vec::new(),
    };
    let step = Step::Delete {
        reference: Box::new(reference(observed, service)),
        intent,
    };
    Plan { step, notices }
}

impl Memory {
    /// What a plan has to tell before its step is performed, without what was told already.
    pub fn announce(&mut self, plan: &Plan) -> Vec<Notice> {
        self.told.news(&plan.notices)
    }

    /// Whether something of this Service may stand in the cloud, as far as this process knows.
    pub fn remembers(&self) -> bool {
        self.sent.is_some() || !self.resources.is_empty() || self.standing != Standing::Unknown
    }
}

/// The open intent if it is for `purpose`, else a new one.
fn intent(observed: &Observed<'_>, purpose: &Purpose, reason: IntentReason) -> Intent {
    match &observed.memory.open {
        Some(open) if open.purpose == *purpose => Intent {
            request_id: open.intent.request_id.clone(),
            reason: IntentReason::Retry,
        },
        Some(_) | None => Intent {
            request_id: observed.fresh_request_id.to_owned(),
            reason,
        },
    }
}

fn reference(observed: &Observed<'_>, service: Option<&ServiceView>) -> BalancerRef {
    BalancerRef {
        service: observed.key.clone(),
        uid: observed.uid.clone(),
        mark: observed.mark.clone(),
        applied: observed.memory.sent.clone(),
        current: service.map(|service| Current {
            spec: Arc::new(service.spec.clone()),
            circumstances: service.circumstances.clone(),
            ingress: service.ingress.clone(),
        }),
        resources: observed.memory.resources.clone(),
    }
}

fn with_finalizer(service: &ServiceView, finalizer: &str) -> Step {
    let mut finalizers = service.circumstances.finalizers.clone();
    finalizers.push(finalizer.to_owned());
    Step::WriteFinalizers {
        guard: service.guard(),
        finalizers,
    }
}

fn without_finalizers(observed: &Observed<'_>, service: &ServiceView) -> Step {
    let ours = our_finalizers(service, observed.territory);
    let mut finalizers = service.circumstances.finalizers.clone();
    finalizers.retain(|present| !ours.contains(&present.as_str()));
    Step::WriteFinalizers {
        guard: service.guard(),
        finalizers,
    }
}

fn no_targets(targets: &Selection) -> Vec<Notice> {
    if targets.set.members.is_empty() {
        let note = format!(
            "There are no available nodes for LoadBalancer: {}",
            explain_empty(targets)
        );
        vec![Notice::warning(NO_NODES, note)]
    } else {
        Vec::new()
    }
}

const fn quiet(step: Step) -> Plan {
    Plan {
        step,
        notices: Vec::new(),
    }
}

/// Upstream's event reasons.
const ENSURING: &str = "EnsuringLoadBalancer";
const ENSURED: &str = "EnsuredLoadBalancer";
const DELETING: &str = "DeletingLoadBalancer";
const DELETED: &str = "DeletedLoadBalancer";
const DELETE_FAILED: &str = "DeleteLoadBalancerFailed";
const SYNC_FAILED: &str = "SyncLoadBalancerFailed";
const UPDATED: &str = "UpdatedLoadBalancer";
const UPDATE_FAILED: &str = "UpdateLoadBalancerFailed";
const NO_NODES: &str = "UnAvailableLoadBalancer";

#[cfg(test)]
mod tests;
