//! Instances, how the plugin says it is, and what a broken plugin answers.

use bulkhead_plugin::v1::instance_result::Result as Answer;
use bulkhead_plugin::v1::{self, ConditionStatus, PluginConditionType};
use bulkhead_sim::cloud::{Credentials, Effect, ErrorCode, Fault, SettingsChange, Span};
use rstest::rstest;
use std::time::Duration;
use tonic::Code;

use crate::fixture::{MACHINES, Stage, cluster, instances, node, page};

fn named(name: &str, system_uuid: &str, address: &str) -> v1::Node {
    v1::Node {
        name: name.to_owned(),
        system_uuid: system_uuid.to_owned(),
        addresses: vec![v1::Address {
            r#type: v1::AddressType::InternalIp.into(),
            address: address.to_owned(),
        }],
        ..Default::default()
    }
}

fn identified(provider_id: &str) -> v1::Node {
    v1::Node {
        provider_id: provider_id.to_owned(),
        ..Default::default()
    }
}

/// The result in a word.
async fn asked(stage: &Stage, node: v1::Node) -> String {
    let answer = stage
        .host
        .clone()
        .get_instances(instances(vec![node]))
        .await
        .unwrap()
        .into_inner();
    match answer.results[0].result.clone() {
        Some(Answer::Found(instance)) => instance.instance_id,
        Some(Answer::Absent(proof)) => format!("absent {}", proof.complete),
        Some(Answer::NotMine(_)) => "not mine".to_owned(),
        Some(Answer::Pending(_)) => "pending".to_owned(),
        Some(Answer::Error(error)) => error.reason().as_str_name().replace("ERROR_REASON_", ""),
        None => "nothing".to_owned(),
    }
}

#[rstest]
#[case::by_provider_id(identified("sim://i-2"), "i-2")]
#[case::by_name(named("node-1", "", ""), "i-1")]
#[case::by_system_uuid(named("renamed", "u-1", ""), "i-1")]
#[case::by_address(named("renamed", "", "10.0.0.2"), "i-2")]
#[case::stopped_is_found(identified("sim://i-3"), "i-3")]
#[case::never_existed(identified("sim://i-9"), "absent true")]
#[case::no_such_name(named("node-9", "", ""), "absent true")]
#[case::another_scheme(identified("aws:///i-1"), "not mine")]
#[tokio::test]
async fn a_node_is_answered_by_what_it_carries(#[case] node: v1::Node, #[case] expected: &str) {
    let stage = Stage::led(MACHINES).await;
    assert_eq!(asked(&stage, node).await, expected);
}

#[rstest]
#[case::a_zone_is_away("outages: [zone-b]", None, "CLOUD_UNAVAILABLE")]
#[case::wrong_ids("{}", Some(Effect::WrongIds), "PROVIDER_ERROR")]
#[case::an_empty_answer_cannot_be_told("{}", Some(Effect::Empty), "absent true")]
#[tokio::test]
async fn what_was_not_read_is_not_absent(
    #[case] settings: &str,
    #[case] effect: Option<Effect>,
    #[case] expected: &str,
) {
    let stage = Stage::led(MACHINES).await;
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), settings).unwrap();
    let change: SettingsChange = bulkhead_plugin::cloud_config::load(file.path()).unwrap();
    stage.with(|cloud| cloud.configure(change)).unwrap();
    if let Some(effect) = effect {
        stage.fault(Fault::new("list/instance", effect));
    }
    assert_eq!(asked(&stage, identified("sim://i-2")).await, expected);
}

#[tokio::test]
async fn two_hundred_nodes_cost_few_calls() {
    let stage = Stage::led(MACHINES).await;
    let before = stage.with(|cloud| cloud.records().total().calls);
    let nodes: Vec<v1::Node> = (0..200).map(node).collect();
    let answer = stage
        .host
        .clone()
        .get_instances(instances(nodes))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.results.len(), 200);
    assert_eq!(stage.with(|cloud| cloud.records().total().calls), before + 1);
}

