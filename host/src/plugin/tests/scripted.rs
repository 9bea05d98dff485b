//! A plugin that answers what a test says.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_proto::v1::cloud_provider_server::{CloudProvider, CloudProviderServer};
use bulkhead_proto::{SERVICE_NAME, v1};
use futures::stream;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::{Service as _, service_fn};

use super::SOON;

/// An answer that may take its time.
type Answer<A> = Pin<Box<dyn Future<Output = Result<A, Status>> + Send>>;
type Handler<Q, A> = Arc<dyn Fn(Q) -> Answer<A> + Send + Sync>;

/// A handler that answers at once.
pub(super) fn at_once<Q, A: Send + 'static>(
    answer: impl Fn(Q) -> Result<A, Status> + Send + Sync + 'static,
) -> Handler<Q, A> {
    Arc::new(move |request| Box::pin(std::future::ready(answer(request))))
}

/// A handler that never answers.
pub(super) fn never<Q, A: Send + 'static>() -> Handler<Q, A> {
    Arc::new(|_| Box::pin(std::future::pending()))
}

/// What the plugin answers.
pub(super) struct Script {
    pub(super) describe: v1::DescribeResponse,
    pub(super) lead: Handler<v1::LeadRequest, ()>,
    pub(super) health: ServingStatus,
    pub(super) health_hangs: bool,
    pub(super) status: v1::GetStatusResponse,
    pub(super) get_instances: Handler<v1::GetInstancesRequest, v1::GetInstancesResponse>,
    pub(super) put_node_set: Handler<v1::PutNodeSetRequest, v1::PutNodeSetResponse>,
    pub(super) ensure: Handler<v1::EnsureLoadBalancerRequest, v1::EnsureLoadBalancerResponse>,
    pub(super) update_targets: Handler<v1::UpdateTargetsRequest, v1::UpdateTargetsResponse>,
    pub(super) look: Handler<v1::GetLoadBalancersRequest, v1::GetLoadBalancersResponse>,
    pub(super) delete: Handler<v1::DeleteLoadBalancerRequest, v1::DeleteLoadBalancerResponse>,
}

/// What the plugin was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) leads: Vec<v1::LeadRequest>,
    pub(super) batches: Vec<usize>,
    pub(super) put: Vec<String>,
    pub(super) ensures: Vec<v1::EnsureLoadBalancerRequest>,
    pub(super) authorities: Vec<String>,
}

/// A scripted plugin. Clones are the same.
#[derive(Clone)]
pub(super) struct Scripted {
    script: Arc<Mutex<Script>>,
    seen: watch::Sender<Seen>,
}

impl Scripted {
    /// Well in every respect, but for what `adapt` changes.
    pub(super) fn new(adapt: impl FnOnce(&mut Script)) -> Self {
        let mut script = Script {
            describe: description(),
            lead: at_once(|_| Ok(())),
            health: ServingStatus::Serving,
            health_hangs: false,
            status: v1::GetStatusResponse::default(),
            get_instances: at_once(|request: v1::GetInstancesRequest| Ok(all_found(&request))),
            put_node_set: at_once(|_| Ok(v1::PutNodeSetResponse {})),
            ensure: at_once(|request: v1::EnsureLoadBalancerRequest| Ok(done(&request))),
            update_targets: at_once(|_| Err(Status::unimplemented(""))),
            look: at_once(|_| Err(Status::unimplemented(""))),
            delete: at_once(|_| Err(Status::unimplemented(""))),
        };
        adapt(&mut script);
        Self {
            script: Arc::new(Mutex::new(script)),
            seen: watch::Sender::new(Seen::default()),
        }
    }

