//! The host's configuration: one validated value, made from flags and configuration file before anything starts.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::controllers::{Selection, SelectionError};
use bulkhead_core::election::{Timing, TimingError};
use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::territory::{Claims, Overlap, overlaps};
use http::Uri;
use kube::config::{Kubeconfig, KubeconfigError};

pub use crate::cli::values::{AllowedPath, Cidr};

pub mod file;
pub mod follow;
mod merge;
pub mod reload;
mod socket;
pub mod text;

pub use self::socket::SocketConfig;

use self::file::{FileError, HostConfiguration, Source};
use crate::cli::flags::{
    AccessFlags, ClusterFlags, ControllerFlags, ElectionFlags, PluginFlags, RunFlags, ServingFlags,
};
use crate::telemetry::LogFormat;

/// Everything that was configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The configuration file; `None`: flags only.
    pub file: Option<Source>,
    /// The plugins, in the order of the configuration; their names differ, and their claims do not overlap.
    pub plugins: Vec<PluginConfig>,
    /// Folder in which each socket that appears is a plugin; `None`: none is looked for.
    pub plugins_directory: Option<PathBuf>,
    /// The way to the API server.
    pub api: ApiConfig,
    /// The cluster's name.
    pub cluster_name: String,
    /// The cluster's unique id; `None`: the uid of namespace kube-system.
    pub cluster_id: Option<String>,
    /// Which controllers run, and how.
    pub controllers: ControllerConfig,
    /// Leader election; `None`: this host always leads.
    pub election: Option<ElectionConfig>,
    /// The admin server; `None`: no server.
    pub admin: Option<AdminConfig>,
    /// The admin socket.
    pub admin_socket: SocketConfig,
    /// Logs.
    pub log: LogConfig,
    /// How long the whole end may take after SIGTERM.
    pub shutdown_grace: Duration,
}

/// One plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConfig {
    /// Its name, a DNS label: in metrics, logs, and the finalizer of its named classes.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// User ids, beside the host's own and 0, under which it may run; of no effect on `https://`.
    pub allowed_uids: Vec<u32>,
    /// The provider name that it must report; `None`: any.
    pub provider: Option<String>,
    /// What it is to own.
    pub claims: Claims,
    /// How much of it is used at once.
    pub budget: BudgetConfig,
    /// Deadlines of calls in place of the protocol's.
    pub deadlines: DeadlineConfig,
    /// Bytes of data memory that a spawned process may have; `None`: no limit.
    pub memory_limit: Option<u64>,
    /// How the two prove themselves to each other on `https://`, where it is `None` only on loopback and by an explicit
    /// setting: then the connection is in plaintext.
    pub tls: Option<TlsConfig>,
}

/// Bounds on the calls to one plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetConfig {
    /// Calls in flight at once; `None`: as many as the plugin allows.
    pub calls_in_flight: Option<NonZeroUsize>,
    /// Calls a second; `None`: no bound.
    pub rate: Option<RateConfig>,
}

/// Hard deadlines of calls; `None`: the protocol's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineConfig {
    /// Of connecting, `Describe`, `Lead` and `PutNodeSet`.
    pub handshake: Option<Duration>,
    /// Of health checks and `GetStatus`.
    pub status: Option<Duration>,
    /// Of `GetInstances`.
    pub read: Option<Duration>,
    /// Of `GetLoadBalancers`.
    pub look: Option<Duration>,
    /// Of writes. The plugin is told to answer when five sixths of it have passed.
    pub write: Option<Duration>,
}

/// The files for mutual TLS; all are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Who may have signed the plugin's certificate, PEM.
    pub ca_file: PathBuf,
    /// The host's chain, PEM.
    pub cert_file: PathBuf,
    /// The host's key, PEM.
    pub key_file: PathBuf,
    /// The name that the plugin's certificate must have; `None`: the endpoint's host.
    pub server_name: Option<String>,
}

