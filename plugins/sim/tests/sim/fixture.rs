//! A simulated cloud with a plugin in front of it, in this process or in others, and requests as a host makes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bulkhead_plugin::mark::mark;
use bulkhead_plugin::v1::cloud_provider_client::CloudProviderClient;
use bulkhead_plugin::{ServeError, ServeOptions, serve_until, v1};
use bulkhead_sim::api::CloudApi;
use bulkhead_sim::cloud::{Cloud, Fault, Kind, Object};
use bulkhead_sim::plugin::{PluginFaults, Sim};
use bulkhead_sim::running::RunningCloud;
use bulkhead_sim::scenario::Scenario;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = CloudProviderClient<Channel>;

pub(crate) const CLUSTER: &str = "cluster";
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_mins(5);

/// Three machines in two zones.
pub(crate) const MACHINES: &str = "
cloud:
  instances:
    - {id: i-1, name: node-1, addresses: [10.0.0.1], systemUuid: u-1}
    - {id: i-2, name: node-2, addresses: [10.0.0.2], zone: zone-b}
    - {id: i-3, name: node-3, addresses: [10.0.0.3], power: stopped}
";

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, until).await.is_ok(),
        "{what}: not within {PATIENCE:?}"
    );
}

/// A plugin in this process. Dropping it aborts the server.
pub(crate) struct Stage {
    pub(crate) cloud: RunningCloud,
    pub(crate) faults: PluginFaults,
    pub(crate) host: Client,
    _server: JoinSet<Result<(), ServeError>>,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Led, and ready.
    pub(crate) async fn led(scenario: &str) -> Self {
        let mut stage = Self::standby(scenario).await;
        lead(&mut stage.host).await;
        stage
    }

    pub(crate) async fn standby(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scenario.yaml");
        std::fs::write(&file, scenario).unwrap();
        let scenario = Scenario::load(&file).unwrap();
        let cloud = RunningCloud::new(scenario.cloud(Duration::ZERO).unwrap());
        let faults = PluginFaults::new(1);
        let sim = Sim::new(CloudApi::Here(cloud.clone()), scenario.plugin, faults.clone());
        let path = folder.path().join("sim/sim.sock");
        let options = ServeOptions::new(&format!("unix://{}", path.display()))
            .unwrap()
            .answers_of_any_size();
        let mut server = JoinSet::new();
        server.spawn(serve_until(sim, options, std::future::pending()));
        Self {
            cloud,
            faults,
            host: connect(&path).await,
            _server: server,
            _folder: folder,
        }
    }

    pub(crate) fn fault(&self, fault: Fault) {
        if fault.is_of_plugin() {
            self.faults.add(fault).unwrap();
        } else {
            self.cloud
                .with(|cloud, now| cloud.faults().add(fault, now))
                .unwrap();
        }
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Cloud) -> T) -> T {
        self.cloud.with(|cloud, _| work(cloud))
    }

    pub(crate) fn writes(&self) -> u64 {
        self.with(|cloud| cloud.records().total().writes)
    }

    /// Everything, by kind.
    pub(crate) fn of(&self, kind: Kind) -> Vec<Object> {
        let all = self.cloud.with(Cloud::inventory);
        all.into_iter().filter(|object| object.kind == kind).collect()
    }

    /// Everything without revisions.
    pub(crate) fn inventory(&self) -> Vec<Object> {
        let all = self.cloud.with(Cloud::inventory);
        all.into_iter()
            .map(|object| Object {
                revision: 0,
                ..object
            })
            .collect()
    }

    pub(crate) async fn ensure(&self, request: &v1::EnsureLoadBalancerRequest) -> Result<Ensured, Status> {
        let mut host = self.host.clone();
        Ok(Box::pin(host.ensure_load_balancer(request.clone()))
            .await?
            .into_inner())
    }

    /// As a host does: again, until it is done.
    pub(crate) async fn ensure_done(&self, request: &v1::EnsureLoadBalancerRequest) -> Ensured {
        let mut last = None;
        for _ in 0..100 {
            last = Some(self.ensure(request).await);
            match &last {
                Some(Ok(answer)) if answer.outcome() == v1::Outcome::Done => return answer.clone(),
                Some(Ok(answer)) => pause(answer.retry_after).await,
                _ => {}
            }
        }
        panic!("never done: {last:?}");
    }

    /// As a host does: again, until it is done.
    pub(crate) async fn delete_done(&self, uid: &str) {
        for _ in 0..100 {
            let answer = Box::pin(self.host.clone().delete_load_balancer(delete(uid))).await;
            if let Ok(answer) = answer.map(tonic::Response::into_inner) {
                if answer.outcome() == v1::Outcome::Done {
                    assert_eq!(answer.remaining, []);
                    return;
                }
                pause(answer.retry_after).await;
            }
        }
        panic!("never done");
    }
}

pub(crate) type Ensured = v1::EnsureLoadBalancerResponse;

async fn pause(retry_after: Option<prost_types::Duration>) {
    let wait = Duration::try_from(retry_after.unwrap_or_default()).unwrap();
    tokio::time::sleep(wait.min(Duration::from_millis(50))).await;
}

pub(crate) async fn connect(path: &Path) -> Client {
    eventually("the socket is there", async || {
        UnixStream::connect(path).await.is_ok()
    })
    .await;
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
    CloudProviderClient::new(endpoint.connect_with_connector(connector).await.unwrap())
        .max_decoding_message_size(16 << 20)
}

