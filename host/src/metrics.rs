//! What the host measures: upstream's names where dashboards use them, `bulkhead_…` otherwise.
//!
//! Labels are bounded: plugins, verbs, results, queues and controllers; never an object's name. The registry
//! appends `_total` to counters itself.

use std::time::Duration;

use bulkhead_core::cloud::Capability;
use bulkhead_core::controllers::Controller;
use bulkhead_core::gate::{Gate, Why};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use self::gates::GateMetrics;
use crate::plugin::{Change, Observer, SessionState};

mod gates;
mod process;
mod workqueue;

pub use workqueue::{NODES, QueueMetrics, SERVICES, WorkqueueMetrics};

/// A histogram for each set of labels, made by a plain function so that families stay nameable.
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Every metric of the host; clones share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The keyed queues.
    pub workqueues: WorkqueueMetrics,
    /// Leader election and running controllers.
    pub leadership: LeadershipMetrics,
    /// The node controller.
    pub nodes: NodeMetrics,
    /// The service-lb controller.
    pub services: ServiceMetrics,
    /// Sessions and calls.
    pub plugins: PluginMetrics,
    /// Writes to the API server.
    pub api: ApiMetrics,
}

impl Metrics {
    /// Takes out what says how a plugin is that this host no longer has; its calls stay counted.
    pub fn forget_plugin(&self, plugin: &str) {
        self.workqueues.forget_plugin(plugin);
        self.leadership.forget_plugin(plugin);
        self.nodes.forget_plugin(plugin);
        self.plugins.forget_plugin(plugin);
    }

    /// Registers every metric, those of the process and of the build among them.
    pub fn register(registry: &mut Registry) -> Self {
        process::register(registry);
        Self {
            workqueues: WorkqueueMetrics::register(registry),
            leadership: LeadershipMetrics::register(registry),
            nodes: NodeMetrics::register(registry),
            services: ServiceMetrics::register(registry),
            plugins: PluginMetrics::register(registry),
            api: ApiMetrics::register(registry),
        }
    }
}

/// Labels of a metric that exists once a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NameLabels {
    /// The name.
    pub name: String,
}

/// One controller, as it runs for one plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    name: &'static str,
    manager: &'static str,
    plugin: String,
}

/// Who leads and what runs, under upstream's names.
#[derive(Clone, Debug)]
pub struct LeadershipMetrics {
    master: Family<NameLabels, Gauge>,
    running: Family<ControllerLabels, Gauge>,
}

impl LeadershipMetrics {
    /// Registers the metrics of leadership.
    pub fn register(registry: &mut Registry) -> Self {
        let new = Self {
            master: Family::default(),
            running: Family::default(),
        };
        registry.register(
            "leader_election_master_status",
            "Whether this process holds the Lease: 1 yes, 0 no",
            new.master.clone(),
        );
        registry.register(
            "running_managed_controllers",
            "Whether the controller runs for the plugin: 1 yes, 0 no",
            new.running.clone(),
        );
        new
    }

    /// Whether this process holds the Lease `name`: 1 or 0.
    pub fn master(&self, name: &str) -> Gauge {
        self.master.get_or_create_owned(&NameLabels {
            name: name.to_owned(),
        })
    }

    /// Whether a controller runs for `plugin`: 1 or 0. `name` is its old short name, as upstream reports it.
    pub fn running(&self, name: &'static str, plugin: &str) -> Gauge {
        self.running.get_or_create_owned(&controller(name, plugin))
    }

    fn forget_plugin(&self, plugin: &str) {
        for kind in Controller::ALL {
            self.running.remove(&controller(kind.alias(), plugin));
        }
    }
}

fn controller(name: &'static str, plugin: &str) -> ControllerLabels {
    ControllerLabels {
        name,
        manager: "cloud-controller-manager",
        plugin: plugin.to_owned(),
    }
}

/// The node controller's metrics.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    /// Seconds from a node's creation until its first complete pass.
    pub initial_sync_delay: Histogram,
    /// Seconds from a node's creation until its uninitialized taint is off.
    pub taint_removal_delay: Histogram,
    uninitialized: Family<PluginLabels, Gauge>,
}

impl NodeMetrics {
    /// Registers the node controller's metrics.
    pub fn register(registry: &mut Registry) -> Self {
        // Upstream's buckets.
        let delays = || Histogram::new(exponential_buckets(1.0, 4.0, 6));
        let new = Self {
            initial_sync_delay: delays(),
            taint_removal_delay: delays(),
            uninitialized: Family::default(),
        };
        registry.register(
            "node_controller_initial_node_sync_delay_seconds",
            "From a node's creation until its first complete pass",
            new.initial_sync_delay.clone(),
        );
        registry.register(
            "node_controller_cloud_provider_taint_removal_delay_seconds",
            "From a node's creation until its uninitialized taint is off",
            new.taint_removal_delay.clone(),
        );
        registry.register(
            "bulkhead_nodes_uninitialized",
            "Nodes of the plugin that still have the uninitialized taint",
            new.uninitialized.clone(),
        );
        new
    }

    /// Nodes of `plugin` that still have the uninitialized taint.
    pub fn uninitialized(&self, plugin: &str) -> Gauge {
        self.uninitialized.get_or_create_owned(&PluginLabels {
            plugin: plugin.to_owned(),
        })
    }

    fn forget_plugin(&self, plugin: &str) {
        self.uninitialized.remove(&PluginLabels {
            plugin: plugin.to_owned(),
        });
    }
}

