//! The configuration file, as its author wrote it. [`crate::config`] makes sense of it.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};
use sha2::{Digest as _, Sha256};

pub use self::plugin::PluginSection;

use super::text::{PositiveSpan, ServerUrl, Span, Text, Word};
use crate::cli::values::{AllowedPath, Cidr};
use crate::telemetry::LogFormat;

mod plugin;

/// Largest file that is read; a larger one is a mistake.
const LARGEST: usize = 1 << 20;

/// The configuration of `bulkhead run`. What is left out has the default of its flag; a flag that is given on the command
/// line wins over the file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HostConfiguration {
    /// The version of this form.
    #[expect(dead_code, reason = "its type has one value")]
    api_version: ApiVersion,
    /// What this is.
    #[expect(dead_code, reason = "its type has one value")]
    kind: Kind,
    /// The plugins. `--plugin` takes their place.
    #[serde(default)]
    pub plugins: Vec<PluginSection>,
    /// `--plugins-directory`: folder in which each socket that appears is a plugin.
    pub plugins_directory: Option<PathBuf>,
    /// The way to the API server.
    #[serde(default)]
    pub client_connection: ClientSection,
    /// The cluster.
    #[serde(default)]
    pub cluster: ClusterSection,
    /// Which controllers run, and how.
    #[serde(default)]
    pub controllers: ControllerSection,
    /// Leader election.
    #[serde(default)]
    pub leader_election: ElectionSection,
    /// The HTTPS server with health and metrics.
    #[serde(default)]
    pub serving: ServingSection,
    /// Who may read from that server.
    #[serde(default)]
    pub access: AccessSection,
    /// Logs.
    #[serde(default)]
    pub logging: LoggingSection,
    /// `--shutdown-grace`: how long the end may take after SIGTERM.
    pub shutdown_grace: Option<Text<Span>>,
}

/// The version of the form.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
enum ApiVersion {
    #[serde(rename = "host.bulkhead.dev/v1alpha1")]
    V1Alpha1,
}

/// The kind of document.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
enum Kind {
    HostConfiguration,
}

/// The way to the API server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ClientSection {
    /// `--kubeconfig`
    pub kubeconfig: Option<PathBuf>,
    /// `--master`
    pub master: Option<Text<ServerUrl>>,
    /// `--kube-api-qps`: requests a second; 0: no rate of our own.
    pub qps: Option<f64>,
    /// `--kube-api-burst`
    pub burst: Option<NonZeroUsize>,
    /// `--max-writes-in-flight`
    pub max_writes_in_flight: Option<NonZeroUsize>,
}

/// The cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ClusterSection {
    /// `--cluster-name`
    pub name: Option<String>,
    /// `--cluster-id`
    pub id: Option<Text<Word>>,
    /// `--cluster-cidr`: the pods' address ranges, at most one of each family.
    #[serde(rename = "cidrs")]
    pub cidrs: Option<Vec<Text<Cidr>>>,
}

/// Which controllers run, and how.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ControllerSection {
    /// `--controllers`
    pub enabled: Option<Vec<String>>,
    /// `--concurrent-node-syncs`
    pub concurrent_node_syncs: Option<NonZeroUsize>,
    /// `--concurrent-service-syncs`
    pub concurrent_service_syncs: Option<NonZeroUsize>,
    /// `--node-status-update-frequency`
    pub node_status_update_frequency: Option<Text<PositiveSpan>>,
    /// `--configure-cloud-routes`
    pub configure_cloud_routes: Option<bool>,
}

/// Leader election, as in Kubernetes' component configurations.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ElectionSection {
    /// `--leader-elect`
    pub leader_elect: Option<bool>,
    /// `--leader-elect-lease-duration`
    pub lease_duration: Option<Text<Span>>,
    /// `--leader-elect-renew-deadline`
    pub renew_deadline: Option<Text<Span>>,
    /// `--leader-elect-retry-period`
    pub retry_period: Option<Text<PositiveSpan>>,
    /// `--leader-elect-resource-name`
    pub resource_name: Option<Text<Word>>,
    /// `--leader-elect-resource-namespace`
    pub resource_namespace: Option<Text<Word>>,
}

