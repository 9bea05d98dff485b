//! What may listen in a plugin's place.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use bulkhead_proto::v1::{DescribeRequest, DescribeResponse};
use futures::stream;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// No revision of the protocol yet.
const REVISION: u32 = 99;
/// What no client of HTTP/2 understands.
const GARBAGE: [u8; 4096] = [0xA5; 4096];

/// Listens until it is dropped.
pub(super) struct Rogue(#[expect(dead_code, reason = "its drop ends the listener")] JoinSet<()>);

impl Rogue {
    /// Writes garbage to whoever connects, for as long as it is taken.
    pub(super) fn garbage(socket: &Path) -> Result<Self> {
        let listener = listen(socket)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut victims = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                victims.spawn(flood(stream));
            }
        });
        Ok(Self(tasks))
    }

    /// Describes itself as of another revision, whatever it is asked.
    pub(super) fn of_another_revision(socket: &Path) -> Result<Self> {
        let incoming = stream::unfold(listen(socket)?, |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let service = service_fn(async |request: http::Request<Body>| {
            let describe = service_fn(async |_: Request<DescribeRequest>| {
                Ok::<_, Status>(Response::new(DescribeResponse {
                    provider_name: "rogue".to_owned(),
                    plugin_version: "1".to_owned(),
                    instance_id: "1".to_owned(),
                    protocol_revisions: vec![REVISION],
                    ..DescribeResponse::default()
                }))
            });
            let answer = Grpc::new(ProstCodec::default()).unary(describe, request).await;
            Ok::<_, Infallible>(answer)
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // It fails with its listener only, and then the host shows it.
            Server::builder()
                .serve_with_incoming(service, incoming)
                .await
                .ok();
        });
        Ok(Self(tasks))
    }
}

async fn flood(mut stream: UnixStream) {
    while stream.write_all(&GARBAGE).await.is_ok() {}
}

/// Takes the path from whoever had it, in a folder that is there.
fn listen(socket: &Path) -> Result<UnixListener> {
    fs::remove_file(socket).with_context(|| format!("remove {}", socket.display()))?;
    let listener = UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}
