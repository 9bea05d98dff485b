//! Nodes come and go, and traffic follows without a connection lost.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;

use super::nodes::join;
use super::service::{DOZEN, dozen_from};
use crate::clock::Stopwatch;
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
    let (answers, followed) = dozen_from(stage, front).await?;
    report.holds(format_args!(
        "{name} initialised in {took}; traffic follows {followed} later: {answers}"
    ))?;
    nothing_lost(&prober, "the node was added", report)
}

pub(super) async fn remove_a_node(stage: &mut Stage<'_>, report: &mut Report) -> Result<()> {
    let front = stage.front()?;
    let prober = Prober::start(front);
    let leaving = stage.machines.remove(LEAVES);
    let watch = Stopwatch::start();
    cluster::nodes(stage.admin())
        .delete(&leaving.name, &DeleteParams::default())
        .await?;
    let (answers, _) = dozen_from(stage, front).await?;
    report.holds(format_args!(
        "Node {} deleted: {DOZEN} answers after {} come from the others: {answers}",
        leaving.name,
        watch.read()
    ))?;
    nothing_lost(&prober, "the node was removed", report)?;
    // Only now is the machine itself switched off.
    stage.inventory.write(&stage.machines)
}

fn nothing_lost(prober: &Prober, when: &str, report: &mut Report) -> Result<()> {
    let tally = prober.take();
    ensure!(
        tally.failed == 0 && tally.answered > 0,
        "while {when}, {} connections failed and {} were answered",
        tally.failed,
        tally.answered
    );
    report.holds(format_args!(
        "no connection failed while {when}, of {}",
        tally.answered
    ))?;
    Ok(())
}
