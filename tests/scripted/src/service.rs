//! The service: what the script says, for one call at a time.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bulkhead_proto::v1::{self, cloud_provider_server::CloudProvider};
use tokio::{sync::oneshot, task::JoinSet, time::sleep};
use tonic::{Request, Response, Status};

use crate::{
    answers, clock,
    cloud::Cloud,
    journal::{Entry, Grant, Journal},
    lead::{Lead, NotLeading},
    plugin::Options,
    script::{Behaviour, Failure, Rpc, Script, Wrong},
};

/// One plugin process. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    instance_id: String,
    script: Script,
    cloud: Cloud,
    lead: Mutex<Lead>,
    numbers: AtomicU64,
    /// Cloud calls: they go on when the RPC is given up.
    running: Mutex<JoinSet<()>>,
}

/// A call as the journal names it.
struct Asked {
    rpc: Rpc,
    about: Vec<String>,
    request_id: String,
}

/// Writes a call's end down, also if the call is dropped.
struct Ending {
    journal: Journal,
    plugin: String,
    number: u64,
    code: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let entry = Entry::Ended {
            plugin: std::mem::take(&mut self.plugin),
            number: self.number,
            code: std::mem::take(&mut self.code),
            at: clock::boot_nanos(),
        };
        // A journal that cannot be written shows in the test as a call without an end.
        drop(self.journal.add(entry));
    }
}

impl Service {
    pub(crate) fn new(options: Options, script: Script, cloud: Cloud) -> Self {
        Self(Arc::new(Inner {
            options,
            instance_id: uuid::Uuid::new_v4().to_string(),
            script,
            cloud,
            lead: Mutex::default(),
            numbers: AtomicU64::new(0),
            running: Mutex::default(),
        }))
    }

    fn begin(&self, asked: &Asked) -> Result<Ending, Status> {
        let Inner {
            options,
            cloud,
            numbers,
            ..
        } = &*self.0;
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let (plugin, journal) = (options.name.clone(), cloud.journal().clone());
        let entry = Entry::Asked {
            plugin: plugin.clone(),
            number,
            rpc: asked.rpc,
            about: asked.about.clone(),
            request_id: asked.request_id.clone(),
            at: clock::boot_nanos(),
        };
        journal
            .add(entry)
            .map_err(|error| Status::internal(format!("{error:#}")))?;
        Ok(Ending {
            journal,
            plugin,
            number,
            code: "Dropped".to_owned(),
        })
    }

    /// Answers one call as the script says. `honest` does the work that began at a time; `bend` makes an answer of
    /// those behaviours that only this RPC knows.
    async fn answer<T: Send + 'static>(
        &self,
        asked: Asked,
        admitted: Result<(), NotLeading>,
        honest: impl FnOnce(&Inner, u64) -> Result<T, Status> + Send + 'static,
        bend: impl FnOnce(&Behaviour) -> Option<T>,
    ) -> Result<Response<T>, Status> {
        let mut ending = self.begin(&asked)?;
        let result = match admitted {
            Ok(()) => self.behave(&asked, honest, bend).await,
            Err(NotLeading) => Err(not_leading()),
        };
        ending.code = result
            .as_ref()
            .map_or_else(|status| format!("{:?}", status.code()), |_| "Ok".to_owned());
        result.map(Response::new)
    }

    async fn behave<T: Send + 'static>(
        &self,
        asked: &Asked,
        honest: impl FnOnce(&Inner, u64) -> Result<T, Status> + Send + 'static,
        bend: impl FnOnce(&Behaviour) -> Option<T>,
    ) -> Result<T, Status> {
        let rpc = asked.rpc;
        let behaviour = self.0.script.take(rpc, &asked.about);
        match &behaviour {
            Behaviour::Honest => honest(&self.0, clock::boot_nanos()),
            Behaviour::AnsweredLate(late) => {
                let answer = honest(&self.0, clock::boot_nanos());
                sleep(*late).await;
                answer
            }
            Behaviour::LongCloudCall(long) => self.cloud_call(*long, honest).await,
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Fails(failure) => Err(failure.status()),
            Behaviour::ItemsFail(_) | Behaviour::Elsewhere | Behaviour::Wrong(_) => bend(&behaviour)
                .ok_or_else(|| Status::internal(format!("the script asks {behaviour:?} of {rpc:?}"))),
        }
    }

    /// Works in a task of its own, which nobody can stop.
    async fn cloud_call<T: Send + 'static>(
        &self,
        long: Duration,
        honest: impl FnOnce(&Inner, u64) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (done, answer) = oneshot::channel();
        let (inner, began) = (Arc::clone(&self.0), clock::boot_nanos());
        let work = async move {
            sleep(long).await;
            // Whoever asked may have gone.
            done.send(honest(&inner, began)).ok();
        };
        self.0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .spawn(work);
        answer
            .await
            .unwrap_or_else(|_| Err(Status::internal("the cloud call died")))
    }

    fn may_read(&self) -> Result<(), NotLeading> {
        self.0
            .lead
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .may_read()
    }

    fn may_write(&self, intent: Option<&v1::Intent>) -> Result<(), NotLeading> {
        let epoch = intent.and_then(|intent| intent.epoch.as_ref());
        let lead = self.0.lead.lock().unwrap_or_else(PoisonError::into_inner);
        lead.may_write(epoch, clock::boot_nanos())
    }

    fn take_lead(&self, request: &v1::LeadRequest, at: u64) -> Result<(), Status> {
        let until = self
            .0
            .lead
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(request, at);
        let until = until.map_err(|NotLeading| not_leading())?;
        let epoch = request.epoch.clone().unwrap_or_default();
        let valid_for = request
            .valid_for
            .and_then(|duration| Duration::try_from(duration).ok());
        let grant = Grant {
            plugin: self.0.options.name.clone(),
            lease: epoch.lease_uid,
            transitions: epoch.transitions,
            valid_for: valid_for
                .unwrap_or_default()
                .as_millis()
                .try_into()
                .unwrap_or(u64::MAX),
            until,
            at,
        };
        let journal = self.0.cloud.journal();
        journal
            .add(Entry::Led(grant))
            .map_err(|error| Status::internal(format!("{error:#}")))
    }
}

