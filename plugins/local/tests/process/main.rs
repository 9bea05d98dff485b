//! The binary as a process: killed, restarted, doubled, asked over its socket as a host would.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends at what it did not expect"
)]

mod fixture;

use std::process::Stdio;

use bulkhead_plugin::mark::mark;
use bulkhead_plugin::v1::delete_owned_result::Result as Deleted;
use bulkhead_plugin::v1::instance_result::Result as Instance;
use bulkhead_plugin::v1::load_balancer_observation::Observation;
use bulkhead_plugin::v1::{self, Outcome, PluginConditionType};
use rstest::rstest;

use fixture::{
    CLUSTER, Machine, answers, asked, delete_resources, deleted, ensure, ensured, eventually, first_address,
    lookup, node, query, target, update,
};

#[tokio::test]
async fn killed_and_started_again_it_forwards_at_the_same_address_before_any_call() {
    let machine = Machine::new("127.0.10.216/29");
    let (port, _target) = target("127.0.20.130").await;
    let plugin = machine.start();
    let host = machine.led().await;
    let request = ensure("u1", 8080, port, &[node("n1", "127.0.20.130")]);
    let made = ensured(&host, request.clone()).await.unwrap();
    assert_eq!(made.outcome(), Outcome::Done);
    let address = first_address(&made);
    assert!(answers(&address, 8080).await);

    plugin.kill().await;
    assert!(!answers(&address, 8080).await);
    let _again = machine.start();
    eventually("traffic is back without any call", async || {
        answers(&address, 8080).await
    })
    .await;

    let host = machine.led().await;
    let same = ensured(&host, request).await.unwrap();
    assert_eq!((same.status, same.resources), (made.status, made.resources));
}

#[tokio::test]
async fn what_is_listed_is_what_was_reported_until_it_is_deleted() {
    let machine = Machine::new("127.0.10.224/29");
    let _plugin = machine.start();
    let mut host = machine.led().await;
    let nodes = [node("n1", "127.0.20.131"), node("n2", "")];
    let made = ensured(&host, ensure("u1", 8080, 30080, &nodes)).await.unwrap();
    let problems: Vec<&str> = made
        .target_problems
        .iter()
        .map(|one| one.node_name.as_str())
        .collect();
    assert_eq!(problems, ["n2"]);

    let roles: Vec<&str> = made
        .resources
        .iter()
        .map(|resource| resource.role.as_str())
        .collect();
    assert_eq!(roles, ["listener/tcp/8080", "address", ""]);
    for resource in &made.resources {
        assert_eq!(
            resource.mark.as_ref().unwrap().value,
            mark(CLUSTER, "u1", &resource.role)
        );
    }
    let mut listed = host
        .list_owned_resources(fixture::list())
        .await
        .unwrap()
        .into_inner()
        .resources;
    let mut reported = made.resources.clone();
    listed.sort_by(|one, other| one.id.cmp(&other.id));
    reported.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(listed, reported);

    for _ in 0..2 {
        let gone = deleted(&host, "u1").await;
        assert_eq!((gone.outcome(), gone.remaining.len()), (Outcome::Done, 0));
        assert!(!answers(&first_address(&made), 8080).await);
    }
    let left = host
        .list_owned_resources(fixture::list())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(left.resources, []);
    assert!(
        left.verdicts
            .iter()
            .all(|verdict| verdict.verdict.as_ref().unwrap().complete)
    );
}

#[tokio::test]
async fn resources_go_with_their_load_balancer_and_not_before() {
    let machine = Machine::new("127.0.10.208/29");
    let _plugin = machine.start();
    let mut host = machine.led().await;
    let made = ensured(&host, ensure("u1", 8080, 30080, &[])).await.unwrap();
    let (children, whole) = made.resources.split_at(2);
    let kinds = |answer: v1::DeleteOwnedResourcesResponse| {
        let kind = |one: v1::DeleteOwnedResult| match one.result.unwrap() {
            Deleted::Done(_) => "done".to_owned(),
            Deleted::Absent(_) => "absent".to_owned(),
            Deleted::NotOurs(_) => "not ours".to_owned(),
            Deleted::Error(error) => error.reason().as_str_name().to_owned(),
            other @ (Deleted::InProgress(_) | Deleted::Protected(_)) => format!("{other:?}"),
        };
        answer.results.into_iter().map(kind).collect::<Vec<_>>()
    };
    let mut delete = async |request| kinds(host.delete_owned_resources(request).await.unwrap().into_inner());
    assert_eq!(
        delete(delete_resources(children)).await,
        ["ERROR_REASON_IN_USE", "ERROR_REASON_IN_USE"]
    );
    let mut stolen = delete_resources(whole);
    stolen.resources[0].expected_mark = children[0].mark.clone();
    assert_eq!(delete(stolen).await, ["not ours"]);
    assert_eq!(
        delete(delete_resources(&made.resources)).await,
        ["done", "done", "done"]
    );
    assert_eq!(delete(delete_resources(whole)).await, ["absent"]);
}

