//! Simulated clouds with a plugin in front of each, and the host's configuration for them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{PluginProcess, Process, Workspace, eventually, node, resolve_binary, service_lb};
use bulkhead_sim::{
    cloud::Instance,
    control::Client,
    v1::{CallRecord, ListFaultsRequest},
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::SOON;

/// The label by which a node without provider ID says to which cloud it belongs.
const CLOUD_LABEL: &str = "example.com/cloud";

/// A cloud as a process, and a process that is its plugin. The cloud outlives its plugins.
#[derive(Debug)]
pub struct Simulated<'a> {
    workspace: &'a Workspace,
    name: String,
    scheme: String,
    _process: Process,
    cloud: Client,
    plugin: Option<PluginProcess>,
    faults: Client,
}

impl<'a> Simulated<'a> {
    /// A cloud `name` whose provider, and scheme of provider IDs, is `name` too, and its plugin; waits until both listen.
    ///
    /// # Errors
    ///
    /// If one does not.
    pub async fn start(workspace: &'a Workspace, name: &str) -> Result<Self> {
        Self::of_provider(workspace, name, name).await
    }

    /// As [`Simulated::start`], of another provider: one of its accounts or regions.
    ///
    /// # Errors
    ///
    /// If one does not listen.
    pub async fn of_provider(workspace: &'a Workspace, name: &str, provider: &str) -> Result<Self> {
        let socket = cloud_path(workspace, name);
        let mut command = Command::new(resolve_binary("bulkhead-sim", "BULKHEAD_SIM_BIN")?);
        command.arg("cloud").args(["--listen", &endpoint(&socket)]);
        let mut simulated = Self {
            workspace,
            name: name.to_owned(),
            scheme: provider.to_owned(),
            _process: Process::spawn(workspace, &format!("{name}-cloud"), command)?,
            cloud: Client::at(&socket),
            plugin: None,
            faults: Client::at(&control_path(workspace, name)),
        };
        simulated.at_next_start(json!({}))?;
        eventually(SOON, &format!("cloud {name} to answer"), async || {
            Ok(simulated.cloud.total().await?)
        })
        .await?;
        simulated.replace().await?;
        Ok(simulated)
    }

    /// Ends the plugin's process if there is one, starts another, and waits until it listens.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub async fn replace(&mut self) -> Result<()> {
        self.plugin = None;
        let arguments = arguments(self.workspace, &self.name);
        let plugin = PluginProcess::simulated(self.workspace, &self.name, arguments)?;
        plugin.wait_listening(SOON).await?;
        self.plugin = Some(plugin);
        eventually(SOON, "the plugin's control to answer", async || {
            Ok(self.faults.raw().list_faults(ListFaultsRequest {}).await?)
        })
        .await
        .map(drop)
    }

    /// Ends the plugin's process, and says how the host is configured to start it as a child of its own: with so much
    /// memory at the most, as `64Mi`. [`Simulated::faults`] is the control of whichever child runs.
    ///
    /// # Errors
    ///
    /// If the binary is not built.
    pub fn as_child(&mut self, memory_limit: &str) -> Result<Value> {
        self.plugin = None;
        let binary = resolve_binary("bulkhead-sim", "BULKHEAD_SIM_BIN")?.canonicalize()?;
        let mut command = vec![binary.to_string_lossy().into_owned()];
        command.extend(arguments(self.workspace, &self.name));
        let mut config = config_of(&self.name, "spawn", &json!(command));
        set(&mut config, "memoryLimit", json!(memory_limit));
        Ok(config)
    }

    /// What processes of its plugin that start from now on find in their scenario, beside who they are.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn at_next_start(&self, more: Value) -> Result<()> {
        let mut scenario = more;
        let classes = [class_of(&self.name), spare_class_of(&self.name)];
        set(
            &mut scenario,
            "plugin",
            json!({ "provider": self.scheme, "classes": classes }),
        );
        fs::write(scenario_path(self.workspace, &self.name), scenario.to_string())?;
        Ok(())
    }

    /// Its name, also that of its plugin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The control of the cloud.
    pub fn cloud(&self) -> &Client {
        &self.cloud
    }

    /// The control of the plugin's process.
    pub fn faults(&self) -> &Client {
        &self.faults
    }

    /// The plugin's process.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn plugin(&self) -> Result<&PluginProcess> {
        self.plugin.as_ref().context("there is no plugin")
    }

    /// The plugin in the host's configuration, with the nodes and the class of its cloud. Fields may be added.
    pub fn config(&self) -> Value {
        let socket = self.plugin.as_ref().map(PluginProcess::endpoint);
        config_of(&self.name, "endpoint", &json!(socket))
    }

    /// Makes an instance for the node `name`, and the node as its kubelet registers it.
    ///
    /// # Errors
    ///
    /// If the cloud does not answer.
    pub async fn machine(&self, name: &str) -> Result<Node> {
        let id = format!("{}-{name}", self.name);
        self.cloud
            .put_instance(&Instance::new(&id, name, "192.0.2.7"))
            .await?;
        Ok(node_of(&self.name, name))
    }

    /// The provider ID of the node `name`.
    pub fn provider_id(&self, name: &str) -> String {
        format!("{}://{}-{name}", self.scheme, self.name)
    }

    /// A Service of this cloud's class.
    pub fn service(&self, name: &str) -> Service {
        service_of(&self.name, name)
    }

    /// Waits until all initialised nodes have been compared with their instances again.
    ///
    /// # Errors
    ///
    /// If they are not soon.
    pub async fn compared(&self) -> Result<()> {
        // The first question may have been on its way already.
        const QUESTIONS: usize = 3;
        let last = self.cloud.total().await?.calls;
        eventually(SOON, "more questions for instances", async || {
            let calls = self.cloud.calls_after(last).await?;
            let asks = |call: &&CallRecord| call.caller.as_ref().is_some_and(|it| it.rpc == "GetInstances");
            let count = calls.iter().filter(asks).count();
            ensure!(count >= QUESTIONS, "{count}");
            Ok(())
        })
        .await
    }

    /// How many load balancers there are.
    ///
    /// # Errors
    ///
    /// If the cloud does not answer.
    pub async fn balancers(&self) -> Result<usize> {
        Ok(self.cloud.inventory(&["load_balancer"]).await?.len())
    }
}