/// The way to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiConfig {
    /// A kubeconfig that could be read; `None`: in-cluster credentials, or none beside `master`.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's URL, in place of the kubeconfig's.
    pub master: Option<Uri>,
    /// A rate of our own; `None`: none.
    pub rate: Option<RateConfig>,
    /// Writes in flight at once.
    pub writes_in_flight: NonZeroUsize,
}

/// A token bucket over requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateConfig {
    /// Requests a second; finite and positive.
    pub per_second: f64,
    /// How many may come at once.
    pub burst: NonZeroUsize,
}

/// Which controllers run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// `--controllers`.
    pub selection: Selection,
    /// Nodes worked on at once.
    pub node_workers: NonZeroUsize,
    /// Services worked on at once.
    pub service_workers: NonZeroUsize,
    /// How often addresses of initialised nodes are refreshed; positive.
    pub node_refresh: Duration,
    /// Whether routes are wanted.
    pub routes: bool,
    /// The pods' address ranges: none, one, or two of different families.
    pub cluster_cidrs: Vec<Cidr>,
}

/// Leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The Lease's name.
    pub name: String,
    /// The Lease's namespace.
    pub namespace: String,
    /// Its durations, which fit together.
    pub timing: Timing,
}

/// The admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// File to write the bound port to.
    pub port_file: Option<PathBuf>,
    /// The server's certificate.
    pub certificate: CertificateSource,
    /// Who may read what.
    pub access: AccessConfig,
}

/// Where the admin server's certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Self-signed, made at start, never written.
    Memory,
    /// In this folder; self-signed and written there at start if missing.
    Folder(PathBuf),
    /// Two PEM files that somebody else writes.
    Files {
        /// The chain.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
}

/// Who may read from the admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// A kubeconfig for token reviews that could be read; `None`: the host's own client.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// A kubeconfig for access reviews that could be read; `None`: the host's own client.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// How long a token's review is remembered.
    pub token_ttl: Duration,
    /// How long a granted access is remembered.
    pub allowed_ttl: Duration,
    /// How long a refused access is remembered.
    pub denied_ttl: Duration,
    /// Paths that anybody may read.
    pub always_allow: Vec<AllowedPath>,
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Form of the lines.
    pub format: LogFormat,
    /// `-v`.
    pub verbosity: u8,
    /// `RUST_LOG`.
    pub filter: Option<String>,
}

