//! One plugin in the configuration file.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::territory::{Claims, Pattern, Requirement, RequirementError, Selector};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use crate::config::text::{Bytes, Name, PositiveSpan, Scheme, Text, Word};
use crate::config::{BudgetConfig, DeadlineConfig, PluginConfig, RateConfig, TlsConfig};

/// A plugin whose parts fit together.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "PluginText")]
pub struct PluginSection(pub PluginConfig);

impl JsonSchema for PluginSection {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Plugin".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        PluginText::json_schema(generator)
    }
}

/// A plugin: where it is, what it owns, how it is treated.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PluginText {
    /// Its name, a DNS label: in metrics, events and logs, and in the finalizer of its classes. A plugin that gets another
    /// name is another plugin.
    name: Text<Name>,
    /// Where it listens: `unix:///path/to/plugin.sock`, `https://host:port`, or `spawn:COMMAND LINE`. Either this or
    /// `spawn`.
    endpoint: Option<Text<Endpoint>>,
    /// Program and arguments of a child process that the host starts and supervises.
    spawn: Option<Vec<String>>,
    /// The provider name that it must report; left out: any.
    provider: Option<Text<Name>>,
    /// User ids, beside the host's own and 0, under which it may run; for `unix://`.
    #[serde(default, rename = "allowedUIDs")]
    allowed_uids: Vec<u32>,
    /// Schemes of the provider IDs that are its own; left out: those that it describes and nobody else owns. An empty
    /// list: it has no nodes.
    schemes: Option<Vec<Text<Scheme>>>,
    /// Patterns over whole provider IDs, as `aws:///eu-west-1*`: only what matches one is its own. `*` stands for any
    /// characters. Left out: all of its schemes.
    #[serde(default, rename = "providerIDs")]
    provider_ids: Vec<Text<Pattern>>,
    /// Which nodes without a provider ID are its own to initialise; left out: all.
    #[serde(default)]
    nodes: SelectorSection,
    /// Load-balancer classes that are its own, `""` for Services without one; left out: those that it describes and
    /// nobody else owns.
    classes: Option<Vec<String>>,
    /// How much of it is used at once.
    #[serde(default)]
    budget: BudgetSection,
    /// Hard deadlines of calls.
    #[serde(default)]
    deadlines: DeadlineSection,
    /// Memory of a spawned process, as `512Mi`; more makes its allocations fail.
    memory_limit: Option<Text<Bytes>>,
    /// How the two prove themselves to each other; for `https://`.
    tls: Option<TlsSection>,
    /// Plaintext instead of TLS; for `https://` to this machine (loopback) only.
    #[serde(default)]
    insecure: bool,
}

/// A label selector, as Kubernetes writes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "SelectorText")]
struct SelectorSection(Selector);

impl JsonSchema for SelectorSection {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LabelSelector".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        SelectorText::json_schema(generator)
    }
}

/// A label selector; everything in it must be met.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct SelectorText {
    /// Labels and their values.
    match_labels: BTreeMap<String, String>,
    /// Requirements on labels.
    match_expressions: Vec<RequirementSection>,
}

impl TryFrom<SelectorText> for SelectorSection {
    type Error = RequirementError;

    fn try_from(text: SelectorText) -> Result<Self, RequirementError> {
        let labels = text.match_labels.iter();
        let mut requirements = labels
            .map(|(key, value)| Requirement::equals(key, value))
            .collect::<Result<Vec<_>, _>>()?;
        requirements.extend(text.match_expressions.into_iter().map(|it| it.0));
        Ok(Self(Selector::new(requirements)))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RequirementText")]
struct RequirementSection(Requirement);

impl JsonSchema for RequirementSection {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Requirement".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        RequirementText::json_schema(generator)
    }
}

/// A requirement on one label.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RequirementText {
    /// The label.
    key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    operator: String,
    /// For `In` and `NotIn`.
    #[serde(default)]
    values: Vec<String>,
}