/// The service-lb controller's metrics, under upstream's names.
#[derive(Clone, Debug)]
pub struct ServiceMetrics {
    /// Target updates, one for each Service updated because nodes changed.
    pub loadbalancer_syncs: Counter,
    /// Node changes whose update failed for at least one Service.
    pub nodesync_errors: Counter,
    /// Seconds that one Service's target update takes.
    pub update_latency: Histogram,
}

impl ServiceMetrics {
    /// Registers the service-lb controller's metrics.
    pub fn register(registry: &mut Registry) -> Self {
        // Upstream's buckets.
        let latencies = || Histogram::new(exponential_buckets(1.0, 2.0, 15));
        let new = Self {
            loadbalancer_syncs: Counter::default(),
            nodesync_errors: Counter::default(),
            update_latency: latencies(),
        };
        registry.register(
            "service_controller_loadbalancer_sync",
            "Target updates of Services after a change of nodes",
            new.loadbalancer_syncs.clone(),
        );
        registry.register(
            "service_controller_nodesync_error",
            "Changes of nodes whose update failed for at least one Service",
            new.nodesync_errors.clone(),
        );
        registry.register(
            "service_controller_update_loadbalancer_host_latency_seconds",
            "How long the target update of one Service takes",
            new.update_latency.clone(),
        );
        new
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    plugin: String,
    verb: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginVerbLabels {
    plugin: String,
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    plugin: String,
    state: &'static str,
}

/// Sessions and calls, by plugin.
#[derive(Clone, Debug)]
pub struct PluginMetrics {
    calls: Family<CallLabels, Counter>,
    call_duration: Histograms<PluginVerbLabels>,
    sessions: Family<PluginLabels, Counter>,
    states: Family<StateLabels, Gauge>,
    gates: GateMetrics,
}

/// From a call over a local socket, about 0.1 ms, to the hard deadline of writes, 60 s.
fn call_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 4.0, 10))
}

impl PluginMetrics {
    /// Registers the metrics of plugins.
    pub fn register(registry: &mut Registry) -> Self {
        let new = Self {
            calls: Family::default(),
            call_duration: Family::new_with_constructor(call_seconds),
            sessions: Family::default(),
            states: Family::default(),
            gates: GateMetrics::register(registry),
        };
        registry.register(
            "bulkhead_plugin_calls",
            "Calls to the plugin that ended",
            new.calls.clone(),
        );
        registry.register(
            "bulkhead_plugin_call_duration_seconds",
            "How long calls to the plugin take",
            new.call_duration.clone(),
        );
        registry.register(
            "bulkhead_plugin_sessions",
            "Sessions begun with the plugin",
            new.sessions.clone(),
        );
        registry.register(
            "bulkhead_plugin_state",
            "Whether the plugin is in the state: 1 yes, 0 no",
            new.states.clone(),
        );
        new
    }

    /// The plugin is in this state.
    pub fn state(&self, plugin: &str, now: SessionState) {
        for state in SessionState::ALL {
            self.states
                .get_or_create(&in_state(plugin, state))
                .set(i64::from(state == now));
        }
    }

    fn forget_plugin(&self, plugin: &str) {
        for state in SessionState::ALL {
            self.states.remove(&in_state(plugin, state));
        }
        self.gates.forget_plugin(plugin);
    }
}

fn in_state(plugin: &str, state: SessionState) -> StateLabels {
    StateLabels {
        plugin: plugin.to_owned(),
        state: state.name(),
    }
}

impl Observer for PluginMetrics {
    fn call(&self, plugin: &str, verb: &'static str, result: &'static str, took: Duration) {
        let labels = CallLabels {
            plugin: plugin.to_owned(),
            verb,
            result,
        };
        self.calls.get_or_create(&labels).inc();
        let labels = PluginVerbLabels {
            plugin: plugin.to_owned(),
            verb,
        };
        self.call_duration
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    fn session(&self, plugin: &str) {
        self.sessions
            .get_or_create(&PluginLabels {
                plugin: plugin.to_owned(),
            })
            .inc();
    }

    fn gate(&self, plugin: &str, capability: Capability, gate: Gate) {
        self.gates.gate(plugin, capability, gate);
    }

    fn shut(&self, plugin: &str, capability: Capability, why: Why) {
        self.gates.shut(plugin, capability, why);
    }

    fn in_flight(&self, plugin: &str, change: Change) {
        self.gates.in_flight(plugin, change);
    }

    fn waited(&self, plugin: &str, took: Duration) {
        self.gates.waited(plugin, took);
    }

    fn crowded_out(&self, plugin: &str) {
        self.gates.crowded_out(plugin);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    verb: &'static str,
    result: &'static str,
}

/// Writes to the API server.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    writes: Family<WriteLabels, Counter>,
    /// Events that were not written because the queue was full or the API server refused them.
    pub events_dropped: Counter,
}

impl ApiMetrics {
    /// Registers the metrics of API writes.
    pub fn register(registry: &mut Registry) -> Self {
        let new = Self {
            writes: Family::default(),
            events_dropped: Counter::default(),
        };
        registry.register(
            "bulkhead_api_writes",
            "Writes sent to the API server",
            new.writes.clone(),
        );
        registry.register(
            "bulkhead_events_dropped",
            "Events that were not written: queue full, or refused",
            new.events_dropped.clone(),
        );
        new
    }

    /// Counts a write. `verb` is the table's row, such as `patch-node-status`; `result` is `ok` or the
    /// error's kind.
    pub fn write(&self, verb: &'static str, result: &'static str) {
        self.writes.get_or_create(&WriteLabels { verb, result }).inc();
    }
}

#[cfg(test)]
mod tests;
