//! The way to the API server.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::kube::client::ClientBuilder;
use ::kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use ::kube::{Client, Config, Resource};
use http::{HeaderValue, Request, Uri, header};
use k8s_openapi::api::core::v1::Namespace;

pub use self::pace::{Pace, Turn};
use super::error::ApiError;
use crate::config::RateConfig;
use crate::telemetry::Chain;

mod pace;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest silence on a connection. Above it must lie what a watch may be silent for, [`super::stores::WATCH_SECONDS`];
/// it ends what has no deadline of its own: an answer to a watch that never starts.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Deadline of one call that asks whether the API server is there.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// Pause between two such calls.
const PROBE_PAUSE: Duration = Duration::from_secs(2);

/// How to reach the API server.
#[derive(Clone, Debug, Default)]
pub struct KubeOptions {
    /// A kubeconfig; `None`: what the Pod's environment says, unless `master` is given.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's URL, in place of the kubeconfig's.
    pub master: Option<Uri>,
    /// A rate of our own; `None`: only the API server's flow control.
    pub rate: Option<RateConfig>,
    /// Sent with every request.
    pub user_agent: String,
}

/// Why there is no way to the API server. Nothing has been sent yet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig, or a file it names, cannot be used.
    #[error("kubeconfig {}: {problem}", path.display())]
    Kubeconfig {
        /// The kubeconfig.
        path: PathBuf,
        /// What is wrong, on one line, naming the file it is about.
        problem: String,
    },
    /// The certificates or the key in the kubeconfig, or in the files it names, cannot be used.
    #[error("kubeconfig {}: the credentials or certificates cannot be used: {problem}", path.display())]
    Credentials {
        /// The kubeconfig.
        path: PathBuf,
        /// What is wrong, on one line.
        problem: String,
    },
    /// There is no kubeconfig, and the Pod's environment does not do.
    #[error("no kubeconfig is given and the in-cluster configuration cannot be used: {problem}")]
    InCluster {
        /// What is wrong, on one line.
        problem: String,
    },
    /// The user agent is no header value.
    #[error("user agent {0:?} cannot be sent: use visible ASCII characters")]
    UserAgent(String),
}

/// A client of the API server, and where that is.
#[derive(Clone)]
pub struct Connection {
    /// The client; clones share its connections.
    pub client: Client,
    /// The API server's URL.
    pub url: Uri,
    /// The rate of all requests, for who wants to wait for his turn before a deadline begins.
    pub pace: Option<Pace>,
}

/// Makes a client; nothing is sent. Token files are read again as they change, by the client itself.
///
/// # Errors
/// A file is missing, unreadable or broken.
pub async fn connect(options: &KubeOptions) -> Result<Connection, ConnectError> {
    let mut config = config(options).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // A replayed PATCH is a second write; retries live in the queues.
    config.default_retry = false;
    let agent = HeaderValue::from_str(&options.user_agent)
        .map_err(|_| ConnectError::UserAgent(options.user_agent.clone()))?;
    config.headers.push((header::USER_AGENT, agent));
    let url = config.cluster_url.clone();
    let builder = ClientBuilder::try_from(config).map_err(|error| {
        let problem = Chain(&error).to_string();
        match options.kubeconfig.clone() {
            Some(path) => ConnectError::Credentials { path, problem },
            None => ConnectError::InCluster { problem },
        }
    })?;
    let pace = options.rate.map(Pace::new);
    let client = match &pace {
        Some(pace) => builder.with_layer(pace).build(),
        None => builder.build(),
    };
    Ok(Connection { client, url, pace })
}

async fn config(options: &KubeOptions) -> Result<Config, ConnectError> {
    match (&options.kubeconfig, &options.master) {
        (Some(path), master) => from_kubeconfig(path, master.as_ref()).await,
        (None, Some(master)) => Ok(Config::new(master.clone())),
        (None, None) => Config::incluster().map_err(|error| ConnectError::InCluster {
            problem: Chain(&error).to_string(),
        }),
    }
}

