//! Nodes come and go, and traffic follows without a connection lost.

use anyhow::{Context, Result, ensure};
use bulkhead_harness::Stopwatch;
use kube::api::DeleteParams;

use super::nodes::join;
use super::service::dozen;
use crate::cluster;
use crate::machine::Machine;
use crate::prober::Prober;
use crate::report::Report;
use crate::stage::Stage;

/// The one that leaves: neither the first nor the last.
const LEAVES: usize = 1;

pub(super) async fn add_a_node(stage: &mut Stage<'_>, report: &mut Report) -> Result<()> {
    let front = stage.front()?;
    let prober = Prober::start(front);
    let before = stage.machines.len();
    let mut machine = Machine::new(stage.workspace, u8::try_from(before + 1)?);
    let node_port = stage.node_port.context("the Service has no node port yet")?;
    machine.stand_in.listen(node_port).await?;
    let name = machine.name.clone();
    stage.machines.push(machine);
    stage.inventory.write(&stage.machines)?;

    let joining = stage.machines.get(before..).unwrap_or_default();
    let took = join(stage, joining, report).await?;
    let watch = Stopwatch::start();
    dozen(stage, front).await?;
    report.holds(format_args!(
        "{name} initialised in {took}; traffic follows {} later",
        watch.read()
    ))?;
    nothing_lost(stage, prober, "the node was added", report).await
}

pub(super) async fn remove_a_node(stage: &mut Stage<'_>, report: &mut Report) -> Result<()> {
    let front = stage.front()?;
    let prober = Prober::start(front);
    let leaving = stage.machines.remove(LEAVES);
    let watch = Stopwatch::start();
    cluster::nodes(stage.admin())
        .delete(&leaving.name, &DeleteParams::default())
        .await?;
    dozen(stage, front).await?;
    report.holds(format_args!(
        "Node {} deleted: traffic leaves it after {}",
        leaving.name,
        watch.read()
    ))?;
    nothing_lost(stage, prober, "the node was removed", report).await?;
    // Only now is the machine itself switched off.
    stage.inventory.write(&stage.machines)
}

/// Ends the prober, then asks a dozen times more: with no other client about, the round robin is exact.
async fn nothing_lost(stage: &Stage<'_>, prober: Prober, when: &str, report: &mut Report) -> Result<()> {
    let tally = prober.take();
    ensure!(
        tally.failed == 0 && tally.answered > 0,
        "while {when}, {} connections failed and {} were answered",
        tally.failed,
        tally.answered
    );
    drop(prober);
    let answers = dozen(stage, stage.front()?).await?;
    report.holds(format_args!(
        "no connection failed while {when}, of {}; now {answers}",
        tally.answered
    ))?;
    Ok(())
}
