//! Serving on a unix socket.

use std::{
    fs,
    io::ErrorKind,
    os::unix::{
        fs::{DirBuilderExt as _, PermissionsExt as _},
        net,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use bulkhead_proto::{
    MAX_MESSAGE_BYTES, REVISION, v1::Capability, v1::cloud_provider_server::CloudProviderServer,
};
use futures::stream;
use tokio::{net::UnixListener, sync::oneshot, task::JoinSet};
use tonic::transport::Server;
use tonic_health::ServingStatus;

use crate::{cloud::Cloud, dispatch::Dispatch, script::Script, service::Service};

/// Who a plugin is.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name in the journal.
    pub name: String,
    /// What it declares.
    pub capabilities: Vec<Capability>,
    /// The revision of the protocol that it says it speaks.
    pub revision: u32,
}

impl Options {
    /// A plugin with instances and load balancers.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            capabilities: vec![Capability::Instances, Capability::Lb],
            revision: REVISION,
        }
    }
}

/// A plugin that serves until it is dropped or stopped.
#[derive(Debug)]
pub struct ScriptedPlugin {
    socket: PathBuf,
    script: Script,
    cloud: Cloud,
    stop: oneshot::Sender<()>,
    server: JoinSet<Result<(), tonic::transport::Error>>,
}

impl ScriptedPlugin {
    /// Serves on `socket`, whose folder it makes, taking the path from whoever had it.
    ///
    /// # Errors
    ///
    /// If it cannot listen there.
    pub async fn start(socket: &Path, options: Options, script: Script, cloud: &Cloud) -> Result<Self> {
        let listener = listen(socket).with_context(|| format!("listen on {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let service = Service::new(options, script.clone(), cloud.clone());
        let service = CloudProviderServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter
            .set_service_status(bulkhead_proto::SERVICE_NAME, ServingStatus::Serving)
            .await;
        let incoming = stream::unfold(listener, |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let (stop, stopped) = oneshot::channel::<()>();
        // A handle that is dropped ends it too.
        let stopped = async { drop(stopped.await) };
        let mut server = JoinSet::new();
        server.spawn(Server::builder().serve_with_incoming_shutdown(
            Dispatch {
                named: health,
                other: service,
            },
            incoming,
            stopped,
        ));
        Ok(Self {
            socket: socket.to_owned(),
            script,
            cloud: cloud.clone(),
            stop,
            server,
        })
    }

    /// Its endpoint, as a host's `--plugin` takes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The script.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// The cloud behind it.
    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    /// Lets running calls end, then closes all sessions.
    ///
    /// # Errors
    ///
    /// If the server had failed.
    pub async fn stop(mut self) -> Result<()> {
        // An error says that the server has ended already.
        self.stop.send(()).ok();
        while let Some(ended) = self.server.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Serves until the server fails, which is never.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn serve(mut self) -> Result<()> {
        while let Some(ended) = self.server.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Listens as a plugin does: in a folder that is its own, taking the path from whoever had it.
///
/// # Errors
///
/// If it cannot.
pub fn listen(socket: &Path) -> Result<net::UnixListener> {
    let folder = socket.parent().context("the socket has no folder")?;
    fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    match fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = net::UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}
