//! The file that says how everything begins.

use std::path::Path;
use std::time::Duration;

use bulkhead_plugin::cloud_config::{self, CloudConfigError};
use serde::Deserialize;

use crate::cloud::{Cloud, Fault, FaultError, Instance, Kind, Object, Settings, SettingsChange, State};
use crate::plugin::PluginConfig;

/// A scenario. Each process takes what it holds: a plugin its own part, whoever holds the cloud the rest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Scenario {
    /// What chance begins with: the same calls in the same order then have the same outcomes.
    pub seed: u64,
    /// Who the plugin is.
    pub plugin: PluginConfig,
    /// What the cloud is.
    pub cloud: CloudScenario,
    /// What goes wrong from the start.
    pub faults: Vec<Fault>,
}

/// What the cloud is at the start.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct CloudScenario {
    /// Its instances.
    pub instances: Vec<Instance>,
    /// The names of its route tables; the plugin uses the first.
    pub route_tables: Vec<String>,
    /// How it behaves.
    pub settings: SettingsChange,
}

impl Default for CloudScenario {
    fn default() -> Self {
        Self {
            instances: Vec::new(),
            route_tables: vec!["main".to_owned()],
            settings: SettingsChange::default(),
        }
    }
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read or is none; names file and line.
    #[error("{0}")]
    File(#[from] CloudConfigError),
    /// A fault that cannot be.
    #[error("faults[{index}]: {source}")]
    Fault {
        /// Which, from 0.
        index: usize,
        /// What is wrong.
        source: FaultError,
    },
    /// A setting that cannot be.
    #[error("cloud.settings: {0}")]
    Settings(String),
    /// Two instances have one id, or one has none.
    #[error("cloud.instances[{index}]: the id {id:?} is empty or another instance's")]
    Instance {
        /// Which, from 0.
        index: usize,
        /// Its id.
        id: String,
    },
    /// More than a cloud holds.
    #[error("the cloud is full: {0}")]
    Full(#[from] crate::cloud::CloudError),
}

impl Scenario {
    /// Reads a file, in YAML or JSON.
    ///
    /// # Errors
    ///
    /// An unknown field and a wrong type name the line.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let scenario: Self = cloud_config::load(path)?;
        for (index, fault) in scenario.faults.iter().enumerate() {
            fault
                .check()
                .map_err(|source| ScenarioError::Fault { index, source })?;
        }
        Ok(scenario)
    }

    /// The cloud as it is at `now`, with its faults.
    ///
    /// # Errors
    ///
    /// Two instances with one id, or a setting that cannot be.
    pub fn cloud(&self, now: Duration) -> Result<Cloud, ScenarioError> {
        let mut cloud = Cloud::new(self.seed, Settings::default());
        cloud
            .configure(self.cloud.settings.clone())
            .map_err(ScenarioError::Settings)?;
        let mut ids = std::collections::BTreeSet::new();
        for (index, instance) in self.cloud.instances.iter().enumerate() {
            let id = instance.id.clone();
            if id.is_empty() || !ids.insert(id.clone()) {
                return Err(ScenarioError::Instance { index, id });
            }
            cloud.put(instance.clone().object(), now)?;
        }
        for name in &self.cloud.route_tables {
            cloud.put(route_table(name, &cloud.settings().region.clone()), now)?;
        }
        for (index, fault) in self
            .faults
            .iter()
            .enumerate()
            .filter(|(_, fault)| !fault.is_of_plugin())
        {
            let added = cloud.faults().add(fault.clone(), now);
            added.map_err(|source| ScenarioError::Fault { index, source })?;
        }
        Ok(cloud)
    }
}

fn route_table(name: &str, region: &str) -> Object {
    Object {
        id: String::new(),
        kind: Kind::RouteTable,
        name: name.to_owned(),
        parent: None,
        scope: region.to_owned(),
        tags: std::collections::BTreeMap::new(),
        attributes: std::collections::BTreeMap::new(),
        revision: 0,
        state: State::Active,
    }
}
