//! A machine with a plugin process, and requests as a host makes them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bulkhead_plugin::mark::mark;
use bulkhead_plugin::v1;
use bulkhead_plugin::v1::cloud_provider_client::CloudProviderClient;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = CloudProviderClient<Channel>;

pub(crate) const CLUSTER: &str = "cluster";

const PATIENCE: Duration = Duration::from_secs(15);
const LONG: Duration = Duration::from_mins(1);

const INVENTORY: &str =
    "instances: [{id: i-1, name: node-1, addresses: [10.0.0.1]}, {id: i-2, name: node-2}]";

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        timeout(PATIENCE, until).await.is_ok(),
        "{what}: not within {PATIENCE:?}"
    );
}

/// State, sockets and inventory of one test, and addresses that no other test uses.
pub(crate) struct Machine {
    dir: tempfile::TempDir,
    pool: &'static str,
}

/// A process; dropping it kills it.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id().unwrap()
    }

    /// SIGKILL, and wait until it is gone.
    pub(crate) async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }
}

impl Machine {
    pub(crate) fn new(pool: &'static str) -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
            pool,
        };
        std::fs::write(machine.inventory(), INVENTORY).unwrap();
        machine
    }

    pub(crate) fn inventory(&self) -> PathBuf {
        self.dir.path().join("inventory.yaml")
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name).join("local.sock")
    }

    pub(crate) fn start(&self) -> Process {
        self.start_at("first")
    }

    /// A process with a socket of its own; all processes of a machine share its state.
    pub(crate) fn start_at(&self, name: &str) -> Process {
        self.start_with(name, &[])
    }

    pub(crate) fn start_with(&self, name: &str, more: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead-local"));
        command
            .arg(format!("--endpoint=unix://{}", self.socket(name).display()))
            .arg(format!("--state-dir={}", self.dir.path().join("state").display()))
            .arg(format!("--inventory={}", self.inventory().display()))
            .arg(format!("--pool={}", self.pool))
            .args(more)
            .env_remove("BULKHEAD_SPAWNED")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Process(command.spawn().unwrap())
    }

    pub(crate) async fn connect_to(&self, name: &str) -> Client {
        let path = self.socket(name);
        eventually("the socket is there", async || {
            UnixStream::connect(&path).await.is_ok()
        })
        .await;
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
        CloudProviderClient::new(endpoint.connect_with_connector(connector).await.unwrap())
    }

    /// A host that leads, with the plugin ready.
    pub(crate) async fn led(&self) -> Client {
        let mut client = self.connect_to("first").await;
        lead(&mut client).await;
        eventually("it is ready", async || {
            client.clone().list_owned_resources(list()).await.is_ok()
        })
        .await;
        client
    }
}

/// Both steps.
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
}

fn cluster() -> v1::Cluster {
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

fn intent() -> v1::Intent {
    v1::Intent {
        request_id: "4be0643f-1d98-473b-97cd-ca98a65347dd".to_owned(),
        epoch: Some(epoch()),
        reason: v1::IntentReason::Changed.into(),
        soft_deadline: Some(PATIENCE.try_into().unwrap()),
    }
}

fn reference(uid: &str) -> v1::LoadBalancerRef {
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

pub(crate) fn node(name: &str, address: &str) -> v1::Node {
    let address = v1::Address {
        r#type: v1::AddressType::InternalIp.into(),
        address: address.to_owned(),
    };
    v1::Node {
        name: name.to_owned(),
        addresses: vec![address],
        ..Default::default()
    }
}

pub(crate) fn ensure(
    uid: &str,
    port: u16,
    node_port: u16,
    nodes: &[v1::Node],
) -> v1::EnsureLoadBalancerRequest {
    let port = v1::Port {
        protocol: v1::Protocol::Tcp.into(),
        port: port.into(),
        node_port: Some(node_port.into()),
        ..Default::default()
    };
    let set = v1::NodeSet {
        nodes: nodes.to_vec(),
        digest: "d".to_owned(),
    };
    v1::EnsureLoadBalancerRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        r#ref: Some(reference(uid)),
        spec: Some(v1::Spec {
            ports: vec![port],
            ..Default::default()
        }),
        spec_digest: "spec".to_owned(),
        node_set: Some(v1::NodeSetRef {
            set: Some(v1::node_set_ref::Set::Inline(set)),
        }),
    }
}

pub(crate) async fn ensured(
    client: &Client,
    request: v1::EnsureLoadBalancerRequest,
) -> Result<v1::EnsureLoadBalancerResponse, Status> {
    Ok(Box::pin(client.clone().ensure_load_balancer(request))
        .await?
        .into_inner())
}

/// Puts other nodes behind load balancers.
pub(crate) fn update(uids: &[&str], nodes: &[v1::Node]) -> v1::UpdateTargetsRequest {
    let item = |uid: &&str| {
        let set = v1::NodeSet {
            nodes: nodes.to_vec(),
            digest: "d".to_owned(),
        };
        v1::UpdateTargetsItem {
            r#ref: Some(reference(uid)),
            node_set: Some(v1::NodeSetRef {
                set: Some(v1::node_set_ref::Set::Inline(set)),
            }),
        }
    };
    v1::UpdateTargetsRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        items: uids.iter().map(item).collect(),
    }
}

