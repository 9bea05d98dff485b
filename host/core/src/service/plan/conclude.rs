//! What the result of a step means: what is remembered, what people are told, when to come back.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Applied, DELETE_FAILED, DELETED, ENSURED, ENSURING, Memory, Observed, Open, Purpose, SYNC_FAILED,
    Standing, Step, UPDATE_FAILED, UPDATED,
};
use crate::cloud::{
    Deleted, Ensured, Failure, LoadBalancerAnswer, Outcome, PortProblem, Reason, TargetProblem, TargetsAnswer,
};
use crate::digest::Digest;
use crate::disposition::{CallKind, after_failure, classify, deserves_notice};
use crate::outcome::{AfterWrite, Next, Notice, SLOW, WriteFailure, after_write, message_of};
use crate::service::field;
use crate::service::request::{Intent, IntentReason};

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Performed {
    /// There was nothing to perform.
    Nothing,
    /// Of a write to the API server; the object it returned is the next observation.
    Wrote(Result<(), WriteFailure>),
    /// Of [`Step::Look`].
    Looked(Result<LoadBalancerAnswer, Failure>),
    /// Of [`Step::Ensure`].
    Ensured(Result<Box<Ensured>, Failure>),
    /// Of [`Step::UpdateTargets`].
    Updated(Result<TargetsAnswer, Failure>),
    /// Of [`Step::Delete`].
    Deleted(Result<Deleted, Failure>),
}

/// What a pass concludes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// What to remember; `None`: nothing any more.
    pub memory: Option<Memory>,
    /// What to tell people; those already told are left out.
    pub notices: Vec<Notice>,
    /// How to go on.
    pub then: Then,
}

/// How to go on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Plan again at once, on what the step returned.
    Again,
    /// Read the Service from the API server and plan again.
    Reread,
    /// Leave the key alone until then.
    Rest(Next),
}

/// Concludes from what came of a plan's step. What the plan itself has to tell is the caller's to tell before it
/// performs the step: see [`Memory::announce`].
pub fn conclude(observed: &Observed<'_>, step: &Step, performed: Performed) -> Conclusion {
    let memory = observed.memory.clone();
    let mut notices = Vec::new();
    let (memory, then) = match (step, performed) {
        (Step::Forget, _) => (None, Then::Rest(Next::AwaitChange)),
        (Step::Rest(next), _) => {
            let (memory, next) = resting(observed, memory, *next);
            (Some(memory), Then::Rest(next))
        }
        (_, Performed::Wrote(result)) => (Some(memory), wrote(step, result, &mut notices)),
        (_, Performed::Looked(Ok(_))) => (Some(memory), Then::Again),
        (_, Performed::Looked(Err(failure))) => (
            Some(memory),
            failed(&failure, CallKind::Read, SYNC_FAILED, SYNCING, &mut notices),
        ),
        (
            Step::Ensure {
                spec,
                spec_digest,
                intent,
                ..
            },
            Performed::Ensured(result),
        ) => {
            let sent = Memory {
                sent: Some(Arc::clone(spec)),
                open: Some(open_ensure(spec_digest, intent)),
                ..memory
            };
            let (memory, then) = ensured(observed, sent, spec_digest, result, &mut notices);
            (Some(memory), then)
        }
        (Step::UpdateTargets { intent, .. }, Performed::Updated(result)) => {
            let purpose = Purpose::Targets(observed.targets.set.digest.clone());
            let sent = Memory {
                open: Some(Open {
                    purpose,
                    intent: intent.clone(),
                }),
                ..memory
            };
            let (memory, then) = updated(observed, sent, result, &mut notices);
            (Some(memory), then)
        }
        (Step::Delete { intent, .. }, Performed::Deleted(result)) => {
            let sent = Memory {
                open: Some(Open {
                    purpose: Purpose::Delete,
                    intent: intent.clone(),
                }),
                ..memory
            };
            let (memory, then) = deleted(sent, result, &mut notices);
            (Some(memory), then)
        }
        // The executor answers each step in kind; should it ever not, looking again is always right.
        _ => (Some(memory), Then::Rest(Next::RETRY)),
    };
    told(memory, notices, then)
}

/// Leaves out what people were told already. A key that comes to rest for good has nothing left to complain about.
fn told(memory: Option<Memory>, notices: Vec<Notice>, then: Then) -> Conclusion {
    let Some(mut memory) = memory else {
        return Conclusion {
            memory: None,
            notices,
            then,
        };
    };
    if then == Then::Rest(Next::AwaitChange) {
        memory.told.clear();
    }
    let notices = memory.told.news(&notices);
    Conclusion {
        memory: Some(memory),
        notices,
        then,
    }
}

/// Nothing was to be done: remembers since when the plugin knows nothing of the Service.
fn resting(observed: &Observed<'_>, mut memory: Memory, next: Next) -> (Memory, Next) {
    if let Some(LoadBalancerAnswer::Absent(proof)) = observed.looked
        && proof.complete
    {
        memory.unknown_since.get_or_insert(observed.now);
    }
    (memory, next)
}

