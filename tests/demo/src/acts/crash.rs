//! The plugin is killed and started again. The host stays, and so does all that it has written.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, Result, ensure};
use bulkhead_harness::{Signal, eventually, readable};

use crate::cluster::Versions;
use crate::prober::Prober;
use crate::report::Report;
use crate::stage::{Session, Stage, WITHIN, start_plugin};

/// Enough answers to know that traffic flows.
const FLOWING: usize = 20;

pub(super) async fn kill_the_plugin(stage: &mut Stage<'_>, report: &mut Report) -> Result<()> {
    let host = stage.host.process().pid();
    let session = stage.session().await?;
    let before = Versions::read(&stage.admin()).await?;
    let prober = Prober::start(stage.front()?);
    flowing(&prober, "traffic before the kill").await?;

    kill(stage, report).await?;
    host_goes_on(stage, &session, report).await?;
    prober.take();
    stage.plugin = start_plugin(stage.workspace, &stage.inventory)?;
    flowing(&prober, "traffic after the kill").await?;
    report.holds(format_args!(
        "plugin started again (pid {}): traffic is back after a gap of {} ms",
        stage.plugin.process().pid(),
        prober.take().longest_gap.as_millis()
    ))?;

    let session = stage.session_after(session.number).await?;
    ensure!(
        stage.host.process().is_running() && stage.host.process().pid() == host,
        "the host did not survive; its log: {}",
        stage.host.process().log()?
    );
    report.holds(format_args!(
        "host (pid {host}) never ended; it works with the plugin again, in session {}",
        session.number
    ))?;
    let after = Versions::read(&stage.admin()).await?;
    after
        .ensure_same_as(&before)
        .context("what the host wrote before the kill must stay")?;
    report.holds(format_args!(
        "nobody wrote to the {} Nodes or the Service meanwhile: every resourceVersion is as before",
        after.nodes()
    ))?;
    Ok(())
}

async fn kill(stage: &Stage<'_>, report: &mut Report) -> Result<()> {
    let plugin = stage.plugin.process();
    plugin.kill()?;
    let status = plugin.wait(WITHIN).await?;
    ensure!(
        status.signal() == Some(Signal::KILL.as_raw()),
        "the plugin ended otherwise: {status}"
    );
    report.holds(format_args!("plugin (pid {}) killed: {status}", plugin.pid()))?;
    Ok(())
}

/// The host has noticed, says so, and is ready all the same.
async fn host_goes_on(stage: &Stage<'_>, before: &Session, report: &mut Report) -> Result<()> {
    let session = eventually(WITHIN, "the host to notice", async || {
        let session = stage.session().await?;
        ensure!(
            session.state != before.state,
            "it shows the plugin as {session:?}"
        );
        Ok(session)
    })
    .await?;
    let ready = stage.host.get("/readyz", None).await?;
    ensure!(ready.status == 200, "the host is not ready: {}", ready.body);
    report.holds(format_args!(
        "host: /readyz is {}, /readyz/plugins shows the plugin as {}",
        ready.status.as_u16(),
        session.state
    ))?;
    Ok(())
}

async fn flowing(prober: &Prober, what: &str) -> Result<()> {
    eventually(WITHIN, what, async || {
        let tally = prober.tally();
        ensure!(tally.answered >= FLOWING, "{tally:?}");
        Ok(())
    })
    .await
    .with_context(|| format!("the longest gap so far: {}", readable(prober.tally().longest_gap)))
}
