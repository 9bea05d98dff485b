//! Whatever happens, in whatever order: the plan reaches rest, and the cloud then is what the Service asks for.

use proptest::prelude::*;

use super::{Case, absence, ingress, now};
use crate::clock::Timestamp;
use crate::cloud::{
    Certainty, Deleted, Ensured, Failure, LoadBalancerAnswer, Outcome, Reason, TargetsAnswer,
};
use crate::digest::Digest;
use crate::fixtures::{CLASS_FINALIZER, description, initialised_node, service, territory};
use crate::outcome::{Next, WriteFailure};
use crate::service::plan::{Memory, Performed, Step, Then, conclude, plan};
use crate::service::targets::select;
use crate::service::view::CLEANUP_FINALIZER;

/// One cloud and one API server, as far as one Service goes.
struct Model {
    case: Case,
    /// What stands in the cloud: digest of the spec, digest of the node set.
    balancer: Option<(Digest, Digest)>,
    cloud_writes: usize,
    finalizer_was_on_at_every_cloud_write: bool,
    /// What is forgotten of a Service that then becomes another controller's is found by a sweep, not by a plan.
    forgot: bool,
}

/// Something that happens between two passes, or to one step.
#[derive(Clone, Copy, Debug)]
enum Happening {
    ChangePort(u16),
    ChangeNodes(u8),
    BecomeClusterIp,
    BecomeLoadBalancer(&'static str),
    Delete,
    ForgetEverything,
    RemoveBalancerBehindOurBack,
    LoseNextAnswer,
    RefuseNextCall,
    ConflictOnNextWrite,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (1_u16..4).prop_map(Happening::ChangePort),
        (0_u8..4).prop_map(Happening::ChangeNodes),
        Just(Happening::BecomeClusterIp),
        prop_oneof![Just(""), Just("ours"), Just("example.com/other")]
            .prop_map(Happening::BecomeLoadBalancer),
        Just(Happening::Delete),
        Just(Happening::ForgetEverything),
        Just(Happening::RemoveBalancerBehindOurBack),
        Just(Happening::LoseNextAnswer),
        Just(Happening::RefuseNextCall),
        Just(Happening::ConflictOnNextWrite),
    ]
}

impl Model {
    fn new() -> Self {
        let mut case = Case::new();
        case.service = Some(service("s"));
        Self {
            case,
            balancer: None,
            cloud_writes: 0,
            finalizer_was_on_at_every_cloud_write: true,
            forgot: false,
        }
    }

    fn happen(&mut self, happening: Happening) {
        let Some(service) = self.case.service.as_mut() else {
            return;
        };
        match happening {
            Happening::ChangePort(port) => service.spec.ports[0].port = port,
            Happening::ChangeNodes(count) => {
                let nodes: Vec<_> = (0..count)
                    .map(|n| initialised_node(&format!("n{n}"), "10.0.0.1").into())
                    .collect();
                self.case.targets = select(&nodes, &description(), &territory());
            }
            // As the API server does: the status goes with the type.
            Happening::BecomeClusterIp if service.circumstances.deleted_at.is_none() => {
                service.is_load_balancer = false;
                service.spec.class.clear();
                service.ingress.clear();
            }
            Happening::BecomeLoadBalancer(class)
                if !service.is_load_balancer && service.circumstances.deleted_at.is_none() =>
            {
                service.is_load_balancer = true;
                service.spec.class = class.to_owned();
            }
            Happening::Delete => {
                service.circumstances.deleted_at = Some(Timestamp(1));
                self.reap();
            }
            Happening::ForgetEverything => {
                self.case.memory = Memory::default();
                self.forgot = true;
            }
            Happening::RemoveBalancerBehindOurBack => self.balancer = None,
            Happening::BecomeClusterIp
            | Happening::BecomeLoadBalancer(_)
            | Happening::LoseNextAnswer
            | Happening::RefuseNextCall
            | Happening::ConflictOnNextWrite => {}
        }
    }

