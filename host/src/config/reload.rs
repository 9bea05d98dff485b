//! What a changed configuration changes in a host that runs.

use std::fmt;
use std::time::Duration;

use super::{Config, PluginConfig};

/// What becomes of a new configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Reload {
    /// The configuration that holds from now on: the old one, with all that can change.
    pub config: Config,
    /// What changes now.
    pub apply: Vec<Change>,
    /// What is different and stays as it is until the host starts again, in the words of the configuration file.
    pub refused: Vec<&'static str>,
}

/// One thing that changes while the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A plugin is new.
    PluginAdded(String),
    /// A plugin is gone. What it owns is left alone until somebody else owns it.
    PluginRemoved(String),
    /// A plugin is another one, or is treated otherwise.
    PluginChanged {
        /// Its name.
        name: String,
        /// What is different, in the words of the configuration file.
        fields: Vec<&'static str>,
        /// Whether the session must end and another begin: it is reached, checked or used in another way.
        needs_new_session: bool,
    },
    /// Plugins are looked for elsewhere, or not at all.
    PluginsDirectory,
    /// How often initialised nodes are compared with their instances.
    NodeRefresh(Duration),
    /// The detail of the log.
    Verbosity(u8),
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PluginAdded(name) => write!(out, "plugin {name} is added"),
            Self::PluginRemoved(name) => write!(out, "plugin {name} is removed: what it owned is left alone"),
            Self::PluginChanged {
                name,
                fields,
                needs_new_session,
            } => {
                write!(out, "plugin {name} changes: {}", fields.join(", "))?;
                out.write_str(if *needs_new_session {
                    " (a new session begins)"
                } else {
                    ""
                })
            }
            Self::PluginsDirectory => out.write_str("pluginsDirectory changes"),
            Self::NodeRefresh(span) => write!(out, "controllers.nodeStatusUpdateFrequency is now {span:?}"),
            Self::Verbosity(level) => write!(out, "logging.verbosity is now {level}"),
        }
    }
}

/// What changes if `new` is to hold in place of `old`. A host that began without a file, or with another one, is not
/// asked this: the file is the same.
pub fn changes(old: &Config, new: &Config) -> Reload {
    let mut apply = plugins(&old.plugins, &new.plugins);
    if old.plugins_directory != new.plugins_directory {
        apply.push(Change::PluginsDirectory);
    }
    if old.controllers.node_refresh != new.controllers.node_refresh {
        apply.push(Change::NodeRefresh(new.controllers.node_refresh));
    }
    // RUST_LOG, if set, decides alone.
    let is_ruled = old.log.filter.as_deref().is_some_and(|filter| !filter.is_empty());
    if old.log.verbosity != new.log.verbosity && !is_ruled {
        apply.push(Change::Verbosity(new.log.verbosity));
    }
    let mut config = old.clone();
    config.plugins.clone_from(&new.plugins);
    config.plugins_directory.clone_from(&new.plugins_directory);
    config.controllers.node_refresh = new.controllers.node_refresh;
    config.log.verbosity = new.log.verbosity;
    let refused = fixed(&config, new);
    Reload {
        config,
        apply,
        refused,
    }
}

fn plugins(old: &[PluginConfig], new: &[PluginConfig]) -> Vec<Change> {
    let find = |all: &[PluginConfig], name: &str| all.iter().find(|it| it.name == name).cloned();
    let removed = old.iter().filter(|it| find(new, &it.name).is_none());
    let mut changes: Vec<Change> = removed.map(|it| Change::PluginRemoved(it.name.clone())).collect();
    changes.extend(new.iter().filter_map(|plugin| match find(old, &plugin.name) {
        None => Some(Change::PluginAdded(plugin.name.clone())),
        Some(before) => changed(&before, plugin),
    }));
    changes
}

fn changed(old: &PluginConfig, new: &PluginConfig) -> Option<Change> {
    let PluginConfig {
        name,
        endpoint,
        allowed_uids,
        provider,
        claims,
        budget,
        deadlines,
        memory_limit,
        tls,
    } = new;
    // What a session rests on comes first.
    let way = [
        ("endpoint", *endpoint != old.endpoint),
        ("tls", *tls != old.tls),
        ("allowedUIDs", *allowed_uids != old.allowed_uids),
        ("provider", *provider != old.provider),
        ("memoryLimit", *memory_limit != old.memory_limit),
        ("budget", *budget != old.budget),
        ("deadlines", *deadlines != old.deadlines),
    ];
    let rest = [
        ("schemes", claims.schemes != old.claims.schemes),
        ("providerIDs", claims.provider_ids != old.claims.provider_ids),
        ("nodes", claims.nodes != old.claims.nodes),
        ("classes", claims.classes != old.claims.classes),
    ];
    let fields: Vec<&'static str> = way.iter().chain(&rest).filter_map(named).collect();
    (!fields.is_empty()).then(|| Change::PluginChanged {
        name: name.clone(),
        fields,
        needs_new_session: way.iter().any(|(_, is_different)| *is_different),
    })
}

fn named((field, is_different): &(&'static str, bool)) -> Option<&'static str> {
    is_different.then_some(*field)
}

/// What is different and cannot change. Takes everything apart, so that nothing new is forgotten here.
fn fixed(old: &Config, new: &Config) -> Vec<&'static str> {
    let Config {
        // Named on the command line, which cannot change.
        file: _,
        // They change.
        plugins: _,
        plugins_directory: _,
        api,
        cluster_name,
        cluster_id,
        controllers,
        election,
        admin,
        admin_socket,
        log,
        shutdown_grace,
    } = new;
    let (one, other) = (controllers, &old.controllers);
    let (access, before) = (
        admin.as_ref().map(|it| &it.access),
        old.admin.as_ref().map(|it| &it.access),
    );
    let served = |config: &Config| {
        let admin = config.admin.as_ref();
        admin.map(|it| (it.address, it.port_file.clone(), it.certificate.clone()))
    };
    let all = [
        ("clientConnection", *api != old.api),
        ("cluster.name", *cluster_name != old.cluster_name),
        ("cluster.id", *cluster_id != old.cluster_id),
        ("cluster.cidrs", one.cluster_cidrs != other.cluster_cidrs),
        ("controllers.enabled", one.selection != other.selection),
        (
            "controllers.concurrentNodeSyncs",
            one.node_workers != other.node_workers,
        ),
        (
            "controllers.concurrentServiceSyncs",
            one.service_workers != other.service_workers,
        ),
        ("controllers.configureCloudRoutes", one.routes != other.routes),
        ("leaderElection", *election != old.election),
        (
            "serving",
            served(new) != served(old) || *admin_socket != old.admin_socket,
        ),
        ("access", access != before),
        ("logging.format", log.format != old.log.format),
        ("shutdownGrace", *shutdown_grace != old.shutdown_grace),
    ];
    all.iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests;
