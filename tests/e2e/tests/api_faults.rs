//! The API server is slow, silent, gone or refuses: nobody restarts, nothing is done twice, nothing is lost.

use std::{net::Ipv4Addr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use bulkhead_e2e::{Cluster, QUICK, SOON, cloud, leads, scripted};
use bulkhead_harness::{
    Address, ApiProxy, Fault, HOST_USER, Host, HostOptions, LeaseTiming, Mode, TcpProxy, User, eventually,
    scenario, service_lb,
};
use bulkhead_scripted::{Behaviour, Rpc};
use http::Method;

const LEASE: &str = "cloud-controller-manager";
const LEASE_PATH: &str = "/leases/cloud-controller-manager";
const STATUS_PATH: &str = "/services/web/status";

/// A wire to the API server, and a kubeconfig that goes over it.
async fn wire(cluster: &Cluster) -> Result<(TcpProxy, PathBuf)> {
    let target = Address::Tcp((Ipv4Addr::LOCALHOST, cluster.server().port()).into());
    let proxy = TcpProxy::tcp(target).await?;
    let kubeconfig = cluster.server().kubeconfig_via(User::Host, proxy.port()?)?;
    Ok((proxy, kubeconfig))
}

async fn standing(host: &Host, wanted: bool) -> Result<()> {
    let what = if wanted {
        "the host to lead"
    } else {
        "the host to stand by"
    };
    eventually(SOON, what, async || {
        ensure!(leads(host).await? == wanted, "it is not so");
        Ok(())
    })
    .await
}

/// How often the Lease has changed hands.
async fn transitions(cluster: &Cluster) -> Result<i32> {
    let lease = cluster.leases().get(LEASE).await?;
    lease
        .spec
        .and_then(|spec| spec.lease_transitions)
        .context("the Lease says nothing of transitions")
}

#[tokio::test(flavor = "multi_thread")]
async fn zombie_leader_a_renewal_whose_answer_is_lost_is_renewed_and_work_goes_on() -> Result<()> {
    scenario("api_faults.lost_renewal", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let proxy = ApiProxy::start(cluster.server(), User::Host).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let host = Host::start(
            workspace,
            &HostOptions::new(proxy.kubeconfig()).plugin(plugin.endpoint()),
        )?;
        standing(&host, true).await?;
        let before = transitions(&cluster).await?;
        proxy.fault(Method::PATCH, LEASE_PATH, 1, Fault::LoseAnswer);
        eventually(SOON, "a renewal's answer to be lost", async || {
            ensure!(proxy.met() == 1, "not yet");
            Ok(())
        })
        .await?;
        let lost = cluster.leases().get(LEASE).await?.metadata.resource_version;
        eventually(SOON, "the next renewal", async || {
            let now = cluster.leases().get(LEASE).await?.metadata.resource_version;
            ensure!(now != lost, "it is as it was");
            Ok(())
        })
        .await?;
        assert!(leads(&host).await?);
        assert_eq!(transitions(&cluster).await?, before, "the term was lost");
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        assert_eq!(host.get("/livez", None).await?.status, 200);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn zombie_leader_a_host_that_cannot_renew_stops_writing_says_so_and_leads_again() -> Result<()> {
    scenario("api_faults.no_renewal", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let proxy = ApiProxy::start(cluster.server(), User::Host).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let options = HostOptions::new(proxy.kubeconfig()).plugin(plugin.endpoint());
        let host = Host::start(workspace, &options.lease(QUICK))?;
        standing(&host, true).await?;
        // Only the Lease: all else works, which is what makes a zombie.
        let refused = Fault::Answer {
            code: 504,
            retry_after: None,
        };
        proxy.fault(Method::PATCH, LEASE_PATH, usize::MAX, refused);
        standing(&host, false).await?;
        host.process().wait_for_log("lost leadership", SOON).await?;
        let calls = plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer)?.len();
        cluster.add_service(&service_lb("web")).await?;
        eventually(SOON, "some more renewals to fail", async || {
            let failed = proxy.met();
            ensure!(failed > 5, "{failed} so far");
            Ok(())
        })
        .await?;
        assert_eq!(
            plugin.cloud().journal().calls(Rpc::EnsureLoadBalancer)?.len(),
            calls,
            "it works without the lead"
        );
        proxy.pass();
        cluster.address("web").await?;
        assert!(host.process().is_running() && leads(&host).await?);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_loop_an_api_server_slower_than_the_lease_costs_the_lead_and_no_restart() -> Result<()> {
    const HALF_OF_TWELVE: Duration = Duration::from_secs(6);
    scenario("api_faults.slower_than_the_lease", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (proxy, kubeconfig) = wire(&cluster).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let busy = Behaviour::LongCloudCall(Duration::from_secs(8));
        plugin.script().next(Rpc::EnsureLoadBalancer, [busy]);
        let options = HostOptions::new(&kubeconfig).plugin(plugin.endpoint());
        let host = Host::start(workspace, &options.lease(QUICK))?;
        standing(&host, true).await?;
        cluster.add_service(&service_lb("web")).await?;
        let journal = plugin.cloud().journal();
        eventually(SOON, "the cloud call to begin", async || {
            ensure!(!journal.calls(Rpc::EnsureLoadBalancer)?.is_empty(), "not yet");
            Ok(())
        })
        .await?;
        proxy
            .set(Mode::Delay {
                up: HALF_OF_TWELVE,
                down: HALF_OF_TWELVE,
            })
            .await?;
        standing(&host, false).await?;
        // The call that was under way ends as it ends: nobody undoes it.
        eventually(SOON, "the cloud call to end", async || {
            ensure!(journal.creates()? == 1, "not yet");
            Ok(())
        })
        .await?;
        assert_eq!(
            host.get("/livez", None).await?.status,
            200,
            "it would be restarted"
        );
        proxy.set(Mode::Pass).await?;
        cluster.address("web").await?;
        assert!(host.process().is_running());
        assert_eq!(journal.creates()?, 1, "made twice");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_loop_with_a_lease_long_enough_a_slow_api_server_costs_nothing() -> Result<()> {
    const PATIENT: LeaseTiming = LeaseTiming {
        lease: Duration::from_secs(60),
        renew: Duration::from_secs(40),
        retry: Duration::from_secs(2),
    };
    scenario("api_faults.slow", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (proxy, kubeconfig) = wire(&cluster).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let options = HostOptions::new(&kubeconfig).plugin(plugin.endpoint());
        let host = Host::start(workspace, &options.lease(PATIENT))?;
        standing(&host, true).await?;
        let before = transitions(&cluster).await?;
        let slow = Duration::from_secs(1);
        proxy.set(Mode::Delay { up: slow, down: slow }).await?;
        cluster.add_node("node-1").await?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.initialised("node-1").await?;
        cluster.address("web").await?;
        assert_eq!(transitions(&cluster).await?, before);
        assert_eq!(plugin.cloud().journal().creates()?, 1);
        // What other managers read at their start, and stumble over, is not asked for.
        let requests = cluster.server().audited_requests()?;
        assert!(
            requests
                .iter()
                .all(|it| it.user != HOST_USER || it.name != "extension-apiserver-authentication")
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_silent_or_gone_for_a_while_is_met_with_patience() -> Result<()> {
    scenario("api_faults.stalled_and_cut", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let (proxy, kubeconfig) = wire(&cluster).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let options = HostOptions::new(&kubeconfig).plugin(plugin.endpoint());
        let host = Host::start(workspace, &options.lease(QUICK))?;
        standing(&host, true).await?;
        for (mode, name) in [(Mode::Stall, "stalled"), (Mode::Cut, "cut")] {
            proxy.set(mode).await?;
            cluster.add_service(&service_lb(name)).await?;
            cluster.add_node(name).await?;
            // Longer than the renew deadline: who cannot renew does not lead.
            standing(&host, false).await?;
            assert_eq!(host.get("/livez", None).await?.status, 200, "{name}");
            proxy.set(Mode::Pass).await?;
            cluster.address(name).await?;
            cluster.initialised(name).await?;
        }
        assert!(host.process().is_running());
        assert_eq!(plugin.cloud().journal().creates()?, 2);
        let log = host.process().log()?;
        let said = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert!(
            said("cannot use lease") >= 1 && said("can be used again") >= 1,
            "{log}"
        );
        assert!(log.lines().count() < 100, "it says too much:\n{log}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_asks_to_wait_or_times_out_is_asked_again_at_its_pace() -> Result<()> {
    const WAIT: u32 = 2;
    scenario("api_faults.429_and_504", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let proxy = ApiProxy::start(cluster.server(), User::Host).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let busy = Fault::Answer {
            code: 429,
            retry_after: Some(WAIT),
        };
        let late = Fault::Answer {
            code: 504,
            retry_after: None,
        };
        // At the start too.
        for path in [
            "/version",
            "/namespaces/kube-system",
            "/api/v1/services",
            "/api/v1/nodes",
        ] {
            proxy.fault(Method::GET, path, 1, busy);
            proxy.fault(Method::GET, path, 1, late);
        }
        let options = HostOptions::new(proxy.kubeconfig()).plugin(plugin.endpoint());
        let host = Host::start(workspace, &options)?;
        standing(&host, true).await?;
        proxy.fault(Method::PATCH, STATUS_PATH, 2, busy);
        proxy.fault(Method::PATCH, STATUS_PATH, 2, late);
        proxy.fault(Method::PATCH, "/nodes/node-1", 2, late);
        // A Service that is seen before any node has a Warning of its own.
        cluster.add_node("node-1").await?;
        cluster.initialised("node-1").await?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        assert_eq!(proxy.met(), 8 + 6);
        assert_eq!(plugin.cloud().journal().creates()?, 1);
        // Whoever waits as asked has nothing to complain about.
        for event in cluster.events("Service", "web").await? {
            assert_eq!(event.type_.as_deref(), Some("Normal"), "{:?}", event.note);
        }
        assert!(host.process().is_running());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_cannot_stream_lists_is_listed_in_pages() -> Result<()> {
    scenario("api_faults.paged_lists", async |workspace| {
        let cluster = Cluster::start(workspace).await?;
        let proxy = ApiProxy::start(cluster.server(), User::Host).await?;
        let plugin = scripted(workspace, "scripted", &cloud()).await?;
        let unknown = Fault::Answer {
            code: 422,
            retry_after: None,
        };
        proxy.fault(Method::GET, "sendInitialEvents=true", usize::MAX, unknown);
        cluster.add_node("before").await?;
        let options = HostOptions::new(proxy.kubeconfig()).plugin(plugin.endpoint());
        let host = Host::start(workspace, &options)?;
        host.wait_ready(SOON).await?;
        assert!(proxy.met() >= 2, "nobody asked for nodes and Services");
        cluster.add_node("after").await?;
        cluster.add_service(&service_lb("web")).await?;
        cluster.address("web").await?;
        for name in ["before", "after"] {
            cluster.initialised(name).await?;
        }
        Ok(())
    })
    .await
}
