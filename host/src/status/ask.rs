//! `bulkhead status`: asks the host of this machine, and makes text of what it says.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use clap::ValueEnum;
use http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{API_VERSION, HostStatus, KIND, PATH, table};

/// How long the host may take for all of it.
const DEADLINE: Duration = Duration::from_secs(5);
/// More than any host has to say, in bytes.
const ANSWER_LIMIT: usize = 16 << 20;

/// The form in which the status is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people
    #[default]
    Table,
    /// The value as the host answers it, for scripts
    Json,
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no socket at any of the places.
    #[error("no host at {}: none runs here, or it was given another --admin-socket; give that here too", or(.0))]
    NoSocket(Vec<PathBuf>),
    /// The socket is there and nobody listens.
    #[error("the host that made {} has ended; start one", .0.display())]
    Ended(PathBuf),
    /// The socket is not for this user.
    #[error("{} is not for this user; ask as the host's user or as root", .0.display())]
    Permission(PathBuf),
    /// The socket cannot be used.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There was no answer in time.
    #[error("the host at {} does not answer within {DEADLINE:?}; its log may say why", .0.display())]
    Silent(PathBuf),
    /// Whoever listens does not answer as a host.
    #[error("what listens at {} does not answer as a host", path.display())]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn Error + Send + Sync>,
    },
    /// It answers another form of the value.
    #[error("the host at {} is of another version; see what it says with -o json", .0.display())]
    OtherVersion(PathBuf),
    /// The process cannot wait for anything.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
}

fn or(places: &[PathBuf]) -> String {
    let places: Vec<String> = places.iter().map(|it| it.display().to_string()).collect();
    places.join(" or ")
}

/// What the host at the first of `places` that has a socket says, in the form of `output`.
///
/// # Errors
/// What is to be done to get an answer.
pub fn answer(places: &[PathBuf], output: Output) -> Result<String, AskError> {
    let path = places
        .iter()
        .find(|path| !is_missing(path))
        .ok_or_else(|| AskError::NoSocket(places.to_owned()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AskError::Runtime)?;
    let said = runtime.block_on(async {
        tokio::time::timeout(DEADLINE, ask(path))
            .await
            .unwrap_or_else(|_| Err(AskError::Silent(path.clone())))
    })?;
    match output {
        Output::Json => String::from_utf8(said.into()).map_err(|error| garbled(path, error)),
        Output::Table => read(path, &said).map(|status| table::render(&status)),
    }
}

/// A folder that this user may not enter may well have one.
fn is_missing(path: &Path) -> bool {
    let looked = path.symlink_metadata();
    looked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read(path: &Path, said: &[u8]) -> Result<HostStatus, AskError> {
    let value: serde_json::Value = serde_json::from_slice(said).map_err(|error| garbled(path, error))?;
    if value.get("apiVersion").is_none_or(|it| it != API_VERSION)
        || value.get("kind").is_none_or(|it| it != KIND)
    {
        return Err(AskError::OtherVersion(path.to_owned()));
    }
    serde_json::from_value(value).map_err(|error| garbled(path, error))
}

async fn ask(path: &Path) -> Result<Bytes, AskError> {
    let stream = UnixStream::connect(path)
        .await
        .map_err(|error| unreached(path, error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| garbled(path, error))?;
    let request = Request::get(PATH)
        .header(header::HOST, "bulkhead")
        .header(header::CONNECTION, "close")
        .body(Body::empty())
        .map_err(|error| garbled(path, error))?;
    let exchange = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| garbled(path, error))?;
        if answer.status() != StatusCode::OK {
            return Err(garbled(path, format!("status {}", answer.status())));
        }
        to_bytes(Body::new(answer.into_body()), ANSWER_LIMIT)
            .await
            .map_err(|error| garbled(path, error))
    };
    // How the connection ends says nothing that the exchange does not.
    let (said, _) = tokio::join!(exchange, connection);
    said
}

fn unreached(path: &Path, source: io::Error) -> AskError {
    let path = path.to_owned();
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "all other kinds are told as they are"
    )]
    match source.kind() {
        io::ErrorKind::ConnectionRefused => AskError::Ended(path),
        io::ErrorKind::NotFound => AskError::NoSocket(vec![path]),
        io::ErrorKind::PermissionDenied => AskError::Permission(path),
        _ => AskError::Connect { path, source },
    }
}

fn garbled(path: &Path, source: impl Into<Box<dyn Error + Send + Sync>>) -> AskError {
    AskError::Garbled {
        path: path.to_owned(),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests;
