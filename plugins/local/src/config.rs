//! Command line and cloud config: everything that may be wrong with them is found at once, one line
//! each.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_plugin::options::{EndpointError, ServeOptions};
use bulkhead_plugin::{ServeFlags, cloud_config, cloud_config::CloudConfigError};
use clap::Parser;
use serde::Deserialize;

use crate::cidr::{Cidr, CidrError};
use crate::forward::{Limits, Machine};
use crate::pool::{DEFAULT_RANGES, Pool, PoolConfigError};
use crate::world::Settings;

#[cfg(test)]
mod tests;

/// Where the state is if nothing else is said.
const DEFAULT_STATE_DIR: &str = "/var/lib/bulkhead-local";

/// Bulkhead's plugin for one machine: instances from a file, load balancers that forward here.
///
/// Flags win over the cloud config. Exit codes: 0 ended when asked, 1 failed while running, 2 wrong input.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "bulkhead-local", version)]
pub struct Flags {
    /// Where to serve, and to whom
    #[command(flatten)]
    pub serve: ServeFlags,
    /// Where load balancers are remembered [default: /var/lib/bulkhead-local]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The instances, in YAML or JSON; without it the plugin serves load balancers only
    #[arg(long, value_name = "FILE")]
    pub inventory: Option<PathBuf>,
    /// Addresses for load balancers: a CIDR or one address; repeatable [default: 127.0.10.0/24, `::1`]
    #[arg(long, value_name = "CIDR")]
    pub pool: Vec<String>,
    /// An address of the pool that is never given; repeatable
    #[arg(long, value_name = "ADDRESS")]
    pub exclude: Vec<String>,
    /// Where Prometheus may read metrics, as `127.0.0.1:9100`: plain HTTP for everybody who can connect
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_address: Option<SocketAddr>,
    /// The same settings and bounds in a file: docs/reference/local-plugin.md has all
    #[arg(long, value_name = "FILE")]
    pub cloud_config: Option<PathBuf>,
}

/// What the cloud config may say.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct CloudConfig {
    state_dir: Option<PathBuf>,
    inventory: Option<PathBuf>,
    pool: Vec<String>,
    exclude: Vec<String>,
    metrics_address: Option<SocketAddr>,
    max_connections: Option<usize>,
    max_flows: Option<usize>,
    max_affinity_clients: Option<usize>,
    connection_idle_seconds: Option<u64>,
    flow_idle_seconds: Option<u64>,
    drain_seconds: Option<u64>,
}

/// Everything the process needs.
#[derive(Debug)]
pub struct Config {
    /// How to serve the protocol.
    pub serve: ServeOptions,
    /// What to serve load balancers with.
    pub settings: Settings,
    /// The inventory, if there is one.
    pub inventory: Option<PathBuf>,
    /// Where metrics are served, if they are.
    pub metrics_address: Option<SocketAddr>,
}

/// One thing that is wrong with the input.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The endpoint is missing or not one, or other flags do not fit it.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The cloud config cannot be used.
    #[error(transparent)]
    CloudConfig(#[from] CloudConfigError),
    /// A range of the pool is not one.
    #[error("pool: {0}")]
    Range(CidrError),
    /// An excluded address is not one.
    #[error("exclude: {text:?} is not an IP address")]
    Exclude {
        /// The text as given.
        text: String,
    },
    /// The ranges do not make a pool.
    #[error(transparent)]
    Pool(#[from] PoolConfigError),
    /// A bound of zero would serve nobody.
    #[error("{field} is 0: nobody would be served")]
    Zero {
        /// The setting.
        field: &'static str,
    },
}

impl Flags {
    /// Joins flags and cloud config. All errors, not only the first.
    ///
    /// `open_files` is how many the process may have.
    pub fn resolve(self, open_files: u64) -> Result<Config, Vec<ConfigError>> {
        let mut errors: Vec<ConfigError> = Vec::new();
        let file: CloudConfig = match self.cloud_config.as_deref().map(cloud_config::load).transpose() {
            Ok(file) => file.unwrap_or_default(),
            Err(error) => return Err(vec![error.into()]),
        };
        let serve = self.serve.resolve();
        let limits = file.limits(&mut errors);
        let pool = pool(
            &first(self.pool, file.pool),
            &first(self.exclude, file.exclude),
            &mut errors,
        );
        let state_dir = self
            .state_dir
            .or(file.state_dir)
            .unwrap_or_else(|| DEFAULT_STATE_DIR.into());
        match (serve, pool) {
            (Ok(serve), Some(pool)) if errors.is_empty() => Ok(Config {
                serve,
                settings: Settings {
                    state_dir,
                    machine: Machine::new(limits, descriptors(open_files), pool.ranges()),
                    pool,
                },
                inventory: self.inventory.or(file.inventory),
                metrics_address: self.metrics_address.or(file.metrics_address),
            }),
            (serve, _) => {
                errors.extend(serve.err().map(ConfigError::from));
                Err(errors)
            }
        }
    }
}

fn first(flags: Vec<String>, file: Vec<String>) -> Vec<String> {
    if flags.is_empty() { file } else { flags }
}

fn pool(ranges: &[String], excluded: &[String], errors: &mut Vec<ConfigError>) -> Option<Pool> {
    let before = errors.len();
    let mut known: Vec<Cidr> = Vec::new();
    for text in ranges {
        match text.parse() {
            Ok(range) => known.push(range),
            Err(error) => errors.push(ConfigError::Range(error)),
        }
    }
    let mut never: Vec<IpAddr> = Vec::new();
    for text in excluded {
        match text.parse() {
            Ok(address) => never.push(address),
            Err(_) => errors.push(ConfigError::Exclude { text: text.clone() }),
        }
    }
    if ranges.is_empty() {
        known.extend(
            DEFAULT_RANGES
                .iter()
                .filter_map(|range| range.parse::<Cidr>().ok()),
        );
    }
    if errors.len() > before {
        return None;
    }
    Pool::new(known, never)
        .map_err(|error| errors.push(error.into()))
        .ok()
}

/// The file descriptors that clients may take: listeners, checks, hosts and the state keep a quarter.
fn descriptors(open_files: u64) -> usize {
    usize::try_from(open_files / 4 * 3).unwrap_or(usize::MAX)
}

impl CloudConfig {
    fn limits(&self, errors: &mut Vec<ConfigError>) -> Limits {
        fn positive<T: From<u8> + PartialEq>(
            field: &'static str,
            value: Option<T>,
            errors: &mut Vec<ConfigError>,
        ) -> Option<T> {
            if value == Some(T::from(0)) {
                errors.push(ConfigError::Zero { field });
            }
            value
        }
        let usual = Limits::default();
        let mut number = |field, value, usual| positive(field, value, errors).unwrap_or(usual);
        let connections = number("maxConnections", self.max_connections, usual.connections);
        let flows = number("maxFlows", self.max_flows, usual.flows);
        let clients = number("maxAffinityClients", self.max_affinity_clients, usual.clients);
        let mut seconds =
            |field, value, usual| positive(field, value, errors).map_or(usual, Duration::from_secs);
        Limits {
            connections,
            flows,
            clients,
            connection_idle: seconds(
                "connectionIdleSeconds",
                self.connection_idle_seconds,
                usual.connection_idle,
            ),
            flow_idle: seconds("flowIdleSeconds", self.flow_idle_seconds, usual.flow_idle),
            // Nothing is cut later than at once: zero is a choice here.
            drain: self.drain_seconds.map_or(usual.drain, Duration::from_secs),
        }
    }
}