/// What is wrong with the flags or with a file that they name.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file is missing or broken.
    #[error(transparent)]
    File(#[from] FileError),
    /// The configuration file says something that flags say, too, and it is wrong there.
    #[error("{}", path.display())]
    Merged {
        /// The file.
        path: PathBuf,
        /// What is wrong, in the words of the flags.
        source: Box<Self>,
    },
    /// Neither the flags nor the file name one.
    #[error(
        "no plugin: give --plugin or --plugins-directory, or plugins or pluginsDirectory in the configuration file"
    )]
    NoPlugin,
    /// Two plugins of one name.
    #[error("plugins[{first}] and plugins[{second}] are both named {name}")]
    SameName {
        /// Where it is first.
        first: usize,
        /// Where it is again.
        second: usize,
        /// The name.
        name: String,
    },
    /// Two plugins are to own the same.
    #[error(transparent)]
    Overlap(#[from] Overlap),
    /// A kubeconfig is missing or broken.
    #[error("--{flag} {}: no usable kubeconfig", path.display())]
    Kubeconfig {
        /// The flag that names it, without hyphens.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The process runs in no cluster, and no flag says where one is.
    #[error(
        "no way to an API server: give --kubeconfig, or run in a Pod (KUBERNETES_SERVICE_HOST is not set)"
    )]
    NoCluster,
    /// `--controllers` is wrong.
    #[error("--controllers")]
    Controllers(#[from] SelectionError),
    /// The durations of the election do not fit together.
    #[error(transparent)]
    Election(#[from] TimingError),
    /// `--plugin` cannot say what TLS needs.
    #[error("--plugin takes no https:// endpoint: TLS needs files that only a configuration file can name")]
    NoTls,
    /// Not one of each family.
    #[error("--cluster-cidr takes at most one range of each address family")]
    ClusterCidrs,
}

impl Config {
    /// Makes the configuration, reading the file and the kubeconfigs that are named. `is_given` says whether the user gave
    /// a flag, by its field's name; `environment` looks a variable up.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(
        mut flags: RunFlags,
        is_given: &dyn Fn(&str) -> bool,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let Some(path) = flags.config.clone() else {
            return Self::merged(flags, Vec::new(), environment);
        };
        let (source, text) = file::read(&path)?;
        let file = HostConfiguration::parse(&path, &text)?;
        merge::merge(&mut flags, &file, is_given);
        if !is_given("plugins_directory") {
            flags.plugin.plugins_directory = file.plugins_directory;
        }
        let plugins = file.plugins.into_iter().map(|it| it.0).collect();
        match Self::merged(flags, plugins, environment) {
            Ok(config) => Ok(Self {
                file: Some(source),
                ..config
            }),
            Err(error) => Err(ConfigError::Merged {
                path,
                source: Box::new(error),
            }),
        }
    }

    /// From flags that have everything but `plugins`, of which `--plugin` takes the place.
    fn merged(
        flags: RunFlags,
        plugins: Vec<PluginConfig>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let plugins_directory = flags.plugin.plugins_directory.clone();
        let plugins = plugin(flags.plugin)?.map_or(plugins, |one| vec![one]);
        check(&plugins)?;
        if plugins.is_empty() && plugins_directory.is_none() {
            return Err(ConfigError::NoPlugin);
        }
        Ok(Self {
            file: None,
            plugins,
            plugins_directory,
            cluster_name: flags.cluster.cluster_name.clone(),
            cluster_id: flags.cluster.cluster_id.clone(),
            controllers: controllers(&flags.controllers, &flags.cluster.cluster_cidr)?,
            api: api(flags.cluster, &environment)?,
            election: election(flags.election)?,
            admin_socket: SocketConfig::new(flags.serving.admin_socket.clone(), &environment),
            admin: admin(flags.serving, flags.access)?,
            log: LogConfig {
                format: flags.process.logging_format,
                verbosity: flags.process.v,
                filter: environment("RUST_LOG"),
            },
            shutdown_grace: flags.process.shutdown_grace,
        })
    }
}

/// Plugins have names of their own, and none owns what another does.
fn check(plugins: &[PluginConfig]) -> Result<(), ConfigError> {
    for (second, plugin) in plugins.iter().enumerate() {
        let before = plugins.iter().take(second);
        if let Some(first) = before.into_iter().position(|other| other.name == plugin.name) {
            let name = plugin.name.clone();
            return Err(ConfigError::SameName { first, second, name });
        }
    }
    let claims: Vec<(&str, &Claims)> = plugins.iter().map(|it| (it.name.as_str(), &it.claims)).collect();
    match overlaps(&claims).into_iter().next() {
        Some(overlap) => Err(overlap.into()),
        None => Ok(()),
    }
}

fn controllers(flags: &ControllerFlags, cidrs: &[Cidr]) -> Result<ControllerConfig, ConfigError> {
    let mut families = cidrs.iter().map(|cidr| cidr.address.is_ipv4());
    if cidrs.len() > 2 || (families.next() == families.next() && !cidrs.is_empty()) {
        return Err(ConfigError::ClusterCidrs);
    }
    Ok(ControllerConfig {
        selection: Selection::parse(flags.controllers.iter().map(String::as_str))?,
        node_workers: flags.concurrent_node_syncs,
        service_workers: flags.concurrent_service_syncs,
        node_refresh: flags.node_status_update_frequency,
        routes: flags.configure_cloud_routes,
        cluster_cidrs: cidrs.to_vec(),
    })
}

/// The one plugin that flags can describe.
fn plugin(flags: PluginFlags) -> Result<Option<PluginConfig>, ConfigError> {
    let Some(endpoint) = flags.plugin else {
        return Ok(None);
    };
    if matches!(endpoint, Endpoint::Https { .. }) {
        return Err(ConfigError::NoTls);
    }
    let provider = flags.cloud_provider.filter(|name| !name.is_empty());
    Ok(Some(PluginConfig {
        name: provider.clone().unwrap_or_else(|| UNNAMED.to_owned()),
        endpoint,
        allowed_uids: flags.plugin_allowed_uid,
        provider,
        claims: Claims::default(),
        budget: BudgetConfig::default(),
        deadlines: DeadlineConfig::default(),
        memory_limit: None,
        tls: None,
    }))
}

