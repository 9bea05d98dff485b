//! Two hosts, one leader: who may write when the other ends, dies or freezes.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, QUICK, SOON, cloud, leads, scripted};
use bulkhead_harness::{
    Change, Host, PluginProcess, Signal, Watcher, Workspace, eventually, resolve_binary, scenario, service_lb,
};
use bulkhead_scripted::{Behaviour, Cloud, Grant, Journal, Rpc, ScriptedPlugin, Write, boot_nanos};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

const LEASE: &str = "cloud-controller-manager";

/// Two hosts, each with a plugin of its own; one cloud. The first leads.
struct Pair {
    first: Host,
    second: Host,
    plugins: [ScriptedPlugin; 2],
}

impl Pair {
    async fn start(workspace: &Workspace, cluster: &Cluster, cloud: &Cloud, quick: bool) -> Result<Self> {
        let plugins = [
            scripted(workspace, "a", cloud).await?,
            scripted(workspace, "b", cloud).await?,
        ];
        let start = |name: &str, plugin: &ScriptedPlugin| {
            let options = cluster.host(&plugin.endpoint())?.name(name);
            Host::start(workspace, &if quick { options.lease(QUICK) } else { options })
        };
        let first = start("host-a", &plugins[0])?;
        leading(&first).await?;
        let second = start("host-b", &plugins[1])?;
        second.wait_ready(SOON).await?;
        assert!(!leads(&second).await? && leads(&first).await?, "one leads");
        Ok(Self {
            first,
            second,
            plugins,
        })
    }
}

async fn leading(host: &Host) -> Result<()> {
    eventually(SOON, "the host to lead", async || {
        ensure!(leads(host).await?, "it does not");
        Ok(())
    })
    .await
}

/// The first grant of a plugin that allows it to write.
async fn first_grant(journal: &Journal, plugin: &str) -> Result<Grant> {
    eventually(SOON, &format!("plugin {plugin} to get the lead"), async || {
        let mut grants = journal.grants()?.into_iter();
        grants
            .find(|grant| grant.plugin == plugin && grant.until > grant.at)
            .context("it has none")
    })
    .await
}

fn seconds_from(earlier: u64, later: u64) -> Duration {
    Duration::from_nanos(later.saturating_sub(earlier))
}

/// No two plugins wrote at once: when one began, all that others had begun was done.
fn assert_one_writer_at_a_time(journal: &Journal) -> Result<()> {
    let writes = journal.writes()?;
    for one in &writes {
        for other in writes.iter().filter(|other| other.plugin != one.plugin) {
            let apart = one.ended <= other.began || other.ended <= one.began;
            assert!(apart, "at once: {one:?} and {other:?}");
        }
    }
    Ok(())
}