#[tokio::test]
async fn what_was_applied_is_compared_with_what_is_served() {
    let machine = Machine::new("127.0.10.200/29");
    let _plugin = machine.start();
    let mut host = machine.led().await;
    let request = ensure("u1", 8080, 30080, &[]);
    ensured(&host, request.clone()).await.unwrap();
    let mut moved = request.spec.clone().unwrap();
    moved.ports[0].port = 8081;
    let queries = vec![
        query("u1", request.spec.clone()),
        query("u1", Some(moved)),
        query("u1", None),
        query("u2", None),
    ];
    let answer = host
        .get_load_balancers(asked(queries))
        .await
        .unwrap()
        .into_inner();
    let seen: Vec<Observation> = answer
        .observations
        .into_iter()
        .map(|one| one.observation.unwrap())
        .collect();
    assert!(matches!(seen[0], Observation::InSync(_)), "{seen:?}");
    assert!(
        matches!(&seen[1], Observation::Drifted(drifted) if drifted.fields == ["spec.ports"]),
        "{seen:?}"
    );
    assert!(matches!(seen[2], Observation::Unverified(_)), "{seen:?}");
    assert!(
        matches!(&seen[3], Observation::Absent(proof) if proof.complete),
        "{seen:?}"
    );
}

#[tokio::test]
async fn traffic_follows_the_targets_and_an_unknown_load_balancer_is_absent() {
    let machine = Machine::new("127.0.10.192/29");
    let (port, _target) = target("127.0.20.132").await;
    let _plugin = machine.start();
    let mut host = machine.led().await;
    let made = ensured(&host, ensure("u1", 8080, port, &[])).await.unwrap();
    assert!(!answers(&first_address(&made), 8080).await);
    let nodes = [node("n1", "127.0.20.132")];
    let answer = host
        .update_targets(update(&["u1", "u2"], &nodes))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.results[0].outcome(), Outcome::Done);
    assert_eq!(answer.results[1].outcome(), Outcome::Unspecified);
    assert!(answer.results[1].absent.as_ref().unwrap().complete);
    assert!(answers(&first_address(&made), 8080).await);
    let twice = host
        .update_targets(update(&["u1", "u1"], &nodes))
        .await
        .unwrap_err();
    assert_eq!(twice.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn another_services_mark_is_refused() {
    let machine = Machine::new("127.0.10.232/29");
    let _plugin = machine.start();
    let host = machine.led().await;
    let mut request = ensure("u1", 8080, 30080, &[]);
    request.r#ref.as_mut().unwrap().mark = mark(CLUSTER, "u2", "");
    let status = ensured(&host, request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn a_second_process_waits_and_names_the_first_in_its_status() {
    let machine = Machine::new("127.0.10.240/29");
    let first = machine.start();
    machine.led().await;
    let second = machine.start_at("second");
    let mut host = machine.connect_to("second").await;
    let holder = format!("process {}", first.pid());
    eventually("the status names the holder", async || {
        let status = host
            .clone()
            .get_status(v1::GetStatusRequest::default())
            .await
            .unwrap()
            .into_inner();
        status
            .conditions
            .iter()
            .any(|one| one.r#type() == PluginConditionType::Degraded && one.message.contains(&holder))
    })
    .await;
    fixture::lead(&mut host).await;
    let refused = ensured(&host, ensure("u1", 8080, 30080, &[])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Aborted, "{refused:?}");

    first.kill().await;
    let serves = async || ensured(&host, ensure("u1", 8080, 30080, &[])).await.is_ok();
    eventually("the second serves", serves).await;
    drop(second);
}

#[tokio::test]
async fn instances_are_found_absent_foreign_and_never_absent_while_the_inventory_is_broken() {
    let machine = Machine::new("127.0.10.248/30");
    let _plugin = machine.start();
    let mut host = machine.led().await;
    let nodes = [
        ("local://i-1", "x"),
        ("", "NODE-1"),
        ("local://i-9", "x"),
        ("", "none"),
        ("aws:///i-1", "x"),
    ];
    let kinds = |answer: v1::GetInstancesResponse| {
        let kind = |result: v1::InstanceResult| match result.result.unwrap() {
            Instance::Found(instance) => instance.provider_id,
            Instance::Absent(proof) => format!("absent, complete {}", proof.complete),
            Instance::NotMine(_) => "not mine".to_owned(),
            Instance::Pending(_) => "pending".to_owned(),
            Instance::Error(error) => error.reason().as_str_name().to_owned(),
        };
        answer.results.into_iter().map(kind).collect::<Vec<_>>()
    };
    let answer = host.get_instances(lookup(&nodes)).await.unwrap().into_inner();
    let absent = "absent, complete true";
    assert_eq!(
        kinds(answer),
        ["local://i-1", "local://i-1", absent, absent, "not mine"]
    );

    std::fs::write(machine.inventory(), "instances: [{id: i-1}]").unwrap();
    let broken = "ERROR_REASON_NOT_CONFIGURED";
    eventually("the broken inventory is noticed", async || {
        let answer = host
            .clone()
            .get_instances(lookup(&nodes))
            .await
            .unwrap()
            .into_inner();
        kinds(answer) == ["local://i-1", "local://i-1", broken, broken, "not mine"]
    })
    .await;
    let status = host
        .get_status(v1::GetStatusRequest::default())
        .await
        .unwrap()
        .into_inner();
    let configuration = |one: &&v1::PluginCondition| one.r#type() == PluginConditionType::ConfigurationValid;
    let condition = status.conditions.iter().find(configuration).unwrap();
    assert_eq!(condition.status(), v1::ConditionStatus::False);
    assert!(condition.message.contains("line 1"), "{}", condition.message);
}

#[tokio::test]
async fn instances_are_listed_in_pages_of_one_snapshot() {
    let machine = Machine::new("127.0.10.252/30");
    let _plugin = machine.start();
    let mut host = machine.led().await;
    let (mut ids, mut snapshots, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = host
            .list_instances(fixture::page(1, token))
            .await
            .unwrap()
            .into_inner();
        ids.extend(page.instances.into_iter().map(|instance| instance.instance_id));
        snapshots.push(page.snapshot.unwrap());
        assert_eq!(
            page.verdict.is_some_and(|verdict| verdict.complete),
            page.next_page_token.is_empty()
        );
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, ["i-1", "i-2"]);
    assert_eq!(snapshots[0], snapshots[1]);
    let bad = host
        .list_instances(fixture::page(1, "rubbish".to_owned()))
        .await
        .unwrap_err();
    assert_eq!(bad.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn killed_while_it_writes_it_comes_back_with_all_that_was_answered() {
    let machine = Machine::new("127.0.10.160/27");
    for round in 0..5_u16 {
        let plugin = machine.start();
        let host = machine.led().await;
        let mut made = 0_u16;
        let write = async {
            loop {
                let port = 9000 + round * 100 + made;
                ensured(&host, ensure("u1", port, 30080, &[])).await.unwrap();
                made += 1;
            }
        };
        // The kill comes at another point of a write in every round.
        let soon = std::time::Duration::from_millis(40 + u64::from(round) * 7);
        tokio::time::timeout(soon, write).await.unwrap_err();
        plugin.kill().await;

        let plugin = machine.start();
        let mut host = machine.led().await;
        let listed = host
            .list_owned_resources(fixture::list())
            .await
            .unwrap()
            .into_inner()
            .resources;
        let answered = format!("listener/tcp/{}", 9000 + round * 100 + made.saturating_sub(1));
        let next = format!("listener/tcp/{}", 9000 + round * 100 + made);
        let known = |role: &String| listed.iter().any(|resource| resource.role == *role);
        assert!(
            made == 0 || known(&answered) || known(&next),
            "{answered}: {listed:?}"
        );
        plugin.kill().await;
    }
}

#[tokio::test]
async fn metrics_are_served_where_they_are_asked_for() {
    let machine = Machine::new("127.0.10.152/29");
    let (port, _target) = target("127.0.20.133").await;
    let _plugin = machine.start_with("first", &["--metrics-address=127.0.20.134:19309"]);
    let host = machine.led().await;
    let made = ensured(&host, ensure("u1", 8080, port, &[node("n1", "127.0.20.133")]))
        .await
        .unwrap();
    assert!(answers(&first_address(&made), 8080).await);
    let told = async || fixture::get("127.0.20.134:19309", "/metrics").await;
    eventually("the connection is counted and its target up", async || {
        let text = told().await;
        ["connections_total", "backends_up"].iter().all(|name| {
            let line = format!("bulkhead_local_{name}{{namespace=\"shop\",service=\"web\"}} 1");
            text.lines().any(|told| told == line)
        })
    })
    .await;
    assert!(told().await.contains("bulkhead_local_inventory_broken 0"));
    std::fs::write(machine.inventory(), "instances: [{id: i-1}]").unwrap();
    eventually("the broken inventory is told", async || {
        told().await.contains("bulkhead_local_inventory_broken 1")
    })
    .await;
}

#[rstest]
#[case::unknown_flag(&["--pol=x"], "bulkhead-local: unexpected argument '--pol' found\n")]
#[case::no_endpoint(&[], "bulkhead-local: no endpoint: give --endpoint unix:///path/plugin.sock or set BULKHEAD_ENDPOINT\n")]
#[case::a_wrong_pool(&["--endpoint=unix:///run/a/b.sock", "--pool=127.0.10.0/33"], "bulkhead-local: pool: \"127.0.10.0/33\" has a prefix length that is not between 0 and 32\n")]
#[tokio::test]
async fn wrong_input_is_one_line_and_exit_code_two(#[case] arguments: &[&str], #[case] line: &str) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_bulkhead-local"));
    let command = command
        .args(arguments)
        .env_remove("BULKHEAD_ENDPOINT")
        .stdin(Stdio::null());
    let output = command.output().await.unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), line);
    assert_eq!(output.status.code(), Some(2));
}
