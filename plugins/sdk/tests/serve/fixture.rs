//! A plugin in this process, and clients of it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_plugin::v1::cloud_provider_client::CloudProviderClient;
use bulkhead_plugin::{ServeError, ServeOptions, serve_until, v1};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use crate::cloud::{Cloud, CountingProvider};

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// A served plugin. Dropping it aborts the server.
pub(crate) struct Plugin {
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) path: PathBuf,
    pub(crate) folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    server: JoinSet<Result<(), ServeError>>,
}

/// The connection of one host.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) client: CloudProviderClient<Channel>,
    pub(crate) health: HealthClient<Channel>,
}

pub(crate) fn options(path: &Path) -> ServeOptions {
    ServeOptions::new(&format!("unix://{}", path.display())).unwrap()
}

impl Plugin {
    pub(crate) async fn start() -> Self {
        Self::start_with(|options| options).await
    }

    pub(crate) async fn start_with(adjust: impl FnOnce(ServeOptions) -> ServeOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counting/plugin.sock");
        let cloud = Arc::new(Cloud::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let mut server = JoinSet::new();
        let stopped = async move { drop(stopped.await) };
        server.spawn(serve_until(
            CountingProvider(Arc::clone(&cloud)),
            adjust(options(&path)),
            stopped,
        ));
        let plugin = Self {
            cloud,
            path,
            folder,
            stop: Some(stop),
            server,
        };
        eventually("the socket is there", async || {
            UnixStream::connect(&plugin.path).await.is_ok()
        })
        .await;
        plugin
    }

    pub(crate) async fn connect(&self) -> Host {
        connect(&self.path).await
    }

    /// A host that leads with epoch lease/5, and a plugin that is ready.
    pub(crate) async fn led(&self) -> Host {
        let mut host = self.connect().await;
        host.lead("lease", 5, LONG).await.unwrap();
        host.ready().await;
        host
    }

    pub(crate) fn ask_to_end(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn ended(mut self) -> Result<(), ServeError> {
        let ended = tokio::time::timeout(PATIENCE, self.server.join_next());
        ended
            .await
            .expect("the server ends")
            .expect("one server")
            .expect("no panic")
    }
}

pub(crate) async fn connect(path: &Path) -> Host {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost")
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE);
    let channel = endpoint
        .connect_with_connector(connector)
        .await
        .expect("connects");
    Host {
        client: CloudProviderClient::new(channel.clone()),
        health: HealthClient::new(channel),
    }
}

pub(crate) fn cluster() -> v1::Cluster {
    v1::Cluster {
        uid: "cluster".to_owned(),
        name: "test".to_owned(),
    }
}

pub(crate) fn epoch(lease: &str, transitions: i64) -> v1::Epoch {
    v1::Epoch {
        lease_uid: lease.to_owned(),
        transitions,
    }
}

pub(crate) fn lead(lease: &str, transitions: i64, valid_for: Duration, echo: Option<u64>) -> v1::LeadRequest {
    v1::LeadRequest {
        cluster: Some(cluster()),
        epoch: Some(epoch(lease, transitions)),
        valid_for: Some(valid_for.try_into().unwrap()),
        echo,
    }
}

/// An Ensure for the load balancer `mark` in epoch lease/5.
pub(crate) fn ensure(mark: &str, class: &str) -> v1::EnsureLoadBalancerRequest {
    v1::EnsureLoadBalancerRequest {
        cluster: Some(cluster()),
        intent: Some(v1::Intent {
            epoch: Some(epoch("lease", 5)),
            request_id: "r".to_owned(),
            ..Default::default()
        }),
        r#ref: Some(v1::LoadBalancerRef {
            mark: mark.to_owned(),
            ..Default::default()
        }),
        spec: Some(v1::Spec {
            class: class.to_owned(),
            ..Default::default()
        }),
        node_set: Some(inline(&[])),
        ..Default::default()
    }
}

pub(crate) fn set(digest: &str, names: &[&str]) -> v1::NodeSet {
    let node = |name: &&str| v1::Node {
        name: (*name).to_owned(),
        ..Default::default()
    };
    v1::NodeSet {
        nodes: names.iter().map(node).collect(),
        digest: digest.to_owned(),
    }
}

pub(crate) fn inline(names: &[&str]) -> v1::NodeSetRef {
    v1::NodeSetRef {
        set: Some(v1::node_set_ref::Set::Inline(set("", names))),
    }
}

pub(crate) fn by_digest(digest: &str) -> v1::NodeSetRef {
    v1::NodeSetRef {
        set: Some(v1::node_set_ref::Set::Digest(digest.to_owned())),
    }
}

pub(crate) fn nodes(count: usize) -> v1::GetInstancesRequest {
    v1::GetInstancesRequest {
        cluster: Some(cluster()),
        nodes: vec![v1::Node::default(); count],
        ..Default::default()
    }
}

impl Host {
    /// The two steps of a host that leads.
    pub(crate) async fn lead(
        &mut self,
        lease: &str,
        transitions: i64,
        valid_for: Duration,
    ) -> Result<(), Status> {
        let stamp = self.lead_once(lease, transitions, valid_for, None).await?;
        self.lead_once(lease, transitions, valid_for, Some(stamp))
            .await
            .map(drop)
    }

    pub(crate) async fn lead_once(
        &mut self,
        lease: &str,
        transitions: i64,
        valid_for: Duration,
        echo: Option<u64>,
    ) -> Result<u64, Status> {
        let answer = self
            .client
            .lead(lead(lease, transitions, valid_for, echo))
            .await?;
        Ok(answer.into_inner().clock_stamp)
    }

    pub(crate) async fn serving(&self, service: &str) -> ServingStatus {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = self.health.clone().check(request).await.expect("health answers");
        answer.into_inner().status()
    }

    pub(crate) async fn is_ready(&self) -> bool {
        self.serving("bulkhead.cloudprovider.v1.CloudProvider").await == ServingStatus::Serving
    }

    pub(crate) async fn ready(&self) {
        eventually("the plugin is ready", async || self.is_ready().await).await;
    }

    pub(crate) async fn ensure(
        &self,
        mark: &str,
        class: &str,
    ) -> Result<v1::EnsureLoadBalancerResponse, Status> {
        self.send(ensure(mark, class)).await
    }

    /// An Ensure; on the heap, since tonic's futures are large.
    pub(crate) fn send(
        &self,
        request: impl tonic::IntoRequest<v1::EnsureLoadBalancerRequest>,
    ) -> BoxFuture<'static, Result<v1::EnsureLoadBalancerResponse, Status>> {
        let (mut client, request) = (self.client.clone(), request.into_request());
        Box::pin(async move {
            let call = Box::pin(client.ensure_load_balancer(request));
            call.await.map(tonic::Response::into_inner)
        })
    }

    pub(crate) async fn status(&self) -> v1::GetStatusResponse {
        let request = v1::GetStatusRequest {
            cluster: Some(cluster()),
        };
        self.client
            .clone()
            .get_status(request)
            .await
            .expect("status answers")
            .into_inner()
    }
}

/// Code and reason of a status that a plugin made.
pub(crate) fn reason(status: &Status) -> (Code, String) {
    let info = status.get_details_error_info();
    (
        status.code(),
        info.unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"))
            .reason,
    )
}

#[track_caller]
pub(crate) fn assert_reason<T: std::fmt::Debug>(answer: Result<T, Status>, want: &str) {
    let status = answer.expect_err("refused");
    assert_eq!(reason(&status).1, want, "{status:?}");
}

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "not within {PATIENCE:?}: {what}");
}
