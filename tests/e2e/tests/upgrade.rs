//! A plugin is upgraded again and again while Services are made and deleted and nodes join: nobody notices.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, SOON, Simulated};
use bulkhead_harness::{Host, PluginProcess, Signal, eventually, scenario};
use bulkhead_sim::cloud::Distribution;
use futures::future::try_join_all;
use kube::api::PostParams;
use serde_json::Value;
use tokio::time::timeout;

const UPGRADES: usize = 4;
/// Services made, Services deleted and nodes joined before each upgrade, and after the last one.
const OPERATIONS: usize = 35;
/// How many people make and delete Services at the same time.
const TENANTS: usize = 4;
/// Each of them leaves one of so many Services.
const ONE_IN: usize = 5;
/// Of so many operations one is a machine that joins. Each becomes a target of all Services.
const MACHINE_IN: usize = 6;
/// What a Service may wait for its address, or a node until it is initialised.
const WITHIN: Duration = Duration::from_secs(5);
/// Of each call of the cloud. A load balancer is made with more than ten: an upgrade always meets some half made.
const LATENCY: Duration = Duration::from_millis(10);

/// What happens in the cluster until it is over.
struct Load<'a> {
    cluster: &'a Cluster,
    cloud: &'a Simulated<'a>,
    operations: Cell<usize>,
    made: Cell<u64>,
    stay: RefCell<BTreeSet<String>>,
    nodes: Cell<usize>,
    is_over: Cell<bool>,
}

impl<'a> Load<'a> {
    fn new(cluster: &'a Cluster, cloud: &'a Simulated<'a>) -> Self {
        Self {
            cluster,
            cloud,
            operations: Cell::default(),
            made: Cell::default(),
            stay: RefCell::default(),
            nodes: Cell::default(),
            is_over: Cell::default(),
        }
    }

    fn count(&self) {
        self.operations.update(|count| count + 1);
    }

    /// One machine after another joins.
    async fn machines(&self) -> Result<()> {
        while !self.is_over.get() {
            self.join().await?;
            self.goes_on(MACHINE_IN - 1).await?;
        }
        Ok(())
    }

    async fn join(&self) -> Result<()> {
        let name = format!("node-{}", self.nodes.get());
        let node = self.cloud.machine(&name).await?;
        self.cluster.nodes().create(&PostParams::default(), &node).await?;
        timeout(WITHIN, self.cluster.initialised(&name))
            .await
            .with_context(|| format!("{name} is not initialised after {WITHIN:?}"))??;
        self.nodes.update(|count| count + 1);
        self.count();
        Ok(())
    }

