//! A real API server with etcd in it, one for each test that runs a host.

use std::{
    fmt, fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Once, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::{AuditedRequest, Process, Signal, Workspace, audit, binaries, eventually, manifests};

/// The name of the `ServiceAccount` that the manifests give the host's rights to.
pub const HOST_USER: &str = "system:serviceaccount:bulkhead-system:bulkhead";

/// Each takes some 300 MB and two CPU-seconds to start; more at once only make each other slow.
const AT_ONCE: usize = 3;
static RUNNING: Semaphore = Semaphore::const_new(AT_ONCE);

const READY_WITHIN: Duration = Duration::from_mins(1);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// A port found free may be taken by somebody else before the server binds it.
const PORT_ATTEMPTS: usize = 5;
const PORT_TAKEN: &str = "address already in use";

/// Who asks. Authentication is by a random token of each, authorisation by the server's RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// May do everything.
    Admin,
    /// The host: the rights of the shipped manifests, none before they are applied.
    Host,
    /// Authenticated, without rights.
    Scraper,
}

/// A running API server on 127.0.0.1. Dropping it ends it; at most three run at once in one test process.
pub struct ApiServer {
    scenario: String,
    forbidden_because: Arc<OnceLock<&'static str>>,
    folder: PathBuf,
    port: u16,
    tokens: Tokens,
    admin: Client,
    process: Option<Process>,
    _permit: SemaphorePermit<'static>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("url", &self.url())
            .finish_non_exhaustive()
    }
}

struct Tokens {
    admin: String,
    host: String,
    scraper: String,
}

impl ApiServer {
    /// Starts one in the workspace's folder `cluster` and waits until it is ready and has its namespaces.
    ///
    /// # Errors
    ///
    /// If its binary is not built, or it does not become ready; with the end of its log.
    pub async fn start(workspace: &Workspace) -> Result<Self> {
        let binary = binaries::cluster()?;
        let permit = RUNNING.acquire().await?;
        let folder = workspace.join("cluster");
        fs::create_dir_all(&folder)?;
        let tokens = Tokens::random();
        tokens.write(&folder.join("tokens.csv"))?;
        let (process, port) = launch_on_free_port(workspace, &binary, &folder).await?;
        let kubeconfig = kubeconfig(&folder, &url(port), &tokens.admin);
        let admin = client(serde_json::from_value(kubeconfig)?).await?;
        let server = Self {
            scenario: workspace.name().to_owned(),
            forbidden_because: workspace.forbidden_because(),
            folder,
            port,
            tokens,
            admin,
            process: Some(process),
            _permit: permit,
        };
        server.wait_for_namespace("default").await?;
        server.wait_for_namespace("kube-system").await?;
        Ok(server)
    }

    /// A client that may do everything. Goes on working over a restart.
    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    /// A client with a user's token.
    ///
    /// # Errors
    ///
    /// If the server's certificate cannot be read.
    pub async fn client(&self, user: User) -> Result<Client> {
        let kubeconfig = kubeconfig(&self.folder, &self.url(), self.token(user));
        client(serde_json::from_value(kubeconfig)?).await
    }

    /// A user's bearer token.
    pub fn token(&self, user: User) -> &str {
        match user {
            User::Admin => &self.tokens.admin,
            User::Host => &self.tokens.host,
            User::Scraper => &self.tokens.scraper,
        }
    }

