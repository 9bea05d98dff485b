//! Processes: one cloud behind several plugins, the command line, the ends that faults demand.

use bulkhead_plugin::v1::{self, Outcome};
use bulkhead_sim::cloud::{Effect, Fault, Instance, Power};
use bulkhead_sim::control::Client as Control;
use rstest::rstest;

use crate::fixture::{Machine, ensure, eventually, instances, node, spec};

#[tokio::test]
async fn two_plugins_share_a_cloud_that_outlives_them() {
    let machine = Machine::new();
    let (_cloud, control) = machine.cloud().await;
    let (mut first, host) = machine.plugin("first").await;
    let request = ensure("u", spec(&[80]), &[node(1)]);
    let made = Box::pin(host.clone().ensure_load_balancer(request.clone()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.outcome(), Outcome::Done);
    first.kill().await.unwrap();

    let writes = control.total().await.unwrap().writes;
    let (_second, host) = machine.plugin("second").await;
    let again = Box::pin(host.clone().ensure_load_balancer(request))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again, made);
    assert_eq!(control.total().await.unwrap().writes, writes);
    assert_eq!(control.inventory(&["load_balancer"]).await.unwrap().len(), 1);

    let written = control.writes_after(0).await.unwrap();
    assert_eq!(written.len() as u64, writes);
    let caller = written[0].caller.clone().unwrap();
    assert_eq!(
        (caller.rpc.as_str(), caller.epoch.as_str()),
        ("EnsureLoadBalancer", "lease/1")
    );
    assert!(caller.plugin.starts_with("sim/") && !caller.request_id.is_empty());
}

#[tokio::test]
async fn a_cloud_that_is_away_is_a_fault_of_the_cloud_and_comes_back() {
    let machine = Machine::new();
    let (mut cloud, _control) = machine.cloud().await;
    let (_plugin, mut host) = machine.plugin("first").await;
    cloud.kill().await.unwrap();
    let status = host.get_instances(instances(vec![node(1)])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let (_cloud, control) = machine.cloud().await;
    eventually("the plugin reaches the cloud again", async || {
        host.clone().get_instances(instances(vec![node(1)])).await.is_ok()
    })
    .await;
    assert_eq!(control.inventory(&["instance"]).await.unwrap().len(), 3);
}

#[rstest]
#[case::exit(Effect::Exit(7), Some(7))]
#[case::abort(Effect::Abort, None)]
#[tokio::test]
async fn a_process_ends_as_a_fault_says(#[case] effect: Effect, #[case] code: Option<i32>) {
    let machine = Machine::new();
    let (_cloud, _control) = machine.cloud().await;
    let (mut plugin, mut host) = machine.plugin("first").await;
    let control = Control::at(&machine.path("first.control"));
    control
        .add_fault(&Fault::new("plugin/GetInstances", effect))
        .await
        .unwrap();
    host.get_instances(instances(vec![node(1)])).await.unwrap_err();
    assert_eq!(plugin.wait().await.unwrap().code(), code);
}

#[tokio::test]
async fn each_process_answers_for_what_it_holds() {
    let machine = Machine::new();
    let (_cloud, cloud) = machine.cloud().await;
    let (_plugin, mut host) = machine.plugin("first").await;
    let plugin = Control::at(&machine.path("first.control"));
    let refused = plugin.inventory(&[]).await.unwrap_err().to_string();
    assert!(refused.contains("another process"), "{refused}");
    let fault = Fault::new("plugin/*", Effect::Hang);
    let refused = cloud.add_fault(&fault).await.unwrap_err().to_string();
    assert!(refused.contains("no plugin"), "{refused}");
    let id = plugin
        .add_fault(&Fault::new("plugin/GetInstances", Effect::Panic).times(2))
        .await
        .unwrap();
    host.get_instances(instances(vec![node(1)])).await.unwrap_err();
    assert_eq!(plugin.clear_fault(id).await.unwrap(), 1);
    host.get_instances(instances(vec![node(1)])).await.unwrap();
}

#[tokio::test]
async fn machines_come_change_and_go_through_the_control() {
    let machine = Machine::new();
    let (_cloud, control) = machine.cloud().await;
    let (_plugin, mut host) = machine.plugin("first").await;
    let mut state = async || {
        let answer = host
            .get_instances(instances(vec![node(8)]))
            .await
            .unwrap()
            .into_inner();
        match answer.results[0].result.clone() {
            Some(v1::instance_result::Result::Found(instance)) => Some(instance.power_state()),
            _ => None,
        }
    };
    assert_eq!(state().await, None);
    control
        .put_instance(&Instance::new("i-8", "node-8", "10.0.0.8"))
        .await
        .unwrap();
    assert_eq!(state().await, Some(v1::PowerState::Running));
    for power in Power::ALL {
        control.set_power("i-8", power).await.unwrap();
        let expected = format!("POWER_STATE_{}", power.name().to_uppercase());
        assert_eq!(state().await.unwrap().as_str_name(), expected);
    }
    assert_eq!(control.remove(&["i-8"]).await.unwrap(), 1);
    assert_eq!(state().await, None);
}

#[tokio::test]
async fn people_see_and_change_it_all_from_the_command_line() {
    let machine = Machine::new();
    let (_cloud, _control) = machine.cloud().await;
    let url = machine.url("cloud.sock");
    let say = async |words: &[&str]| {
        let mut all = vec!["control", "--endpoint", &url];
        all.extend(words);
        let output = machine.command(&all).output().await.unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(
        say(&["dump", "instance"])
            .await
            .contains("i-1\tinstance\tactive\tnode-1")
    );
    say(&["instance", "add", "i-9", "node-9", "--address", "10.0.0.9"]).await;
    say(&["instance", "power", "i-9", "stopped"]).await;
    assert!(say(&["dump"]).await.contains("power=stopped"));
    assert_eq!(say(&["instance", "remove", "i-9"]).await, "removed 1\n");
    assert_eq!(
        say(&[
            "fault",
            "add",
            "{on: create/load_balancer, effect: lostAnswer, times: 1}"
        ])
        .await,
        "1\n"
    );
    assert!(say(&["fault", "list"]).await.contains("fired=0"));
    assert!(say(&["fault", "clear", "1"]).await.contains("lostAnswer"));
    assert!(
        say(&["set", "{latency: {p50: 1ms, p99: 5ms}, outages: [zone-b]}"])
            .await
            .contains("zone-b")
    );
    assert_eq!(say(&["counts"]).await, "");
    assert_eq!(say(&["calls", "--writes"]).await, "");
}

#[rstest]
#[case::unknown_field("seed: 1\ncloud:\n  instanzes: []\n", "line 3")]
#[case::wrong_type("seed: 1\nfaults:\n  - {on: list, effect: hang, times: often}\n", "line 3")]
#[case::no_such_operation("faults: [{on: list/thing, effect: hang}]", "faults[0]")]
#[case::one_id_twice(
    "cloud: {instances: [{id: a, name: a}, {id: a, name: b}]}",
    "cloud.instances[1]"
)]
#[case::no_page("cloud: {settings: {pageSize: 0}}", "pageSize")]
#[tokio::test]
async fn a_wrong_scenario_is_one_line_that_says_where(#[case] scenario: &str, #[case] names: &str) {
    let machine = Machine::new();
    std::fs::write(machine.path("wrong.yaml"), scenario).unwrap();
    let url = machine.url("plugin/sim.sock");
    let command = ["--endpoint", &url, "--scenario", "wrong.yaml"];
    let output = machine
        .command(&command)
        .stderr(std::process::Stdio::piped())
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(names) && text.lines().count() == 1, "{text}");
}