impl TryFrom<RequirementText> for RequirementSection {
    type Error = RequirementError;

    fn try_from(text: RequirementText) -> Result<Self, RequirementError> {
        Requirement::new(&text.key, &text.operator, &text.values).map(Self)
    }
}

/// How much of a plugin is used at once.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct BudgetSection {
    /// Calls in flight at once; left out: as many as the plugin allows.
    calls_in_flight: Option<NonZeroUsize>,
    /// Calls a second; left out: no bound.
    rate_per_second: Option<f64>,
    /// Calls that may exceed the rate for a moment; left out: as many as the rate gives in one second.
    burst: Option<NonZeroUsize>,
}

/// Hard deadlines of calls; what is left out is the protocol's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct DeadlineSection {
    /// Of connecting, `Describe`, `Lead` and `PutNodeSet`: 5s.
    handshake: Option<Text<PositiveSpan>>,
    /// Of health checks and `GetStatus`: 2s.
    status: Option<Text<PositiveSpan>>,
    /// Of `GetInstances`: 15s.
    read: Option<Text<PositiveSpan>>,
    /// Of `GetLoadBalancers` and lists: 30s.
    look: Option<Text<PositiveSpan>>,
    /// Of writes: 60s. A plugin is asked to answer within five sixths of it.
    write: Option<Text<PositiveSpan>>,
}

/// The files for mutual TLS, in PEM; all are read again when they change.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TlsSection {
    /// Who may have signed the plugin's certificate.
    ca_file: PathBuf,
    /// The host's certificate, with its chain.
    cert_file: PathBuf,
    /// The host's private key.
    key_file: PathBuf,
    /// The name that the plugin's certificate must have; left out: the endpoint's host.
    server_name: Option<Text<Word>>,
}

/// What does not fit together in one plugin.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// Both ways to say where it is, or none.
    #[error("plugin {name} needs one of endpoint and spawn")]
    Endpoint {
        /// Its name.
        name: String,
    },
    /// An empty list.
    #[error("plugin {name}: spawn names no program")]
    NoProgram {
        /// Its name.
        name: String,
    },
    /// A setting that its kind of endpoint does not have.
    #[error("plugin {name}: {field} is for {kind} endpoints only")]
    Misplaced {
        /// Its name.
        name: String,
        /// The setting.
        field: &'static str,
        /// The kinds that have it.
        kind: &'static str,
    },
    /// `https://` without a way to prove anything.
    #[error("plugin {name}: an https endpoint needs tls (plaintext only on loopback, with insecure: true)")]
    NoTls {
        /// Its name.
        name: String,
    },
    /// Both.
    #[error("plugin {name}: tls and insecure exclude each other")]
    TlsAndInsecure {
        /// Its name.
        name: String,
    },
    /// Plaintext over a network.
    #[error("plugin {name}: insecure is for loopback addresses only")]
    Exposed {
        /// Its name.
        name: String,
    },
    /// Not a rate.
    #[error("plugin {name}: budget.ratePerSecond must be a number above 0")]
    Rate {
        /// Its name.
        name: String,
    },
    /// A burst over no rate.
    #[error("plugin {name}: budget.burst needs budget.ratePerSecond")]
    Burst {
        /// Its name.
        name: String,
    },
}

impl TryFrom<PluginText> for PluginSection {
    type Error = PluginError;

