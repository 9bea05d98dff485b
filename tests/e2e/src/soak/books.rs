//! The comparison of what is there with what should be: whatever is too much is a leak.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{
    eventually, get_in_the_clear,
    observed::{self, Listener, Protocol},
};
use serde_json::Value;

use super::{model::Shape, stage::Stage};

/// For connections that clients have just closed, and for what drains.
const BALANCED_WITHIN: Duration = Duration::from_secs(20);
/// Beside its listeners a plugin has as many files open as at the first look, and a health check or a reader of the
/// inventory at that moment.
const PLUGIN_FILES: usize = 3;
/// Connections to the API server come and go with what is asked at once.
const HOST_FILES: usize = 8;

/// Services that exist, their addresses and shapes.
pub(crate) type Services = BTreeMap<String, (IpAddr, Shape)>;

/// One process at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vitals {
    pub(crate) pid: u32,
    pub(crate) files: usize,
    /// Bytes.
    pub(crate) memory: u64,
}

/// What a comparison saw when everything was right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Balance {
    pub(crate) host: Vitals,
    pub(crate) plugin: Vitals,
    pub(crate) listeners: usize,
}

/// The files that processes had open when they were first looked at, without listeners; by process id.
#[derive(Debug, Default)]
pub(crate) struct Books(BTreeMap<u32, usize>);

impl Books {
    /// Waits until nothing is there that should not be, and nothing is missing. Clients must have ended.
    pub(crate) async fn compare(
        &mut self,
        stage: &Stage<'_>,
        services: &Services,
        nodes: usize,
    ) -> Result<Balance> {
        let expected = listeners(services, stage.metrics());
        let (host, plugin) = (stage.host_pid()?, stage.plugin_pid().await?);
        let balance = eventually(BALANCED_WITHIN, "everything to balance", async || {
            compare_metrics(stage.metrics(), services, nodes).await?;
            compare_state(stage, services)?;
            let found = observed::listeners(plugin)?;
            let missing: Vec<_> = expected.difference(&found).collect();
            let surplus: Vec<_> = found.difference(&expected).collect();
            ensure!(
                missing.is_empty() && surplus.is_empty(),
                "listeners: missing {missing:?}, too many {surplus:?}"
            );
            let balance = Balance {
                host: vitals(host)?,
                plugin: vitals(plugin)?,
                listeners: found.len(),
            };
            self.compare_files("plugin", plugin, balance.plugin.files, found.len() + PLUGIN_FILES)?;
            self.compare_files("host", host, balance.host.files, HOST_FILES)?;
            Ok(balance)
        })
        .await?;
        let Balance { host, plugin, .. } = balance;
        self.0.entry(host.pid).or_insert(host.files);
        self.0
            .entry(plugin.pid)
            .or_insert_with(|| plugin.files.saturating_sub(balance.listeners));
        Ok(balance)
    }

    fn compare_files(&self, who: &str, pid: u32, files: usize, beside: usize) -> Result<()> {
        let Some(first) = self.0.get(&pid) else {
            return Ok(());
        };
        ensure!(
            files <= first + beside,
            "the {who} has {files} files open: {first} at the first look, and {beside} may be there besides"
        );
        Ok(())
    }
}

/// Where clients of these Services ask.
pub(crate) fn fronts(address: IpAddr, shape: &Shape) -> impl Iterator<Item = Listener> + '_ {
    let front = move |&(protocol, port)| Listener {
        protocol,
        at: SocketAddr::new(address, port),
    };
    shape.ports.iter().map(front)
}

fn listeners(services: &Services, metrics: SocketAddr) -> BTreeSet<Listener> {
    let served = services
        .values()
        .flat_map(|(address, shape)| fronts(*address, shape));
    served
        .chain([Listener {
            protocol: Protocol::Tcp,
            at: metrics,
        }])
        .collect()
}

fn vitals(pid: u32) -> Result<Vitals> {
    Ok(Vitals {
        pid,
        files: observed::open_files(pid)?,
        memory: observed::resident_memory(pid)?,
    })
}

/// The saved load balancers are those of the Services, with their addresses.
fn compare_state(stage: &Stage<'_>, services: &Services) -> Result<()> {
    let path = stage.saved_state();
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let saved: Value = serde_json::from_str(&text)?;
    let balancers = saved.get("balancers").and_then(Value::as_array);
    let entry = |balancer: &Value| {
        let name = balancer.pointer("/service/name")?.as_str()?.to_owned();
        let addresses = balancer.get("addresses")?.as_array()?;
        let [address] = addresses.as_slice() else {
            return None;
        };
        Some((name, address.as_str()?.parse().ok()?))
    };
    let found: Option<Vec<(String, IpAddr)>> = balancers
        .context("the saved state lists no load balancers")?
        .iter()
        .map(entry)
        .collect();
    let mut found = found.with_context(|| format!("the saved state is {saved}"))?;
    found.sort();
    let expected: Vec<_> = services
        .iter()
        .map(|(name, (address, _))| (name.clone(), *address))
        .collect();
    ensure!(
        found == expected,
        "saved are {found:?}, and there are {expected:?}"
    );
    Ok(())
}

/// What the plugin counts itself: addresses taken, load balancers, the nodes behind them, nothing open.
async fn compare_metrics(at: SocketAddr, services: &Services, nodes: usize) -> Result<()> {
    let text = get_in_the_clear(at, "/metrics").await?.body;
    let count = services.len();
    for (name, expected) in [
        ("load_balancers", count),
        ("pool_addresses_taken", count),
        ("backends", count * nodes),
        ("unserved_ports", 0),
        ("open_connections", 0),
        ("open_flows", 0),
    ] {
        let found = sum(&text, &format!("bulkhead_local_{name}"))?;
        let expected = expected.to_string();
        ensure!(
            found.to_string() == expected,
            "metric {name} is {found}, not {expected}"
        );
    }
    Ok(())
}

/// All series of a metric.
fn sum(text: &str, name: &str) -> Result<f64> {
    let mut sum = 0.0;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else {
            continue;
        };
        if rest.starts_with(['{', ' ']) {
            let (_, value) = line
                .rsplit_once(' ')
                .with_context(|| format!("{line} has no value"))?;
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_the_whole_name() {
        let text = "# TYPE open gauge\nopen{service=\"a\"} 2\nopen{service=\"b\"} 3\nopen_files 7\n";
        assert!((sum(text, "open").unwrap() - 5.0).abs() < f64::EPSILON);
    }
}
