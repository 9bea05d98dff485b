//! States of sessions.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use bulkhead_core::cloud::{Certainty, Reason};
use bulkhead_proto::v1;
use futures::FutureExt as _;
use rstest::rstest;
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;

use super::scripted::{at_once, description, never, refusal};
use super::*;

fn condition(kind: v1::PluginConditionType, status: v1::ConditionStatus) -> v1::PluginCondition {
    v1::PluginCondition {
        r#type: kind.into(),
        status: status.into(),
        ..v1::PluginCondition::default()
    }
}

#[tokio::test]
async fn a_leading_hosts_first_lead_grants_nothing_and_the_second_follows_at_once() {
    let (host, server, _folder) = active(|_| {}).await;
    let leads = server.plugin.seen().leads;
    assert_eq!(
        leads.iter().map(|lead| lead.echo).collect::<Vec<_>>(),
        [None, Some(1001)]
    );
    for lead in leads {
        assert_eq!(
            lead.epoch,
            Some(v1::Epoch {
                lease_uid: "lease".to_owned(),
                transitions: 1
            })
        );
        let valid_for = lead.valid_for.unwrap();
        assert!(
            (10..14).contains(&valid_for.seconds),
            "an eighth of 15 s less than 15 s: {valid_for:?}"
        );
    }
    assert_eq!(host.results("Lead"), ["ok", "ok"]);
    assert_eq!(host.plugin.subscribe().borrow().session, 1);
}

#[tokio::test]
async fn the_authority_is_localhost() {
    let (_host, server, _folder) = active(|_| {}).await;
    let seen = server.plugin.seen();
    assert!(
        seen.authorities.iter().all(|authority| authority == "localhost"),
        "{seen:?}"
    );
}

#[tokio::test]
async fn each_renewal_is_one_lead_with_the_last_stamp() {
    let (host, server, _folder) = active(|_| {}).await;
    host.standing.send_replace(Standing::Leading(term(1)));
    let leads = server.plugin.sees(|seen| seen.leads.len() == 3).await.leads;
    assert_eq!(leads[2].echo, Some(1002));
}