fn spec(lease: &Lease) -> LeaseSpec {
    lease.spec.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_when_idle_hands_over_within_a_second() -> Result<()> {
    scenario("handover.sigterm_idle", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (cloud, leases) = (cloud(), Watcher::start(cluster.leases()).await?);
        let pair = Pair::start(workspace, &cluster, &cloud, false).await?;
        let holder = spec(&cluster.leases().get(LEASE).await?)
            .holder_identity
            .context("no holder")?;
        assert_eq!(pair.first.stop(SOON).await?.code(), Some(0));

        let is_successor = |change: &Change<Lease>| {
            let now = spec(change.object()).holder_identity.unwrap_or_default();
            change.object().name_any() == LEASE && !now.is_empty() && now != holder
        };
        let taken = |changes: &[Change<Lease>]| changes.iter().any(is_successor);
        let changes = leases
            .wait_until(SOON, "the successor to take the lease", taken)
            .await?;
        // The API server has Leases of its own there.
        let versions: Vec<_> = changes
            .iter()
            .filter(|change| change.object().name_any() == LEASE)
            .collect();
        let release = versions.windows(2).find(|pair| is_successor(pair[1]));
        let [released, successor] = release.context("no version before the successor's")? else {
            anyhow::bail!("a window of two is two");
        };
        assert_eq!(
            spec(released.object()).holder_identity.unwrap_or_default(),
            "",
            "taken without a release"
        );
        // The predecessor's last write comes before its exit, and both are of this machine's clock.
        let times = (
            spec(released.object()).renew_time,
            spec(successor.object()).acquire_time,
        );
        let (Some(released), Some(acquired)) = times else {
            anyhow::bail!("a time is missing: {times:?}")
        };
        let gap = acquired.0.duration_since(released.0);
        assert!(
            gap.as_secs_f64() < 1.0,
            "the successor wrote {gap:?} after the release"
        );
        // The leader before told its plugin to stop before the next one was told to go.
        let next = first_grant(cloud.journal(), "b").await?;
        let stopped = cloud
            .journal()
            .grants()?
            .into_iter()
            .find(|it| it.plugin == "a" && it.valid_for == 0);
        assert!(stopped.context("plugin a was not told to stop")?.at < next.at);
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        assert_one_writer_at_a_time(cloud.journal())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_with_a_long_cloud_call_in_flight_waits_for_its_end() -> Result<()> {
    const LONG: Duration = Duration::from_secs(10);
    scenario("handover.sigterm_in_flight", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let cloud = cloud();
        let pair = Pair::start(workspace, &cluster, &cloud, true).await?;
        let [plugin, _] = &pair.plugins;
        plugin
            .script()
            .next(Rpc::EnsureLoadBalancer, [Behaviour::LongCloudCall(LONG)]);
        cluster.add_service(&service_lb("web")).await?;
        let calls = || cloud.journal().calls(Rpc::EnsureLoadBalancer);
        eventually(SOON, "the long call to begin", async || {
            ensure!(!calls()?.is_empty(), "not yet");
            Ok(())
        })
        .await?;
        let status = pair.first.stop(SOON).await?;
        assert_eq!(status.code(), Some(0), "it ended in order");

        let next = first_grant(cloud.journal(), "b").await?;
        let (end, code) = calls()?[0].ended.clone().context("the long call has no end")?;
        assert_eq!(code, "Ok", "the long call was not waited for");
        assert!(seconds_from(calls()?[0].began, end) >= LONG);
        assert!(
            next.at > end,
            "the successor's plugin was told to go before the call had ended"
        );
        // The lead was not renewed for the plugin that was told to stop.
        let stop = cloud
            .journal()
            .grants()?
            .into_iter()
            .find(|it| it.plugin == "a" && it.valid_for == 0);
        let stop = stop.context("plugin a was not told to stop")?.at;
        let after = |grant: &Grant| grant.plugin == "a" && grant.at > stop && grant.valid_for > 0;
        assert!(!cloud.journal().grants()?.iter().any(after));
        cluster.address("web").await?;
        assert_eq!(cloud.journal().creates()?, 1);
        assert_one_writer_at_a_time(cloud.journal())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_hands_over_within_the_lease_duration_and_two_seconds() -> Result<()> {
    scenario("handover.sigkill", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let cloud = cloud();
        let pair = Pair::start(workspace, &cluster, &cloud, true).await?;
        pair.first.process().kill()?;
        let killed = boot_nanos();
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        let write = cloud
            .journal()
            .writes()?
            .into_iter()
            .next()
            .context("nothing was written")?;
        assert_eq!(write.plugin, "b");
        let gap = seconds_from(killed, write.began);
        assert!(
            gap <= QUICK.lease + Duration::from_secs(2),
            "the successor's first write came after {gap:?}"
        );
        assert!(pair.second.process().is_running());
        Ok(())
    })
    .await
}

/// A plugin process on the SDK that writes to its cloud for as long as it may.
fn patient(workspace: &Workspace, name: &str, journal: &Path) -> Result<PluginProcess> {
    let binary = resolve_binary("bulkhead-patient", "BULKHEAD_PATIENT_BIN")?;
    let journal = journal.to_string_lossy().into_owned();
    PluginProcess::spawn(workspace, name, &binary, ["--journal", &journal, "--name", name])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_of_a_frozen_leader_stops_writing_before_another_begins() -> Result<()> {
    scenario("handover.sigstop", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let path = workspace.join("journal");
        let journal = Journal::at(&path);
        let plugins = [patient(workspace, "a", &path)?, patient(workspace, "b", &path)?];
        let start = |name: &str, plugin: &PluginProcess| {
            Host::start(
                workspace,
                &cluster.host(&plugin.endpoint())?.name(name).lease(QUICK),
            )
        };
        let first = start("host-a", &plugins[0])?;
        leading(&first).await?;
        let second = start("host-b", &plugins[1])?;
        second.wait_ready(SOON).await?;
        cluster.add_service(&service_lb("web")).await?;
        let by = |plugin: &str| -> Result<Vec<Write>> {
            Ok(journal
                .writes()?
                .into_iter()
                .filter(|write| write.plugin == plugin)
                .collect())
        };
        eventually(SOON, "plugin a to be in the middle of its work", async || {
            ensure!(by("a")?.len() > 3, "it is not");
            Ok(())
        })
        .await?;

        first.process().signal(Signal::STOP)?;
        let frozen = boot_nanos();
        eventually(SOON, "plugin b to write", async || {
            ensure!(by("b")?.len() > 3, "it does not");
            Ok(())
        })
        .await?;
        let last = by("a")?.pop().context("plugin a wrote nothing")?;
        assert!(
            last.began > frozen,
            "the plugin was not writing while its host was frozen: this shows nothing"
        );
        // What was granted last, counted from a renewal that was sent before the freeze.
        let granted = QUICK.lease * 7 / 8;
        assert!(
            seconds_from(frozen, last.began) <= granted,
            "{last:?} was begun after the lead had run out"
        );
        assert!(by("b")?.iter().all(|write| write.began >= last.ended));

        first.process().signal(Signal::CONT)?;
        eventually(SOON, "the old leader to stand by", async || {
            ensure!(!leads(&first).await?, "it leads");
            Ok(())
        })
        .await?;
        let (seen, standby) = (by("b")?.len(), boot_nanos());
        eventually(SOON, "plugin b to go on writing", async || {
            ensure!(by("b")?.len() > seen + 5, "{} writes", by("b")?.len());
            Ok(())
        })
        .await?;
        assert!(
            by("a")?.iter().all(|write| write.began <= last.began),
            "plugin a wrote again"
        );
        assert!(standby > frozen && leads(&second).await? && first.process().is_running());
        assert_one_writer_at_a_time(&journal)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_deleted_under_load_stalls_nothing_and_restarts_nobody() -> Result<()> {
    const SERVICES: usize = 12;
    scenario("handover.lease_deleted", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let cloud = cloud();
        let pair = Pair::start(workspace, &cluster, &cloud, true).await?;
        for plugin in &pair.plugins {
            let busy = Behaviour::LongCloudCall(Duration::from_millis(300));
            plugin.script().always(Rpc::EnsureLoadBalancer, busy);
        }
        let before = cluster.leases().get(LEASE).await?.uid();
        let mut deleted = 0;
        for number in 0..SERVICES {
            cluster.add_service(&service_lb(&format!("web-{number}"))).await?;
            if number == SERVICES / 2 {
                cluster.address("web-0").await?;
                cluster.leases().delete(LEASE, &DeleteParams::default()).await?;
                deleted = boot_nanos();
            }
        }
        for number in 0..SERVICES {
            cluster.address(&format!("web-{number}")).await?;
        }
        let begun_after = |write: &Write| write.began > deleted;
        let resumed = cloud
            .journal()
            .writes()?
            .into_iter()
            .filter(begun_after)
            .map(|it| it.began)
            .min();
        let gap = seconds_from(
            deleted,
            resumed.context("nothing was written after the deletion")?,
        );
        assert!(gap <= QUICK.lease, "writes resumed after {gap:?}");
        assert_ne!(cluster.leases().get(LEASE).await?.uid(), before);
        assert!(pair.first.process().is_running() && pair.second.process().is_running());
        assert_eq!(cloud.journal().creates()?, SERVICES);
        assert_one_writer_at_a_time(cloud.journal())
    })
    .await
}

/// Writes what a leader would whose wall clock has jumped to `time`.
async fn jump(cluster: &Cluster, time: Timestamp) -> Result<()> {
    let renewal = json!({ "spec": { "renewTime": MicroTime(time) } });
    let params = PatchParams::default();
    cluster
        .leases()
        .patch(LEASE, &params, &Patch::Merge(renewal))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wall_clock_that_jumps_by_a_day_neither_ends_a_lead_nor_prolongs_it() -> Result<()> {
    scenario("handover.clock_jump", async |workspace| {
        let day = SignedDuration::from_hours(24);
        let cluster = Cluster::start(workspace).await?;
        let pair = Pair::start(workspace, &cluster, &cloud(), true).await?;
        let before = spec(&cluster.leases().get(LEASE).await?);
        let now = before.renew_time.context("no renewal")?.0;
        // For twice as long as a Lease lives without a renewal.
        let steps = QUICK.lease.as_secs() * 2;
        for step in 1..=steps {
            let by = if step <= steps / 2 { day } else { -day };
            jump(
                &cluster,
                now + by + SignedDuration::try_from(Duration::from_secs(step))?,
            )
            .await?;
            tokio::time::sleep(QUICK.retry).await;
            ensure!(
                leads(&pair.first).await? && !leads(&pair.second).await?,
                "another host leads after a jump by {by:#}"
            );
        }
        let after = spec(&cluster.leases().get(LEASE).await?);
        assert_eq!(after.lease_transitions, before.lease_transitions);
        assert_eq!(after.holder_identity, before.holder_identity);

        // Its last renewal lies in the future, and it is dead.
        jump(&cluster, now + day).await?;
        pair.first.process().kill()?;
        let within = QUICK.lease + Duration::from_secs(2);
        eventually(within, "the other host to lead", async || {
            ensure!(leads(&pair.second).await?, "it does not");
            Ok(())
        })
        .await
    })
    .await
}
