//! How much a plugin is used, and what holds calls back.

use std::time::Duration;

use bulkhead_core::cloud::Capability;
use bulkhead_core::gate::{Gate, Why};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{Histograms, PluginLabels};
use crate::plugin::Change;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabels {
    plugin: String,
    capability: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShutLabels {
    plugin: String,
    capability: &'static str,
    why: &'static str,
}

/// Gates and budgets, by plugin.
#[derive(Clone, Debug)]
pub(super) struct GateMetrics {
    gate: Family<GateLabels, Gauge>,
    shut: Family<ShutLabels, Counter>,
    in_flight: Family<PluginLabels, Gauge>,
    waits: Histograms<PluginLabels>,
    crowded_out: Family<PluginLabels, Counter>,
}

/// From what a busy runtime takes, 1 ms, to the hard deadline of writes, 60 s.
fn wait_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 9))
}

impl GateMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let new = Self {
            gate: Family::default(),
            shut: Family::default(),
            in_flight: Family::default(),
            waits: Family::new_with_constructor(wait_seconds),
            crowded_out: Family::default(),
        };
        registry.register(
            "bulkhead_plugin_gate",
            "Whether the gate of the plugin's capability is in the state: 1 yes, 0 no",
            new.gate.clone(),
        );
        registry.register(
            "bulkhead_plugin_gate_shut",
            "How often a gate that let calls through was shut",
            new.shut.clone(),
        );
        registry.register(
            "bulkhead_plugin_calls_in_flight",
            "Calls that controllers have in flight to the plugin",
            new.in_flight.clone(),
        );
        registry.register(
            "bulkhead_plugin_budget_wait_seconds",
            "How long calls waited that found no room in the plugin's budget",
            new.waits.clone(),
        );
        registry.register(
            "bulkhead_plugin_budget_overflows",
            "Calls not made because too many waited for the plugin's budget",
            new.crowded_out.clone(),
        );
        new
    }

    pub(super) fn gate(&self, plugin: &str, capability: Capability, gate: Gate) {
        for state in Gate::NAMES {
            let labels = GateLabels {
                plugin: plugin.to_owned(),
                capability: capability.name(),
                state,
            };
            self.gate
                .get_or_create(&labels)
                .set(i64::from(state == gate.name()));
        }
    }

    /// Takes out what says how a plugin is, which this host no longer has; what was counted stays.
    pub(super) fn forget_plugin(&self, plugin: &str) {
        for capability in Capability::ALL {
            for state in Gate::NAMES {
                self.gate.remove(&GateLabels {
                    plugin: plugin.to_owned(),
                    capability: capability.name(),
                    state,
                });
            }
        }
        self.in_flight.remove(&of(plugin));
    }

    pub(super) fn shut(&self, plugin: &str, capability: Capability, why: Why) {
        let labels = ShutLabels {
            plugin: plugin.to_owned(),
            capability: capability.name(),
            why: why.name(),
        };
        self.shut.get_or_create(&labels).inc();
    }

    pub(super) fn in_flight(&self, plugin: &str, change: Change) {
        let gauge = self.in_flight.get_or_create_owned(&of(plugin));
        match change {
            Change::Begun => gauge.inc(),
            Change::Over => gauge.dec(),
        };
    }

    pub(super) fn waited(&self, plugin: &str, took: Duration) {
        self.waits.get_or_create(&of(plugin)).observe(took.as_secs_f64());
    }

    pub(super) fn crowded_out(&self, plugin: &str) {
        self.crowded_out.get_or_create(&of(plugin)).inc();
    }
}

fn of(plugin: &str) -> PluginLabels {
    PluginLabels {
        plugin: plugin.to_owned(),
    }
}