#[tokio::test]
async fn the_term_of_a_lease_that_was_deleted_is_ended_before_that_of_its_successor_begins() {
    let (host, server, _folder) = active(|_| {}).await;
    let mut successor = term(2);
    successor.epoch.lease_uid = "made-again".to_owned();
    host.standing.send_replace(Standing::Leading(successor));
    let leads = server.plugin.sees(|seen| seen.leads.len() == 4).await.leads;
    let told = |lead: &v1::LeadRequest| {
        let stops = lead.valid_for == Some(prost_types::Duration::default());
        (lead.epoch.clone().unwrap().lease_uid, stops)
    };
    assert_eq!(told(&leads[2]), ("lease".to_owned(), true));
    assert_eq!(told(&leads[3]), ("made-again".to_owned(), false));
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn a_standby_host_sends_no_lead_until_it_wins() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let host = Host::at(&server.socket, Standing::Standby);
    let view = host.is(SessionState::Standby).await;
    assert!(server.plugin.seen().leads.is_empty() && view.led.until().is_none());
    host.standing.send_replace(Standing::Leading(term(7)));
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn draining_takes_the_lead_back_and_says_when_that_is_done() {
    let (host, server, _folder) = active(|_| {}).await;
    host.standing.send_replace(Standing::Draining(term(1)));
    timeout(SOON, host.plugin.stood_down()).await.unwrap();
    let last = server.plugin.seen().leads.pop().unwrap();
    assert_eq!(last.valid_for, Some(prost_types::Duration::default()));
    assert_eq!(last.epoch.unwrap().transitions, 1);
    host.is(SessionState::Draining).await;
    let count = server.plugin.seen().leads.len();
    host.standing.send_replace(Standing::Standby);
    host.is(SessionState::Standby).await;
    assert_eq!(server.plugin.seen().leads.len(), count, "it was told once");
}

#[tokio::test]
async fn a_plugin_that_is_retired_can_be_led_again_in_the_same_term() {
    let (host, server, _folder) = active(|_| {}).await;
    host.standing.send_replace(Standing::Retired(term(1)));
    timeout(SOON, host.plugin.stood_down()).await.unwrap();
    let last = server.plugin.seen().leads.pop().unwrap();
    let nanosecond = prost_types::Duration { seconds: 0, nanos: 1 };
    assert_eq!(
        last.valid_for,
        Some(nanosecond),
        "zero would end the term for good"
    );
    assert!(last.echo.is_some(), "without a stamp it would take nothing back");
    host.is(SessionState::Draining).await;
    host.standing.send_replace(Standing::Leading(term(1)));
    host.is(SessionState::Active).await;
}

/// A term whose `Lead` ends after `left`.
fn ending(left: Duration) -> Term {
    let whole = term(1).valid_for(clock::now());
    Term {
        renewed: clock::now() - whole.saturating_sub(left),
        ..term(1)
    }
}

#[rstest]
#[case::whose_session_ended(true)]
#[case::that_does_not_answer(false)]
#[tokio::test]
async fn a_plugin_has_stood_down_no_sooner_than_its_lead_ends(#[case] session_ends: bool) {
    const LEFT: Duration = Duration::from_secs(1);
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let (begun, term) = (clock::now(), ending(LEFT));
    let host = Host::at(&server.socket, Standing::Leading(term.clone()));
    host.is(SessionState::Active).await;
    if session_ends {
        // Nobody can tell whether that was the end of the process, too.
        drop(server);
        host.is(SessionState::Gone).await;
    } else {
        server.plugin.adapt(|script| script.lead = never());
    }
    host.standing.send_replace(Standing::Draining(term));
    timeout(SOON, host.plugin.stood_down()).await.unwrap();
    let took = clock::now().saturating_since(begun);
    assert!(took >= LEFT, "{took:?}");
}

#[tokio::test]
async fn a_lead_that_the_plugin_does_not_take_back_is_sent_again() {
    let (host, server, _folder) = active(|_| {}).await;
    server
        .plugin
        .adapt(|script| script.lead = at_once(|_| Err(Status::internal("busy"))));
    host.standing.send_replace(Standing::Standby);
    server.plugin.sees(|seen| seen.leads.len() == 3).await;
    assert!(
        host.plugin.stood_down().now_or_never().is_none(),
        "nobody knows whether it stopped"
    );
    server.plugin.adapt(|script| script.lead = at_once(|_| Ok(())));
    timeout(SOON, host.plugin.stood_down()).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_another_host_leads_is_standby_and_says_why() {
    let folder = TempDir::new().unwrap();
    let refuse = || {
        Err(refusal(
            Code::FailedPrecondition,
            "NOT_LEADING",
            "NOT_APPLIED",
            None,
        ))
    };
    let script = Scripted::new(|script| script.lead = at_once(move |_| refuse()));
    let server = Server::start(&folder.path().join("p.sock"), script);
    let host = Host::at(&server.socket, Standing::Leading(term(1)));
    let view = host
        .sees(|view| view.state == SessionState::Standby && !view.reason.is_empty())
        .await;
    assert_eq!(view.reason, "it does not take the lead: no way (cloud code E42)");
    server.plugin.adapt(|script| script.lead = at_once(|_| Ok(())));
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn an_expired_term_is_never_sent_as_zero() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let old = Term {
        renewed: clock::now() - LEASE,
        ..term(1)
    };
    let host = Host::at(&server.socket, Standing::Leading(old));
    host.is(SessionState::Standby).await;
    host.standing.send_replace(Standing::Leading(term(1)));
    host.is(SessionState::Active).await;
    assert!(
        server
            .plugin
            .seen()
            .leads
            .iter()
            .all(|lead| lead.valid_for.unwrap().seconds > 0)
    );
}

#[tokio::test]
async fn a_plugin_that_is_not_ready_is_warming_although_it_leads() {
    let (host, server, _folder) = active(|_| {}).await;
    server
        .plugin
        .adapt(|script| script.health = ServingStatus::NotServing);
    host.is(SessionState::Warming).await;
    server
        .plugin
        .adapt(|script| script.health = ServingStatus::Serving);
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn a_plugin_that_was_ready_before_it_was_led_is_asked_again_before_it_gets_work() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let endpoint = Endpoint::Unix(server.socket.clone());
    let host = Host::start(endpoint, Standing::Standby, |settings| {
        settings.timing.poll = Duration::from_hours(1);
    });
    host.is(SessionState::Standby).await;
    // As it is while a plugin prepares its first term.
    server
        .plugin
        .adapt(|script| script.health = ServingStatus::NotServing);
    host.standing.send_replace(Standing::Leading(term(1)));
    let next = host.sees(|view| view.state != SessionState::Standby).await;
    assert_eq!(next.state, SessionState::Warming);
    server
        .plugin
        .adapt(|script| script.health = ServingStatus::Serving);
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn a_reported_trouble_degrades_and_its_end_heals() {
    use v1::{ConditionStatus::False, PluginConditionType::CredentialsValid};
    let (host, server, _folder) = active(|_| {}).await;
    server
        .plugin
        .adapt(|script| script.status.conditions = vec![condition(CredentialsValid, False)]);
    assert_eq!(
        host.is(SessionState::Degraded).await.reason,
        "its credentials are refused"
    );
    server.plugin.adapt(|script| script.status.conditions.clear());
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn another_process_at_the_same_path_is_a_new_session() {
    let (host, server, folder) = active(|_| {}).await;
    let socket = server.socket.clone();
    // The new process listens while the old one is still connected: nobody is confused by that.
    let second = Scripted::new(|script| script.describe.instance_id = "second".to_owned());
    let second = Server::start(&socket, second);
    let before = host.plugin.subscribe().borrow().clone();
    assert_eq!(
        (before.session, before.description.unwrap().instance_id.as_str()),
        (1, "first")
    );
    drop(server);
    let view = host
        .sees(|view| view.session == 2 && view.state == SessionState::Active)
        .await;
    assert_eq!(view.description.unwrap().instance_id, "second");
    let leads = second.plugin.seen().leads;
    assert_eq!(leads[0].echo, None, "a stamp of another process is never echoed");
    assert_eq!(host.results("session").len(), 2);
    drop(folder);
}

#[tokio::test]
async fn a_plugin_that_is_away_is_waited_for() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("p.sock");
    let host = Host::at(&socket, Standing::Leading(term(1)));
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert_eq!(
        (view.state, view.reason.as_str()),
        (SessionState::Discovered, "nothing listens there")
    );
    let server = Server::start(&socket, Scripted::new(|_| {}));
    host.is(SessionState::Active).await;
    drop(server);
    let view = host.is(SessionState::Gone).await;
    assert!(view.description.is_none());
}

#[tokio::test]
async fn garbage_is_no_session() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("p.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let babbler = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
    });
    let host = Host::at(&socket, Standing::Leading(term(1)));
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert_eq!(
        (view.state, view.session),
        (SessionState::Discovered, 0),
        "{}",
        view.reason
    );
    babbler.join().unwrap();
    let _server = Server::start(&socket, Scripted::new(|_| {}));
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn three_missed_health_checks_end_the_session() {
    let (host, server, _folder) = active(|_| {}).await;
    server.plugin.adapt(|script| script.health_hangs = true);
    let view = host.is(SessionState::Gone).await;
    assert!(
        view.reason.starts_with("it does not answer health checks"),
        "{}",
        view.reason
    );
    let health = host.results("Health");
    assert!(health.ends_with(&["deadline_exceeded"; 3]), "{health:?}");
    server.plugin.adapt(|script| script.health_hangs = false);
    host.sees(|view| view.session >= 2 && view.state == SessionState::Active)
        .await;
}

#[rstest]
#[case::no_common_revision(
    |it: &mut v1::DescribeResponse| it.protocol_revisions = vec![2, 3],
    "it speaks protocol revisions [2, 3], this host speaks 1"
)]
#[case::no_legal_name(
    |it: &mut v1::DescribeResponse| it.provider_name = "A B".to_owned(),
    "the plugin broke the protocol: field provider_name is no DNS label"
)]
#[case::another_provider(
    |it: &mut v1::DescribeResponse| it.provider_name = "other".to_owned(),
    "it is provider \"other\", but --cloud-provider is \"scripted\""
)]
#[case::a_declared_zero(
    |it: &mut v1::DescribeResponse| {
        it.limits = Some(v1::Limits { max_batch_nodes: Some(0), ..v1::Limits::default() });
    },
    "the plugin broke the protocol: field limits.max_batch_nodes is zero"
)]
#[case::an_illegal_scheme(
    |it: &mut v1::DescribeResponse| it.schemes[0].name = "a b".to_owned(),
    "the plugin broke the protocol: field schemes[0].name is no provider ID scheme"
)]
#[tokio::test]
async fn a_plugin_that_cannot_be_used_says_why(
    #[case] spoil: fn(&mut v1::DescribeResponse),
    #[case] reason: &str,
) {
    let folder = TempDir::new().unwrap();
    let script = Scripted::new(|script| spoil(&mut script.describe));
    let server = Server::start(&folder.path().join("p.sock"), script);
    let endpoint = Endpoint::Unix(server.socket.clone());
    let host = Host::start(endpoint, Standing::Leading(term(1)), |settings| {
        settings.provider = Some("scripted".to_owned());
    });
    assert_eq!(host.is(SessionState::Incompatible).await.reason, reason);
    assert!(server.plugin.seen().leads.is_empty());
    server.plugin.adapt(|script| script.describe = description());
    host.is(SessionState::Active).await;
}

