//! The end of a plugin.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_plugin::v1::PluginConditionType;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::fixture::{Host, LONG, Plugin, eventually};

async fn is_draining(host: &Host) -> bool {
    let conditions = host.status().await.conditions;
    conditions
        .iter()
        .any(|condition| condition.r#type() == PluginConditionType::Draining)
}

#[tokio::test]
async fn a_plugin_stays_ready_until_its_last_session_is_closed() {
    let mut plugin = Plugin::start().await;
    let host = plugin.led().await;
    assert!(!is_draining(&host).await);
    plugin.ask_to_end();
    eventually("status says so", async || is_draining(&host).await).await;
    assert!(host.is_ready().await);
    assert!(host.ensure("bh-1", "").await.is_ok());
    drop(host);
    let cloud = std::sync::Arc::clone(&plugin.cloud);
    plugin.ended().await.expect("ends well");
    assert_eq!(cloud.stood_down.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn work_that_nobody_waits_for_is_waited_for_at_the_end() {
    let mut plugin = Plugin::start().await;
    let host = plugin.led().await;
    tokio::select! {
        answer = host.ensure("bh-1", "") => panic!("the create takes longer: {answer:?}"),
        () = eventually("the work begins", async || plugin.cloud.begun.load(Ordering::SeqCst) == 1) => {}
    }
    drop(host);
    plugin.ask_to_end();
    let cloud = std::sync::Arc::clone(&plugin.cloud);
    plugin.ended().await.expect("ends well");
    assert!(cloud.has("bh-1"));
}

#[tokio::test]
async fn an_open_health_watch_holds_nothing_after_the_drain_limit() {
    let mut plugin = Plugin::start_with(|options| options.drain_within(Duration::from_millis(100))).await;
    let mut host = plugin.led().await;
    let watch = host
        .health
        .watch(HealthCheckRequest::default())
        .await
        .expect("watches");
    let mut watch = watch.into_inner();
    let first = watch.message().await.expect("a message").expect("not the end");
    assert_eq!(first.status(), ServingStatus::Serving);
    plugin.ask_to_end();
    plugin.ended().await.expect("ends well");
    assert!(
        matches!(watch.message().await, Ok(None) | Err(_)),
        "the stream ends too"
    );
}

#[tokio::test]
async fn a_health_watch_follows_the_role() {
    let plugin = Plugin::start().await;
    plugin.cloud.failing.store(1, Ordering::SeqCst);
    let mut host = plugin.connect().await;
    let service = "bulkhead.cloudprovider.v1.CloudProvider".to_owned();
    let mut watch = host
        .health
        .watch(HealthCheckRequest { service })
        .await
        .expect("watches")
        .into_inner();
    let mut next = async || {
        watch
            .message()
            .await
            .expect("a message")
            .expect("not the end")
            .status()
    };
    assert_eq!(next().await, ServingStatus::Serving);
    host.lead("lease", 5, LONG).await.expect("answered");
    assert_eq!(next().await, ServingStatus::NotServing);
    assert_eq!(next().await, ServingStatus::Serving);
}
