//! What is called: a plugin on the SDK, or tonic and nothing else.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_plugin::v1::{self, Capability, SchemeUse};
use bulkhead_plugin::{Call, CloudProvider, Description, PluginError, ServeOptions};
use clap::{Args, ValueEnum};
use futures::stream;
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::question;

/// The process that is called.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// What answers
    kind: Kind,
    /// Where it listens
    socket: PathBuf,
    /// Threads of its runtime
    pub(crate) threads: NonZeroUsize,
}

/// What answers.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    /// A plugin on the SDK.
    Plugin,
    /// The server that tonic generates, with one method.
    Bare,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Bare => "bare",
        }
    }
}

impl Serve {
    /// Serves until the process is ended.
    pub(crate) async fn run(self) -> Result<()> {
        // As plugins do.
        bulkhead_plugin::logging::init()?;
        match self.kind {
            Kind::Plugin => {
                let endpoint = format!("unix://{}", self.socket.display());
                Ok(bulkhead_plugin::serve(Provider, ServeOptions::new(&endpoint)?).await?)
            }
            Kind::Bare => bare(&self.socket).await,
        }
    }
}

/// A cloud that knows every instance at once.
struct Provider;

impl CloudProvider for Provider {
    fn describe(&self) -> Description {
        Description::new("bench", env!("CARGO_PKG_VERSION"))
            .capability(Capability::Instances)
            .scheme("bench", SchemeUse::Unique)
    }

    async fn get_instances(
        &self,
        _call: &Call,
        request: v1::GetInstancesRequest,
    ) -> Result<v1::GetInstancesResponse, PluginError> {
        Ok(question::answer(request))
    }
}

async fn bare(socket: &Path) -> Result<()> {
    let folder = socket.parent().context("the socket has no folder")?;
    std::fs::create_dir_all(folder)?;
    let listener = UnixListener::bind(socket)?;
    let incoming = stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    // What tonic's generated server does for a method, without a choice of methods.
    let service = service_fn(async |request: http::Request<Body>| {
        let method = service_fn(async |request: Request<v1::GetInstancesRequest>| {
            let answer = question::answer(request.into_inner());
            Ok::<_, Status>(Response::new(answer))
        });
        let answer = Grpc::new(ProstCodec::default()).unary(method, request).await;
        Ok::<_, Infallible>(answer)
    });
    Ok(Server::builder().serve_with_incoming(service, incoming).await?)
}