async fn from_kubeconfig(path: &Path, master: Option<&Uri>) -> Result<Config, ConnectError> {
    let broken = |error: KubeconfigError| ConnectError::Kubeconfig {
        path: path.to_owned(),
        problem: problem(&error),
    };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(broken)?;
    if let Some(master) = master {
        // With a URL of its own a kubeconfig needs none.
        for cluster in kubeconfig
            .clusters
            .iter_mut()
            .filter_map(|named| named.cluster.as_mut())
        {
            cluster.server = Some(master.to_string());
        }
    }
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(broken)
}

/// The library's texts where they say enough, ours where they do not.
fn problem(error: &KubeconfigError) -> String {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the library's variants, which vary with its features"
    )]
    match error {
        KubeconfigError::ReadConfig(source, _) if source.kind() == std::io::ErrorKind::NotFound => {
            "there is no such file".to_owned()
        }
        KubeconfigError::ReadConfig(source, _) => format!("it cannot be read: {source}"),
        KubeconfigError::Parse(source) => {
            let text = source.to_string();
            format!("it is no kubeconfig: {}", text.lines().next().unwrap_or_default())
        }
        KubeconfigError::CurrentContextNotSet => "it has no current-context".to_owned(),
        KubeconfigError::LoadContext(name) => {
            format!("its current-context {name:?} is not among its contexts")
        }
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("the cluster {name:?} of its current-context is not among its clusters")
        }
        KubeconfigError::MissingClusterUrl => "the cluster of its current-context has no server".to_owned(),
        other => Chain(other).to_string(),
    }
}

/// Waits until the API server answers, however long that takes. Says once that it does not, and once that it does
/// again. Dropping the future ends the wait.
pub async fn wait_for_api(connection: &Connection) {
    let url = &connection.url;
    let answers = || async {
        let request = Request::get("/version")
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        match probe(connection.client.request_text(request)).await {
            // Who is refused was answered.
            Ok(_) | Err(ApiError::Forbidden { .. } | ApiError::Unauthenticated { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    };
    let why = match answers().await {
        Ok(()) => return,
        Err(why) => why,
    };
    tracing::warn!(%url, "API server {url} does not answer: {why}; waiting");
    until_ok(answers).await;
    tracing::info!(%url, "API server {url} answers");
}

/// The cluster's unique id: what is configured, else the UID of namespace kube-system, waited for as long as it
/// takes. Says once why it has to wait. Dropping the future ends the wait.
pub async fn cluster_uid(connection: &Connection, configured: Option<&str>) -> String {
    if let Some(configured) = configured {
        return configured.to_owned();
    }
    let read = || async {
        let request = ::kube::core::Request::new(Namespace::url_path(&(), None))
            .get("kube-system", &::kube::api::GetParams::default())
            .map_err(|error| error.to_string())?;
        let namespace: Namespace = probe(connection.client.request(request))
            .await
            .map_err(|error| error.to_string())?;
        namespace.metadata.uid.ok_or_else(|| "it has no UID".to_owned())
    };
    let why = match read().await {
        Ok(uid) => return uid,
        Err(why) => why,
    };
    tracing::warn!(
        "cannot read namespace kube-system for the cluster's id (or set --cluster-id): {why}; waiting"
    );
    let uid = until_ok(read).await;
    tracing::info!(uid, "read the cluster's id");
    uid
}

async fn probe<T>(call: impl Future<Output = ::kube::Result<T>>) -> Result<T, ApiError> {
    match tokio::time::timeout(PROBE_DEADLINE, call).await {
        Ok(result) => result.map_err(ApiError::from),
        Err(_) => Err(ApiError::Deadline {
            after: PROBE_DEADLINE,
        }),
    }
}

async fn until_ok<T, F: Future<Output = Result<T, String>>>(mut attempt: impl FnMut() -> F) -> T {
    loop {
        tokio::time::sleep(PROBE_PAUSE).await;
        match attempt().await {
            Ok(value) => return value,
            Err(why) => tracing::debug!("still waiting: {why}"),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