    /// The API server removes what is deleted and has no finalizer.
    fn reap(&mut self) {
        let gone =
            |s: &crate::service::view::ServiceView| s.is_deleting() && s.circumstances.finalizers.is_empty();
        if self.case.service.as_ref().is_some_and(gone) {
            self.case.service = None;
        }
    }

    fn perform(&mut self, step: &Step, fault: Option<Happening>) -> Performed {
        if matches!(fault, Some(Happening::RefuseNextCall)) {
            return failed(step);
        }
        if matches!(fault, Some(Happening::ConflictOnNextWrite))
            && matches!(step, Step::WriteFinalizers { .. } | Step::WriteStatus { .. })
        {
            return Performed::Wrote(Err(WriteFailure::Conflict));
        }
        let performed = self.carry_out(step);
        if matches!(fault, Some(Happening::LoseNextAnswer)) {
            failed(step)
        } else {
            performed
        }
    }

    fn carry_out(&mut self, step: &Step) -> Performed {
        match step {
            Step::Rest(_) | Step::Forget => Performed::Nothing,
            Step::WriteFinalizers { finalizers, .. } => {
                if let Some(service) = self.case.service.as_mut() {
                    service.circumstances.finalizers.clone_from(finalizers);
                }
                self.reap();
                Performed::Wrote(Ok(()))
            }
            Step::WriteStatus { ingress, .. } => {
                if let Some(service) = self.case.service.as_mut() {
                    service.ingress.clone_from(ingress);
                }
                Performed::Wrote(Ok(()))
            }
            Step::Look(_) => Performed::Looked(Ok(match self.balancer {
                Some(_) => LoadBalancerAnswer::Unverified,
                None => LoadBalancerAnswer::Absent(absence()),
            })),
            Step::Ensure { spec_digest, .. } => {
                let wanted = (spec_digest.clone(), self.case.targets.set.digest.clone());
                if self.balancer.as_ref() != Some(&wanted) {
                    self.write(Some(wanted));
                }
                Performed::Ensured(Ok(Box::new(ensured(spec_digest))))
            }
            Step::UpdateTargets { .. } => {
                let Some((spec, _)) = self.balancer.clone() else {
                    return Performed::Updated(Ok(TargetsAnswer::Absent(absence())));
                };
                self.write(Some((spec, self.case.targets.set.digest.clone())));
                let (outcome, target_problems) = (Outcome::Done, Vec::new());
                Performed::Updated(Ok(TargetsAnswer::Outcome {
                    outcome,
                    target_problems,
                }))
            }
            Step::Delete { .. } => {
                if self.balancer.is_some() {
                    self.write(None);
                }
                Performed::Deleted(Ok(Deleted {
                    outcome: Outcome::Done,
                    remaining: Vec::new(),
                }))
            }
        }
    }

    fn write(&mut self, balancer: Option<(Digest, Digest)>) {
        let held = self
            .case
            .service
            .as_ref()
            .is_some_and(|s| s.has_finalizer(CLEANUP_FINALIZER) || s.has_finalizer(CLASS_FINALIZER));
        if balancer.is_some() && !held {
            self.finalizer_was_on_at_every_cloud_write = false;
        }
        self.balancer = balancer;
        self.cloud_writes += 1;
    }

    /// Passes until the key comes to rest for good; `None`: it did not within the bound.
    fn settle(&mut self, mut fault: Option<Happening>) -> Option<()> {
        for _ in 0..40 {
            let step = self.case.plan().step;
            let performed = self.perform(&step, fault.take());
            if let Performed::Looked(Ok(looked)) = &performed {
                self.case.looked = Some(looked.clone());
            }
            let conclusion = self
                .case
                .observed(|observed| conclude(observed, &step, performed));
            self.case.memory = conclusion.memory.unwrap_or_default();
            match conclusion.then {
                Then::Rest(Next::AwaitChange) => return Some(()),
                // The wait before an unknown finalizer goes.
                Then::Rest(Next::After(pause)) => self.case.now = self.case.now + pause,
                Then::Again => continue,
                Then::Reread | Then::Rest(Next::Backoff(_)) => {}
            }
            self.case.looked = None;
        }
        None
    }
}

