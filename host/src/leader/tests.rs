use std::sync::Mutex;
use std::time::Duration;

use ::kube::client::Body;
use axum::body::Body as Answer;
use axum::body::Bytes;
use futures::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

/// An API server that holds one Lease.
#[derive(Clone)]
struct FakeApi {
    state: Arc<Mutex<FakeState>>,
    events: broadcast::Sender<Value>,
}

#[derive(Default)]
struct FakeState {
    lease: Option<Value>,
    version: u64,
    broken: bool,
    patches: Vec<Value>,
}

impl FakeApi {
    fn new() -> Self {
        Self {
            state: Arc::default(),
            events: broadcast::Sender::new(64),
        }
    }

    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
        if self.state.lock().unwrap().broken {
            return refusal(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let collection = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        match (parts.method, parts.uri.path().strip_prefix(collection).unwrap()) {
            (Method::GET, "") => {
                let query = parts.uri.query().unwrap();
                assert!(
                    query.contains("watch=true") && query.contains("metadata.name%3Dccm"),
                    "{query}"
                );
                self.watch()
            }
            (Method::GET, "/ccm") => self.state.lock().unwrap().lease.as_ref().map_or_else(
                || refusal(StatusCode::NOT_FOUND),
                |lease| Response::new(Answer::from(lease.to_string())),
            ),
            (Method::POST, "") => {
                if self.state.lock().unwrap().lease.is_some() {
                    return refusal(StatusCode::CONFLICT);
                }
                Response::new(Answer::from(self.write(body).to_string()))
            }
            (Method::PATCH, "/ccm") => self.patch(body),
            (method, path) => panic!("{method} {path} needs a right that the host does not have"),
        }
    }

    fn watch(&self) -> Response<Answer> {
        let now = self.state.lock().unwrap().lease.clone();
        let now = now.map(|lease| json!({ "type": "ADDED", "object": lease }));
        let later = stream::unfold(self.events.subscribe(), |mut events| async move {
            Some((events.recv().await.ok()?, events))
        });
        let lines = stream::iter(now).chain(later);
        let lines = lines.map(|event| Ok::<_, std::io::Error>(Bytes::from(format!("{event}\n"))));
        Response::new(Answer::from_stream(lines))
    }

    fn patch(&self, patch: Value) -> Response<Answer> {
        let Some(mut lease) = self.state.lock().unwrap().lease.clone() else {
            return refusal(StatusCode::NOT_FOUND);
        };
        if patch["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
            return refusal(StatusCode::CONFLICT);
        }
        for (field, value) in patch["spec"].as_object().unwrap() {
            lease["spec"][field] = value.clone();
        }
        self.state.lock().unwrap().patches.push(patch);
        Response::new(Answer::from(self.write(lease).to_string()))
    }

    /// Stores a new version of the Lease and tells the watches.
    fn write(&self, mut lease: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        lease["metadata"]["name"] = "ccm".into();
        lease["metadata"]["namespace"] = "kube-system".into();
        lease["metadata"]["resourceVersion"] = state.version.to_string().into();
        if state.lease.is_none() {
            lease["metadata"]["uid"] = format!("uid-{}", state.version).into();
        }
        state.lease = Some(lease.clone());
        drop(state);
        drop(self.events.send(json!({ "type": "MODIFIED", "object": lease })));
        lease
    }

    /// Somebody else's write, without a guard.
    fn edit(&self, holder: &str) {
        let mut lease = self.lease();
        lease["spec"]["holderIdentity"] = holder.into();
        self.write(lease);
    }

    fn delete(&self) {
        let lease = self.state.lock().unwrap().lease.take().unwrap();
        drop(self.events.send(json!({ "type": "DELETED", "object": lease })));
    }

    fn set_broken(&self, broken: bool) {
        self.state.lock().unwrap().broken = broken;
    }

    fn lease(&self) -> Value {
        self.state.lock().unwrap().lease.clone().unwrap()
    }
}

fn refusal(code: StatusCode) -> Response<Answer> {
    let message = code.canonical_reason().unwrap();
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "message": message, "reason": message.replace(' ', ""),
    });
    Response::builder()
        .status(code)
        .body(Answer::from(status.to_string()))
        .unwrap()
}

