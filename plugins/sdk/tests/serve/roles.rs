//! Who may do what, and until when.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_plugin::v1::{self, Outcome, PluginConditionType};
use rstest::rstest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::cloud::{WAITS, WRITES_LATE};
use crate::fixture::{Host, LONG, Plugin, assert_reason, ensure, epoch, eventually, lead, nodes};

const SHORT: Duration = Duration::from_millis(300);

async fn read(host: &Host) -> Result<v1::GetInstancesResponse, tonic::Status> {
    host.client
        .clone()
        .get_instances(nodes(1))
        .await
        .map(tonic::Response::into_inner)
}

async fn write_of(host: &Host, lease: &str, transitions: i64) -> Result<(), tonic::Status> {
    let mut request = ensure("bh-1", "");
    request.intent.as_mut().expect("set").epoch = Some(epoch(lease, transitions));
    host.send(request).await.map(drop)
}

#[tokio::test]
async fn a_standby_plugin_is_serving_and_does_nothing() {
    let plugin = Plugin::start().await;
    let host = plugin.connect().await;
    assert_eq!(host.serving("").await, ServingStatus::Serving);
    assert!(host.is_ready().await);
    assert_reason(read(&host).await, "NOT_LEADING");
    assert_reason(host.ensure("bh-1", "").await, "NOT_LEADING");
    assert_eq!(plugin.cloud.initialised.load(Ordering::SeqCst), 0);
    assert_eq!(host.status().await.operations_in_flight, 0);
}

