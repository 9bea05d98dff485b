//! The version that runs, and the process's own figures, read from the kernel at each scrape.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// Registers the version and the figures of the process.
pub(super) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector));
    let build: Family<BuildLabels, Gauge> = Family::default();
    build
        .get_or_create(&BuildLabels {
            version: env!("CARGO_PKG_VERSION"),
        })
        .set(1);
    registry.register("bulkhead_build_info", "The version that runs; always 1", build);
}

/// Reads the process's own figures from the kernel at each scrape.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let figures = [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes",
                resident_bytes(),
            ),
            ("process_open_fds", "Open file descriptors", open_descriptors()),
        ];
        for (name, help, value) in figures {
            // A figure that cannot be read is left out: zero would be a lie.
            if let Some(value) = value {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn open_descriptors() -> Option<i64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is the folder being read.
    i64::try_from(open.saturating_sub(1)).ok()
}