    /// One Service after another is made, and some go again.
    async fn tenant(&self, tenant: usize) -> Result<()> {
        for number in (0..).take_while(|_| !self.is_over.get()) {
            let name = format!("web-{tenant}-{number}");
            self.cluster.add_service(&self.cloud.service(&name)).await?;
            self.made.update(|count| count + 1);
            self.cluster.address_within(&name, WITHIN).await?;
            self.count();
            if number % ONE_IN == 0 {
                self.stay.borrow_mut().insert(name);
                continue;
            }
            self.delete(&name).await?;
            self.count();
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.cluster.delete_service(name).await?;
        self.cluster.service_gone(name).await
    }

    /// Waits until so much more has happened, or it is over.
    async fn goes_on(&self, operations: usize) -> Result<()> {
        let target = self.operations.get() + operations;
        eventually(SOON, "Services and nodes to come and go", async || {
            let count = self.operations.get();
            ensure!(
                count >= target || self.is_over.get(),
                "{count} operations of {target}"
            );
            Ok(())
        })
        .await
    }

    /// One process after another takes over; the last one is returned.
    async fn upgrades(&self, host: &Host) -> Result<PluginProcess> {
        let mut older: Option<PluginProcess> = None;
        for number in 1..=UPGRADES {
            self.goes_on(OPERATIONS).await?;
            let newer = self.cloud.another(number).await?;
            let first = self.cloud.plugin()?;
            let ends = older.as_ref().unwrap_or(first).process();
            // A Pod's containers may be told to end before anybody knows of those that come after them.
            let is_told_early = number % 2 == 0;
            if is_told_early {
                ends.signal(Signal::TERM)?;
            }
            has_taken_over(host, self.cloud.name(), number).await?;
            if !is_told_early {
                self.goes_on(OPERATIONS).await?;
                ends.signal(Signal::TERM)?;
            }
            let status = ends.wait(SOON).await?;
            ensure!(status.success(), "the older process ended with {status}");
            older = Some(newer);
        }
        self.goes_on(OPERATIONS).await?;
        self.is_over.set(true);
        older.context("there was no upgrade")
    }

    /// All that the cloud has belongs to a Service that is there, and no load balancer was ever made twice.
    async fn settled(&self) -> Result<()> {
        let stay = self.stay.take();
        has_only(self.cloud, self.nodes.get(), stay.len()).await?;
        let counts = self.cloud.cloud().counts().await?;
        let made = counts.get("create/load_balancer").map(|count| count.writes);
        ensure!(
            made == Some(self.made.get()),
            "{made:?} load balancers were made for {} Services",
            self.made.get()
        );
        try_join_all(stay.iter().map(|name| self.delete(name))).await?;
        has_only(self.cloud, self.nodes.get(), 0).await
    }
}

/// Waits until the host works with the process that came after `upgrades` others.
async fn has_taken_over(host: &Host, plugin: &str, upgrades: usize) -> Result<()> {
    let what = format!("process {upgrades} of the plugin to take over");
    eventually(SOON, &what, async || {
        let answer = host.get("/readyz/plugins", None).await?;
        let page: Value = serde_json::from_str(&answer.body)?;
        let plugins = page
            .get("plugins")
            .and_then(Value::as_array)
            .context("no plugins")?;
        let shown = plugins.iter().find(|it| it["name"] == plugin);
        let shown = shown.with_context(|| answer.body.clone())?;
        let session = shown.pointer("/details/session").and_then(Value::as_u64);
        let wanted = u64::try_from(upgrades + 1)?;
        ensure!(
            session == Some(wanted) && shown["state"] == "active",
            "session {session:?} is {}",
            shown["state"]
        );
        Ok(())
    })
    .await
}

/// How many of each kind there are.
async fn inventory(cloud: &Simulated<'_>) -> Result<BTreeMap<String, usize>> {
    let mut kinds = BTreeMap::new();
    for object in cloud.cloud().inventory(&[]).await? {
        *kinds.entry(object.kind).or_default() += 1;
    }
    Ok(kinds)
}

fn expected(instances: usize, services: usize) -> BTreeMap<String, usize> {
    let of_services = [
        "load_balancer",
        "listener",
        "pool",
        "health_check",
        "address",
        "firewall",
        "firewall_rule",
    ];
    let all = of_services.map(|kind| (kind, services));
    let others = [
        ("instance", instances),
        ("route_table", 1),
        ("target", instances * services),
    ];
    let all = all.into_iter().chain(others);
    all.filter(|(_, count)| *count > 0)
        .map(|(kind, count)| (kind.to_owned(), count))
        .collect()
}

/// Waits until the cloud has what belongs to so many Services, and nothing else.
async fn has_only(cloud: &Simulated<'_>, instances: usize, services: usize) -> Result<()> {
    eventually(SOON, "the cloud to have what it should", async || {
        let (is, should) = (inventory(cloud).await?, expected(instances, services));
        ensure!(is == should, "{is:?}, not {should:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_under_load_are_noticed_by_nobody_and_duplicate_nothing() -> Result<()> {
    scenario("upgrade.under_load", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let cloud = Simulated::start(workspace, "own").await?;
        cloud.cloud().set_latency(Distribution::always(LATENCY)).await?;
        let options = cluster.discovering_host(cloud.plugins_directory()?)?;
        let host = Host::start(workspace, &options)?;
        let load = Load::new(&cluster, &cloud);
        load.join().await?;
        let tenants = try_join_all((0..TENANTS).map(|tenant| load.tenant(tenant)));
        let ((), _, _last) = tokio::try_join!(load.machines(), tenants, load.upgrades(&host))?;
        ensure!(
            load.operations.get() >= 200,
            "{} operations",
            load.operations.get()
        );
        load.settled().await?;
        let warnings = cluster.warnings().await?;
        ensure!(warnings.is_empty(), "{warnings:#?}");
        Ok(())
    })
    .await
}
