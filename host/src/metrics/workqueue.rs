//! The queues' metrics, under client-go's names.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::Histograms;
use crate::queue::{QueueObserver, Stats};

/// A gauge of seconds or of anything else that has fractions.
type FloatGauge = Gauge<f64, AtomicU64>;

/// One queue: upstream's name of it, and the plugin that it works for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
    plugin: String,
}

/// The metrics of every queue.
#[derive(Clone, Debug)]
pub struct WorkqueueMetrics {
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    queue_duration: Histograms<QueueLabels>,
    work_duration: Histograms<QueueLabels>,
    unfinished_work: Family<QueueLabels, FloatGauge>,
    longest_running: Family<QueueLabels, FloatGauge>,
    retries: Family<QueueLabels, Counter>,
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// Keys that wait and are due.
    pub depth: Gauge,
    /// Keys added.
    pub adds: Counter,
    /// Seconds that a key waits, from added to taken.
    pub queue_duration: Histogram,
    /// Seconds that the work on a key takes.
    pub work_duration: Histogram,
    /// Seconds of work in progress, summed over the keys in work.
    pub unfinished_work: FloatGauge,
    /// Seconds that the oldest work in progress runs.
    pub longest_running: FloatGauge,
    /// Keys put back after a failure.
    pub retries: Counter,
}

/// client-go's buckets: 10 ns to 10 s by powers of ten.
fn queue_seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

impl WorkqueueMetrics {
    /// Registers the queues' metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let new = Self {
            depth: Family::default(),
            adds: Family::default(),
            queue_duration: Family::new_with_constructor(queue_seconds),
            work_duration: Family::new_with_constructor(queue_seconds),
            unfinished_work: Family::default(),
            longest_running: Family::default(),
            retries: Family::default(),
        };
        registry.register("workqueue_depth", "Keys that wait and are due", new.depth.clone());
        registry.register("workqueue_adds", "Keys added", new.adds.clone());
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long a key waits before it is taken",
            new.queue_duration.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long the work on a key takes",
            new.work_duration.clone(),
        );
        registry.register(
            "workqueue_unfinished_work_seconds",
            "Work in progress that work_duration has not seen, summed over the keys in work",
            new.unfinished_work.clone(),
        );
        registry.register(
            "workqueue_longest_running_processor_seconds",
            "How long the oldest work in progress runs",
            new.longest_running.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Keys put back after a failure",
            new.retries.clone(),
        );
        new
    }

    /// The metrics of the queue `name` of `plugin`.
    pub fn queue(&self, name: &'static str, plugin: &str) -> QueueMetrics {
        let labels = QueueLabels {
            name,
            plugin: plugin.to_owned(),
        };
        QueueMetrics {
            depth: self.depth.get_or_create_owned(&labels),
            adds: self.adds.get_or_create_owned(&labels),
            queue_duration: self.queue_duration.get_or_create_owned(&labels),
            work_duration: self.work_duration.get_or_create_owned(&labels),
            unfinished_work: self.unfinished_work.get_or_create_owned(&labels),
            longest_running: self.longest_running.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
        }
    }
}

/// Upstream's names of the queues that a plugin has.
const QUEUES: [&str; 2] = [NODES, SERVICES];
/// Of nodes.
pub const NODES: &str = "Nodes";
/// Of Services.
pub const SERVICES: &str = "service";

impl QueueMetrics {
    /// Shows a queue's figures as they are now.
    pub fn show(&self, stats: Stats) {
        self.depth.set(i64::try_from(stats.depth).unwrap_or(i64::MAX));
        self.unfinished_work.set(stats.unfinished.as_secs_f64());
        self.longest_running.set(stats.longest.as_secs_f64());
    }
}

impl WorkqueueMetrics {
    pub(super) fn forget_plugin(&self, plugin: &str) {
        for name in QUEUES {
            let labels = QueueLabels {
                name,
                plugin: plugin.to_owned(),
            };
            self.depth.remove(&labels);
            self.adds.remove(&labels);
            self.queue_duration.remove(&labels);
            self.work_duration.remove(&labels);
            self.unfinished_work.remove(&labels);
            self.longest_running.remove(&labels);
            self.retries.remove(&labels);
        }
    }
}

impl QueueObserver for QueueMetrics {
    fn added(&self) {
        self.adds.inc();
    }

    fn taken(&self, waited: Duration) {
        self.queue_duration.observe(waited.as_secs_f64());
    }

    fn finished(&self, worked: Duration) {
        self.work_duration.observe(worked.as_secs_f64());
    }

    fn retried(&self) {
        self.retries.inc();
    }
}