    /// Changes the script while it plays.
    pub(super) fn adapt(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    /// What was asked so far.
    pub(super) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until what was asked is as `expected` says.
    pub(super) async fn sees(&self, expected: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.subscribe();
        let result = timeout(SOON, seen.wait_for(|seen| expected(seen))).await;
        let in_vain = || panic!("in vain: {:?}", self.seen());
        result.unwrap_or_else(|_| in_vain()).unwrap().clone()
    }

    fn script<T>(&self, read: impl FnOnce(&Script) -> T) -> T {
        read(&self.script.lock().unwrap())
    }
}

/// What a small plugin says of itself.
pub(super) fn description() -> v1::DescribeResponse {
    v1::DescribeResponse {
        provider_name: "scripted".to_owned(),
        plugin_version: "1".to_owned(),
        instance_id: "first".to_owned(),
        protocol_revisions: vec![1],
        capabilities: vec![v1::Capability::Instances.into(), v1::Capability::Lb.into()],
        schemes: vec![v1::Scheme {
            name: "scripted".to_owned(),
            r#use: v1::SchemeUse::Unique.into(),
            allowed_characters: String::new(),
        }],
        classes: vec![String::new()],
        features: Some(v1::Features {
            targets: v1::TargetKind::Address.into(),
            ..v1::Features::default()
        }),
        behaviour_digest: "b1".to_owned(),
        ..v1::DescribeResponse::default()
    }
}

/// Each node of the request, found.
pub(super) fn all_found(request: &v1::GetInstancesRequest) -> v1::GetInstancesResponse {
    let found = |node: &v1::Node| v1::InstanceResult {
        node_name: node.name.clone(),
        node_uid: node.uid.clone(),
        result: Some(v1::instance_result::Result::Found(v1::Instance {
            provider_id: format!("scripted://{}", node.name),
            instance_id: node.name.clone(),
            power_state: v1::PowerState::Running.into(),
            address_source: v1::AddressSource::Node.into(),
            ..v1::Instance::default()
        })),
    };
    v1::GetInstancesResponse {
        results: request.nodes.iter().map(found).collect(),
    }
}

/// Everything as asked, at one address.
pub(super) fn done(request: &v1::EnsureLoadBalancerRequest) -> v1::EnsureLoadBalancerResponse {
    v1::EnsureLoadBalancerResponse {
        outcome: v1::Outcome::Done.into(),
        spec_digest: request.spec_digest.clone(),
        status: Some(v1::LoadBalancerStatus {
            ingress: vec![v1::Ingress {
                address: Some(v1::ingress::Address::Ip("192.0.2.1".to_owned())),
                ..v1::Ingress::default()
            }],
        }),
        ..v1::EnsureLoadBalancerResponse::default()
    }
}

/// A status as the protocol wants it.
pub(super) fn refusal(code: tonic::Code, reason: &str, certainty: &str, wait: Option<Duration>) -> Status {
    let metadata = HashMap::from([
        ("certainty".to_owned(), certainty.to_owned()),
        ("cloud_code".to_owned(), "E42".to_owned()),
    ]);
    let mut details = ErrorDetails::with_error_info(reason, "bulkhead.dev", metadata);
    if wait.is_some() {
        details.set_retry_info(wait);
    }
    Status::with_error_details(code, "no\nway", details)
}

#[tonic::async_trait]
impl CloudProvider for Scripted {
    async fn describe(
        &self,
        request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        assert_eq!(request.into_inner().cluster.unwrap().uid, "cluster-uid");
        Ok(Response::new(self.script(|script| script.describe.clone())))
    }

    async fn lead(&self, request: Request<v1::LeadRequest>) -> Result<Response<v1::LeadResponse>, Status> {
        let request = request.into_inner();
        self.seen.send_modify(|seen| seen.leads.push(request.clone()));
        let handler = self.script(|script| Arc::clone(&script.lead));
        handler(request).await?;
        let clock_stamp = 1000 + u64::try_from(self.seen.borrow().leads.len()).unwrap();
        Ok(Response::new(v1::LeadResponse { clock_stamp }))
    }

    async fn get_status(
        &self,
        _request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(self.script(|script| script.status.clone())))
    }

    async fn get_instances(
        &self,
        request: Request<v1::GetInstancesRequest>,
    ) -> Result<Response<v1::GetInstancesResponse>, Status> {
        let request = request.into_inner();
        self.seen
            .send_modify(|seen| seen.batches.push(request.nodes.len()));
        let handler = self.script(|script| Arc::clone(&script.get_instances));
        handler(request).await.map(Response::new)
    }

