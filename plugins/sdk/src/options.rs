//! Where and how a plugin serves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_proto::MAX_MESSAGE_BYTES;

use crate::flags::{ENDPOINT_VARIABLE, ServeFlags};
use crate::tls::TlsFiles;

/// Environment variable that a host sets to `1` for a plugin it spawned.
pub const SPAWNED_VARIABLE: &str = "BULKHEAD_SPAWNED";

/// Longest path of a unix socket in bytes: `sun_path` less its terminating zero.
const MAX_PATH_BYTES: usize = 107;
/// The kubelet kills 30 s after SIGTERM; two are left for the last answers.
const DRAIN: Duration = Duration::from_secs(28);
const CALLS_IN_FLIGHT: u32 = 64;

/// What end of file on stdin means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The host spawned this process and holds the other end: end of file means that the host is gone.
    EndsPlugin,
    /// A container's stdin is `/dev/null`: it says nothing.
    Ignored,
}

/// Where a plugin listens.
#[derive(Clone, Debug)]
pub(crate) enum Listen {
    /// On a unix socket.
    Socket(PathBuf),
    /// On a port, over mutual TLS.
    Port { address: SocketAddr, files: TlsFiles },
}

/// Where and how a plugin serves.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub(crate) listen: Listen,
    pub(crate) allowed_uids: Vec<u32>,
    pub(crate) calls_in_flight: u32,
    pub(crate) drain: Duration,
    pub(crate) stdin: Stdin,
    pub(crate) largest_answer: usize,
}

/// What is wrong with an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Neither flag nor environment.
    #[error("no endpoint: give --endpoint unix:///path/plugin.sock or set {ENDPOINT_VARIABLE}")]
    Missing,
    /// None of the forms.
    #[error("endpoint {endpoint:?} is neither unix:///absolute/path.sock nor https://ADDRESS:PORT")]
    Form {
        /// What was given.
        endpoint: String,
    },
    /// No unix socket, where only one will do.
    #[error("endpoint {endpoint:?} is not of the form unix:///absolute/path.sock")]
    NoSocket {
        /// What was given.
        endpoint: String,
    },
    /// A port without certificates.
    #[error("endpoint {endpoint:?} needs --tls-cert-file, --tls-private-key-file and --client-ca-file")]
    NoTls {
        /// What was given.
        endpoint: String,
    },
    /// Some of the files only.
    #[error("--tls-cert-file, --tls-private-key-file and --client-ca-file go together: give all three")]
    IncompleteTls,
    /// A unix socket has no use for certificates.
    #[error(
        "--tls-cert-file, --tls-private-key-file and --client-ca-file are for https endpoints, not for {endpoint:?}"
    )]
    TlsOfSocket {
        /// What was given.
        endpoint: String,
    },
    /// Over a network nobody knows a peer's uid.
    #[error("--allow-uid is for unix endpoints: over https a certificate says who may connect")]
    UidOfNetwork,
    /// Not a number.
    #[error("--allow-uid {text:?} is no uid")]
    Uid {
        /// What was given.
        text: String,
    },
    /// The kernel takes no longer path.
    #[error("the socket path {path:?} has {bytes} bytes, a unix socket's may have 107: use a shorter one")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
}

impl ServeOptions {
    /// Serves on a unix socket, as `unix:///run/bulkhead/example/plugin.sock`. The socket's folder is made if missing;
    /// the folder above must exist.
    ///
    /// # Errors
    ///
    /// The endpoint is not a unix socket's absolute path, or the path is too long for the kernel.
    pub fn new(endpoint: &str) -> Result<Self, EndpointError> {
        match parse(endpoint)? {
            Endpoint::Socket(path) => Ok(Self::at(Listen::Socket(path))),
            Endpoint::Port(_) => Err(EndpointError::NoTls {
                endpoint: endpoint.to_owned(),
            }),
        }
    }

    /// Serves on a port, as `https://192.0.2.7:7443` or `https://[::]:7443`, to hosts that prove themselves by a
    /// certificate, over TLS 1.3. The files are read again when they change.
    ///
    /// # Errors
    ///
    /// The endpoint is not an IP address with a port.
    pub fn over_tls(endpoint: &str, files: TlsFiles) -> Result<Self, EndpointError> {
        match parse(endpoint)? {
            Endpoint::Port(address) => Ok(Self::at(Listen::Port { address, files })),
            Endpoint::Socket(_) => Err(EndpointError::TlsOfSocket {
                endpoint: endpoint.to_owned(),
            }),
        }
    }