#[rstest]
#[tokio::test]
async fn all_pages_together_are_the_same_for_every_size(#[values(1, 2, 500)] size: u32) {
    let stage = Stage::led(MACHINES).await;
    let (mut ids, mut tokens, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let answer = stage
            .host
            .clone()
            .list_instances(page(size, token))
            .await
            .unwrap()
            .into_inner();
        ids.extend(answer.instances.into_iter().map(|it| it.instance_id));
        tokens.push(answer.snapshot.unwrap().token);
        token = answer.next_page_token;
        assert_eq!(answer.verdict.is_some(), token.is_empty());
        if token.is_empty() {
            break;
        }
    }
    tokens.dedup();
    assert_eq!(
        (ids, tokens.len()),
        (vec!["i-1".to_owned(), "i-2".to_owned(), "i-3".to_owned()], 1)
    );
    let wrong = stage
        .host
        .clone()
        .list_instances(page(1, "nonsense".to_owned()))
        .await
        .unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_standby_asks_the_cloud_only_how_it_is_and_says_what_is_wrong() {
    let stage = Stage::standby(MACHINES).await;
    let mut host = stage.host.clone();
    host.describe(v1::DescribeRequest::default()).await.unwrap();
    let refused = host.get_instances(instances(vec![node(1)])).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let status = async |kind: PluginConditionType| {
        let request = v1::GetStatusRequest {
            cluster: Some(cluster()),
        };
        let answer = stage.host.clone().get_status(request).await.unwrap().into_inner();
        answer
            .conditions
            .iter()
            .find(|it| it.r#type() == kind)
            .map(v1::PluginCondition::status)
    };
    assert_eq!(
        status(PluginConditionType::CredentialsValid).await,
        Some(ConditionStatus::True)
    );
    let expired = SettingsChange::default().credentials(Credentials::Expired);
    stage.with(|cloud| cloud.configure(expired)).unwrap();
    assert_eq!(
        status(PluginConditionType::CredentialsValid).await,
        Some(ConditionStatus::False)
    );
    stage.fault(Fault::new("account", Effect::Hang).times(1));
    assert_eq!(
        status(PluginConditionType::CloudReachable).await,
        Some(ConditionStatus::False)
    );
    let counts = stage.with(|cloud| cloud.records().counts().clone());
    assert_eq!(counts.keys().collect::<Vec<_>>(), ["account"]);
}

#[rstest]
#[case::panic(Effect::Panic, Err(Code::Internal))]
#[case::fail(Effect::Fail("RATE_LIMITED".to_owned()), Err(Code::ResourceExhausted))]
#[case::oversized(Effect::Oversized(17 << 20), Err(Code::OutOfRange))]
#[case::garbage(Effect::Garbage, Ok("nothing node-1"))]
#[case::wrong_ids(Effect::WrongIds, Ok("found node-1-wrong"))]
#[case::empty(Effect::Empty, Ok("absent node-1"))]
#[case::delay(Effect::Delay(Span(Duration::from_millis(5))), Ok("found node-1"))]
#[tokio::test]
async fn a_broken_plugin_answers_as_it_is_told_once(
    #[case] effect: Effect,
    #[case] expected: Result<&str, Code>,
) {
    let stage = Stage::led(MACHINES).await;
    stage.fault(Fault::new("plugin/GetInstances", effect).times(1));
    let mut host = stage.host.clone();
    let answer = host.get_instances(instances(vec![node(1)])).await;
    let told = answer.map_err(|status| status.code()).map(|answer| {
        let one = &answer.get_ref().results[0];
        let word = match one.result {
            None => "nothing",
            Some(Answer::Found(_)) => "found",
            Some(Answer::Absent(_)) => "absent",
            _ => "other",
        };
        format!("{word} {}", one.node_name)
    });
    assert_eq!(told, expected.map(str::to_owned));
    assert_eq!(asked(&stage, node(1)).await, "i-1");
}

#[tokio::test]
async fn a_call_that_hangs_holds_up_no_other() {
    let stage = Stage::led(MACHINES).await;
    stage.fault(Fault::new("plugin/GetInstances", Effect::Hang).times(1));
    let mut host = stage.host.clone();
    let hanging = tokio::time::timeout(
        Duration::from_millis(200),
        host.get_instances(instances(vec![node(1)])),
    );
    assert!(hanging.await.is_err());
    assert_eq!(asked(&stage, node(1)).await, "i-1");
    let effect = Effect::Error {
        code: ErrorCode::Throttled,
        message: String::new(),
        retry_after: Some(Span(Duration::from_secs(7))),
    };
    stage.fault(Fault::new("list", effect).times(1));
    let status = stage
        .host
        .clone()
        .get_instances(instances(vec![node(1)]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}
