//! Services: addresses, traffic, and nothing left behind.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, Machine, QUICK, SOON, cloud, has_finalizer, ingress, scripted, traffic};
use bulkhead_harness::{Host, NodeStandIn, eventually, port, scenario, service_lb};
use bulkhead_scripted::{Behaviour, Rpc, Wrong, instance};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_serves_tcp_and_udp_follows_ports_and_nodes_and_leaves_nothing() -> Result<()> {
    scenario("services.life", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let mut machine = Machine::new(workspace, &["node-1", "node-2", "node-3"])?;
        let plugin = machine.plugin().await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        for name in ["node-1", "node-2"] {
            cluster.add_node(name).await?;
            cluster.initialised(name).await?;
        }
        let mut service = service_lb("web");
        let ports = vec![port("http", "TCP", 80), port("dns", "UDP", 53)];
        service.spec.get_or_insert_default().ports = Some(ports);
        let created = cluster.add_service(&service).await?;
        machine.serve(&created).await?;
        let ip = cluster.address("web").await?;
        let (http, dns) = (SocketAddr::new(ip, 80), SocketAddr::new(ip, 53));
        traffic::answered_by(http, &["node-1", "node-2"]).await?;
        eventually(SOON, "a datagram to be answered", async || {
            traffic::udp(dns).await
        })
        .await?;
        assert!(has_finalizer(&cluster.services().get("web").await?));

        // The port changes: the address stays.
        let ports = [port("http", "TCP", 8080), port("dns", "UDP", 53)];
        let changed = cluster
            .patch_service("web", json!({ "spec": { "ports": ports } }))
            .await?;
        machine.serve(&changed).await?;
        let moved = SocketAddr::new(ip, 8080);
        traffic::answered_by(moved, &["node-1", "node-2"]).await?;
        traffic::refused(http).await?;
        assert_eq!(cluster.address("web").await?, ip);

        // A node comes, another goes.
        cluster.add_node("node-3").await?;
        traffic::answered_by(moved, &["node-1", "node-2", "node-3"]).await?;
        cluster.nodes().delete("node-1", &DeleteParams::default()).await?;
        traffic::answered_by(moved, &["node-2", "node-3"]).await?;

        // It is no LoadBalancer any more.
        cluster
            .patch_service("web", json!({ "spec": { "type": "ClusterIP" } }))
            .await?;
        traffic::refused(moved).await?;
        eventually(SOON, "finalizer and status to be gone", async || {
            let service = cluster.services().get("web").await?;
            ensure!(!has_finalizer(&service), "the finalizer is on");
            ensure!(
                ingress(&service).is_empty(),
                "the status is {:?}",
                ingress(&service)
            );
            Ok(())
        })
        .await?;
        cluster.delete_service("web").await?;
        cluster.service_gone("web").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn orphan_ccm_down_a_service_deleted_while_no_host_runs_is_cleaned_up_by_the_next_one() -> Result<()> {
    scenario("services.deleted_while_down", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let mut machine = Machine::new(workspace, &["node-1"])?;
        let plugin = machine.plugin().await?;
        let options = cluster.host(&plugin.endpoint())?.lease(QUICK);
        let host = Host::start(workspace, &options)?;
        cluster.add_node("node-1").await?;
        let service = cluster.add_service(&service_lb("web")).await?;
        machine.serve(&service).await?;
        let front = SocketAddr::new(cluster.address("web").await?, 80);
        traffic::answered_by(front, &["node-1"]).await?;

        assert_eq!(host.stop(SOON).await?.code(), Some(0));
        drop(host);
        cluster.delete_service("web").await?;
        let service = cluster.services().get("web").await?;
        assert!(service.metadata.deletion_timestamp.is_some() && has_finalizer(&service));
        // Forwarding does not depend on a host.
        traffic::answered_by(front, &["node-1"]).await?;

        let _host = Host::start(workspace, &options)?;
        cluster.service_gone("web").await?;
        traffic::refused(front).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_killed_between_create_and_status_finds_the_one_load_balancer_again() -> Result<()> {
    scenario("services.host_killed", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let journal = plugin.cloud().journal();
        let late = Behaviour::AnsweredLate(Duration::from_secs(300));
        plugin.script().next(Rpc::EnsureLoadBalancer, [late]);
        let options = cluster.host(&plugin.endpoint())?.lease(QUICK);
        let host = Host::start(workspace, &options)?;
        cluster.add_service(&service_lb("web")).await?;
        eventually(SOON, "the load balancer to be made", async || {
            ensure!(journal.creates()? == 1, "it is not");
            Ok(())
        })
        .await?;
        assert!(
            has_finalizer(&cluster.services().get("web").await?),
            "made before the finalizer was on"
        );
        host.process().kill()?;
        host.process().wait(SOON).await?;
        let made = plugin
            .cloud()
            .balancers()?
            .into_values()
            .next()
            .context("it is gone")?;
        assert!(ingress(&cluster.services().get("web").await?).is_empty());
        drop(host);

        let _host = Host::start(workspace, &options)?;
        assert_eq!(cluster.address("web").await?.to_string(), made.address);
        assert_eq!(journal.creates()?, 1, "a second one was made");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lb_class_services_of_other_classes_are_not_touched() -> Result<()> {
    scenario("services.foreign_class", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let mut foreign = service_lb("foreign");
        foreign.spec.get_or_insert_default().load_balancer_class = Some("example.com/other".to_owned());
        let before = cluster.add_service(&foreign).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("ours")).await?;
        cluster.address("ours").await?;

        assert_eq!(
            cluster.services().get("foreign").await?.resource_version(),
            before.resource_version()
        );
        for call in plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer)? {
            assert_eq!(call.about, ["default/ours"]);
        }
        cluster.delete_service("foreign").await?;
        cluster.service_gone("foreign").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nil_status_an_answer_without_status_is_an_event_and_the_host_lives() -> Result<()> {
    scenario("services.nil_status", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        plugin
            .script()
            .next(Rpc::EnsureLoadBalancer, [Behaviour::Wrong(Wrong::Nil)]);
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        let event = cluster
            .event("Service", "web", "SyncLoadBalancerFailed", "status")
            .await?;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        cluster.address("web").await?;
        assert!(host.process().is_running());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_somebody_removes_is_written_again_without_the_cloud() -> Result<()> {
    scenario("services.status_removed", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        let address = cluster.address("web").await?;
        let writes = plugin.cloud().journal().writes()?.len();

        let patch = Patch::Merge(json!({ "status": { "loadBalancer": { "ingress": null } } }));
        let removed = cluster
            .services()
            .patch_status("web", &PatchParams::default(), &patch)
            .await?;
        assert!(ingress(&removed).is_empty());
        assert_eq!(cluster.address("web").await?, address);
        assert_eq!(plugin.cloud().journal().writes()?.len(), writes);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_another_controller_serves_is_left_to_it() -> Result<()> {
    scenario("services.elsewhere", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        plugin
            .script()
            .next(Rpc::EnsureLoadBalancer, [Behaviour::Elsewhere]);
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        cluster.add_service(&service_lb("elsewhere")).await?;
        eventually(SOON, "the plugin to be asked", async || {
            ensure!(
                !plugin
                    .cloud()
                    .journal()
                    .calls(Rpc::EnsureLoadBalancer)?
                    .is_empty(),
                "not yet"
            );
            Ok(())
        })
        .await?;
        // The other controller writes the status, which is its own.
        let others = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "198.51.100.7" }] } } });
        cluster
            .services()
            .patch_status("elsewhere", &PatchParams::default(), &Patch::Merge(others))
            .await?;
        cluster.add_service(&service_lb("ours")).await?;
        cluster.address("ours").await?;

        assert_eq!(cluster.address("elsewhere").await?.to_string(), "198.51.100.7");
        let asked = plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer)?;
        assert_eq!(
            asked
                .iter()
                .filter(|call| call.about == ["default/elsewhere"])
                .count(),
            1
        );
        for event in cluster.events("Service", "elsewhere").await? {
            assert_eq!(event.type_.as_deref(), Some("Normal"), "{:?}", event.note);
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_follow_nodes_with_one_cloud_write_for_each_change() -> Result<()> {
    scenario("services.targets", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        let targets = async |wanted: &[&str]| {
            eventually(SOON, &format!("the targets to be {wanted:?}"), async || {
                let balancer = plugin
                    .cloud()
                    .balancers()?
                    .into_values()
                    .next()
                    .context("there is none")?;
                let wanted: Vec<_> = wanted.iter().map(|name| instance(name).provider_id).collect();
                ensure!(balancer.targets == wanted, "they are {:?}", balancer.targets);
                Ok(())
            })
            .await
        };
        targets(&["node-1"]).await?;
        let writes = plugin.cloud().journal().writes()?.len();
        cluster.add_node("node-2").await?;
        targets(&["node-1", "node-2"]).await?;
        cluster.nodes().delete("node-1", &DeleteParams::default()).await?;
        targets(&["node-2"]).await?;
        assert_eq!(plugin.cloud().journal().writes()?.len(), writes + 2);
        assert_eq!(plugin.cloud().journal().creates()?, 1);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizer_readd_a_service_in_deletion_gets_neither_finalizer_nor_load_balancer_again() -> Result<()>
{
    scenario("services.finalizer_readd", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        let mut service = service_lb("web");
        service.finalizers_mut().push("example.com/holds".to_owned());
        cluster.add_service(&service).await?;
        cluster.address("web").await?;
        cluster.delete_service("web").await?;
        eventually(SOON, "our finalizer to be gone", async || {
            let service = cluster.services().get("web").await?;
            ensure!(!has_finalizer(&service), "finalizers {:?}", service.finalizers());
            Ok(())
        })
        .await?;
        // A node change reaches every Service; another Service shows that it was worked on.
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        cluster.add_service(&service_lb("other")).await?;
        cluster.address("other").await?;
        let held = cluster.services().get("web").await?;
        assert_eq!(held.finalizers(), ["example.com/holds"]);
        assert_eq!(
            plugin.cloud().balancers()?.len(),
            1,
            "only that of the other Service"
        );
        cluster
            .patch_service("web", json!({ "metadata": { "finalizers": null } }))
            .await?;
        cluster.service_gone("web").await
    })
    .await
}

/// A node port that only one node answers shows that traffic goes where it is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_gets_no_traffic() -> Result<()> {
    scenario("services.dead_node", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let machine = Machine::new(workspace, &["node-1", "node-2"])?;
        let plugin = machine.plugin().await?;
        let _host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        for name in ["node-1", "node-2"] {
            cluster.add_node(name).await?;
            cluster.initialised(name).await?;
        }
        let service = cluster.add_service(&service_lb("web")).await?;
        let node_port = service
            .spec
            .and_then(|spec| spec.ports?.first()?.node_port)
            .context("no node port")?;
        let mut alive = NodeStandIn::new("node-2", workspace.loopback(2));
        alive.listen(u16::try_from(node_port)?).await?;
        let front = SocketAddr::new(cluster.address("web").await?, 80);
        traffic::answered_by(front, &["node-2"]).await
    })
    .await
}