    fn at(listen: Listen) -> Self {
        let spawned = std::env::var_os(SPAWNED_VARIABLE).is_some_and(|value| value == "1");
        Self {
            listen,
            allowed_uids: vec![rustix::process::geteuid().as_raw(), 0],
            calls_in_flight: CALLS_IN_FLIGHT,
            drain: DRAIN,
            largest_answer: MAX_MESSAGE_BYTES,
            stdin: if spawned {
                Stdin::EndsPlugin
            } else {
                Stdin::Ignored
            },
        }
    }

    /// Takes the endpoint, and what belongs to it, from the arguments of this process, else from its environment: see
    /// [`ServeFlags`]. For plugins without a command line of their own; other arguments are left alone.
    ///
    /// # Errors
    ///
    /// There is no endpoint, it is none, or the others do not fit it.
    pub fn from_process() -> Result<Self, EndpointError> {
        ServeFlags::from_process()?.resolve()
    }

    /// Lets one more uid connect to a unix socket. This process' own and 0 always may.
    #[must_use]
    pub fn allow_uid(mut self, uid: u32) -> Self {
        self.allowed_uids.push(uid);
        self
    }

    /// How many calls may run at once (64). More are answered `RATE_LIMITED`.
    #[must_use]
    pub fn calls_in_flight(mut self, calls: u32) -> Self {
        self.calls_in_flight = calls;
        self
    }

    /// How long the plugin stays ready after it was asked to end and a session is still open (28 s).
    #[must_use]
    pub fn drain_within(mut self, limit: Duration) -> Self {
        self.drain = limit;
        self
    }

    /// What end of file on stdin means. Without this call: [`Stdin::EndsPlugin`] if `BULKHEAD_SPAWNED` is `1`.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Sends answers of any size. Hosts refuse those above 16 MiB: for simulators of plugins that break the protocol.
    #[must_use]
    pub fn answers_of_any_size(mut self) -> Self {
        self.largest_answer = usize::MAX;
        self
    }
}

/// The path in `unix:///absolute/path.sock`.
///
/// # Errors
///
/// The endpoint is of another form, or the path too long for the kernel.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, EndpointError> {
    let path = endpoint.strip_prefix("unix://").map(Path::new);
    let Some(path) = path.filter(|path| path.is_absolute() && path.file_name().is_some()) else {
        return Err(EndpointError::NoSocket {
            endpoint: endpoint.to_owned(),
        });
    };
    let bytes = path.as_os_str().len();
    if bytes > MAX_PATH_BYTES {
        return Err(EndpointError::TooLong {
            path: path.to_owned(),
            bytes,
        });
    }
    Ok(path.to_owned())
}

enum Endpoint {
    Socket(PathBuf),
    Port(SocketAddr),
}

fn parse(endpoint: &str) -> Result<Endpoint, EndpointError> {
    if endpoint.starts_with("unix://") {
        return socket_path(endpoint).map(Endpoint::Socket);
    }
    let address = endpoint
        .strip_prefix("https://")
        .and_then(|address| address.strip_suffix('/').unwrap_or(address).parse().ok());
    address.map(Endpoint::Port).ok_or_else(|| EndpointError::Form {
        endpoint: endpoint.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::relative("unix://run/a.sock")]
    #[case::two_slashes_missing("unix:/run/a.sock")]
    #[case::no_port("https://127.0.0.1")]
    #[case::name("https://localhost:1")]
    #[case::no_file("unix:///")]
    #[case::empty("")]
    fn endpoints_of_another_form_are_refused(#[case] endpoint: &str) {
        assert!(matches!(
            ServeOptions::new(endpoint),
            Err(EndpointError::Form { .. } | EndpointError::NoSocket { .. })
        ));
    }

    #[test]
    fn the_longest_path_that_the_kernel_takes_is_taken_and_one_more_is_not() {
        let fits = format!("unix:///{}", "a".repeat(MAX_PATH_BYTES - 1));
        assert!(ServeOptions::new(&fits).is_ok());
        let long = ServeOptions::new(&format!("{fits}a")).expect_err("too long");
        assert!(long.to_string().contains("108 bytes"), "{long}");
    }
}
