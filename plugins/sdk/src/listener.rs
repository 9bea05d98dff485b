//! Where hosts come in: a unix socket, or a port on a network.

use std::time::Duration;

use tokio::sync::watch;

use crate::options::{Listen, ServeOptions};
use crate::port::Port;
use crate::server::ServeError;
use crate::socket::Socket;
use crate::stream::SessionStream;

/// How often a host on a network that says nothing is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A socket or a port that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Socket(Socket),
    Port(Box<Port>),
}

impl Listener {
    pub(crate) async fn bind(options: &ServeOptions) -> Result<Self, ServeError> {
        match &options.listen {
            Listen::Socket(path) => {
                let socket = Socket::bind(path, &options.allowed_uids).await?;
                Ok(Self::Socket(socket))
            }
            Listen::Port { address, files } => {
                let port = Port::bind(*address, files.clone()).await?;
                Ok(Self::Port(Box::new(port)))
            }
        }
    }

    /// As hosts are configured to reach it.
    pub(crate) fn endpoint(&self) -> String {
        match self {
            Self::Socket(socket) => format!("unix://{}", socket.path().display()),
            Self::Port(port) => format!("https://{}", port.address()),
        }
    }

    /// Only a network loses a connection without saying so.
    pub(crate) fn keepalive(&self) -> Option<Duration> {
        match self {
            Self::Socket(_) => None,
            Self::Port(_) => Some(KEEPALIVE),
        }
    }

    /// How many sessions are open.
    pub(crate) fn sessions(&self) -> watch::Receiver<usize> {
        match self {
            Self::Socket(socket) => socket.sessions(),
            Self::Port(port) => port.sessions(),
        }
    }

    /// Whether another process has taken the path. Nobody takes a port.
    pub(crate) fn replaced(&self) -> watch::Receiver<bool> {
        match self {
            Self::Socket(socket) => socket.replaced(),
            Self::Port(_) => watch::channel(false).1,
        }
    }

    /// The next connection of a host that may connect.
    pub(crate) async fn accept(&mut self) -> SessionStream {
        match self {
            Self::Socket(socket) => socket.accept().await,
            Self::Port(port) => port.accept().await,
        }
    }
}
