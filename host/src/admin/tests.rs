use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Mutex;

use bulkhead_core::clock::Timestamp;
use http::{Response, StatusCode};
use kube::client::Body;
use rstest::rstest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::*;
use crate::config::{AllowedPath, CertificateSource};
use crate::metrics::Metrics;
use crate::readiness::PluginState;

const DEADLINE: Duration = Duration::from_secs(20);

fn config(certificate: CertificateSource) -> AdminConfig {
    AdminConfig {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        port_file: None,
        certificate,
        access: AccessConfig {
            authentication_kubeconfig: None,
            authorization_kubeconfig: None,
            token_ttl: Duration::from_mins(1),
            allowed_ttl: Duration::from_mins(1),
            denied_ttl: Duration::from_mins(1),
            always_allow: vec![
                AllowedPath::Exact("/livez".into()),
                AllowedPath::Exact("/healthz".into()),
                AllowedPath::Prefix("/readyz".into()),
            ],
        },
    }
}

/// A served admin server.
struct Served {
    address: SocketAddr,
    health: Health,
    tasks: Tasks,
}

impl Served {
    async fn start(certificate: CertificateSource, reviewers: Reviewers) -> Self {
        let listener = bind(config(certificate)).await.unwrap();
        let mut registry = Registry::default();
        Metrics::register(&mut registry);
        let health = Health::default();
        let sources = Sources {
            health: health.clone(),
            registry: Arc::new(registry),
        };
        let (address, tasks) = (listener.address(), Tasks::new());
        listener.serve(sources, reviewers, &tasks);
        Self {
            address,
            health,
            tasks,
        }
    }

    async fn healthy() -> Self {
        Self::start(CertificateSource::Memory, Reviewers::default()).await
    }

    async fn get(&self, path: &str, authorization: &str) -> Answer {
        tokio::time::timeout(DEADLINE, get(self.address, path, authorization))
            .await
            .expect("no answer")
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
    certificate: CertificateDer<'static>,
}

/// One request over a real TLS connection of its own.
async fn get(address: SocketAddr, path: &str, authorization: &str) -> Answer {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .unwrap();
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned();
    let authorization = if authorization.is_empty() {
        String::new()
    } else {
        format!("Authorization: {authorization}\r\n")
    };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
        certificate,
    }
}

#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// An API server that reviews: tokens `alice`, `bob` and `admin` (of `system:masters`) are valid, alice may get
/// `/metrics`, token `outage` and user `outage` meet a broken server.
#[derive(Clone, Default)]
struct FakeApi {
    reviews: Arc<Mutex<Vec<(String, Value)>>>,
}

impl FakeApi {
    fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let api = api.clone();
            async move {
                let kind = request.uri().path().rsplit('/').next().unwrap().to_owned();
                let body = request.into_body().collect_bytes().await.unwrap();
                let review: Value = serde_json::from_slice(&body).unwrap();
                let (status, answer) = answer(&kind, &review["spec"]);
                api.reviews.lock().unwrap().push((kind, review["spec"].clone()));
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(answer).unwrap())
            }
        });
        kube::Client::new(service, "default")
    }

    fn reviewers(&self) -> Reviewers {
        Reviewers {
            tokens: Some(self.client()),
            access: Some(self.client()),
        }
    }

    fn count(&self, kind: &str) -> usize {
        self.reviews
            .lock()
            .unwrap()
            .iter()
            .filter(|(of, _)| of == kind)
            .count()
    }

    fn last_spec(&self) -> Value {
        self.reviews.lock().unwrap().last().unwrap().1.clone()
    }
}

fn answer(kind: &str, spec: &Value) -> (StatusCode, Value) {
    let broken = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "etcd is away",
                        "reason": "InternalError", "code": 500});
    if kind == "tokenreviews" {
        let (token, api) = (spec["token"].as_str().unwrap(), "authentication.k8s.io/v1");
        let status = match token {
            "outage" => return (StatusCode::INTERNAL_SERVER_ERROR, broken),
            "alice" | "bob" | "mallory" => json!({"authenticated": true, "user": {"username": token,
                "uid": "u-1", "groups": ["staff"], "extra": {"scopes": ["a"]}}}),
            "admin" => {
                json!({"authenticated": true, "user": {"username": "root", "groups": ["system:masters"]}})
            }
            _ => json!({"authenticated": false, "user": {"username": "claimed"}, "error": "bad signature"}),
        };
        return (StatusCode::CREATED, review(api, "TokenReview", spec, &status));
    }
    let user = spec["user"].as_str().unwrap();
    if user == "mallory" {
        return (StatusCode::INTERNAL_SERVER_ERROR, broken);
    }
    let allowed =
        user == "alice" && spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"});
    let status = json!({"allowed": allowed});
    (
        StatusCode::CREATED,
        review("authorization.k8s.io/v1", "SubjectAccessReview", spec, &status),
    )
}

