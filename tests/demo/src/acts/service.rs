//! A Service of type LoadBalancer, and answers through its address.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use bulkhead_harness::{Stopwatch, eventually, port, service_lb};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::PostParams;

use crate::cluster::{self, SERVICE, external_address, node_port};
use crate::prober::Answers;
use crate::report::Report;
use crate::stage::{PORT, Stage, WITHIN};

/// Upstream's, which keeps a Service until its load balancer is gone.
pub(super) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
pub(super) const DOZEN: usize = 12;

pub(super) async fn publish(stage: &mut Stage<'_>, report: &mut Report) -> Result<()> {
    let api = cluster::services(stage.admin());
    let watch = Stopwatch::start();
    let created = api.create(&PostParams::default(), &service()).await?;
    let node_port = node_port(&created)?;
    let last_time = stage.node_port.replace(node_port);
    for machine in &mut stage.machines {
        if let Some(port) = last_time {
            machine.stand_in.close(port).await;
        }
        machine.stand_in.listen(node_port).await?;
    }
    let (service, address) = eventually(WITHIN, "the Service's address", async || {
        let service = api.get(SERVICE).await?;
        let address = external_address(&service)?;
        Ok((service, address))
    })
    .await?;
    let took = watch.read();
    ensure!(
        service
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == FINALIZER),
        "the Service has an address and no finalizer: its load balancer could be lost"
    );
    stage.address = Some(address);
    stage.service_version = service.resource_version();
    let front = stage.front()?;
    report.holds(format_args!(
        "Service {SERVICE} (node port {node_port}) got address {address} in {took}, and a finalizer"
    ))?;
    let answers = dozen(stage, front).await?;
    report.holds(format_args!("{DOZEN} connections to {front}: {answers}"))?;
    Ok(())
}

fn service() -> Service {
    let mut service = service_lb(SERVICE);
    if let Some(spec) = &mut service.spec {
        spec.ports = Some(vec![port("names", "TCP", PORT)]);
    }
    service
}

/// Waits until a dozen answers come from exactly the machines that there are.
pub(super) async fn dozen(stage: &Stage<'_>, front: SocketAddr) -> Result<Answers> {
    let machines = stage.machines.iter();
    let expected: Vec<&str> = machines.map(|machine| machine.name.as_str()).collect();
    let what = format!("answers from {} and no others", expected.join(", "));
    eventually(WITHIN, &what, async || {
        let answers = Answers::collect(front, DOZEN).await?;
        ensure!(answers.nodes() == expected, "the answers were: {answers}");
        Ok(answers)
    })
    .await
}