fn not_leading() -> Status {
    let failure = Failure {
        code: tonic::Code::FailedPrecondition.into(),
        reason: Some("NOT_LEADING".to_owned()),
        message: "no lead of this epoch is in force".to_owned(),
        field: String::new(),
    };
    failure.status()
}

fn read(rpc: Rpc, about: Vec<String>) -> Asked {
    Asked {
        rpc,
        about,
        request_id: String::new(),
    }
}

fn write<'a>(
    rpc: Rpc,
    intent: Option<&v1::Intent>,
    references: impl IntoIterator<Item = Option<&'a v1::LoadBalancerRef>>,
) -> Asked {
    let request_id = intent.map(|intent| intent.request_id.clone()).unwrap_or_default();
    Asked {
        rpc,
        about: services(references),
        request_id,
    }
}

fn services<'a>(references: impl IntoIterator<Item = Option<&'a v1::LoadBalancerRef>>) -> Vec<String> {
    let name = |reference: &v1::LoadBalancerRef| {
        let service = reference.service.clone().unwrap_or_default();
        format!("{}/{}", service.namespace, service.name)
    };
    references.into_iter().flatten().map(name).collect()
}

#[tonic::async_trait]
impl CloudProvider for Service {
    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        let honest = |inner: &Inner, _| Ok(answers::description(&inner.options, &inner.instance_id));
        self.answer(read(Rpc::Describe, Vec::new()), Ok(()), honest, |_| None)
            .await
    }

    async fn lead(&self, request: Request<v1::LeadRequest>) -> Result<Response<v1::LeadResponse>, Status> {
        let (this, request, at) = (self.clone(), request.into_inner(), clock::boot_nanos());
        let honest = move |_: &Inner, _| {
            this.take_lead(&request, at)?;
            Ok(v1::LeadResponse { clock_stamp: at })
        };
        self.answer(read(Rpc::Lead, Vec::new()), Ok(()), honest, |_| None)
            .await
    }

    async fn get_status(
        &self,
        _: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let honest = |_: &Inner, _| {
            let behaviour_digest = "1".to_owned();
            Ok(v1::GetStatusResponse {
                behaviour_digest,
                ..v1::GetStatusResponse::default()
            })
        };
        self.answer(read(Rpc::GetStatus, Vec::new()), Ok(()), honest, |_| None)
            .await
    }

    async fn get_instances(
        &self,
        request: Request<v1::GetInstancesRequest>,
    ) -> Result<Response<v1::GetInstancesResponse>, Status> {
        let request = request.into_inner();
        let names = request.nodes.iter().map(|node| node.name.clone()).collect();
        let copy = request.clone();
        let honest = move |inner: &Inner, _| Ok(answers::instances(&inner.cloud, &request));
        let bend = |behaviour: &Behaviour| bend_instances(behaviour, &copy, &self.0.cloud);
        self.answer(read(Rpc::GetInstances, names), self.may_read(), honest, bend)
            .await
    }

    async fn ensure_load_balancer(
        &self,
        request: Request<v1::EnsureLoadBalancerRequest>,
    ) -> Result<Response<v1::EnsureLoadBalancerResponse>, Status> {
        let request = request.into_inner();
        let asked = write(
            Rpc::EnsureLoadBalancer,
            request.intent.as_ref(),
            [request.r#ref.as_ref()],
        );
        let (admitted, spec_digest) = (
            self.may_write(request.intent.as_ref()),
            request.spec_digest.clone(),
        );
        let honest =
            move |inner: &Inner, began| answers::ensure(&inner.cloud, &inner.options.name, began, &request);
        let bend = |behaviour: &Behaviour| {
            let outcome = if *behaviour == Behaviour::Elsewhere {
                v1::Outcome::Elsewhere
            } else if *behaviour == Behaviour::Wrong(Wrong::Nil) {
                v1::Outcome::Done
            } else {
                return None;
            };
            let outcome = outcome.into();
            Some(v1::EnsureLoadBalancerResponse {
                outcome,
                spec_digest,
                ..Default::default()
            })
        };
        self.answer(asked, admitted, honest, bend).await
    }

    async fn update_targets(
        &self,
        request: Request<v1::UpdateTargetsRequest>,
    ) -> Result<Response<v1::UpdateTargetsResponse>, Status> {
        let request = request.into_inner();
        let references = request.items.iter().map(|item| item.r#ref.as_ref());
        let asked = write(Rpc::UpdateTargets, request.intent.as_ref(), references);
        let admitted = self.may_write(request.intent.as_ref());
        let honest = move |inner: &Inner, began| {
            let update = |item| answers::update(&inner.cloud, &inner.options.name, began, item);
            let results = request.items.iter().map(update).collect::<Result<_, _>>()?;
            Ok(v1::UpdateTargetsResponse { results })
        };
        let bend = |behaviour: &Behaviour| {
            (*behaviour == Behaviour::Wrong(Wrong::Count)).then(v1::UpdateTargetsResponse::default)
        };
        self.answer(asked, admitted, honest, bend).await
    }

    async fn get_load_balancers(
        &self,
        request: Request<v1::GetLoadBalancersRequest>,
    ) -> Result<Response<v1::GetLoadBalancersResponse>, Status> {
        let request = request.into_inner();
        let about = services(request.queries.iter().map(|query| query.r#ref.as_ref()));
        let honest = move |inner: &Inner, _| {
            let observe = |query| answers::observe(&inner.cloud, query);
            let observations = request.queries.iter().map(observe).collect::<Result<_, _>>()?;
            Ok(v1::GetLoadBalancersResponse { observations })
        };
        self.answer(
            read(Rpc::GetLoadBalancers, about),
            self.may_read(),
            honest,
            |_| None,
        )
        .await
    }

    async fn delete_load_balancer(
        &self,
        request: Request<v1::DeleteLoadBalancerRequest>,
    ) -> Result<Response<v1::DeleteLoadBalancerResponse>, Status> {
        let request = request.into_inner();
        let asked = write(
            Rpc::DeleteLoadBalancer,
            request.intent.as_ref(),
            [request.r#ref.as_ref()],
        );
        let admitted = self.may_write(request.intent.as_ref());
        let honest =
            move |inner: &Inner, began| answers::delete(&inner.cloud, &inner.options.name, began, &request);
        let bend = |behaviour: &Behaviour| {
            (*behaviour == Behaviour::Wrong(Wrong::Nil)).then(v1::DeleteLoadBalancerResponse::default)
        };
        self.answer(asked, admitted, honest, bend).await
    }

    async fn list_instances(
        &self,
        _: Request<v1::ListInstancesRequest>,
    ) -> Result<Response<v1::ListInstancesResponse>, Status> {
        Err(not_declared())
    }

    async fn put_node_set(
        &self,
        _: Request<v1::PutNodeSetRequest>,
    ) -> Result<Response<v1::PutNodeSetResponse>, Status> {
        Err(not_declared())
    }

    async fn list_routes(
        &self,
        _: Request<v1::ListRoutesRequest>,
    ) -> Result<Response<v1::ListRoutesResponse>, Status> {
        Err(not_declared())
    }

    async fn apply_routes(
        &self,
        _: Request<v1::ApplyRoutesRequest>,
    ) -> Result<Response<v1::ApplyRoutesResponse>, Status> {
        Err(not_declared())
    }

    async fn list_owned_resources(
        &self,
        _: Request<v1::ListOwnedResourcesRequest>,
    ) -> Result<Response<v1::ListOwnedResourcesResponse>, Status> {
        Err(not_declared())
    }

    async fn delete_owned_resources(
        &self,
        _: Request<v1::DeleteOwnedResourcesRequest>,
    ) -> Result<Response<v1::DeleteOwnedResourcesResponse>, Status> {
        Err(not_declared())
    }
}

fn not_declared() -> Status {
    let failure = Failure {
        code: tonic::Code::Unimplemented.into(),
        reason: Some("UNIMPLEMENTED".to_owned()),
        message: "not declared".to_owned(),
        field: String::new(),
    };
    failure.status()
}

fn bend_instances(
    behaviour: &Behaviour,
    request: &v1::GetInstancesRequest,
    cloud: &Cloud,
) -> Option<v1::GetInstancesResponse> {
    let mut results = answers::instances(cloud, request).results;
    if *behaviour == Behaviour::Wrong(Wrong::Count) {
        results.pop();
        return Some(v1::GetInstancesResponse { results });
    }
    for result in &mut results {
        if let Behaviour::ItemsFail(failure) = behaviour {
            result.result = Some(v1::instance_result::Result::Error(failure.body()));
        } else if *behaviour == Behaviour::Wrong(Wrong::Nil) {
            result.result = None;
        } else if *behaviour == Behaviour::Wrong(Wrong::Uid) {
            "another".clone_into(&mut result.node_uid);
        } else {
            return None;
        }
    }
    Some(v1::GetInstancesResponse { results })
}