/// A lease of 5 s with a renewal each 100 ms.
fn brisk() -> Timing {
    Timing::new(
        Duration::from_secs(5),
        Duration::from_millis(1_200),
        Duration::from_millis(100),
    )
    .unwrap()
}

/// Polls so rarely that only the watch can be quick.
fn patient() -> Timing {
    Timing::new(
        Duration::from_secs(120),
        Duration::from_secs(100),
        Duration::from_secs(60),
    )
    .unwrap()
}

struct Candidate {
    leadership: Leadership,
    standing: watch::Receiver<Standing>,
    announcements: mpsc::Receiver<Announcement>,
    driver: JoinSet<()>,
}

impl Candidate {
    fn start(api: &FakeApi, identity: &str, timing: Timing) -> Self {
        let settings = Settings {
            namespace: "kube-system".to_owned(),
            name: "ccm".to_owned(),
            identity: identity.to_owned(),
            timing,
        };
        let (announce, announcements) = mpsc::channel(8);
        let (leadership, run) = start(settings, api.client(), announce);
        let mut driver = JoinSet::new();
        driver.spawn(run);
        Self {
            standing: leadership.subscribe(),
            leadership,
            announcements,
            driver,
        }
    }

    async fn until(&mut self, wanted: impl FnMut(&Standing) -> bool) -> Standing {
        let seen = timeout(Duration::from_secs(10), self.standing.wait_for(wanted)).await;
        seen.expect("it never stands like that").unwrap().clone()
    }

    async fn leads(&mut self) -> Term {
        self.until(|standing| matches!(standing, Standing::Leading(_)))
            .await
            .term()
            .unwrap()
            .clone()
    }
}

#[tokio::test]
async fn an_absent_lease_is_created_as_client_go_would() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", brisk());
    let term = only.leads().await;
    assert_eq!(
        (term.epoch.lease_uid.as_str(), term.epoch.transitions),
        ("uid-1", 0)
    );

    let lease = api.lease();
    assert_eq!(lease["spec"]["holderIdentity"], "a");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 5);
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
    let renewed = lease["spec"]["renewTime"].as_str().unwrap();
    assert_eq!(
        renewed.len(),
        "2026-01-01T00:00:00.000000Z".len(),
        "Go wants six digits: {renewed}"
    );

    let permit = only.leadership.permit().unwrap();
    assert_eq!(permit.epoch, term.epoch);
    assert!(only.leadership.is_leader() && only.leadership.is_healthy());
    let told = only.announcements.recv().await.unwrap();
    assert_eq!(
        (told.message.as_str(), told.uid.as_str()),
        ("a became leader", "uid-1")
    );
}

#[tokio::test]
async fn every_renewal_is_guarded_and_shown() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", brisk());
    let won = only.leads().await;
    let renewed = |standing: &Standing| standing.term().is_some_and(|term| term.renewed > won.renewed);
    let later = only.until(renewed).await;
    assert_eq!(later.term().unwrap().epoch, won.epoch);
    let patches = api.state.lock().unwrap().patches.clone();
    let guard = &patches.first().unwrap()["metadata"]["resourceVersion"];
    assert_eq!(guard, "1");
}

#[tokio::test]
async fn a_release_is_followed_by_the_watching_standby_at_once() {
    let api = FakeApi::new();
    let mut first = Candidate::start(&api, "a", patient());
    let term = first.leads().await;
    let mut second = Candidate::start(&api, "b", patient());
    // The standby watches and has read before the release.
    let watching = async {
        while api.events.receiver_count() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), watching).await.unwrap();
    assert!(second.leadership.permit().is_none());

    assert_eq!(first.leadership.release().await, Ok(Ending::Released));
    assert!(term.lost.is_cancelled());
    assert!(first.leadership.permit().is_none());
    timeout(Duration::from_secs(10), first.driver.join_next())
        .await
        .expect("the driver ends")
        .unwrap()
        .unwrap();
    let given_up = api.state.lock().unwrap().patches.first().unwrap()["spec"].clone();
    assert_eq!(
        (&given_up["holderIdentity"], &given_up["leaseDurationSeconds"]),
        (&json!(""), &json!(1))
    );

    assert_eq!(second.leads().await.epoch.transitions, 1);
    let told = first.announcements.recv().await.unwrap().message;
    assert_eq!(
        (
            told.as_str(),
            first.announcements.recv().await.unwrap().message.as_str()
        ),
        ("a became leader", "a stopped leading")
    );
}

