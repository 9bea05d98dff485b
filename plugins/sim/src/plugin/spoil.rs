//! Answers that no plugin should give, made from good ones.

use bulkhead_plugin::v1::{self, instance_result, load_balancer_observation};

/// What can be done to an answer. What an answer has no place for stays as it is.
pub(super) trait Spoil {
    /// Nothing exists.
    fn empty(&mut self) {}
    /// It is about other objects.
    fn wrong_ids(&mut self) {}
    /// What is never unset is unset.
    fn garbage(&mut self) {}
    /// A text of any size is in it.
    fn text(&mut self, _text: String) {}
}

fn wrong(text: &mut String) {
    text.push_str("-wrong");
}

impl Spoil for v1::GetInstancesResponse {
    fn empty(&mut self) {
        let direct = v1::freshness::Kind::Direct(v1::freshness::Direct {});
        for result in &mut self.results {
            let proof = v1::AbsenceProof {
                complete: true,
                scopes_checked: Vec::new(),
                freshness: Some(v1::Freshness { kind: Some(direct) }),
            };
            result.result = Some(instance_result::Result::Absent(proof));
        }
    }

    fn wrong_ids(&mut self) {
        for result in &mut self.results {
            wrong(&mut result.node_name);
            wrong(&mut result.node_uid);
        }
    }

    fn garbage(&mut self) {
        for result in &mut self.results {
            result.result = None;
        }
    }

    fn text(&mut self, text: String) {
        if let Some(result) = self.results.first_mut() {
            result.node_name = text;
        }
    }
}

impl Spoil for v1::ListInstancesResponse {
    fn empty(&mut self) {
        self.instances.clear();
        self.next_page_token.clear();
        if let Some(verdict) = &mut self.verdict {
            verdict.total = Some(0);
        } else {
            self.verdict = Some(v1::Verdict {
                complete: true,
                ..v1::Verdict::default()
            });
        }
    }

    fn wrong_ids(&mut self) {
        for instance in &mut self.instances {
            wrong(&mut instance.provider_id);
            wrong(&mut instance.instance_id);
        }
    }

    fn garbage(&mut self) {
        self.snapshot = None;
        self.verdict = None;
    }

    fn text(&mut self, text: String) {
        self.next_page_token = text;
    }
}

impl Spoil for v1::EnsureLoadBalancerResponse {
    fn empty(&mut self) {
        self.status = None;
        self.resources.clear();
    }

    fn wrong_ids(&mut self) {
        wrong(&mut self.spec_digest);
    }

    fn garbage(&mut self) {
        self.outcome = 0;
    }

    fn text(&mut self, text: String) {
        self.progress = text;
    }
}

impl Spoil for Vec<v1::UpdateTargetsResult> {
    fn empty(&mut self) {
        self.clear();
    }

    fn wrong_ids(&mut self) {
        for service in self.iter_mut().filter_map(|result| result.service.as_mut()) {
            wrong(&mut service.uid);
        }
    }

    fn garbage(&mut self) {
        for result in self {
            (result.outcome, result.error, result.absent) = (0, None, None);
        }
    }

    fn text(&mut self, text: String) {
        if let Some(service) = self.first_mut().and_then(|result| result.service.as_mut()) {
            service.name = text;
        }
    }
}

impl Spoil for v1::GetLoadBalancersResponse {
    fn empty(&mut self) {
        for one in &mut self.observations {
            let proof = super::observed::absence(Vec::new());
            one.observation = Some(load_balancer_observation::Observation::Absent(proof));
        }
    }

    fn wrong_ids(&mut self) {
        for service in self
            .observations
            .iter_mut()
            .filter_map(|one| one.service.as_mut())
        {
            wrong(&mut service.uid);
        }
    }

    fn garbage(&mut self) {
        for one in &mut self.observations {
            one.observation = None;
        }
    }

    fn text(&mut self, text: String) {
        if let Some(service) = self.observations.first_mut().and_then(|one| one.service.as_mut()) {
            service.name = text;
        }
    }
}

impl Spoil for v1::DeleteLoadBalancerResponse {
    fn garbage(&mut self) {
        self.outcome = 0;
    }

    fn text(&mut self, text: String) {
        self.progress = text;
    }
}

impl Spoil for v1::ListRoutesResponse {
    fn empty(&mut self) {
        self.routes.clear();
    }

    fn wrong_ids(&mut self) {
        self.routes.iter_mut().for_each(|route| wrong(&mut route.id));
    }

    fn garbage(&mut self) {
        self.verdict = None;
    }

    fn text(&mut self, text: String) {
        self.next_page_token = text;
    }
}

impl Spoil for v1::ApplyRoutesResponse {
    fn wrong_ids(&mut self) {
        self.results.iter_mut().for_each(|result| wrong(&mut result.id));
    }

    fn garbage(&mut self) {
        self.results.iter_mut().for_each(|result| result.result = None);
    }

    fn text(&mut self, text: String) {
        if let Some(result) = self.results.first_mut() {
            result.id = text;
        }
    }
}

impl Spoil for v1::ListOwnedResourcesResponse {
    fn empty(&mut self) {
        self.resources.clear();
    }

    fn wrong_ids(&mut self) {
        self.resources
            .iter_mut()
            .for_each(|resource| wrong(&mut resource.id));
    }

    fn garbage(&mut self) {
        self.verdicts.clear();
    }

    fn text(&mut self, text: String) {
        self.next_page_token = text;
    }
}

impl Spoil for v1::DeleteOwnedResourcesResponse {
    fn wrong_ids(&mut self) {
        self.results.iter_mut().for_each(|result| wrong(&mut result.id));
    }

    fn garbage(&mut self) {
        self.results.iter_mut().for_each(|result| result.result = None);
    }

    fn text(&mut self, text: String) {
        if let Some(result) = self.results.first_mut() {
            result.id = text;
        }
    }
}