/// The name of a plugin that is given by --plugin without --cloud-provider.
const UNNAMED: &str = "default";

fn api(flags: ClusterFlags, environment: &impl Fn(&str) -> Option<String>) -> Result<ApiConfig, ConfigError> {
    let kubeconfig = kubeconfig("kubeconfig", flags.kubeconfig)?;
    let in_cluster = || environment("KUBERNETES_SERVICE_HOST").is_some();
    if kubeconfig.is_none() && flags.master.is_none() && !in_cluster() {
        return Err(ConfigError::NoCluster);
    }
    let per_second = flags.kube_api_qps.0;
    Ok(ApiConfig {
        kubeconfig,
        master: flags.master,
        rate: (per_second > 0.0).then_some(RateConfig {
            per_second,
            burst: flags.kube_api_burst,
        }),
        writes_in_flight: flags.max_writes_in_flight,
    })
}

fn election(flags: ElectionFlags) -> Result<Option<ElectionConfig>, ConfigError> {
    if !flags.leader_elect {
        return Ok(None);
    }
    let timing = Timing::new(
        flags.leader_elect_lease_duration,
        flags.leader_elect_renew_deadline,
        flags.leader_elect_retry_period,
    )?;
    Ok(Some(ElectionConfig {
        name: flags.leader_elect_resource_name,
        namespace: flags.leader_elect_resource_namespace,
        timing,
    }))
}

fn admin(flags: ServingFlags, access: AccessFlags) -> Result<Option<AdminConfig>, ConfigError> {
    let access = AccessConfig {
        authentication_kubeconfig: kubeconfig("authentication-kubeconfig", access.authentication_kubeconfig)?,
        authorization_kubeconfig: kubeconfig("authorization-kubeconfig", access.authorization_kubeconfig)?,
        token_ttl: access.authentication_token_webhook_cache_ttl,
        allowed_ttl: access.authorization_webhook_cache_authorized_ttl,
        denied_ttl: access.authorization_webhook_cache_unauthorized_ttl,
        always_allow: access.authorization_always_allow_paths,
    };
    let certificate = match (flags.tls_cert_file, flags.tls_private_key_file, flags.cert_dir) {
        (Some(certificate), Some(key), _) => CertificateSource::Files { certificate, key },
        (_, _, Some(folder)) => CertificateSource::Folder(folder),
        _ => CertificateSource::Memory,
    };
    let address = admin_address(
        flags.bind_address,
        flags.secure_port,
        flags.secure_port_file.as_deref(),
    );
    Ok(address.map(|address| AdminConfig {
        address,
        port_file: flags.secure_port_file,
        certificate,
        access,
    }))
}

/// Upstream's port, unless another, none or a free one is asked for.
fn admin_address(ip: IpAddr, port: Option<u16>, port_file: Option<&Path>) -> Option<SocketAddr> {
    const UPSTREAM: u16 = 10258;
    const FREE: u16 = 0;
    match (port, port_file) {
        (Some(0), _) => None,
        (Some(port), _) => Some(SocketAddr::new(ip, port)),
        (None, Some(_)) => Some(SocketAddr::new(ip, FREE)),
        (None, None) => Some(SocketAddr::new(ip, UPSTREAM)),
    }
}

/// Sees to it that the kubeconfig that `flag` names can be read; an empty name is none, as upstream.
fn kubeconfig(flag: &'static str, path: Option<PathBuf>) -> Result<Option<PathBuf>, ConfigError> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(None);
    };
    match Kubeconfig::read_from(&path) {
        Ok(_) => Ok(Some(path)),
        Err(source) => Err(ConfigError::Kubeconfig {
            flag,
            path,
            source: Box::new(source),
        }),
    }
}
