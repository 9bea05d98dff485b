//! Calls that are dropped, panic, are too many or too large.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_plugin::v1::{self, Outcome, PluginConditionType};
use futures::future::join_all;
use rstest::rstest;
use tonic::{Code, Request};

use crate::cloud::{PANICS, WAITS};
use crate::fixture::{
    Plugin, assert_reason, by_digest, cluster, ensure, epoch, eventually, inline, nodes, reason, set,
};

#[derive(Clone, Copy)]
enum Leaving {
    /// The client drops its call.
    Drops,
    /// The deadline that travels with the call passes, in client and server.
    TimesOut,
    /// The whole connection goes away.
    Disconnects,
}

#[rstest]
#[case::dropped(Leaving::Drops)]
#[case::timed_out(Leaving::TimesOut)]
#[case::disconnected(Leaving::Disconnects)]
#[tokio::test]
async fn a_create_that_outlives_its_caller_completes_and_is_remembered(#[case] leaving: Leaving) {
    const PATIENCE_OF_THE_CALLER: Duration = Duration::from_millis(100);
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let leave = async {
        eventually("the work begins", async || {
            plugin.cloud.begun.load(Ordering::SeqCst) == 1
        })
        .await;
        tokio::time::sleep(PATIENCE_OF_THE_CALLER).await;
    };
    match leaving {
        Leaving::Drops => tokio::select! {
            answer = host.ensure("bh-1", "") => panic!("the create takes longer: {answer:?}"),
            () = leave => {}
        },
        Leaving::TimesOut => {
            let mut request = Request::new(ensure("bh-1", ""));
            request.set_timeout(PATIENCE_OF_THE_CALLER);
            assert_eq!(
                host.send(request).await.expect_err("too slow").code(),
                Code::Cancelled
            );
        }
        Leaving::Disconnects => {
            let other = plugin.connect().await;
            tokio::select! {
                answer = other.ensure("bh-1", "") => panic!("the create takes longer: {answer:?}"),
                () = leave => {}
            }
            drop(other);
        }
    }

    eventually("the create completes", async || plugin.cloud.has("bh-1")).await;
    let again = host.ensure("bh-1", "").await.expect("the second call");
    assert_eq!(again.outcome(), Outcome::Done);
    assert_eq!(plugin.cloud.creates.load(Ordering::SeqCst), 1);
    eventually("nothing runs any more", async || {
        host.status().await.operations_in_flight == 0
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_goes_away_is_noticed_by_the_work() {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let running = async |count| host.status().await.operations_in_flight == count;
    tokio::select! {
        answer = host.ensure("bh-1", WAITS) => panic!("nothing ends it: {answer:?}"),
        () = eventually("the work runs", async || running(1).await) => {}
    }
    eventually("the work ends by itself", async || running(0).await).await;
}

#[rstest]
#[case::short(Duration::from_millis(50))]
#[case::used_up_before_it_came(Duration::ZERO)]
#[tokio::test]
async fn a_call_knows_the_soft_deadline_of_its_intent(#[case] soft_deadline: Duration) {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let mut request = ensure("bh-1", WAITS);
    request.intent.as_mut().expect("set").soft_deadline = soft_deadline.try_into().ok();
    let answer = host.send(request).await.expect("a slice");
    assert_eq!(answer.outcome(), Outcome::InProgress);
    assert_eq!(answer.progress, "SoftDeadline");
}

#[tokio::test]
async fn a_panic_ends_one_call_and_not_the_plugin() {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let status = host.ensure("bh-1", PANICS).await.expect_err("panics");
    assert_eq!(reason(&status), (Code::Internal, "PANIC".to_owned()));
    assert!(
        !status.message().contains("as the test wants it"),
        "the text stays in the log: {status:?}"
    );
    assert!(host.ensure("bh-1", "").await.is_ok());
    let conditions = host.status().await.conditions;
    assert!(
        conditions
            .iter()
            .any(|condition| condition.r#type() == PluginConditionType::Tainted)
    );
}

#[tokio::test]
async fn more_calls_than_declared_are_refused_and_can_come_again() {
    let plugin = Plugin::start_with(|options| options.calls_in_flight(2)).await;
    let host = plugin.led().await;
    let answers = join_all(["a", "b", "c"].map(|mark| host.ensure(mark, ""))).await;
    let refused: Vec<_> = answers
        .iter()
        .filter_map(|answer| answer.as_ref().err())
        .collect();
    assert_eq!(refused.len(), 1, "{answers:?}");
    assert_eq!(
        reason(refused[0]),
        (Code::ResourceExhausted, "RATE_LIMITED".to_owned())
    );
    assert!(host.ensure("c", "").await.is_ok());
}

#[tokio::test]
async fn what_is_not_declared_is_unimplemented_and_too_large_batches_are_refused() {
    let plugin = Plugin::start().await;
    let mut host = plugin.led().await;
    let routes = v1::ListRoutesRequest {
        cluster: Some(cluster()),
        ..Default::default()
    };
    assert_reason(host.client.list_routes(routes).await, "UNIMPLEMENTED");
    assert_reason(host.client.get_instances(nodes(3)).await, "BATCH_TOO_LARGE");
    assert_eq!(
        host.client
            .get_instances(nodes(2))
            .await
            .expect("fits")
            .into_inner()
            .results
            .len(),
        2
    );
}

#[tokio::test]
async fn a_write_without_cluster_or_epoch_is_refused_by_field() {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let mut request = ensure("bh-1", "");
    request.cluster = None;
    assert_reason(host.send(request).await, "INVALID_SPEC");
    let mut request = ensure("bh-1", "");
    request.intent = None;
    assert_reason(host.send(request).await, "INVALID_SPEC");
    assert_eq!(plugin.cloud.begun.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_node_set_is_sent_once_and_named_by_digest_in_its_session_only() {
    let plugin = Plugin::start().await;
    let mut host = plugin.led().await;
    let mut request = ensure("bh-1", "");
    request.node_set = Some(by_digest("d1"));
    assert_reason(host.send(request.clone()).await, "NODE_SET_UNKNOWN");
    assert_eq!(plugin.cloud.begun.load(Ordering::SeqCst), 0);

    let put = v1::PutNodeSetRequest {
        cluster: Some(cluster()),
        node_set: Some(set("d1", &["one", "two"])),
    };
    host.client.put_node_set(put).await.expect("put");
    host.send(request.clone()).await.expect("known now");
    assert_eq!(plugin.cloud.last_nodes(), ["one", "two"]);

    let other = plugin.connect().await;
    assert_reason(other.send(request).await, "NODE_SET_UNKNOWN");
}

#[tokio::test]
async fn targets_are_updated_with_full_sets_wherever_they_come_from() {
    let plugin = Plugin::start().await;
    let mut host = plugin.led().await;
    let item = |node_set| v1::UpdateTargetsItem {
        r#ref: Some(v1::LoadBalancerRef::default()),
        node_set: Some(node_set),
    };
    let request = |node_set| v1::UpdateTargetsRequest {
        cluster: Some(cluster()),
        intent: Some(v1::Intent {
            epoch: Some(epoch("lease", 5)),
            ..Default::default()
        }),
        items: vec![item(inline(&["one"])), item(node_set)],
    };
    let answer = host
        .client
        .update_targets(request(inline(&["two"])))
        .await
        .expect("inline")
        .into_inner();
    assert_eq!(answer.results.len(), 2);
    assert_eq!(plugin.cloud.last_nodes(), ["two"]);
    assert_reason(
        host.client.update_targets(request(by_digest("never"))).await,
        "NODE_SET_UNKNOWN",
    );
}

#[tokio::test]
async fn a_plugin_describes_itself_the_same_twice_and_before_anything_else() {
    let plugin = Plugin::start().await;
    let mut host = plugin.connect().await;
    let first = host
        .client
        .describe(v1::DescribeRequest::default())
        .await
        .expect("describes")
        .into_inner();
    let second = host
        .client
        .describe(v1::DescribeRequest::default())
        .await
        .expect("describes")
        .into_inner();
    assert_eq!(first, second);
    assert_eq!(first.provider_name, "counting");
    assert_eq!(first.protocol_revisions, [1]);
    assert_eq!(host.status().await.behaviour_digest, first.behaviour_digest);
}