#[tokio::test]
async fn the_first_lead_of_a_session_grants_nothing_and_the_second_grants() {
    let plugin = Plugin::start().await;
    let mut host = plugin.connect().await;
    let stamp = host.lead_once("lease", 5, LONG, None).await.expect("answered");
    assert_reason(host.ensure("bh-1", "").await, "NOT_LEADING");
    assert_eq!(plugin.cloud.initialised.load(Ordering::SeqCst), 0);
    host.lead_once("lease", 5, LONG, Some(stamp))
        .await
        .expect("answered");
    host.ready().await;
    assert!(host.ensure("bh-1", "").await.is_ok());
    assert_eq!(plugin.cloud.initialised.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_echo_of_another_session_grants_nothing() {
    let plugin = Plugin::start().await;
    let mut first = plugin.connect().await;
    let mut second = plugin.connect().await;
    let stamp = first.lead_once("lease", 5, LONG, None).await.expect("answered");
    second
        .lead_once("lease", 5, LONG, Some(stamp))
        .await
        .expect("answered");
    second
        .lead_once("lease", 5, LONG, Some(stamp + 1))
        .await
        .expect("answered");
    assert_reason(second.ensure("bh-1", "").await, "NOT_LEADING");
    first
        .lead_once("lease", 5, LONG, Some(stamp))
        .await
        .expect("answered");
    second.ready().await;
}

#[tokio::test]
async fn no_write_starts_after_the_lead_ran_out_and_a_renewal_brings_it_back() {
    let plugin = Plugin::start().await;
    let mut host = plugin.connect().await;
    host.lead("lease", 5, SHORT).await.expect("answered");
    host.ready().await;
    // Admitted in time, and then too late for its own write.
    assert_reason(host.ensure("late", WRITES_LATE).await, "NOT_LEADING");
    assert_reason(host.ensure("bh-1", "").await, "NOT_LEADING");
    assert!(read(&host).await.is_ok(), "reads go on");
    assert_eq!(plugin.cloud.creates.load(Ordering::SeqCst), 0);
    host.lead("lease", 5, LONG).await.expect("answered");
    assert!(host.ensure("bh-1", "").await.is_ok());
    assert_eq!(
        plugin.cloud.initialised.load(Ordering::SeqCst),
        1,
        "the same term"
    );
}

#[rstest]
#[case::lower_epoch("lease", 4)]
#[case::higher_epoch("lease", 6)]
#[case::other_lease("other", 5)]
#[tokio::test]
async fn a_write_of_another_epoch_is_refused(#[case] lease: &str, #[case] transitions: i64) {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    assert_reason(write_of(&host, lease, transitions).await, "NOT_LEADING");
    assert!(write_of(&host, "lease", 5).await.is_ok());
}

#[rstest]
#[case::lower_epoch("lease", 4, LONG)]
#[case::stop_of_a_lower_epoch("lease", 4, Duration::ZERO)]
#[case::other_lease_while_ours_lasts("other", 9, LONG)]
#[tokio::test]
async fn a_lead_of_a_wrong_epoch_is_refused_and_changes_nothing(
    #[case] lease: &str,
    #[case] transitions: i64,
    #[case] valid_for: Duration,
) {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    let mut intruder = plugin.connect().await;
    assert_reason(
        intruder.lead_once(lease, transitions, valid_for, None).await,
        "NOT_LEADING",
    );
    assert!(host.ensure("bh-1", "").await.is_ok());
}

#[rstest]
#[case::duration_missing(v1::LeadRequest { valid_for: None, ..lead("lease", 5, LONG, None) })]
#[case::epoch_missing(v1::LeadRequest { epoch: None, ..lead("lease", 5, LONG, None) })]
#[tokio::test]
async fn a_lead_that_lacks_something_is_no_stop(#[case] request: v1::LeadRequest) {
    let plugin = Plugin::start().await;
    let host = plugin.led().await;
    assert_reason(host.client.clone().lead(request).await, "INVALID_SPEC");
    assert!(host.ensure("bh-1", "").await.is_ok());
}

#[tokio::test]
async fn a_stop_ends_running_slices_and_the_epoch_for_ever() {
    let plugin = Plugin::start().await;
    let mut host = plugin.led().await;
    let waiting = host.clone();
    let slice = async move { waiting.ensure("bh-1", WAITS).await };
    let stop = async {
        eventually("the slice runs", async || {
            plugin.cloud.begun.load(Ordering::SeqCst) == 1
        })
        .await;
        host.lead_once("lease", 5, Duration::ZERO, None)
            .await
            .expect("answered at once");
        assert_reason(host.ensure("bh-2", "").await, "NOT_LEADING");
        assert_reason(read(&host).await, "NOT_LEADING");
    };
    let (answer, ()) = tokio::join!(slice, stop);
    let answer = answer.expect("a slice");
    assert_eq!(
        (answer.outcome(), answer.progress.as_str()),
        (Outcome::InProgress, "StandDown")
    );
    eventually("the provider stands down", async || {
        plugin.cloud.stood_down.load(Ordering::SeqCst) == 1
    })
    .await;

    assert_reason(host.lead("lease", 5, LONG).await, "NOT_LEADING");
    host.lead("lease", 6, LONG).await.expect("the next term");
    host.ready().await;
    assert_eq!(plugin.cloud.initialised.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_higher_epoch_of_another_session_ends_the_lower() {
    let plugin = Plugin::start().await;
    let old = plugin.led().await;
    let mut new = plugin.connect().await;
    new.lead("lease", 6, LONG).await.expect("answered");
    assert_reason(old.ensure("bh-1", "").await, "NOT_LEADING");
    new.ready().await;
    assert!(write_of(&new, "lease", 6).await.is_ok());
    assert_eq!(
        plugin.cloud.stood_down.load(Ordering::SeqCst),
        1,
        "the old term ended before the new began"
    );
}

#[tokio::test]
async fn another_lease_takes_over_once_the_old_lead_ran_out() {
    let plugin = Plugin::start().await;
    let mut old = plugin.connect().await;
    old.lead("lease", 5, SHORT).await.expect("answered");
    let new = plugin.connect().await;
    eventually("the new lease is accepted", async || {
        new.clone().lead("other", 0, LONG).await.is_ok()
    })
    .await;
    new.ready().await;
    assert!(write_of(&new, "other", 0).await.is_ok());
    assert_reason(write_of(&old, "lease", 5).await, "NOT_LEADING");
}

#[tokio::test]
async fn a_provider_that_cannot_initialise_tries_again_and_status_says_why() {
    let plugin = Plugin::start().await;
    plugin.cloud.failing.store(1, Ordering::SeqCst);
    let mut host = plugin.connect().await;
    host.lead("lease", 5, LONG).await.expect("answered at once");
    assert!(!host.is_ready().await, "not ready in the moment of the answer");
    let says = async || {
        let conditions = host.status().await.conditions;
        conditions.iter().any(|condition| {
            condition.r#type() == PluginConditionType::Degraded && condition.message.contains("no route")
        })
    };
    eventually("status says why", says).await;
    assert!(!host.is_ready().await);
    assert_reason(read(&host).await, "OPERATION_IN_PROGRESS");
    host.ready().await;
    assert!(host.status().await.conditions.is_empty());
}
