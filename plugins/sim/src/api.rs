//! The cloud as the plugin reaches it: in this process, or in another one of this build.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService as _;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::cloud::{Answer, Applied, Caller, CloudError, ErrorCode, Op};
use crate::endpoint;
use crate::running::RunningCloud;
use crate::v1;
use crate::v1::sim_cloud_client::SimCloudClient;

/// Where the cloud is. Cheap to clone.
#[derive(Clone, Debug)]
pub enum CloudApi {
    /// In this process: it ends with it.
    Here(RunningCloud),
    /// In another process: several plugins share it, and it outlives them.
    There(SimCloudClient<Channel>),
}

/// What goes over the wire.
#[derive(Debug, Serialize, Deserialize)]
struct Called {
    caller: Caller,
    op: Op,
}

impl CloudApi {
    /// The cloud that listens at `path`, now or later.
    pub fn there(path: &Path) -> Self {
        let client = SimCloudClient::new(endpoint::channel(path))
            .max_decoding_message_size(endpoint::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(endpoint::MAX_MESSAGE_BYTES);
        Self::There(client)
    }

    /// The cloud, if it is in this process.
    pub fn here(&self) -> Option<&RunningCloud> {
        match self {
            Self::Here(cloud) => Some(cloud),
            Self::There(_) => None,
        }
    }

    /// One call.
    ///
    /// # Errors
    ///
    /// What the cloud says, or that it said nothing within `patience`.
    pub async fn call(&self, caller: &Caller, op: &Op, patience: Duration) -> Result<Answer, CloudError> {
        let answer = async {
            match self {
                Self::Here(cloud) => cloud.call(caller, op).await,
                Self::There(client) => ask(client.clone(), caller, op).await,
            }
        };
        let late = || silent(op, format!("the cloud did not answer within {patience:?}"));
        tokio::time::timeout(patience, answer)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

async fn ask(mut client: SimCloudClient<Channel>, caller: &Caller, op: &Op) -> Result<Answer, CloudError> {
    let odd =
        |error: serde_json::Error| silent(op, format!("the cloud's process is of another build: {error}"));
    let message = Called {
        caller: caller.clone(),
        op: op.clone(),
    };
    let call = serde_json::to_vec(&message).map_err(odd)?;
    match client.call(v1::CallRequest { call }).await {
        Ok(answer) => serde_json::from_slice(&answer.into_inner().answer).map_err(odd)?,
        Err(status) => Err(silent(
            op,
            format!("the cloud's process does not answer: {}", status.message()),
        )),
    }
}

/// Nobody knows what became of a write.
fn silent(op: &Op, text: String) -> CloudError {
    CloudError {
        applied: if op.writes() {
            Applied::Unknown
        } else {
            Applied::No
        },
        ..CloudError::new(ErrorCode::Unavailable, text)
    }
}

/// Serves a cloud to other processes.
#[derive(Clone, Debug)]
pub(crate) struct CloudService(pub(crate) RunningCloud);

#[tonic::async_trait]
impl v1::sim_cloud_server::SimCloud for CloudService {
    async fn call(&self, request: Request<v1::CallRequest>) -> Result<Response<v1::CallResponse>, Status> {
        let odd = |error: serde_json::Error| Status::invalid_argument(format!("another build: {error}"));
        let called: Called = serde_json::from_slice(&request.get_ref().call).map_err(odd)?;
        let answer = self.0.call(&called.caller, &called.op).await;
        let answer = serde_json::to_vec(&answer).map_err(odd)?;
        Ok(Response::new(v1::CallResponse { answer }))
    }
}

/// Serves the cloud's own interface and its control on one socket, until `stop`.
///
/// # Errors
///
/// The socket cannot be taken.
pub async fn serve_cloud(cloud: RunningCloud, path: &Path, stop: impl Future<Output = ()>) -> io::Result<()> {
    let listener = endpoint::bind(path).await?;
    let control = crate::control::service(crate::control::ControlService::new(Some(cloud.clone()), None));
    let calls = v1::sim_cloud_server::SimCloudServer::new(CloudService(cloud))
        .max_decoding_message_size(endpoint::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(endpoint::MAX_MESSAGE_BYTES);
    endpoint::serve(Both { calls, control }, listener, stop).await
}

type Calls = v1::sim_cloud_server::SimCloudServer<CloudService>;
type Control = v1::sim_control_server::SimControlServer<crate::control::ControlService>;

/// Two services on one connection.
#[derive(Clone, Debug)]
struct Both {
    calls: Calls,
    control: Control,
}

impl Service<http::Request<Body>> for Both {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = <Calls as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path().split('/').nth(1) == Some(Calls::NAME) {
            self.calls.call(request)
        } else {
            self.control.call(request)
        }
    }
}