/// The HTTPS server with health and metrics.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct ServingSection {
    /// `--bind-address`
    pub bind_address: Option<IpAddr>,
    /// `--secure-port`; 0: no server.
    pub port: Option<u16>,
    /// `--secure-port-file`
    pub port_file: Option<PathBuf>,
    /// `--cert-dir`
    pub cert_dir: Option<PathBuf>,
    /// `--tls-cert-file`
    pub tls_cert_file: Option<PathBuf>,
    /// `--tls-private-key-file`
    pub tls_private_key_file: Option<PathBuf>,
    /// `--admin-socket`: socket for `bulkhead status`.
    pub admin_socket: Option<PathBuf>,
}

/// Who may read from the HTTPS server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct AccessSection {
    /// `--authentication-kubeconfig`
    pub authentication_kubeconfig: Option<PathBuf>,
    /// `--authorization-kubeconfig`
    pub authorization_kubeconfig: Option<PathBuf>,
    /// `--authentication-token-webhook-cache-ttl`
    #[serde(rename = "tokenTTL")]
    pub token_ttl: Option<Text<Span>>,
    /// `--authorization-webhook-cache-authorized-ttl`
    #[serde(rename = "authorizedTTL")]
    pub authorized_ttl: Option<Text<Span>>,
    /// `--authorization-webhook-cache-unauthorized-ttl`
    #[serde(rename = "unauthorizedTTL")]
    pub unauthorized_ttl: Option<Text<Span>>,
    /// `--authorization-always-allow-paths`
    pub always_allow_paths: Option<Vec<Text<AllowedPath>>>,
}

/// Logs.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct LoggingSection {
    /// `--logging-format`
    pub format: Option<LogFormat>,
    /// `-v`: detail of the log.
    pub verbosity: Option<u8>,
}

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("--config {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is larger than any configuration.
    #[error("--config {} has more than {LARGEST} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It does not have the form.
    #[error("{}:{line}:{column}: {field}{message}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// From 1; 0: unknown.
        line: u64,
        /// From 1; 0: unknown.
        column: u64,
        /// The path of the field, with a colon and a blank; empty: the document itself.
        field: String,
        /// What is wrong, one line.
        message: String,
    },
}

/// A configuration file as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it is.
    pub path: PathBuf,
    /// SHA-256 of its content.
    pub digest: [u8; 32],
}

/// The text of the file at `path`.
///
/// # Errors
/// It cannot be read, or is no text of a usual size.
pub fn read(path: &Path) -> Result<(Source, String), FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })?;
    if text.len() > LARGEST {
        return Err(FileError::TooLarge {
            path: path.to_owned(),
        });
    }
    let source = Source {
        path: path.to_owned(),
        digest: digest(text.as_bytes()),
    };
    Ok((source, text))
}

/// What tells one content from another.
pub fn digest(content: &[u8]) -> [u8; 32] {
    Sha256::digest(content).into()
}

impl HostConfiguration {
    /// Parses `text`; `path` is named in errors.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line, column and path.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let mut field = String::new();
        // An extract of the text may hold secrets.
        let options = serde_saphyr::options! { with_snippet: false };
        let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options, |from| {
            serde_path_to_error::deserialize(from).map_err(|error| {
                field = error.path().to_string();
                error.into_inner()
            })
        });
        parsed.map_err(|error: serde_saphyr::Error| {
            let at = error.location();
            let message = UserMessageFormatter.format_message(error.without_snippet());
            FileError::Form {
                path: path.to_owned(),
                line: at.map_or(0, |at| at.line()),
                column: at.map_or(0, |at| at.column()),
                field: match field.as_str() {
                    "" | "." | "?" => String::new(),
                    field => format!("{field}: "),
                },
                message: message.lines().next().unwrap_or_default().to_owned(),
            }
        })
    }
}

/// The JSON Schema of the file, as text.
pub fn schema() -> String {
    let schema = schemars::schema_for!(HostConfiguration);
    format!("{:#}\n", schema.as_value())
}

#[cfg(test)]
mod tests;
