//! `serve()`: takes the socket, answers, drains, gives the socket back.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_proto::MAX_MESSAGE_BYTES;
use futures::stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;

use crate::describe::DescriptionError;
use crate::dispatch::Dispatch;
use crate::health::HealthService;
use crate::listener::Listener;
use crate::options::ServeOptions;
use crate::port::PortError;
use crate::provider::CloudProvider;
use crate::runner::Runner;
use crate::service::Service;
use crate::socket::SocketError;
use crate::v1::cloud_provider_server::CloudProviderServer;
use crate::{stop, terms};

/// Statuses with details travel as headers; libraries' defaults are too small for some.
const MAX_HEADER_LIST_BYTES: u32 = 256 << 10;
/// How long a host may take to answer that it is there.
const KEEPALIVE_PATIENCE: Duration = Duration::from_secs(5);
/// How long answers and tasks may take after the drain: 28 s and this fit into the kubelet's 30.
const HARD_CAP: Duration = Duration::from_secs(1);

/// Why a plugin cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What the author declares is not legal.
    #[error("the plugin's description is wrong: {0}")]
    Description(#[from] DescriptionError),
    /// Folder or socket cannot be taken.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The port cannot be taken, or its certificates not be used.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The process cannot hear that it should end.
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] io::Error),
    /// The server failed while it ran.
    #[error("the server failed: {0}")]
    Server(#[from] tonic::transport::Error),
}

/// Serves `provider` until SIGTERM, SIGINT, or, if a host spawned this process, until its stdin ends.
///
/// Asked to end, it stays ready and says so in `GetStatus` until the last session is closed or the drain limit has
/// passed; without a session it ends at once. Work that still runs is waited for within the same limit.
///
/// # Errors
///
/// The description is illegal, socket or port cannot be taken (with what to do), or the server fails.
pub async fn serve<P: CloudProvider>(provider: P, options: ServeOptions) -> Result<(), ServeError> {
    let stop = stop::requested(options.stdin).map_err(ServeError::Signals)?;
    serve_until(provider, options, stop).await
}

/// As [`serve`], but asked to end by `stop`; signals and stdin are left alone. For tests and programs that do more.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_until<P: CloudProvider>(
    provider: P,
    options: ServeOptions,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let description = provider.describe();
    let answer = description.finish(options.calls_in_flight)?;
    let listener = Listener::bind(&options).await?;
    let (sessions, replaced) = (listener.sessions(), listener.replaced());
    tracing::info!(
        endpoint = listener.endpoint(),
        provider = answer.provider_name,
        "serving"
    );

    let runner = Arc::new(Runner::new(Arc::new(provider), description, &options));
    let closing = runner.closing().clone();
    let _closed_in_any_case = closing.clone().drop_guard();
    let following = runner.tasks().spawn(terms::follow(Arc::clone(&runner)));
    let service = CloudProviderServer::new(Service::new(Arc::clone(&runner), answer))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(options.largest_answer);
    let health = HealthServer::new(HealthService::new(
        Arc::clone(runner.leadership()),
        closing.clone(),
    ));
    let keepalive = listener.keepalive();
    let incoming = stream::unfold(listener, |mut listener| async move {
        Some((io::Result::Ok(listener.accept().await), listener))
    });
    let mut server = Box::pin(
        Server::builder()
            .http2_keepalive_interval(keepalive)
            .http2_keepalive_timeout(Some(KEEPALIVE_PATIENCE))
            .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
            .serve_with_incoming_shutdown(
                Dispatch::new(service, health),
                incoming,
                closing.clone().cancelled_owned(),
            ),
    );

    tokio::select! {
        result = &mut server => return Ok(result?),
        () = drained(stop, sessions.clone(), &options, &runner) => closing.cancel(),
        () = abandoned(replaced, sessions, &runner) => closing.cancel(),
    }
    // A client that never reads, or work that never ends, must not hold the process.
    if tokio::time::timeout(HARD_CAP, &mut server).await.is_err() {
        tracing::warn!("ended with sessions still open");
    }
    drop(server);
    runner.tasks().close();
    if tokio::time::timeout(HARD_CAP, runner.tasks().wait())
        .await
        .is_err()
    {
        tracing::error!(running = runner.tasks().len(), "ended with work still running");
        following.abort();
    }
    Ok(())
}

/// Resolves when another process has taken the socket's path, and nobody needs this one any more. Until then it works
/// on: the host may come back to it if the other process fails.
async fn abandoned<P: CloudProvider>(
    mut replaced: watch::Receiver<bool>,
    mut sessions: watch::Receiver<usize>,
    runner: &Runner<P>,
) {
    // An error means that the listener is gone; then the server ends by itself.
    if replaced.wait_for(|is_replaced| *is_replaced).await.is_err() {
        std::future::pending::<()>().await;
    }
    drop(sessions.wait_for(|open| *open == 0).await);
    tracing::info!("another process has taken over, and the last session is closed: ending");
    runner.draining().cancel();
    runner.idle().await;
}

/// Resolves when the process was asked to end and may: nobody is connected and nothing runs, or time is up.
async fn drained<P: CloudProvider>(
    stop: impl Future<Output = ()>,
    mut sessions: watch::Receiver<usize>,
    options: &ServeOptions,
    runner: &Runner<P>,
) {
    stop.await;
    let draining: &CancellationToken = runner.draining();
    draining.cancel();
    tracing::info!(
        sessions = *sessions.borrow(),
        running = runner.in_flight(),
        "asked to end: draining"
    );
    let empty = async {
        // An error means that the listener is gone, and its sessions with it.
        drop(sessions.wait_for(|open| *open == 0).await);
        runner.idle().await;
    };
    if tokio::time::timeout(options.drain, empty).await.is_err() {
        tracing::warn!(limit = ?options.drain, "the drain limit passed");
    }
}
