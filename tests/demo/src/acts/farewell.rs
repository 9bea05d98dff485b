//! The Service is deleted, and nothing is left of it.

use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_harness::{Stopwatch, eventually};
use kube::api::DeleteParams;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::cluster::{self, SERVICE, version};
use crate::report::Report;
use crate::stage::{Stage, WITHIN};

pub(super) async fn delete_the_service(stage: &Stage<'_>, report: &mut Report) -> Result<()> {
    let front = stage.front()?;
    ensure!(
        saved_balancers(stage)? == 1,
        "the plugin has not saved the Service's load balancer"
    );
    let api = cluster::services(stage.admin());
    let version = version(&api.get(SERVICE).await?);
    ensure!(
        stage.service_version.as_ref() == Some(&version),
        "somebody wrote to the Service after it got its address"
    );
    report.holds("Service: nobody has written to it since it got its address")?;
    let watch = Stopwatch::start();
    api.delete(SERVICE, &DeleteParams::default()).await?;
    eventually(WITHIN, "the Service to be gone", async || {
        ensure!(api.get_opt(SERVICE).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    let took = watch.read();
    // The finalizer went last: whoever sees the Service gone must find nothing left.
    match TcpStream::connect(front).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        Err(error) => return Err(error).context("connect to the address that was"),
        Ok(_) => bail!("{front} still accepts connections"),
    }
    let saved = saved_balancers(stage)?;
    ensure!(saved == 0, "the plugin still has {saved} load balancers saved");
    report.holds(format_args!(
        "Service deleted in {took}: finalizer and object gone, {front} refuses, the plugin's saved state is empty"
    ))?;
    Ok(())
}

fn saved_balancers(stage: &Stage<'_>) -> Result<usize> {
    let path = stage.saved_state();
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let saved: Value = serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    let balancers = saved.get("balancers").and_then(Value::as_array);
    balancers
        .map(Vec::len)
        .with_context(|| format!("{} lists no load balancers", path.display()))
}