#[tokio::test]
async fn another_holder_ends_the_leadership_and_its_calls() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", patient());
    let term = only.leads().await;
    let permit = only.leadership.permit().unwrap();
    api.edit("intruder");
    only.until(|standing| matches!(standing, Standing::Standby)).await;
    assert!(term.lost.is_cancelled() && permit.lost.is_cancelled());
    assert!(only.leadership.permit().is_none());
}

#[tokio::test]
async fn a_deleted_lease_is_made_again_by_its_holder_without_a_loss() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", patient());
    let term = only.leads().await;
    // The watch must be there to tell of the deletion before the next renewal, a minute away.
    let watching = async {
        while api.events.receiver_count() < 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), watching).await.unwrap();
    api.delete();
    let again = only
        .until(|standing| standing.term().is_some_and(|now| now.epoch != term.epoch))
        .await;
    let again = again.term().unwrap();
    assert_eq!(again.epoch.lease_uid, api.lease()["metadata"]["uid"]);
    assert!(!term.lost.is_cancelled() && !again.lost.is_cancelled());
}

#[tokio::test]
async fn an_api_server_that_fails_costs_the_leadership_until_it_is_back() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", brisk());
    let term = only.leads().await;
    api.set_broken(true);
    timeout(Duration::from_secs(10), term.lost.cancelled())
        .await
        .expect("the renew deadline passes");
    assert!(only.leadership.permit().is_none());
    api.set_broken(false);
    let again = only.leads().await;
    assert_eq!(again.epoch.transitions, term.epoch.transitions + 1);
}

#[tokio::test]
async fn a_draining_leader_renews_and_permits_nothing() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", brisk());
    let term = only.leads().await;
    only.leadership.begin_drain();
    assert!(only.leadership.permit().is_none());
    assert!(matches!(
        *only.leadership.subscribe().borrow(),
        Standing::Draining(_)
    ));
    let renewed = only
        .until(|standing| standing.term().is_some_and(|now| now.renewed > term.renewed))
        .await;
    assert!(matches!(renewed, Standing::Draining(_)));
    assert!(!term.lost.is_cancelled());
}

#[tokio::test]
async fn a_draining_standby_leaves_a_free_lease_alone() {
    let api = FakeApi::new();
    api.write(json!({ "spec": { "holderIdentity": "other", "leaseDurationSeconds": 60 } }));
    let standby = Candidate::start(&api, "a", brisk());
    standby.leadership.begin_drain();
    api.edit("");
    assert_eq!(standby.leadership.release().await, Ok(Ending::NothingHeld));
    assert_eq!(api.lease()["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn a_driver_that_is_dropped_leaves_no_leadership() {
    let api = FakeApi::new();
    let mut only = Candidate::start(&api, "a", brisk());
    let term = only.leads().await;
    only.driver.shutdown().await;
    assert!(term.lost.is_cancelled());
    assert!(only.leadership.permit().is_none());
    assert_eq!(only.leadership.release().await, Err(ReleaseError::DriverGone));
}

#[tokio::test]
async fn without_an_election_this_process_leads_at_once_for_15_s_each_time() {
    let settings = Settings {
        namespace: String::new(),
        name: "ccm".to_owned(),
        identity: identity(),
        timing: Timing::default(),
    };
    let (leadership, run) = start_alone(settings);
    let mut driver = JoinSet::new();
    driver.spawn(run);
    let mut standing = leadership.subscribe();
    let seen = standing
        .wait_for(|standing| standing.term().is_some())
        .await
        .unwrap()
        .clone();
    let term = seen.term().unwrap();
    assert_eq!(term.valid_for(term.renewed), Duration::from_secs(15));
    assert_eq!(term.epoch.transitions, 0);
    assert!(leadership.permit().is_some());
    assert_eq!(leadership.release().await, Ok(Ending::Released));
    assert!(term.lost.is_cancelled() && leadership.permit().is_none());
}

#[test]
fn identities_name_the_host_and_differ() {
    let (one, other) = (identity(), identity());
    assert_ne!(one, other);
    let (host, unique) = one.rsplit_once('_').unwrap();
    assert!(!host.is_empty() && Uuid::parse_str(unique).is_ok(), "{one}");
}