fn open_ensure(spec_digest: &Digest, intent: &Intent) -> Open {
    Open {
        purpose: Purpose::Ensure(spec_digest.clone()),
        intent: intent.clone(),
    }
}

fn wrote(step: &Step, result: Result<(), WriteFailure>, notices: &mut Vec<Notice>) -> Then {
    let what = if matches!(step, Step::WriteFinalizers { .. }) {
        "the Service's finalizers"
    } else {
        "the Service's status"
    };
    match result {
        Ok(()) => Then::Again,
        // It became another type after it was read: what it is now is decided anew, and nobody has done wrong.
        Err(failure) if is_overtaken(step, &failure) => Then::Reread,
        Err(failure) => match after_write(&failure, SYNC_FAILED, what) {
            AfterWrite::Reread => Then::Reread,
            AfterWrite::Rest { notices: more, next } => {
                notices.extend(more);
                Then::Rest(next)
            }
        },
    }
}

/// Whether the API server refused the addresses because the Service is no `LoadBalancer` any more: the status is written
/// under the uid alone, so that a change of type in between does not end as a conflict.
fn is_overtaken(step: &Step, failure: &WriteFailure) -> bool {
    matches!(step, Step::WriteStatus { .. })
        && matches!(failure, WriteFailure::Invalid { field, message }
            if field == "status.loadBalancer.ingress" && message.contains("spec.type"))
}

fn ensured(
    observed: &Observed<'_>,
    mut memory: Memory,
    spec_digest: &Digest,
    result: Result<Box<Ensured>, Failure>,
    notices: &mut Vec<Notice>,
) -> (Memory, Then) {
    let answer = match result {
        Ok(answer) => answer,
        Err(failure) => {
            let failure = in_its_words(observed, failure);
            let then = failed(&failure, CallKind::Write, SYNC_FAILED, SYNCING, notices);
            memory.is_unsure = is_unsure_after(&memory, &failure);
            memory.is_starved = matches!(
                failure.reason,
                Some(Reason::QuotaExceeded | Reason::LimitReached | Reason::InUse)
            );
            return (memory, then);
        }
    };
    memory.is_unsure = false;
    memory.is_starved = false;
    memory.resources.clone_from(&answer.resources);
    notices.extend(problems(&answer.target_problems, &answer.port_problems));
    if answer.spec_digest != *spec_digest {
        // The plugin finished what it was asked before: ask again for what is wanted now.
        return (memory, Then::Rest(Next::RETRY));
    }
    match (answer.outcome, answer.ingress) {
        (Outcome::Done, Some(ingress)) => {
            let changed = observed.service.is_none_or(|service| service.ingress != ingress);
            let asked_by_a_change = memory
                .open
                .as_ref()
                .is_some_and(|open| open.intent.reason != IntentReason::Takeover);
            if changed || asked_by_a_change {
                notices.push(Notice::normal(ENSURED, "Ensured load balancer"));
            }
            memory.open = None;
            memory.standing = Standing::Balancer(Box::new(Applied {
                spec_digest: spec_digest.clone(),
                behaviour_digest: observed.plugin.behaviour_digest.clone(),
                node_set_digest: observed.targets.set.digest.clone(),
                ingress,
            }));
            (memory, Then::Again)
        }
        (Outcome::Done, None) => (memory, Then::Rest(Next::RETRY)),
        (Outcome::Elsewhere, _) => {
            memory.open = None;
            memory.standing = Standing::Elsewhere {
                spec_digest: spec_digest.clone(),
            };
            (memory, Then::Again)
        }
        (
            Outcome::InProgress {
                progress,
                retry_after,
            },
            _,
        ) => {
            if !progress.is_empty() {
                notices.push(Notice::normal(
                    ENSURING,
                    format!("Ensuring load balancer: {progress}"),
                ));
            }
            (memory, Then::Rest(Next::After(slice_pause(retry_after))))
        }
        (Outcome::Blocked(failure) | Outcome::Protected(failure), _) => {
            let failure = in_its_words(observed, failure);
            notices.push(Notice::warning(
                SYNC_FAILED,
                format!("{SYNCING}: {}", message_of(&failure)),
            ));
            (memory, Then::Rest(Next::retry_after(SLOW)))
        }
    }
}

/// A failure about the observed Service, which names its fields.
fn in_its_words(observed: &Observed<'_>, failure: Failure) -> Failure {
    let Some(service) = observed.service else {
        return failure;
    };
    Failure {
        message: field::in_service(&failure.message, &service.spec),
        ..failure
    }
}