fn review(api: &str, kind: &str, spec: &Value, status: &Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": {}, "spec": spec, "status": status})
}

#[rstest]
#[case::a_user_who_may(
    "/metrics",
    "Bearer alice",
    200,
    "node_controller_initial_node_sync_delay_seconds"
)]
#[case::the_scheme_in_any_case("/metrics", "bearer alice", 200, "bulkhead_build_info")]
#[case::masters_need_no_review("/metrics", "Bearer admin", 200, "process_open_fds")]
#[case::a_user_who_may_not("/metrics", "Bearer bob", 403, "user \"bob\" cannot get path \"/metrics\"")]
#[case::a_path_that_is_not_there("/nothing", "Bearer alice", 403, "/nothing")]
#[case::a_path_that_is_not_there_for_masters("/nothing", "Bearer admin", 404, "")]
#[case::nobody("/metrics", "", 403, "system:anonymous")]
#[case::another_scheme_is_nobody("/metrics", "Basic YTpi", 403, "system:anonymous")]
#[case::a_forged_token("/metrics", "Bearer forged", 401, "token")]
#[case::an_empty_token("/metrics", "Bearer ", 403, "system:anonymous")]
#[case::the_token_review_fails("/metrics", "Bearer outage", 500, "TokenReview failed")]
#[case::the_access_review_fails("/metrics", "Bearer mallory", 500, "SubjectAccessReview failed")]
#[case::an_open_path_needs_no_review("/livez", "Bearer outage", 200, "ok")]
#[case::an_open_prefix("/readyz/plugins", "", 200, "plugins")]
#[tokio::test]
async fn access_is_as_reviewed(
    #[case] path: &str,
    #[case] authorization: &str,
    #[case] status: u16,
    #[case] part: &str,
) {
    let api = FakeApi::default();
    let served = Served::start(CertificateSource::Memory, api.reviewers()).await;
    let answer = served.get(path, authorization).await;
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.body.contains(part), "{answer:?}");
    assert!(
        answer.head.contains("x-content-type-options: nosniff"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn reviews_carry_the_whole_user_and_are_remembered() {
    let api = FakeApi::default();
    let served = Served::start(CertificateSource::Memory, api.reviewers()).await;
    for _ in 0..3 {
        assert_eq!(served.get("/metrics", "Bearer alice").await.status, 200);
    }
    assert_eq!(
        (api.count("tokenreviews"), api.count("subjectaccessreviews")),
        (1, 1)
    );
    assert_eq!(
        api.last_spec(),
        json!({"user": "alice", "uid": "u-1", "groups": ["staff"], "extra": {"scopes": ["a"]},
               "nonResourceAttributes": {"path": "/metrics", "verb": "get"}})
    );
    for _ in 0..2 {
        assert_eq!(served.get("/metrics", "Bearer forged").await.status, 401);
        assert_eq!(served.get("/metrics", "Bearer bob").await.status, 403);
    }
    assert_eq!(
        (api.count("tokenreviews"), api.count("subjectaccessreviews")),
        (3, 2)
    );
}

#[tokio::test]
async fn a_failed_review_is_not_remembered() {
    let api = FakeApi::default();
    let served = Served::start(CertificateSource::Memory, api.reviewers()).await;
    for _ in 0..2 {
        assert_eq!(served.get("/metrics", "Bearer outage").await.status, 500);
    }
    assert_eq!(api.count("tokenreviews"), 2);
}

#[tokio::test]
async fn without_reviewers_only_open_paths_are_answered() {
    let served = Served::healthy().await;
    assert_eq!(served.get("/metrics", "Bearer alice").await.status, 403);
    assert_eq!(served.get("/livez", "").await.status, 200);
}

#[rstest]
#[case::in_short("/readyz", 500, &["[-]election failed: not yet", "[+]stores ok", "readyz check failed"])]
#[case::excluded("/readyz?exclude=election", 200, &["ok"])]
#[case::excluded_in_full("/readyz?verbose&exclude=election&exclude=x", 200,
    &["[+]election excluded: ok", "[+]stores ok", "warn: no check \"x\"", "readyz check passed"])]
