//! The same call by tonic's generated client alone.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bulkhead_proto::v1::GetInstancesRequest;
use bulkhead_proto::v1::cloud_provider_client::CloudProviderClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::load::Caller;
use super::question::{self, Question};

/// A client on a connection of its own.
#[derive(Clone)]
pub(super) struct TonicCaller {
    client: CloudProviderClient<Channel>,
    request: Arc<GetInstancesRequest>,
}

impl TonicCaller {
    pub(super) async fn connect(socket: &Path, question: Question) -> Result<Self> {
        let socket = socket.to_owned();
        let connector = service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint
            .connect_with_connector(connector)
            .await
            .context("connect")?;
        Ok(Self {
            client: CloudProviderClient::new(channel),
            request: Arc::new(question.request()),
        })
    }
}

impl Caller for TonicCaller {
    async fn call(&self) -> Result<()> {
        let request = GetInstancesRequest::clone(&self.request);
        let response = self.client.clone().get_instances(request).await?;
        question::check(response.get_ref())
    }
}
