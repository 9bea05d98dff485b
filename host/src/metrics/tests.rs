use std::time::Duration;

use prometheus_client::encoding::prometheus_text;

use super::*;
use crate::plugin::Change;

fn scrape(use_metrics: impl FnOnce(&Metrics)) -> String {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    use_metrics(&metrics);
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).unwrap();
    text
}

#[track_caller]
fn assert_line(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
}

#[test]
fn names_and_labels_are_those_of_dashboards() {
    let text = scrape(|metrics| {
        let queue = metrics.workqueues.queue(SERVICES, "a");
        queue.depth.set(3);
        queue.adds.inc();
        queue.retries.inc();
        queue.unfinished_work.set(1.5);
        queue.longest_running.set(0.5);
        queue.queue_duration.observe(0.002);
        queue.work_duration.observe(11.0);
        metrics.leadership.master("cloud-controller-manager").set(1);
        metrics.leadership.running("cloud-node", "a").set(1);
        metrics.nodes.taint_removal_delay.observe(5.0);
        metrics.nodes.uninitialized("a").set(2);
        metrics.services.loadbalancer_syncs.inc();
        metrics.services.nodesync_errors.inc();
        metrics
            .plugins
            .call("local", "GetInstances", "ok", Duration::from_micros(100));
        metrics.plugins.session("local");
        metrics.plugins.state("local", SessionState::Warming);
        metrics.plugins.state("local", SessionState::Incompatible);
        let shut = Gate::Shut {
            why: Why::Unreached,
            until: None,
        };
        metrics.plugins.gate("local", Capability::Lb, Gate::Open);
        metrics.plugins.gate("local", Capability::Lb, shut);
        metrics.plugins.shut("local", Capability::Lb, Why::Unreached);
        metrics.plugins.in_flight("local", Change::Begun);
        metrics.plugins.in_flight("local", Change::Begun);
        metrics.plugins.in_flight("local", Change::Over);
        metrics.plugins.waited("local", Duration::from_millis(3));
        metrics.plugins.crowded_out("local");
        metrics.api.write("patch-node", "conflict");
        metrics.api.events_dropped.inc();
    });
    for line in [
        r#"workqueue_depth{name="service",plugin="a"} 3"#,
        r#"workqueue_adds_total{name="service",plugin="a"} 1"#,
        r#"workqueue_retries_total{name="service",plugin="a"} 1"#,
        r#"workqueue_unfinished_work_seconds{name="service",plugin="a"} 1.5"#,
        r#"workqueue_longest_running_processor_seconds{name="service",plugin="a"} 0.5"#,
        r#"workqueue_queue_duration_seconds_count{name="service",plugin="a"} 1"#,
        r#"workqueue_work_duration_seconds_bucket{name="service",plugin="a",le="+Inf"} 1"#,
        r#"leader_election_master_status{name="cloud-controller-manager"} 1"#,
        r#"running_managed_controllers{name="cloud-node",manager="cloud-controller-manager",plugin="a"} 1"#,
        r#"node_controller_cloud_provider_taint_removal_delay_seconds_bucket{le="4"} 0"#,
        r#"node_controller_cloud_provider_taint_removal_delay_seconds_bucket{le="1024"} 1"#,
        "node_controller_initial_node_sync_delay_seconds_count 0",
        r#"bulkhead_nodes_uninitialized{plugin="a"} 2"#,
        "service_controller_loadbalancer_sync_total 1",
        "service_controller_nodesync_error_total 1",
        "service_controller_update_loadbalancer_host_latency_seconds_count 0",
        r#"bulkhead_plugin_calls_total{plugin="local",verb="GetInstances",result="ok"} 1"#,
        r#"bulkhead_plugin_call_duration_seconds_count{plugin="local",verb="GetInstances"} 1"#,
        r#"bulkhead_plugin_sessions_total{plugin="local"} 1"#,
        r#"bulkhead_plugin_state{plugin="local",state="incompatible"} 1"#,
        r#"bulkhead_plugin_state{plugin="local",state="warming"} 0"#,
        r#"bulkhead_plugin_gate{plugin="local",capability="lb",state="shut"} 1"#,
        r#"bulkhead_plugin_gate{plugin="local",capability="lb",state="open"} 0"#,
        r#"bulkhead_plugin_gate_shut_total{plugin="local",capability="lb",why="unreached"} 1"#,
        r#"bulkhead_plugin_calls_in_flight{plugin="local"} 1"#,
        r#"bulkhead_plugin_budget_wait_seconds_bucket{plugin="local",le="0.004"} 1"#,
        r#"bulkhead_plugin_budget_overflows_total{plugin="local"} 1"#,
        r#"bulkhead_api_writes_total{verb="patch-node",result="conflict"} 1"#,
        "bulkhead_events_dropped_total 1",
        concat!(
            r#"bulkhead_build_info{version=""#,
            env!("CARGO_PKG_VERSION"),
            r#""} 1"#
        ),
    ] {
        assert_line(&text, line);
    }
}

#[test]
fn how_a_plugin_is_goes_with_it() {
    let text = scrape(|metrics| {
        for plugin in ["a", "b"] {
            metrics.workqueues.queue(NODES, plugin).depth.set(3);
            metrics.leadership.running("service", plugin).set(1);
            metrics.nodes.uninitialized(plugin).set(2);
            metrics.plugins.gate(plugin, Capability::Lb, Gate::Open);
            metrics.plugins.state(plugin, SessionState::Active);
            metrics.plugins.in_flight(plugin, Change::Begun);
        }
        metrics.forget_plugin("a");
    });
    assert!(!text.contains(r#"plugin="a""#), "{text}");
    assert_line(&text, r#"workqueue_depth{name="Nodes",plugin="b"} 3"#);
}

#[test]
fn the_process_reports_plausible_figures() {
    let text = scrape(|_| ());
    let figure = |name: &str| -> i64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.expect(name).parse().expect(name)
    };
    assert!(figure("process_resident_memory_bytes") > 1 << 20);
    assert!((3..10_000).contains(&figure("process_open_fds")));
}