/// Writes the host's configuration with these plugins, never half, and returns its path.
///
/// # Errors
///
/// If it cannot be written.
pub fn configure(workspace: &Workspace, name: &str, plugins: &[Value]) -> Result<PathBuf> {
    let config = json!({
        "apiVersion": "host.bulkhead.dev/v1alpha1",
        "kind": "HostConfiguration",
        "plugins": plugins,
        // All that a cloud says of a node is asked again soon: a bad answer about a node that is well must change nothing.
        "controllers": { "nodeStatusUpdateFrequency": "2s" },
    });
    let path = workspace.join(format!("{name}.yaml"));
    let fresh = workspace.join(format!("{name}.yaml.fresh"));
    fs::write(&fresh, config.to_string())?;
    fs::rename(&fresh, &path)?;
    Ok(path)
}

/// The plugin `name` in the host's configuration as a child of the host, of a cloud in its own process.
///
/// # Errors
///
/// If the binary is not built.
pub fn spawned(workspace: &Workspace, name: &str) -> Result<Value> {
    let binary = resolve_binary("bulkhead-sim", "BULKHEAD_SIM_BIN")?.canonicalize()?;
    let scenario = scenario_path(workspace, name);
    Ok(config_of(name, "spawn", &json!([binary, "--scenario", scenario])))
}

/// The file from which the plugin of [`spawned`] takes what it is.
pub fn scenario_path(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.join(format!("{name}-scenario.yaml"))
}

/// A node of the cloud `cloud`.
pub fn node_of(cloud: &str, name: &str) -> Node {
    let mut node = node(name);
    node.labels_mut().insert(CLOUD_LABEL.to_owned(), cloud.to_owned());
    node
}

/// A Service of the class of the cloud `cloud`.
pub fn service_of(cloud: &str, name: &str) -> Service {
    let mut service = service_lb(name);
    service.spec.get_or_insert_default().load_balancer_class = Some(class_of(cloud));
    service
}

/// The class of the cloud `name`.
pub fn class_of(name: &str) -> String {
    format!("example.com/{name}")
}

/// Another class that the plugin of the cloud `name` offers, and that is not configured to be its own.
pub fn spare_class_of(name: &str) -> String {
    format!("example.com/{name}-spare")
}

fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

fn config_of(name: &str, way: &str, reached: &Value) -> Value {
    json!({
        "name": name,
        way: reached,
        "nodes": { "matchLabels": { CLOUD_LABEL: name } },
        "classes": [class_of(name)],
    })
}

fn cloud_path(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.join(format!("{name}-cloud.sock"))
}

fn control_path(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.join(format!("{name}-control.sock"))
}

fn endpoint(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

fn arguments(workspace: &Workspace, name: &str) -> [String; 6] {
    [
        "--cloud".to_owned(),
        endpoint(&cloud_path(workspace, name)),
        "--control".to_owned(),
        endpoint(&control_path(workspace, name)),
        "--scenario".to_owned(),
        scenario_path(workspace, name).to_string_lossy().into_owned(),
    ]
}