fn ensured(spec_digest: &Digest) -> Ensured {
    Ensured {
        outcome: Outcome::Done,
        spec_digest: spec_digest.clone(),
        ingress: Some(ingress("127.0.10.1")),
        resources: Vec::new(),
        target_problems: Vec::new(),
        port_problems: Vec::new(),
        failure: None,
    }
}

/// What the caller sees of a step whose answer got lost, or whose call never arrived.
fn failed(step: &Step) -> Performed {
    let unknown = Failure {
        reason: Some(Reason::DeadlineExceeded),
        certainty: Certainty::Unknown,
        message: String::new(),
        retry_after: None,
    };
    let message = String::new();
    match step {
        Step::Rest(_) | Step::Forget => Performed::Nothing,
        Step::WriteFinalizers { .. } | Step::WriteStatus { .. } => {
            Performed::Wrote(Err(WriteFailure::Unavailable {
                message,
                retry_after: None,
            }))
        }
        Step::Look(_) => Performed::Looked(Err(unknown)),
        Step::Ensure { .. } => Performed::Ensured(Err(unknown)),
        Step::UpdateTargets { .. } => Performed::Updated(Err(unknown)),
        Step::Delete { .. } => Performed::Deleted(Err(unknown)),
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_cloud_ends_as_the_service_asks(happenings in proptest::collection::vec(happening(), 0..12)) {
        let mut model = Model::new();
        for happening in happenings {
            model.happen(happening);
            prop_assert!(model.settle(Some(happening)).is_some(), "no rest after {:?}", happening);
        }
        let is_foreign = model.case.service.as_ref().is_some_and(|s| s.spec.class == "example.com/other");
        if is_foreign && model.forgot {
            return Ok(());
        }
        if !is_foreign {
            // What was removed behind our back is found by verification, which is not the plan's business: touch it.
            model.happen(Happening::ForgetEverything);
            prop_assert!(model.settle(None).is_some());
        }
        prop_assert!(model.finalizer_was_on_at_every_cloud_write);
        let wants = model
            .case
            .service
            .as_ref()
            .is_some_and(|s| s.is_load_balancer && !s.is_deleting() && !is_foreign);
        match (&model.balancer, wants) {
            (Some((spec, nodes)), true) => {
                let service = model.case.service.clone().unwrap();
                let wanted = service.spec.digest(&description());
                prop_assert_eq!(spec, &wanted);
                prop_assert_eq!(nodes, &model.case.targets.set.digest);
                prop_assert_eq!(service.ingress, ingress("127.0.10.1"));
            }
            (None, false) => {
                let finalizers = model.case.service.as_ref().map(|s| s.circumstances.finalizers.clone());
                prop_assert!(finalizers.unwrap_or_default().is_empty());
            }
            (balancer, wants) => prop_assert!(false, "wanted: {}, stands: {:?}", wants, balancer),
        }
        // At rest a further look, even with no memory, writes nothing in the cloud.
        let writes = model.cloud_writes;
        model.happen(Happening::ForgetEverything);
        prop_assert!(model.settle(None).is_some());
        prop_assert_eq!(model.cloud_writes, writes);
    }

    #[test]
    fn planning_is_a_function(memory_lost in any::<bool>(), deleted in any::<bool>(), seconds in 0_u64..2000) {
        let mut case = Case::in_sync();
        if memory_lost {
            case.memory = Memory::default();
        }
        if deleted {
            super::deleting(case.service());
        }
        case.now = now() + std::time::Duration::from_secs(seconds);
        prop_assert_eq!(case.observed(plan), case.observed(plan));
    }
}