    /// Writes a kubeconfig of a user and returns its path.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn kubeconfig(&self, user: User) -> Result<PathBuf> {
        self.kubeconfig_via(user, self.port)
    }

    /// Writes a kubeconfig that goes to another port of 127.0.0.1, where a [`crate::TcpProxy`] listens.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn kubeconfig_via(&self, user: User, port: u16) -> Result<PathBuf> {
        self.kubeconfig_at(user, &url(port))
    }

    /// Writes a kubeconfig that goes to another URL.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(crate) fn kubeconfig_at(&self, user: User, url: &str) -> Result<PathBuf> {
        let (_, port) = url.rsplit_once(':').context("the URL has no port")?;
        let path = self
            .folder
            .join(format!("{user:?}-{port}.kubeconfig").to_lowercase());
        let content = kubeconfig(&self.folder, url, self.token(user));
        fs::write(&path, serde_json::to_vec_pretty(&content)?)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// `https://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// The port, the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority that signed the server's.
    pub fn ca_certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Applies the repository's `deploy/manifests`: what gives the host its rights.
    ///
    /// # Errors
    ///
    /// See [`crate::apply_manifests`].
    pub async fn apply_manifests(&self) -> Result<Vec<String>> {
        manifests::apply_manifests(&self.admin, &binaries::repository_root().join("deploy/manifests")).await
    }

    /// The requests that have ended so far, of all starts of this server.
    ///
    /// # Errors
    ///
    /// If the audit log cannot be read.
    pub fn audited_requests(&self) -> Result<Vec<AuditedRequest>> {
        audit::read(&audit_log(&self.folder))
    }

    /// The process, unless it was stopped.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Ends the server in an orderly way. The data stays.
    ///
    /// # Errors
    ///
    /// If it has not ended within 20 seconds; then it is killed.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(process) = self.process.take() else {
            return Ok(());
        };
        process.signal(Signal::TERM)?;
        process.wait(STOPPED_WITHIN).await.map(drop)
    }

    /// Starts a stopped server again with its data, keys, tokens and port.
    ///
    /// # Errors
    ///
    /// If it runs, or does not become ready.
    pub async fn start_again(&mut self, workspace: &Workspace) -> Result<()> {
        if self.process.is_some() {
            bail!("the API server runs already");
        }
        let process = launch(workspace, &binaries::cluster()?, &self.folder, self.port)?;
        process.wait_for_log(&ready_line(self.port), READY_WITHIN).await?;
        self.process = Some(process);
        Ok(())
    }

    async fn wait_for_namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        eventually(READY_WITHIN, &format!("namespace {name}"), async || {
            Ok(namespaces.get(name).await?)
        })
        .await
        .map(drop)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let because = self.forbidden_because.get().copied();
        if let Err(error) = audit::leave_summary(&audit_log(&self.folder), &self.scenario, because) {
            report(&self.scenario, &error);
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the test runner shows this beside the test's result"
)]
fn report(test: &str, error: &anyhow::Error) {
    eprintln!("what the API server of {test} was asked is lost: {error:#}");
}

impl Tokens {
    fn random() -> Self {
        let token = || Uuid::new_v4().simple().to_string();
        Self {
            admin: token(),
            host: token(),
            scraper: token(),
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let Self { admin, host, scraper } = self;
        let lines = format!(
            "{admin},admin,admin,\"system:masters\"\n\
             {host},{HOST_USER},host,\"system:serviceaccounts,system:serviceaccounts:bulkhead-system,system:authenticated\"\n\
             {scraper},scraper,scraper\n"
        );
        fs::write(path, lines).with_context(|| format!("write {}", path.display()))
    }
}

async fn launch_on_free_port(workspace: &Workspace, binary: &Path, folder: &Path) -> Result<(Process, u16)> {
    let mut last = anyhow!("no attempt");
    for _ in 0..PORT_ATTEMPTS {
        let port = free_port()?;
        let process = launch(workspace, binary, folder, port)?;
        match process.wait_for_log(&ready_line(port), READY_WITHIN).await {
            Ok(_) => return Ok((process, port)),
            Err(error) if process.log()?.contains(PORT_TAKEN) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last.context(format!("{PORT_ATTEMPTS} ports were taken one after another")))
}

fn launch(workspace: &Workspace, binary: &Path, folder: &Path, port: u16) -> Result<Process> {
    let mut command = Command::new(binary);
    command
        .arg("control-plane")
        .arg("--dir")
        .arg(folder)
        .args(["--port", &port.to_string()])
        .arg("--audit-log")
        .arg(audit_log(folder))
        .env("BULKHEAD_SPAWNED", "1");
    Process::spawn(workspace, "apiserver", command)
}

fn audit_log(folder: &Path) -> PathBuf {
    folder.join("audit.log")
}

fn ready_line(port: u16) -> String {
    format!("ready {}", url(port))
}

fn url(port: u16) -> String {
    format!("https://{}:{port}", Ipv4Addr::LOCALHOST)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("find a free port")?
        .local_addr()?
        .port())
}

/// JSON, which is YAML too.
fn kubeconfig(folder: &Path, server: &str, token: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "test",
            "cluster": { "server": server, "certificate-authority": folder.join("ca.crt") },
        }],
        "users": [{ "name": "user", "user": { "token": token } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "user" } }],
        "current-context": "test",
    })
}

async fn client(kubeconfig: Kubeconfig) -> Result<Client> {
    install_crypto();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A test must see what the server answers, not what it answers at last.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// rustls asks for one provider per process.
pub(crate) fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error says that the program has installed one itself.
        rustls::crypto::ring::default_provider().install_default().ok();
    });
}