    fn try_from(text: PluginText) -> Result<Self, PluginError> {
        let name = text.name.0.0;
        let endpoint = endpoint(&name, text.endpoint, text.spawn)?;
        let tls = tls(&name, &endpoint, text.tls, text.insecure)?;
        if !matches!(endpoint, Endpoint::Spawn { .. }) && text.memory_limit.is_some() {
            let (field, kind) = ("memoryLimit", "spawn");
            return Err(PluginError::Misplaced { name, field, kind });
        }
        if matches!(endpoint, Endpoint::Https { .. }) && !text.allowed_uids.is_empty() {
            let (field, kind) = ("allowedUIDs", "unix and spawn");
            return Err(PluginError::Misplaced { name, field, kind });
        }
        let claims = Claims {
            schemes: text.schemes.map(|all| all.into_iter().map(|it| it.0.0).collect()),
            provider_ids: text.provider_ids.into_iter().map(|it| it.0).collect(),
            nodes: text.nodes.0,
            classes: text.classes.map(|all| all.into_iter().collect()),
        };
        Ok(Self(PluginConfig {
            budget: budget(&name, text.budget)?,
            endpoint,
            allowed_uids: text.allowed_uids,
            provider: text.provider.map(|it| it.0.0),
            claims,
            deadlines: deadlines(text.deadlines),
            memory_limit: text.memory_limit.map(|it| it.0.0),
            tls,
            name,
        }))
    }
}

fn endpoint(
    name: &str,
    endpoint: Option<Text<Endpoint>>,
    spawn: Option<Vec<String>>,
) -> Result<Endpoint, PluginError> {
    let name = || name.to_owned();
    match (endpoint, spawn) {
        (Some(endpoint), None) => Ok(endpoint.0),
        (None, Some(words)) => {
            let mut words = words.into_iter();
            let program = words.next().filter(|program| !program.is_empty());
            program
                .map(|program| Endpoint::Spawn {
                    program,
                    args: words.collect(),
                })
                .ok_or_else(|| PluginError::NoProgram { name: name() })
        }
        (Some(_), Some(_)) | (None, None) => Err(PluginError::Endpoint { name: name() }),
    }
}

fn tls(
    name: &str,
    endpoint: &Endpoint,
    tls: Option<TlsSection>,
    insecure: bool,
) -> Result<Option<TlsConfig>, PluginError> {
    let name = name.to_owned();
    let is_https = matches!(endpoint, Endpoint::Https { .. });
    match (tls, insecure) {
        (None, false) if is_https => Err(PluginError::NoTls { name }),
        (None, false) => Ok(None),
        (Some(_), true) => Err(PluginError::TlsAndInsecure { name }),
        (tls, _) if !is_https => {
            let field = if tls.is_some() { "tls" } else { "insecure" };
            Err(PluginError::Misplaced {
                name,
                field,
                kind: "https",
            })
        }
        (None, true) if endpoint.is_loopback() => Ok(None),
        (None, true) => Err(PluginError::Exposed { name }),
        (Some(tls), false) => Ok(Some(TlsConfig {
            ca_file: tls.ca_file,
            cert_file: tls.cert_file,
            key_file: tls.key_file,
            server_name: tls.server_name.map(|it| it.0.0),
        })),
    }
}

fn budget(name: &str, budget: BudgetSection) -> Result<BudgetConfig, PluginError> {
    let name = name.to_owned();
    let rate = match (budget.rate_per_second, budget.burst) {
        (None, None) => None,
        (None, Some(_)) => return Err(PluginError::Burst { name }),
        (Some(rate), _) if !rate.is_finite() || rate <= 0.0 => return Err(PluginError::Rate { name }),
        (Some(per_second), burst) => Some(RateConfig {
            per_second,
            burst: burst.unwrap_or_else(|| one_second(per_second)),
        }),
    };
    Ok(BudgetConfig {
        calls_in_flight: budget.calls_in_flight,
        rate,
    })
}

/// What a rate gives in one second, at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and saturating is what is wanted"
)]
fn one_second(rate: f64) -> NonZeroUsize {
    NonZeroUsize::new(rate.ceil() as usize).unwrap_or(NonZeroUsize::MIN)
}

fn deadlines(section: DeadlineSection) -> DeadlineConfig {
    let span = |text: Option<Text<PositiveSpan>>| text.map(|it| it.0.0);
    DeadlineConfig {
        handshake: span(section.handshake),
        status: span(section.status),
        read: span(section.read),
        look: span(section.look),
        write: span(section.write),
    }
}