pub(crate) fn delete_resources(all: &[v1::Resource]) -> v1::DeleteOwnedResourcesRequest {
    let one = |resource: &v1::Resource| v1::DeleteOwnedResource {
        id: resource.id.clone(),
        r#type: resource.r#type.clone(),
        expected_mark: resource.mark.clone(),
        expected_revision: String::new(),
    };
    v1::DeleteOwnedResourcesRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        resources: all.iter().map(one).collect(),
    }
}

pub(crate) async fn deleted(client: &Client, uid: &str) -> v1::DeleteLoadBalancerResponse {
    let mut client = client.clone();
    Box::pin(client.delete_load_balancer(delete(uid)))
        .await
        .unwrap()
        .into_inner()
}

fn delete(uid: &str) -> v1::DeleteLoadBalancerRequest {
    v1::DeleteLoadBalancerRequest {
        cluster: Some(cluster()),
        intent: Some(intent()),
        r#ref: Some(reference(uid)),
        policy: v1::DeletePolicy::Delete.into(),
    }
}

pub(crate) fn query(uid: &str, applied: Option<v1::Spec>) -> v1::LoadBalancerQuery {
    let reference = v1::LoadBalancerRef {
        applied,
        ..reference(uid)
    };
    v1::LoadBalancerQuery {
        r#ref: Some(reference),
        ..Default::default()
    }
}

pub(crate) fn asked(queries: Vec<v1::LoadBalancerQuery>) -> v1::GetLoadBalancersRequest {
    v1::GetLoadBalancersRequest {
        cluster: Some(cluster()),
        queries,
    }
}

pub(crate) fn list() -> v1::ListOwnedResourcesRequest {
    v1::ListOwnedResourcesRequest {
        cluster: Some(cluster()),
        ..Default::default()
    }
}

/// Nodes as (provider ID, name).
pub(crate) fn lookup(nodes: &[(&str, &str)]) -> v1::GetInstancesRequest {
    let node = |(provider_id, name): &(&str, &str)| v1::Node {
        provider_id: (*provider_id).to_owned(),
        name: (*name).to_owned(),
        ..Default::default()
    };
    v1::GetInstancesRequest {
        cluster: Some(cluster()),
        nodes: nodes.iter().map(node).collect(),
        max_age: Some(Duration::ZERO.try_into().unwrap()),
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

/// The address that a Service would be told.
pub(crate) fn first_address(made: &v1::EnsureLoadBalancerResponse) -> String {
    match made.status.as_ref().unwrap().ingress[0].address.clone().unwrap() {
        v1::ingress::Address::Ip(ip) => ip,
        v1::ingress::Address::Hostname(name) => panic!("a host name: {name}"),
    }
}

/// A node port that greets; it ends with the returned set.
pub(crate) async fn target(address: &str) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            // Health checks hang up before they are greeted.
            listener.accept().await.unwrap().0.write_all(b"!").await.ok();
        }
    });
    (port, tasks)
}

/// Whether a client is greeted.
pub(crate) async fn answers(address: &str, port: u16) -> bool {
    let ask = async { TcpStream::connect((address, port)).await?.read_u8().await };
    matches!(timeout(PATIENCE, ask).await, Ok(Ok(b'!')))
}

/// What an HTTP server answers, headers and all.
pub(crate) async fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
