//! Performs the one step of a plan. No policy in here.

use std::sync::Arc;

use bulkhead_core::clock::Instant;
use bulkhead_core::cloud::{Certainty, Failure, LoadBalancerAnswer, Reason};
use bulkhead_core::election::Epoch;
use bulkhead_core::service::plan::{Performed, Step};
use bulkhead_core::service::request::Intent;
use bulkhead_core::service::targets::Selection;
use bulkhead_core::service::view::ServiceView;

use super::{Object, ServiceController};
use crate::clock;
use crate::kube::writer::Write;
use crate::leader::Permit;
use crate::plugin::{Ensure, Right};

/// What came of a step.
pub(super) struct Done {
    /// For the conclusion.
    pub(super) performed: Performed,
    /// The Service that a write returned.
    pub(super) service: Option<Arc<ServiceView>>,
}

impl Done {
    /// What the plugin said, if it was asked what stands in the cloud.
    pub(super) const fn looked(&self) -> Option<&LoadBalancerAnswer> {
        if let Performed::Looked(Ok(answer)) = &self.performed {
            Some(answer)
        } else {
            None
        }
    }
}

impl From<Performed> for Done {
    fn from(performed: Performed) -> Self {
        Self {
            performed,
            service: None,
        }
    }
}

impl ServiceController {
    /// Performs `step`. `None`: this host may not, any more.
    pub(super) async fn perform(
        &self,
        object: &Object,
        step: &Step,
        targets: &Selection,
        epoch: Option<&Epoch>,
    ) -> Option<Done> {
        let writer = &self.effects.writer;
        let plugin = &self.effects.plugin;
        let performed = match step {
            Step::Rest(_) | Step::Forget => Performed::Nothing,
            Step::WriteFinalizers { guard, finalizers } => {
                let call = writer.patch_service_finalizers(&object.key, guard, finalizers);
                return Some(self.wrote(object, call).await);
            }
            Step::WriteStatus { uid, ingress } => {
                let call = writer.patch_service_ingress(&object.key, uid, ingress);
                return Some(self.wrote(object, call).await);
            }
            Step::Look(reference) => Performed::Looked(plugin.look(reference, "").await),
            Step::Ensure {
                reference,
                spec,
                spec_digest,
                intent,
            } => {
                let permit = self.permit(epoch)?;
                let what = Ensure {
                    balancer: reference,
                    spec,
                    spec_digest,
                    targets: &targets.set,
                };
                Performed::Ensured(plugin.ensure(what, right(&permit, intent)).await.map(Box::new))
            }
            Step::UpdateTargets { reference, intent } => {
                let permit = self.permit(epoch)?;
                let began = clock::now();
                let items = [(&**reference, &targets.set)];
                let result = plugin
                    .update_targets(&items, right(&permit, intent))
                    .await
                    .and_then(one);
                self.count(began, result.is_ok());
                Performed::Updated(result)
            }
            Step::Delete { reference, intent } => {
                let permit = self.permit(epoch)?;
                Performed::Deleted(plugin.delete(reference, right(&permit, intent)).await)
            }
        };
        Some(performed.into())
    }

    /// The right to write in the cloud, if it is still of the term whose memory the plan was made from.
    fn permit(&self, epoch: Option<&Epoch>) -> Option<Permit> {
        self.effects
            .leadership
            .permit()
            .filter(|permit| Some(&permit.epoch) == epoch)
    }

    async fn wrote(&self, object: &Object, call: Write<ServiceView>) -> Done {
        match self.effects.write(call).await {
            Ok(view) => {
                self.services.absorb(view.clone());
                Done {
                    performed: Performed::Wrote(Ok(())),
                    service: Some(view.into()),
                }
            }
            Err(failure) => {
                tracing::debug!(service = %object.key, ?failure, "writing the Service failed");
                Performed::Wrote(Err(failure)).into()
            }
        }
    }

    fn count(&self, began: Instant, passed: bool) {
        self.metrics.loadbalancer_syncs.inc();
        self.metrics
            .update_latency
            .observe(clock::now().saturating_since(began).as_secs_f64());
        if !passed {
            self.metrics.nodesync_errors.inc();
        }
    }
}

const fn right<'a>(permit: &'a Permit, intent: &'a Intent) -> Right<'a> {
    Right {
        intent,
        epoch: &permit.epoch,
        cancel: &permit.lost,
    }
}

/// The answer to the one item that was sent; the border has counted them.
fn one<T>(answers: Vec<T>) -> Result<T, Failure> {
    answers.into_iter().next().ok_or_else(|| Failure {
        reason: Some(Reason::ProtocolViolation),
        certainty: Certainty::Unknown,
        message: "the plugin answered with no result for the item that was sent".to_owned(),
        retry_after: None,
    })
}
