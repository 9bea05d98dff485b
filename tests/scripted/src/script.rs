//! What a test says.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bulkhead_proto::{ERROR_CERTAINTY_KEY, ERROR_DOMAIN, v1};
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// The RPCs that can be scripted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in the protocol")]
pub enum Rpc {
    Describe,
    Lead,
    GetStatus,
    GetInstances,
    EnsureLoadBalancer,
    UpdateTargets,
    GetLoadBalancers,
    DeleteLoadBalancer,
}

/// How one call is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behaviour {
    /// As an honest plugin does.
    Honest,
    /// The work is done at once, and the answer comes so much later.
    AnsweredLate(Duration),
    /// The work is one cloud call that takes so long and cannot be stopped; the answer comes with its end.
    LongCloudCall(Duration),
    /// Nothing is done, and no answer comes.
    Hangs,
    /// Nothing is done; the whole call fails.
    Fails(Failure),
    /// Each item of the answer is this error.
    ItemsFail(Failure),
    /// Another controller does it: `EnsureLoadBalancer` only.
    Elsewhere,
    /// An answer that the protocol forbids.
    Wrong(Wrong),
}

/// An error that the plugin reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The gRPC code, as its number.
    pub code: i32,
    /// `ErrorInfo.reason`, as `PROVIDER_ERROR`; `None`: a status without an `ErrorInfo`.
    pub reason: Option<String>,
    /// The text.
    pub message: String,
    /// The field that it is about; empty: none.
    #[serde(default)]
    pub field: String,
}

/// Answers that the protocol forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// What must never be unset is unset.
    Nil,
    /// One result too few.
    Count,
    /// The results are about other objects.
    Uid,
}

impl Failure {
    /// The cloud refused this object.
    pub fn provider(message: &str) -> Self {
        Self::of(Code::Unknown, "PROVIDER_ERROR", message)
    }

    /// The cloud does not answer.
    pub fn unavailable(message: &str) -> Self {
        Self::of(Code::Unavailable, "CLOUD_UNAVAILABLE", message)
    }

    /// The plugin does not do this at all.
    pub fn unimplemented(message: &str) -> Self {
        Self::of(Code::Unimplemented, "UNIMPLEMENTED", message)
    }

    /// The user asked for something that cannot be: `field` is its path in the request, as `spec.ports[0].protocol`.
    pub fn invalid(field: &str, description: &str) -> Self {
        Self {
            field: field.to_owned(),
            ..Self::of(
                Code::InvalidArgument,
                "INVALID_SPEC",
                &format!("{field}: {description}"),
            )
        }
    }

    /// As some library would make it: nobody's word.
    pub fn unattributed(code: Code, message: &str) -> Self {
        Self {
            code: code.into(),
            reason: None,
            message: message.to_owned(),
            field: String::new(),
        }
    }

    fn of(code: Code, reason: &str, message: &str) -> Self {
        Self {
            code: code.into(),
            reason: Some(reason.to_owned()),
            message: message.to_owned(),
            field: String::new(),
        }
    }

    pub(crate) fn status(&self) -> Status {
        let code = Code::from_i32(self.code);
        let Some(reason) = &self.reason else {
            return Status::new(code, self.message.as_str());
        };
        let metadata = [(ERROR_CERTAINTY_KEY.to_owned(), "NOT_APPLIED".to_owned())];
        let mut details = ErrorDetails::with_error_info(reason.as_str(), ERROR_DOMAIN, metadata);
        if !self.field.is_empty() {
            details.add_bad_request_violation(self.field.as_str(), self.message.as_str());
        }
        Status::with_error_details(code, self.message.as_str(), details)
    }

    pub(crate) fn body(&self) -> v1::Error {
        let name = format!("ERROR_REASON_{}", self.reason.as_deref().unwrap_or_default());
        v1::Error {
            reason: v1::ErrorReason::from_str_name(&name).unwrap_or_default().into(),
            certainty: v1::Certainty::NotApplied.into(),
            message: self.message.clone(),
            ..v1::Error::default()
        }
    }
}

/// The script of one plugin. Clones are the same script; a test may go on writing it while the plugin serves.
#[derive(Debug, Clone, Default)]
pub struct Script(Arc<Mutex<BTreeMap<Rpc, Part>>>);

#[derive(Debug, Default)]
struct Part {
    next: VecDeque<Behaviour>,
    about: BTreeMap<String, Behaviour>,
    always: Option<Behaviour>,
}

impl Script {
    /// The next calls of `rpc` are answered so, one after another; those after them as before.
    pub fn next(&self, rpc: Rpc, behaviours: impl IntoIterator<Item = Behaviour>) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.entry(rpc).or_default().next.extend(behaviours);
    }

    /// Every call of `rpc` about this object, a Service as `NAMESPACE/NAME` or a Node, is answered so.
    pub fn always_about(&self, rpc: Rpc, object: &str, behaviour: Behaviour) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = parts.entry(rpc).or_default();
        part.about.insert(object.to_owned(), behaviour);
    }

    /// Every call of `rpc` for which nothing else is said is answered so.
    pub fn always(&self, rpc: Rpc, behaviour: Behaviour) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.entry(rpc).or_default().always = Some(behaviour);
    }

    /// Every call of `rpc` is answered as an honest plugin does.
    pub fn clear(&self, rpc: Rpc) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&rpc);
    }

    pub(crate) fn take(&self, rpc: Rpc, about: &[String]) -> Behaviour {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = parts.entry(rpc).or_default();
        part.next
            .pop_front()
            .or_else(|| about.iter().find_map(|object| part.about.get(object).cloned()))
            .or_else(|| part.always.clone())
            .unwrap_or(Behaviour::Honest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_for_one_call_goes_before_what_is_said_for_all() {
        let script = Script::default();
        script.always(Rpc::Describe, Behaviour::Hangs);
        script.next(Rpc::Describe, [Behaviour::Elsewhere, Behaviour::Honest]);
        let taken: Vec<_> = (0..4).map(|_| script.take(Rpc::Describe, &[])).collect();
        assert_eq!(
            taken,
            [
                Behaviour::Elsewhere,
                Behaviour::Honest,
                Behaviour::Hangs,
                Behaviour::Hangs
            ]
        );
        script.always_about(Rpc::GetInstances, "node-1", Behaviour::Hangs);
        let about = |name: &str| script.take(Rpc::GetInstances, &[name.to_owned()]);
        assert_eq!(
            [about("node-1"), about("node-2")],
            [Behaviour::Hangs, Behaviour::Honest]
        );
        script.clear(Rpc::Describe);
        assert_eq!(script.take(Rpc::Describe, &[]), Behaviour::Honest);
    }
}
