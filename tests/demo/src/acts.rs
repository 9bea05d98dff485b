//! The play, act by act. Each act leaves the stage as the next one needs it.

mod crash;
mod farewell;
mod footprint;
mod members;
mod nodes;
mod opening;
mod service;

use std::convert::Infallible;

use anyhow::Result;
use bulkhead_harness::Workspace;

use crate::report::Report;
use crate::stage::Stage;

/// Plays everything and returns the stage, still running.
///
/// # Errors
///
/// The first thing without which it cannot go on; what does not hold otherwise is in the report.
pub(crate) async fn play<'a>(workspace: &'a Workspace, report: &mut Report) -> Result<Stage<'a>> {
    report.say("Bulkhead: a real API server, the host, and its plugin in a process of its own.\n")?;
    let mut stage = opening::start(workspace, report).await?;
    nodes::initialise(&stage, report).await?;
    service::publish(&mut stage, report).await?;
    footprint::measure(&stage, report)?;
    crash::kill_the_plugin(&mut stage, report).await?;
    members::add_a_node(&mut stage, report).await?;
    members::remove_a_node(&mut stage, report).await?;
    farewell::delete_the_service(&stage, report).await?;
    report.sum()?;
    Ok(stage)
}

/// Publishes the Service once more and leaves all to the user, for ever.
pub(crate) async fn go_on(mut stage: Stage<'_>, report: &mut Report) -> Result<Infallible> {
    service::publish(&mut stage, report).await?;
    report.say(&stage.how_to_use_it().await?)?;
    stage.play_kubelet().await
}