#[tokio::test]
async fn a_plugin_that_behaves_otherwise_is_described_anew_within_the_session() {
    let (host, server, _folder) = active(|_| {}).await;
    server.plugin.adapt(|script| {
        script.describe.behaviour_digest = "b2".to_owned();
        script.status.behaviour_digest = "b2".to_owned();
    });
    let is_new = |view: &SessionView| {
        view.description
            .as_ref()
            .is_some_and(|it| it.behaviour_digest == "b2")
    };
    assert_eq!(host.sees(is_new).await.session, 1);
}

#[tokio::test]
async fn another_process_on_the_old_connection_is_no_session() {
    let (host, server, _folder) = active(|_| {}).await;
    server.plugin.adapt(|script| {
        script.describe.instance_id = "other".to_owned();
        script.describe.behaviour_digest = "b2".to_owned();
        script.status.behaviour_digest = "b2".to_owned();
    });
    host.sees(|view| view.session == 2).await;
}

#[tokio::test]
async fn a_draining_plugin_ends_its_call_and_gets_no_other() {
    use v1::{ConditionStatus::True, PluginConditionType::Draining};
    let (host, server, _folder) = active(|script| script.get_instances = never()).await;
    let (plugin, node) = (host.plugin.clone(), fixtures::node("n1"));
    let call = host.tasks.spawn_finite("call", async move {
        plugin
            .get_instances(&[node], &[Aspect::Existence], Duration::ZERO)
            .await
    });
    server.plugin.sees(|seen| seen.batches.len() == 1).await;
    server
        .plugin
        .adapt(|script| script.status.conditions = vec![condition(Draining, True)]);
    host.is(SessionState::Draining).await;
    let refused = host
        .plugin
        .get_instances(&[fixtures::node("n2")], &[], Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(refused.reason, Some(Reason::Disconnected));
    // The call in flight is cut by its own deadline, not by the end of the session.
    let ended = call.await.unwrap().unwrap_err();
    assert_eq!(ended.reason, Some(Reason::DeadlineExceeded));
    let view = host.is(SessionState::Gone).await;
    assert_eq!(view.reason, "it ends");
    let last = server.plugin.seen().leads.pop().unwrap();
    assert_eq!(
        last.valid_for,
        Some(prost_types::Duration::default()),
        "it stands down first"
    );
    timeout(SOON, host.plugin.stood_down()).await.unwrap();
}

#[rstest]
#[case::led_by_nobody(Standing::Standby, ServingStatus::Serving, SessionState::Standby)]
#[case::not_ready(Standing::Leading(term(1)), ServingStatus::NotServing, SessionState::Warming)]
#[tokio::test]
async fn a_plugin_that_takes_no_work_is_asked_nothing(
    #[case] standing: Standing,
    #[case] health: ServingStatus,
    #[case] state: SessionState,
) {
    let folder = TempDir::new().unwrap();
    let script = Scripted::new(|script| script.health = health);
    let server = Server::start(&folder.path().join("p.sock"), script);
    let host = Host::at(&server.socket, standing);
    host.sees(|view| view.state == state && view.session == 1).await;
    let refused = host
        .plugin
        .get_instances(&[fixtures::node("n1")], &[], Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(
        (refused.reason, refused.certainty),
        (Some(Reason::Disconnected), Certainty::NotApplied)
    );
    assert!(server.plugin.seen().batches.is_empty());
}

#[tokio::test]
async fn a_file_that_others_may_replace_is_not_connected_to() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(folder.path(), 0o777);
    let host = Host::at(&server.socket, Standing::Standby);
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert!(
        view.reason.contains("has mode 0777: others may write to it"),
        "{}",
        view.reason
    );
    chmod(&server.socket, 0o666);
    chmod(folder.path(), 0o700);
    host.sees(|view| view.reason.contains("has mode 0666")).await;
    chmod(&server.socket, 0o660);
    host.is(SessionState::Standby).await;
}

#[tokio::test]
async fn a_symlink_is_not_followed() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let link = folder.path().join("link.sock");
    symlink(&server.socket, &link).unwrap();
    let host = Host::at(&link, Standing::Standby);
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert!(
        view.reason
            .ends_with("link.sock is a symlink; name the real path"),
        "{}",
        view.reason
    );
}

#[tokio::test]
async fn a_plain_file_is_no_socket() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("p.sock");
    std::fs::write(&file, "").unwrap();
    let host = Host::at(&file, Standing::Standby);
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert!(view.reason.ends_with("p.sock is no socket"), "{}", view.reason);
}

#[tokio::test]
async fn stopping_the_host_ends_the_session() {
    let (host, _server, _folder) = active(|_| {}).await;
    host.tasks.stop(SOON).await.unwrap();
    let failure = host
        .plugin
        .get_instances(&[fixtures::node("n1")], &[], Duration::ZERO)
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Some(Reason::Disconnected));
}
