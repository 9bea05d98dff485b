//! How much room it takes.

use std::fs;

use anyhow::{Context, Result};
use bulkhead_harness::{Process, resolve_binary};

use crate::report::Report;
use crate::stage::Stage;

const MB: u64 = 1_000_000;

/// What the project promises of release binaries.
const HOST_BINARY: u64 = 20 * MB;
const HOST_MEMORY: u64 = 16 * MB;
const LOCAL_MEMORY: u64 = 8 * MB;

/// Measures at rest: everything is in place, nobody is connected.
pub(super) fn measure(stage: &Stage<'_>, report: &mut Report) -> Result<()> {
    let host = size("bulkhead", "BULKHEAD_BIN")?;
    judge(report, "host binary", host, HOST_BINARY)?;
    judge(report, "host memory", memory(stage.host.process())?, HOST_MEMORY)?;
    judge(
        report,
        "local plugin memory",
        memory(stage.plugin.process())?,
        LOCAL_MEMORY,
    )?;
    Ok(())
}

fn judge(report: &mut Report, what: &str, bytes: u64, bound: u64) -> Result<()> {
    let fact = format!("{what}: {} MB, bound {} MB", tenths(bytes), bound / MB);
    if bytes < bound {
        report.holds(fact)?;
    } else {
        report.failed(fact)?;
    }
    Ok(())
}

fn size(name: &str, override_by: &str) -> Result<u64> {
    let path = resolve_binary(name, override_by)?;
    Ok(fs::metadata(&path)
        .with_context(|| format!("look at {}", path.display()))?
        .len())
}

fn memory(process: &Process) -> Result<u64> {
    process
        .rss()
        .with_context(|| format!("measure {}", process.name()))
}

/// In MB, with one decimal place, rounded up: 15.96 must not look like a bound of 16 that was kept by luck.
fn tenths(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(MB);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(tenths(16 * MB), "16.0");
        assert_eq!(tenths(16 * MB + 1), "16.1");
        assert_eq!(tenths(11 * MB + MB / 2), "11.5");
    }
}