fn updated(
    observed: &Observed<'_>,
    mut memory: Memory,
    result: Result<TargetsAnswer, Failure>,
    notices: &mut Vec<Notice>,
) -> (Memory, Then) {
    const UPDATING: &str = "Error updating load balancer with new hosts";
    let (outcome, target_problems) = match result {
        Ok(TargetsAnswer::Outcome {
            outcome,
            target_problems,
        }) => (outcome, target_problems),
        Ok(TargetsAnswer::Absent(_)) => {
            memory.standing = Standing::Vanished;
            memory.open = None;
            return (memory, Then::Again);
        }
        Ok(TargetsAnswer::Failed(failure)) | Err(failure) => {
            let then = failed(&failure, CallKind::Write, UPDATE_FAILED, UPDATING, notices);
            memory.is_unsure = is_unsure_after(&memory, &failure);
            if deserves_notice(&failure) {
                // As upstream: whatever is wrong with it, a full Ensure is more likely to mend it.
                memory.standing = Standing::Unknown;
                memory.open = None;
            }
            return (memory, then);
        }
    };
    memory.is_unsure = false;
    notices.extend(problems(&target_problems, &[]));
    match outcome {
        Outcome::Done | Outcome::Elsewhere => {
            memory.open = None;
            if let Standing::Balancer(applied) = &mut memory.standing {
                applied.node_set_digest.clone_from(&observed.targets.set.digest);
            }
            if !observed.targets.set.members.is_empty() {
                notices.push(Notice::normal(UPDATED, "Updated load balancer with new hosts"));
            }
            (memory, Then::Again)
        }
        Outcome::InProgress { retry_after, .. } => {
            (memory, Then::Rest(Next::After(slice_pause(retry_after))))
        }
        Outcome::Blocked(failure) | Outcome::Protected(failure) => {
            notices.push(Notice::warning(
                UPDATE_FAILED,
                format!("{UPDATING}: {}", message_of(&failure)),
            ));
            (memory, Then::Rest(Next::retry_after(SLOW)))
        }
    }
}

fn deleted(
    mut memory: Memory,
    result: Result<Deleted, Failure>,
    notices: &mut Vec<Notice>,
) -> (Memory, Then) {
    const DELETING_FAILED: &str = "Error deleting load balancer";
    let answer = match result {
        Ok(answer) => answer,
        Err(failure) => {
            let then = failed(&failure, CallKind::Write, DELETE_FAILED, DELETING_FAILED, notices);
            return (memory, then);
        }
    };
    memory.resources.clone_from(&answer.remaining);
    match answer.outcome {
        // The finalizer goes only when nothing is left, whatever the plugin calls it.
        Outcome::Done | Outcome::Elsewhere if !answer.remaining.is_empty() => {
            (memory, Then::Rest(Next::RETRY))
        }
        Outcome::Done | Outcome::Elsewhere => {
            notices.push(Notice::normal(DELETED, "Deleted load balancer"));
            (
                Memory {
                    standing: Standing::Nothing,
                    told: memory.told,
                    ..Memory::default()
                },
                Then::Again,
            )
        }
        Outcome::InProgress { retry_after, .. } => {
            (memory, Then::Rest(Next::After(slice_pause(retry_after))))
        }
        Outcome::Blocked(failure) | Outcome::Protected(failure) => {
            notices.push(Notice::warning(
                DELETE_FAILED,
                format!("{DELETING_FAILED}: {}", message_of(&failure)),
            ));
            (memory, Then::Rest(Next::retry_after(SLOW)))
        }
    }
}

/// Whether the next step must be a read now that a write failed. What was only between two turns was not sent, or says
/// nothing of what was sent before.
fn is_unsure_after(memory: &Memory, failure: &Failure) -> bool {
    let was_unsure = memory.is_unsure && !deserves_notice(failure);
    was_unsure || classify(failure, CallKind::Write).look_first
}

const SYNCING: &str = "Error syncing load balancer";

/// A call failed: whether people hear of it, and when to come back.
fn failed(
    failure: &Failure,
    call: CallKind,
    reason: &'static str,
    what: &str,
    notices: &mut Vec<Notice>,
) -> Then {
    if deserves_notice(failure) {
        notices.push(Notice::warning(
            reason,
            format!("{what}: {}", message_of(failure)),
        ));
    }
    Then::Rest(after_failure(failure, call))
}

/// Pause between two slices of one piece of work: what the plugin asks for, at least half a second and at most five
/// minutes; two seconds if it does not say.
fn slice_pause(asked: Option<Duration>) -> Duration {
    asked.map_or(Duration::from_secs(2), |pause| {
        pause.clamp(Duration::from_millis(500), SLOW)
    })
}

/// Nodes that are no targets and ports that are not served: told, but never a failure of the Service.
fn problems(targets: &[TargetProblem], ports: &[PortProblem]) -> Vec<Notice> {
    /// Nodes named in one event, as upstream limits them.
    const NAMED: usize = 20;
    let mut notices = Vec::new();
    if let Some(first) = targets.first() {
        let names: Vec<&str> = targets
            .iter()
            .take(NAMED)
            .map(|problem| problem.node.0.as_str())
            .collect();
        let note = format!(
            "{} of the nodes are no targets ({}): {}: {}",
            targets.len(),
            names.join(", "),
            first.reason,
            first.message
        );
        notices.push(Notice::warning(UPDATE_FAILED, note));
    }
    for problem in ports {
        let note = format!(
            "Port {} is not served: {}: {}",
            problem.port, problem.reason, problem.message
        );
        notices.push(Notice::warning(SYNC_FAILED, note));
    }
    notices
}
