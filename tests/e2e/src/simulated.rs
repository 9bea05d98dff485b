//! Simulated clouds with a plugin in front of each, and the host's configuration for them.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{
    Address, PluginProcess, Process, Workspace, eventually, node, resolve_binary, service_lb,
};
use bulkhead_sim::{
    cloud::{Fault, Instance},
    control::Client,
    v1::{CallRecord, ListFaultsRequest},
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};

use crate::{Cluster, SOON};

/// The label by which a node without provider ID says to which cloud it belongs.
const CLOUD_LABEL: &str = "example.com/cloud";

/// Where a plugin on a network listens: on an address of the workspace's own, so that the port may be fixed.
const PLUGIN_HOST: u8 = 43;
const PLUGIN_PORT: u16 = 7443;

/// A cloud as a process, and a process that is its plugin. The cloud outlives its plugins.
#[derive(Debug)]
pub struct Simulated<'a> {
    workspace: &'a Workspace,
    name: String,
    scheme: String,
    socket: PathBuf,
    _process: Process,
    cloud: Client,
    /// Where the plugin listens if it is a port, and its arguments for that.
    network: Option<(SocketAddr, Vec<String>)>,
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
        let mut simulated = Self::without_plugin(workspace, name).await?;
        simulated.pose_as(provider)?;
        simulated.replace().await?;
        Ok(simulated)
    }

    /// As [`Simulated::start`], with its plugin on a port of 127.x.y.z, which takes these arguments besides.
    ///
    /// # Errors
    ///
    /// If one does not listen.
    pub async fn at_port(workspace: &'a Workspace, name: &str, arguments: Vec<String>) -> Result<Self> {
        let mut simulated = Self::without_plugin(workspace, name).await?;
        let port = SocketAddr::from((workspace.loopback(PLUGIN_HOST), PLUGIN_PORT));
        simulated.network = Some((port, arguments));
        simulated.replace().await?;
        Ok(simulated)
    }

    /// As [`Simulated::start`], the cloud alone.
    ///
    /// # Errors
    ///
    /// If it does not listen.
    pub async fn without_plugin(workspace: &'a Workspace, name: &str) -> Result<Self> {
        let socket = cloud_path(workspace, name);
        let mut command = Command::new(resolve_binary("bulkhead-sim", "BULKHEAD_SIM_BIN")?);
        command.arg("cloud").args(["--listen", &endpoint(&socket)]);
        let mut simulated = Self {
            workspace,
            name: name.to_owned(),
            scheme: String::new(),
            socket: PluginProcess::socket_path(workspace, name)?,
            _process: Process::spawn(workspace, &format!("{name}-cloud"), command)?,
            cloud: Client::at(&socket),
            network: None,
            plugin: None,
            faults: Client::at(&control_path(workspace, name)),
        };
        simulated.pose_as(name)?;
        eventually(SOON, &format!("cloud {name} to answer"), async || {
            Ok(simulated.cloud.total().await?)
        })
        .await?;
        Ok(simulated)
    }

    /// The next process of the plugin is of this provider.
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn pose_as(&mut self, provider: &str) -> Result<()> {
        provider.clone_into(&mut self.scheme);
        self.break_next(&[])
    }

    /// The next processes of the plugin have these faults from their start.
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn break_next(&self, faults: &[Fault]) -> Result<()> {
        let classes = [class_of(&self.name), spare_class_of(&self.name)];
        let scenario = json!({
            "plugin": { "provider": self.scheme, "classes": classes },
            "faults": faults,
        });
        write_whole(&scenario_path(self.workspace, &self.name), &scenario.to_string())
    }

    /// Ends the plugin's process if there is one, starts another, and waits until it listens.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub async fn replace(&mut self) -> Result<()> {
        self.plugin = None;
        let plugin = match &self.network {
            None => self.listening(&self.name, Address::Unix(self.socket.clone()), &[]),
            Some((port, more)) => self.listening(&self.name, Address::Tcp(*port), more),
        };
        self.plugin = Some(plugin.await?);
        eventually(SOON, "the plugin's control to answer", async || {
            Ok(self.faults.raw().list_faults(ListFaultsRequest {}).await?)
        })
        .await
        .map(drop)
    }

    /// Starts one more process of the plugin, at another socket of the same folder, and waits until it listens. The
    /// others go on.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub async fn another(&self, number: usize) -> Result<PluginProcess> {
        let socket = self.socket.with_file_name(format!("plugin-{number}.sock"));
        let log = format!("{}-{number}", self.name);
        self.listening(&log, Address::Unix(socket), &[]).await
    }

    /// Starts a process of the plugin. The socket at which it is driven has the name of its log.
    async fn listening(&self, log: &str, address: Address, more: &[String]) -> Result<PluginProcess> {
        let arguments = arguments(self.workspace, &self.name, &control_path(self.workspace, log));
        let arguments = arguments.iter().chain(more);
        let plugin = PluginProcess::simulated(self.workspace, log, address, arguments)?;
        plugin.wait_listening(SOON).await?;
        Ok(plugin)
    }

    /// Its name, also that of its plugin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its plugin listens.
    pub fn socket(&self) -> &Path {
        &self.socket
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

    /// The plugins directory in which its plugin is.
    ///
    /// # Errors
    ///
    /// If its socket is in no folder.
    pub fn plugins_directory(&self) -> Result<&Path> {
        let root = self.socket.parent().and_then(Path::parent);
        root.context("a socket has a folder")
    }

    /// The plugin in the host's configuration, with the nodes and the class of its cloud. Fields may be added.
    pub fn config(&self) -> Value {
        let endpoint = match &self.network {
            None => endpoint(&self.socket),
            Some((port, _)) => format!("https://{port}"),
        };
        config_of(&self.name, "endpoint", &json!(endpoint))
    }

    /// As [`Simulated::config`], for a host that starts the plugin itself, with at most so much memory, as `128Mi`.
    ///
    /// # Errors
    ///
    /// If the binary is not built.
    pub fn spawned_config(&self, memory: &str) -> Result<Value> {
        let binary = resolve_binary("bulkhead-sim", "BULKHEAD_SIM_BIN")?.canonicalize()?;
        let mut words = vec![binary.to_string_lossy().into_owned()];
        let control = control_path(self.workspace, &self.name);
        words.extend(arguments(self.workspace, &self.name, &control));
        let mut config = config_of(&self.name, "spawn", &json!(words));
        if let Some(fields) = config.as_object_mut() {
            fields.insert("memoryLimit".to_owned(), json!(memory));
        }
        Ok(config)
    }

    /// A machine joins, and a Service of the same name is made.
    ///
    /// # Errors
    ///
    /// If the cloud or the API server refuses.
    pub async fn add(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let node = self.machine(name).await?;
        cluster.nodes().create(&PostParams::default(), &node).await?;
        cluster.add_service(&self.service(name)).await?;
        Ok(())
    }

    /// Waits until both are served.
    ///
    /// # Errors
    ///
    /// If they are not soon, or the node is another cloud's.
    pub async fn served(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let node = cluster.initialised(name).await?;
        let id = node.spec.unwrap_or_default().provider_id;
        ensure!(id == Some(self.provider_id(name)), "{name}: provider ID {id:?}");
        cluster.address(name).await?;
        Ok(())
    }

    /// A machine joins, then a Service is made; both are served, and go again.
    ///
    /// # Errors
    ///
    /// If they are not soon.
    pub async fn serves(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let name = &format!("{}-{name}", self.name);
        let node = self.machine(name).await?;
        cluster.nodes().create(&PostParams::default(), &node).await?;
        cluster.initialised(name).await?;
        cluster.add_service(&self.service(name)).await?;
        self.served(cluster, name).await?;
        cluster.remove(name).await
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
    write_whole(&path, &config.to_string())?;
    Ok(path)
}

/// Never half.
fn write_whole(path: &Path, content: &str) -> Result<()> {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, content)?;
    fs::rename(&fresh, path)?;
    Ok(())
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

fn arguments(workspace: &Workspace, name: &str, control: &Path) -> [String; 6] {
    [
        "--cloud".to_owned(),
        endpoint(&cloud_path(workspace, name)),
        "--control".to_owned(),
        endpoint(control),
        "--scenario".to_owned(),
        scenario_path(workspace, name).to_string_lossy().into_owned(),
    ]
}