    async fn put_node_set(
        &self,
        request: Request<v1::PutNodeSetRequest>,
    ) -> Result<Response<v1::PutNodeSetResponse>, Status> {
        let request = request.into_inner();
        let digest = request.node_set.as_ref().unwrap().digest.clone();
        self.seen.send_modify(|seen| seen.put.push(digest));
        let handler = self.script(|script| Arc::clone(&script.put_node_set));
        handler(request).await.map(Response::new)
    }

    async fn ensure_load_balancer(
        &self,
        request: Request<v1::EnsureLoadBalancerRequest>,
    ) -> Result<Response<v1::EnsureLoadBalancerResponse>, Status> {
        let request = request.into_inner();
        self.seen.send_modify(|seen| seen.ensures.push(request.clone()));
        let handler = self.script(|script| Arc::clone(&script.ensure));
        handler(request).await.map(Response::new)
    }

    async fn update_targets(
        &self,
        request: Request<v1::UpdateTargetsRequest>,
    ) -> Result<Response<v1::UpdateTargetsResponse>, Status> {
        let handler = self.script(|script| Arc::clone(&script.update_targets));
        handler(request.into_inner()).await.map(Response::new)
    }

    async fn get_load_balancers(
        &self,
        request: Request<v1::GetLoadBalancersRequest>,
    ) -> Result<Response<v1::GetLoadBalancersResponse>, Status> {
        let handler = self.script(|script| Arc::clone(&script.look));
        handler(request.into_inner()).await.map(Response::new)
    }

    async fn delete_load_balancer(
        &self,
        request: Request<v1::DeleteLoadBalancerRequest>,
    ) -> Result<Response<v1::DeleteLoadBalancerResponse>, Status> {
        let handler = self.script(|script| Arc::clone(&script.delete));
        handler(request.into_inner()).await.map(Response::new)
    }

    async fn list_instances(
        &self,
        _request: Request<v1::ListInstancesRequest>,
    ) -> Result<Response<v1::ListInstancesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_routes(
        &self,
        _request: Request<v1::ListRoutesRequest>,
    ) -> Result<Response<v1::ListRoutesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn apply_routes(
        &self,
        _request: Request<v1::ApplyRoutesRequest>,
    ) -> Result<Response<v1::ApplyRoutesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_owned_resources(
        &self,
        _request: Request<v1::ListOwnedResourcesRequest>,
    ) -> Result<Response<v1::ListOwnedResourcesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn delete_owned_resources(
        &self,
        _request: Request<v1::DeleteOwnedResourcesRequest>,
    ) -> Result<Response<v1::DeleteOwnedResourcesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl Health for Scripted {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        assert_eq!(request.into_inner().service, SERVICE_NAME);
        let (hangs, health) = self.script(|script| (script.health_hangs, script.health));
        if hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(HealthCheckResponse {
            status: health.into(),
        }))
    }

    type WatchStream = stream::Empty<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A plugin process as far as a host can tell: with the value all its connections end.
pub(super) struct Server {
    pub(super) socket: PathBuf,
    pub(super) plugin: Scripted,
    runtime: Option<Runtime>,
}

impl Server {
    /// Listens on `socket`, in place of whatever was there.
    pub(super) fn start(socket: &Path, plugin: Scripted) -> Self {
        drop(std::fs::remove_file(socket));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        drop(runtime.spawn(serve(listener, plugin.clone())));
        Self {
            socket: socket.to_owned(),
            plugin,
            runtime: Some(runtime),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves on `listener` for ever.
pub(super) async fn serve(listener: UnixListener, plugin: Scripted) {
    let provider = CloudProviderServer::new(plugin.clone())
        .max_encoding_message_size(usize::MAX)
        .max_decoding_message_size(usize::MAX);
    let health = HealthServer::new(plugin.clone());
    let both = service_fn(move |request: http::Request<tonic::body::Body>| {
        let authority = request
            .uri()
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default();
        plugin.seen.send_modify(|seen| seen.authorities.push(authority));
        let (mut provider, mut health) = (provider.clone(), health.clone());
        async move {
            if request.uri().path().starts_with("/grpc.health.v1.Health/") {
                health.call(request).await
            } else {
                provider.call(request).await
            }
        }
    });
    let incoming = stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    tonic::transport::Server::builder()
        .serve_with_incoming(both, incoming)
        .await
        .unwrap();
}
