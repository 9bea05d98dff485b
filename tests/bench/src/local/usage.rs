//! What a contestant takes, as the kernel counts it: of a process and its children together.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The kernel counts CPU time in hundredths of a second wherever this runs (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// Bytes of memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// Resident, with pages shared by several processes divided among them (PSS).
    pub(crate) proportional: u64,
    /// Resident (RSS): shared pages count once for each process.
    pub(crate) resident: u64,
}

/// The process and its children.
fn family(pid: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let children = children.split_ascii_whitespace().map(str::parse);
    let mut all = children.collect::<Result<Vec<u32>, _>>()?;
    all.push(pid);
    Ok(all)
}

/// Memory that they have now.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let mut sum = Memory::default();
    for pid in family(pid)? {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        sum.proportional += kibibytes(&text, "Pss:").with_context(|| format!("Pss in {path}"))? * 1024;
        sum.resident += kibibytes(&text, "Rss:").with_context(|| format!("Rss in {path}"))? * 1024;
    }
    Ok(sum)
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// CPU time that they have taken since they began.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let mut ticks = 0;
    for pid in family(pid)? {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        ticks += busy_ticks(&text).with_context(|| format!("CPU times in {path}"))?;
    }
    Ok(TICK.saturating_mul(ticks))
}

/// User and system time, fields 14 and 15; the second is a name that may hold anything.
fn busy_ticks(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_found_behind_any_name() {
        let stat = "42 (a ) name) S 1 42 42 0 -1 4194560 100 0 0 0 250 130 7 9 20 0 3 0 1 2 3";
        assert_eq!(busy_ticks(stat), Some(380));
        assert_eq!(busy_ticks("42 (short) S 1"), None);
    }

    #[test]
    fn a_line_of_a_rollup_is_bytes() {
        let text =
            "5500-7ffd ---p 00000000 00:00 0 [rollup]\nRss:    1876 kB\nPss:     301 kB\nPss_Dirty: 9 kB\n";
        assert_eq!(kibibytes(text, "Pss:"), Some(301));
        assert_eq!(kibibytes(text, "Swap:"), None);
    }

    #[test]
    fn this_process_has_taken_memory() {
        let memory = memory(std::process::id()).unwrap();
        assert!(
            memory.proportional > 0 && memory.proportional <= memory.resident,
            "{memory:?}"
        );
    }
}
