//! A host's part, played to `bulkhead-local`: it leads and asks for one load balancer.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_harness::eventually;
use bulkhead_proto::mark::mark;
use bulkhead_proto::v1;
use bulkhead_proto::v1::cloud_provider_client::CloudProviderClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::config::Site;

type Client = CloudProviderClient<Channel>;

const CLUSTER: &str = "bench";
const SERVICE: &str = "web";
const PATIENCE: Duration = Duration::from_secs(15);
/// Forwarding outlives the term; only the one load balancer must be made within it.
const TERM: Duration = Duration::from_mins(1);

/// Makes the plugin at `socket` balance as the site says.
pub(crate) async fn balance(socket: &Path, site: &Site) -> Result<()> {
    let mut client = connect(socket).await?;
    client
        .describe(v1::DescribeRequest::default())
        .await
        .context("Describe")?;
    lead(&mut client).await?;
    eventually(PATIENCE, "the plugin to be ready", async || {
        let request = v1::ListOwnedResourcesRequest {
            cluster: Some(cluster()),
            ..Default::default()
        };
        client.clone().list_owned_resources(request).await?;
        Ok(())
    })
    .await?;
    let made = Box::pin(client.ensure_load_balancer(ensure_request(site)))
        .await
        .context("EnsureLoadBalancer")?
        .into_inner();
    ensure!(
        made.outcome() == v1::Outcome::Done && address(&made) == Some(site.at.ip().to_string()),
        "no load balancer at {}: {made:?}",
        site.at
    );
    Ok(())
}

async fn connect(socket: &Path) -> Result<Client> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").timeout(PATIENCE);
    let channel = endpoint
        .connect_with_connector(connector)
        .await
        .with_context(|| format!("connect to {}", socket.display()))?;
    Ok(CloudProviderClient::new(channel))
}

/// Both steps.
async fn lead(client: &mut Client) -> Result<()> {
    let mut request = v1::LeadRequest {
        cluster: Some(cluster()),
        epoch: Some(epoch()),
        valid_for: Some(TERM.try_into()?),
        echo: None,
    };
    let answer = client.lead(request.clone()).await.context("Lead")?;
    request.echo = Some(answer.into_inner().clock_stamp);
    client.lead(request).await.context("Lead with echo")?;
    Ok(())
}

fn cluster() -> v1::Cluster {
    v1::Cluster {
        uid: CLUSTER.to_owned(),
        name: CLUSTER.to_owned(),
    }
}

fn epoch() -> v1::Epoch {
    v1::Epoch {
        lease_uid: "lease".to_owned(),
        transitions: 1,
    }
}

fn ensure_request(site: &Site) -> v1::EnsureLoadBalancerRequest {
    let port = |protocol: v1::Protocol| v1::Port {
        protocol: protocol.into(),
        port: site.at.port().into(),
        node_port: Some(site.backend_port.into()),
        ..Default::default()
    };
    let service = v1::ServiceKey {
        namespace: "default".to_owned(),
        name: SERVICE.to_owned(),
        uid: SERVICE.to_owned(),
    };
    v1::EnsureLoadBalancerRequest {
        cluster: Some(cluster()),
        intent: Some(v1::Intent {
            request_id: "8c0a5bd8-6d6b-4c0b-8a3e-8f3f3ea5a9a4".to_owned(),
            epoch: Some(epoch()),
            reason: v1::IntentReason::Changed.into(),
            soft_deadline: PATIENCE.try_into().ok(),
        }),
        r#ref: Some(v1::LoadBalancerRef {
            service: Some(service),
            mark: mark(CLUSTER, SERVICE, ""),
            ..Default::default()
        }),
        spec: Some(v1::Spec {
            ports: vec![port(v1::Protocol::Tcp), port(v1::Protocol::Udp)],
            ..Default::default()
        }),
        spec_digest: "spec".to_owned(),
        node_set: Some(v1::NodeSetRef {
            set: Some(v1::node_set_ref::Set::Inline(v1::NodeSet {
                nodes: site.backends.into_iter().map(node).collect(),
                digest: "nodes".to_owned(),
            })),
        }),
    }
}

fn node(address: Ipv4Addr) -> v1::Node {
    v1::Node {
        name: address.to_string(),
        addresses: vec![v1::Address {
            r#type: v1::AddressType::InternalIp.into(),
            address: address.to_string(),
        }],
        ..Default::default()
    }
}

fn address(made: &v1::EnsureLoadBalancerResponse) -> Option<String> {
    let ingress = made.status.as_ref()?.ingress.first()?;
    match ingress.address.as_ref()? {
        v1::ingress::Address::Ip(ip) => Some(ip.clone()),
        v1::ingress::Address::Hostname(_) => None,
    }
}