/// Both steps, and until calls are taken.
pub(crate) async fn lead(client: &mut Client) {
    let mut request = v1::LeadRequest {
        cluster: Some(cluster()),
        epoch: Some(epoch()),
        valid_for: Some(LONG.try_into().unwrap()),
        echo: None,
    };
    let answer = client.lead(request.clone()).await.unwrap().into_inner();
    request.echo = Some(answer.clock_stamp);
    client.lead(request).await.unwrap();
    eventually("it leads", async || {
        let taken = client.clone().list_owned_resources(owned()).await;
        // Standby, then initialising; whatever else it answers is the cloud's word.
        let waits = [tonic::Code::FailedPrecondition, tonic::Code::Aborted];
        !taken.is_err_and(|status| waits.contains(&status.code()))
    })
    .await;
}

pub(crate) fn cluster() -> v1::Cluster {
    v1::Cluster {
        uid: CLUSTER.to_owned(),
        name: "test".to_owned(),
    }
}

fn epoch() -> v1::Epoch {
    v1::Epoch {
        lease_uid: "lease".to_owned(),
        transitions: 1,
    }
}

pub(crate) fn intent() -> v1::Intent {
    v1::Intent {
        request_id: "4be0643f-1d98-473b-97cd-ca98a65347dd".to_owned(),
        epoch: Some(epoch()),
        reason: v1::IntentReason::Changed.into(),
        soft_deadline: Some(PATIENCE.try_into().unwrap()),
    }
}

pub(crate) fn reference(uid: &str) -> v1::LoadBalancerRef {
    let service = v1::ServiceKey {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: uid.to_owned(),
    };
    v1::LoadBalancerRef {
        service: Some(service),
        mark: mark(CLUSTER, uid, ""),
        ..Default::default()
    }
}

pub(crate) fn node(number: u32) -> v1::Node {
    v1::Node {
        name: format!("node-{number}"),
        uid: format!("uid-{number}"),
        provider_id: format!("sim://i-{number}"),
        ..Default::default()
    }
}

pub(crate) fn spec(ports: &[u32]) -> v1::Spec {
    let port = |port: &u32| v1::Port {
        protocol: v1::Protocol::Tcp.into(),
        port: *port,
        node_port: Some(30_000 + port),
        ..Default::default()
    };
    v1::Spec {
        ports: ports.iter().map(port).collect(),
        ..Default::default()
    }
}

fn set(nodes: &[v1::Node]) -> v1::NodeSetRef {
    let set = v1::NodeSet {
        nodes: nodes.to_vec(),
        digest: "d".to_owned(),
    };
    v1::NodeSetRef {
        set: Some(v1::node_set_ref::Set::Inline(set)),
    }
}

pub(crate) fn ensure(uid: &str, spec: v1::Spec, nodes: &[v1::Node]) -> v1::EnsureLoadBalancerRequest {
    v1::EnsureLoadBalancerRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        r#ref: Some(reference(uid)),
        spec: Some(spec),
        spec_digest: "spec".to_owned(),
        node_set: Some(set(nodes)),
    }
}

pub(crate) fn update(uids: &[&str], nodes: &[v1::Node]) -> v1::UpdateTargetsRequest {
    let item = |uid: &&str| v1::UpdateTargetsItem {
        r#ref: Some(reference(uid)),
        node_set: Some(set(nodes)),
    };
    v1::UpdateTargetsRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        items: uids.iter().map(item).collect(),
    }
}

pub(crate) fn delete(uid: &str) -> v1::DeleteLoadBalancerRequest {
    v1::DeleteLoadBalancerRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        r#ref: Some(reference(uid)),
        policy: v1::DeletePolicy::Delete.into(),
    }
}

pub(crate) fn observe(uid: &str, applied: Option<v1::Spec>) -> v1::GetLoadBalancersRequest {
    let query = v1::LoadBalancerQuery {
        r#ref: Some(v1::LoadBalancerRef {
            applied,
            ..reference(uid)
        }),
        ..Default::default()
    };
    v1::GetLoadBalancersRequest {
        cluster: Some(cluster()),
        queries: vec![query],
    }
}

pub(crate) fn owned() -> v1::ListOwnedResourcesRequest {
    v1::ListOwnedResourcesRequest {
        cluster: Some(cluster()),
        ..Default::default()
    }
}

pub(crate) fn instances(nodes: Vec<v1::Node>) -> v1::GetInstancesRequest {
    v1::GetInstancesRequest {
        cluster: Some(cluster()),
        nodes,
        max_age: Some(prost_types::Duration::default()),
        ..Default::default()
    }
}

pub(crate) fn page(page_size: u32, page_token: String) -> v1::ListInstancesRequest {
    v1::ListInstancesRequest {
        cluster: Some(cluster()),
        page_size,
        page_token,
    }
}

/// Processes and their sockets.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("scenario.yaml"), MACHINES).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("unix://{}", self.path(name).display())
    }

    /// A process that ends with this value.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead-sim"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("BULKHEAD_SPAWNED")
            .env_remove("BULKHEAD_ENDPOINT")
            .env("BULKHEAD_LOG", "error")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// A cloud process; its control answers.
    pub(crate) async fn cloud(&self) -> (Child, bulkhead_sim::control::Client) {
        let process = self.start(&[
            "cloud",
            "--listen",
            &self.url("cloud.sock"),
            "--scenario",
            "scenario.yaml",
        ]);
        let control = bulkhead_sim::control::Client::at(&self.path("cloud.sock"));
        eventually("the cloud answers", async || control.total().await.is_ok()).await;
        (process, control)
    }

    /// A plugin process of that cloud, which leads.
    pub(crate) async fn plugin(&self, name: &str) -> (Child, Client) {
        let process = self.start(&[
            "--endpoint",
            &self.url(&format!("{name}/sim.sock")),
            "--cloud",
            &self.url("cloud.sock"),
            "--control",
            &self.url(&format!("{name}.control")),
        ]);
        let mut host = connect(&self.path(&format!("{name}/sim.sock"))).await;
        lead(&mut host).await;
        (process, host)
    }
}
