//! Sockets beside the plugin's own: of the cloud and of the controls.

use std::convert::Infallible;
use std::fs::Permissions;
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use futures::stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint, Server};

/// Largest message in either direction, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Only this user may drive a cloud.
const SOCKET_MODE: u32 = 0o600;

/// Listens, in place of a socket that an ended process left behind. The folder must exist.
pub(crate) async fn bind(path: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path)
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path).map_err(named)?;
    }
    let listener = UnixListener::bind(path).map_err(named)?;
    std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(named)?;
    Ok(listener)
}

/// Serves until `stop`; calls that still run then are dropped, since some of them never end.
pub(crate) async fn serve<S>(
    service: S,
    listener: UnixListener,
    stop: impl Future<Output = ()>,
) -> io::Result<()>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let incoming = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tokio::select! {
        ended = Server::builder().serve_with_incoming(service, incoming) => ended.map_err(io::Error::other),
        () = stop => Ok(()),
    }
}

/// A connection to a socket, made when it is needed and again when it broke.
pub(crate) fn channel(path: &Path) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}
