//! Nodes join, and the host gives them what only their cloud knows.

use anyhow::{Context, Result, bail, ensure};
use bulkhead_harness::{Change, Stopwatch, Watcher, node};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::PostParams;

use crate::cluster::{self, ensure_complete, is_tainted};
use crate::machine::Machine;
use crate::report::Report;
use crate::stage::{Stage, WITHIN};

pub(super) async fn initialise(stage: &Stage<'_>, report: &mut Report) -> Result<()> {
    let watch = join(stage, &stage.machines, report).await?;
    for machine in &stage.machines {
        report.holds(format_args!(
            "{} is {} in zone {} at {}; six labels; taint gone",
            machine.name,
            machine.provider_id(),
            machine.zone,
            machine.address
        ))?;
    }
    report.holds(format_args!(
        "{} nodes initialised in {watch}; no version of them was ever without taint and incomplete",
        stage.machines.len()
    ))?;
    Ok(())
}

/// Registers machines as their kubelets would, waits until they are initialised, and returns how long that took.
pub(super) async fn join(stage: &Stage<'_>, machines: &[Machine], report: &mut Report) -> Result<String> {
    let api = cluster::nodes(stage.admin());
    let seen = Watcher::start(api.clone()).await?;
    let watch = Stopwatch::start();
    for machine in machines {
        let created = api.create(&PostParams::default(), &node(&machine.name)).await?;
        ensure!(
            is_tainted(&created) && created.spec.is_some_and(|spec| spec.provider_id.is_none()),
            "{} was not registered as a kubelet does",
            machine.name
        );
    }
    report.holds(format_args!(
        "registered as by a kubelet, with the uninitialized taint and nothing of the cloud: {}",
        names(machines)
    ))?;
    let all_done = |changes: &[Change<Node>]| machines.iter().all(|machine| is_done(changes, machine));
    let changes = seen
        .wait_until(WITHIN, "the nodes' taints to be gone", all_done)
        .await?;
    let took = watch.read();
    for machine in machines {
        judge(&changes, machine)?;
    }
    Ok(took)
}

fn names(machines: &[Machine]) -> String {
    let names: Vec<_> = machines.iter().map(|machine| machine.name.as_str()).collect();
    names.join(", ")
}

/// The versions of one machine's node, oldest first.
fn versions<'a>(
    changes: &'a [Change<Node>],
    machine: &'a Machine,
) -> impl DoubleEndedIterator<Item = &'a Node> {
    changes
        .iter()
        .map(Change::object)
        .filter(|node| node.name_any() == machine.name)
}

fn is_done(changes: &[Change<Node>], machine: &Machine) -> bool {
    versions(changes, machine)
        .next_back()
        .is_some_and(|node| !is_tainted(node))
}

/// In every version without taint the node must be complete, so that no Pod ever starts on half a node.
fn judge(changes: &[Change<Node>], machine: &Machine) -> Result<()> {
    let mut untainted = versions(changes, machine)
        .filter(|node| !is_tainted(node))
        .peekable();
    if untainted.peek().is_none() {
        bail!("{} still has its taint", machine.name);
    }
    untainted.try_for_each(|node| {
        ensure_complete(node, machine)
            .with_context(|| format!("{} without taint is not complete", machine.name))
    })
}