#[case::plugins_are_named("/readyz?verbose", 500, &["[ ]plugin local Gone since 2026-01-01T00:00:00Z: refused; lb is shut: its calls come to nothing"])]
#[case::as_json("/readyz/plugins", 200, &["\"state\": \"Gone\"", "\"since\": \"2026-01-01T00:00:00Z\"", "\"restarts\": 3"])]
#[case::liveness_is_another_thing("/livez", 200, &["ok"])]
#[case::the_alias("/healthz?verbose", 200, &["[+]ping ok", "[+]queue ok", "livez check passed"])]
#[tokio::test]
async fn health_is_told_in_kubernetes_form(#[case] path: &str, #[case] status: u16, #[case] lines: &[&str]) {
    let served = Served::healthy().await;
    let _election = served.health.condition("election");
    served.health.condition("stores").met();
    let _heartbeat = served.health.heartbeat("queue", Duration::from_mins(10));
    served.health.show_plugin(PluginState {
        name: "local".into(),
        state: "Gone",
        since: Timestamp(1_767_225_600_000_000),
        message: "refused".into(),
        held_back: vec!["lb is shut: its calls come to nothing".into()],
        details: [("restarts".to_owned(), json!(3))].into(),
    });
    let answer = served.get(path, "").await;
    assert_eq!(answer.status, status, "{answer:?}");
    for line in lines {
        assert!(answer.body.contains(line), "no {line:?} in {answer:?}");
    }
}

#[tokio::test]
async fn a_plugin_that_is_gone_leaves_the_host_ready() {
    let served = Served::healthy().await;
    served.health.condition("stores").met();
    served.health.show_plugin(PluginState {
        name: "local".into(),
        state: "Gone",
        since: Timestamp(0),
        message: String::new(),
        held_back: Vec::new(),
        details: std::collections::BTreeMap::new(),
    });
    let answer = served.get("/readyz", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
}

#[tokio::test]
async fn a_stuck_loop_turns_liveness_red() {
    let served = Served::healthy().await;
    let _heartbeat = served.health.heartbeat("queue", Duration::ZERO);
    // The boot-time clock has moved on since the beat once the request arrives.
    let answer = served.get("/livez", "").await;
    assert_eq!(answer.status, 500);
    assert!(
        answer.body.contains("[-]queue failed: no sign of life"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn stopping_the_tasks_ends_the_server() {
    let served = Served::healthy().await;
    let idle = TcpStream::connect(served.address).await.unwrap();
    served.get("/livez", "").await;
    drop(idle);
    assert_eq!(served.tasks.stop(DEADLINE).await, Ok(()));
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn a_renewed_certificate_is_presented_to_new_connections() {
    let folder = tempfile::tempdir().unwrap();
    let write = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("crt"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key"), made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    };
    let first = write();
    let files = CertificateSource::Files {
        certificate: folder.path().join("crt"),
        key: folder.path().join("key"),
    };
    let served = Served::start(files, Reviewers::default()).await;
    assert_eq!(served.get("/livez", "").await.certificate, first);
    let second = write();
    let renewed = async { while served.get("/livez", "").await.certificate != second {} };
    tokio::time::timeout(DEADLINE, renewed)
        .await
        .expect("the renewed certificate is not presented");
}

#[tokio::test]
async fn a_taken_port_is_an_error_that_names_address_and_flag() {
    let first = bind(config(CertificateSource::Memory)).await.unwrap();
    let error = bind(AdminConfig {
        address: first.address(),
        ..config(CertificateSource::Memory)
    })
    .await
    .unwrap_err();
    assert_eq!(error.exit(), Exit::Bind);
    let text = Chain(&error).to_string();
    assert!(
        text.contains(&first.address().to_string()) && text.contains("--secure-port"),
        "{text}"
    );
}

#[tokio::test]
async fn the_port_file_holds_the_bound_port_and_nothing_is_left_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port");
    let listener = bind(AdminConfig {
        port_file: Some(path.clone()),
        ..config(CertificateSource::Memory)
    })
    .await
    .unwrap();
    let written: u16 = std::fs::read_to_string(&path).unwrap().trim().parse().unwrap();
    assert_eq!(written, listener.address().port());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_port_file_that_cannot_be_written_is_named() {
    let path = Path::new("/nowhere/port").to_owned();
    let error = bind(AdminConfig {
        port_file: Some(path),
        ..config(CertificateSource::Memory)
    })
    .await
    .unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    assert!(
        error.to_string().contains("--secure-port-file /nowhere/port"),
        "{error}"
    );
}
