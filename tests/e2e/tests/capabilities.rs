//! What a plugin cannot do, and controllers that do not run: nothing of it is touched, and nothing of it fails.

use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_e2e::{Cluster, Metrics, QUICK, SOON, cloud, has_finalizer, scripted};
use bulkhead_harness::{Host, PluginProcess, eventually, scenario, service_lb};
use bulkhead_proto::v1::Capability;
use bulkhead_scripted::{Behaviour, Failure, Options, Rpc, Script, ScriptedPlugin};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;

#[tokio::test(flavor = "multi_thread")]
async fn disabled_crash_a_plugin_without_load_balancers_is_never_asked_for_one() -> Result<()> {
    scenario("capabilities.no_lb", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let socket = PluginProcess::socket_path(workspace, "scripted")?;
        let options = Options {
            capabilities: vec![Capability::Instances],
            ..Options::new("scripted")
        };
        let plugin = ScriptedPlugin::start(&socket, options, Script::default(), &cloud()).await?;
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        host.process()
            .wait_for_log("the plugin does not declare capability lb", SOON)
            .await?;
        assert!(!has_finalizer(&cluster.services().get("web").await?));
        assert!(
            plugin
                .cloud()
                .journal()
                .calls(Rpc::EnsureLoadBalancer)?
                .is_empty()
        );
        host.wait_ready(SOON).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_crash_a_plugin_that_answers_unimplemented_is_an_event_and_no_crash() -> Result<()> {
    scenario("capabilities.unimplemented", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let unimplemented = Failure::unimplemented("load balancers are switched off in the cloud config");
        plugin
            .script()
            .always(Rpc::EnsureLoadBalancer, Behaviour::Fails(unimplemented));
        let host = Host::start(workspace, &cluster.host(&plugin.endpoint())?)?;
        cluster.add_service(&service_lb("web")).await?;
        cluster
            .event("Service", "web", "SyncLoadBalancerFailed", "switched off")
            .await?;
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        cluster.delete_service("web").await?;
        cluster.service_gone("web").await?;
        assert!(host.process().is_running());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn unneeded_init_fail_what_no_controller_needs_is_not_asked_for() -> Result<()> {
    scenario("capabilities.unneeded", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let socket = PluginProcess::socket_path(workspace, "scripted")?;
        let options = Options {
            capabilities: vec![Capability::Instances, Capability::Lb, Capability::Routes],
            ..Options::new("scripted")
        };
        let plugin = ScriptedPlugin::start(&socket, options, Script::default(), &cloud()).await?;
        // Routes are not even served, and instances cannot be read.
        plugin.script().always(
            Rpc::GetInstances,
            Behaviour::Fails(Failure::provider("the instances API is off")),
        );
        cluster.add_node("node-1").await?;
        let options = cluster.host(&plugin.endpoint())?.controllers("service");
        let host = Host::start(workspace, &options)?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        host.wait_ready(SOON).await?;
        assert!(plugin.cloud().journal().calls(Rpc::GetInstances)?.is_empty());
        assert!(cluster.events("Node", "node-1").await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn clusterip_flood_a_thousand_other_services_do_not_delay_a_load_balancer() -> Result<()> {
    const OTHERS: usize = 1000;
    const WITHIN: Duration = Duration::from_secs(5);
    scenario("capabilities.clusterip_flood", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let services = cluster.services();
        let other = |number: usize| {
            let mut service: Service = service_lb(&format!("other-{number}"));
            let spec = service.spec.get_or_insert_default();
            spec.type_ = Some("ClusterIP".to_owned());
            spec.cluster_ip = Some("None".to_owned());
            service
        };
        stream::iter(0..OTHERS)
            .map(|number| {
                let (services, service) = (services.clone(), other(number));
                async move { services.create(&PostParams::default(), &service).await }
            })
            .buffer_unordered(32)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        let options = cluster.host(&plugin.endpoint())?.lease(QUICK);
        let host = Host::start(workspace, &options)?;
        cluster.add_service(&service_lb("before")).await?;
        cluster.address("before").await?;
        assert_eq!(host.stop(SOON).await?.code(), Some(0));
        drop(host);

        cluster.add_service(&service_lb("web")).await?;
        let host = Host::start(workspace, &options)?;
        host.wait_ready(SOON).await?;
        cluster.address_within("web", WITHIN).await?;
        // Changes of nodes concern every load balancer, and nothing else.
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        let adds = eventually(SOON, "the metrics", async || {
            let metrics = Metrics::of(&host, &cluster).await?;
            metrics
                .sum("workqueue_adds_total", &[("name", "service")])?
                .context("it is missing")
        })
        .await?;
        assert!(
            adds > 0.0 && adds < 50.0,
            "{adds} keys were queued for two load balancers"
        );
        Ok(())
    })
    .await
}
