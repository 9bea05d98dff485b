//! A port on a network: who is let in, and that certificates change while calls run.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_plugin::port::PortError;
use bulkhead_plugin::tls::TlsError;
use bulkhead_plugin::{ServeError, ServeOptions, serve_until};
use rstest::rstest;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, SupportedProtocolVersion};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::certificates::{Authority, Files, HOST, Identity, ask, client, host, session, shake_hands};
use crate::cloud::{Cloud, CountingProvider};
use crate::fixture::{LONG, PATIENCE, eventually};
use crate::process::example;

/// More than a plugin takes at once.
const CROWD: usize = 100;

/// The example on a port, as a process whose log can be read.
struct Process {
    _child: Child,
    address: SocketAddr,
    log: std::path::PathBuf,
    folder: tempfile::TempDir,
}

impl Process {
    async fn start(make: impl FnOnce(&std::path::Path) -> Files) -> (Self, Files) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let files = make(folder.path());
        let all = files.all();
        let child = Command::new(example())
            .args(["--endpoint", "https://127.0.0.1:0"])
            .arg("--tls-cert-file")
            .arg(all.cert)
            .arg("--tls-private-key-file")
            .arg(all.key)
            .arg("--client-ca-file")
            .arg(all.client_ca)
            .env_remove("BULKHEAD_SPAWNED")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut process = Self {
            _child: child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
            folder,
        };
        process.says("https://").await;
        let line = process.log();
        let address = line
            .split("https://")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        process.address = address.unwrap().parse().unwrap();
        (process, files)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    async fn says(&self, text: &str) {
        eventually(text, async || self.count(text) > 0).await;
    }
}

#[tokio::test]
async fn a_host_with_a_certificate_of_the_authority_is_let_in_and_named_in_the_log() {
    let (plugins, hosts) = (Authority::new("plugins"), Authority::new("hosts"));
    let (plugin, _) = Process::start(|at| Files::new(at, &plugins.plugin(), &[&hosts])).await;
    let config = host(&[&plugins], &hosts.host());
    ask(plugin.address, &config).await.expect("let in");
    plugin.says(&format!("\"names\":\"{HOST}\"")).await;

    // Whoever comes again proves itself again.
    for _ in 0..2 {
        let stream = shake_hands(plugin.address, &config).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
        session(stream).await.expect("a session");
    }
    assert_eq!(plugin.count("refused"), 0, "{}", plugin.log());
    drop(plugin.folder);
}

#[rstest]
#[case::tls_1_2(|_: &Authority, hosts: &Authority| (Some(hosts.host()), &TLS12), "ProtocolVersion", "peer is incompatible")]
#[case::no_certificate(|_: &Authority, _: &Authority| (None, &TLS13), "CertificateRequired", "peer sent no certificates")]
#[case::another_authority(|other: &Authority, _: &Authority| (Some(other.host()), &TLS13), "UnknownCA", "UnknownIssuer")]
#[case::expired(|_: &Authority, hosts: &Authority| (Some(hosts.expired_host()), &TLS13), "CertificateExpired", "certificate expired")]
#[tokio::test]
async fn a_client_that_cannot_prove_itself_is_refused_and_both_sides_say_why(
    #[case] comes: impl Fn(&Authority, &Authority) -> (Option<Identity>, &'static SupportedProtocolVersion),
    #[case] client_says: &str,
    #[case] plugin_says: &str,
) {
    let (plugins, hosts) = (Authority::new("plugins"), Authority::new("hosts"));
    let (plugin, _) = Process::start(|at| Files::new(at, &plugins.plugin(), &[&hosts])).await;
    let (identity, version) = comes(&plugins, &hosts);
    let config = client(&[&plugins], identity.as_ref(), &[version]);
    let error = ask(plugin.address, &config).await.expect_err("refused");
    plugin.says("refused a peer").await;
    plugin.says(plugin_says).await;
    assert!(error.contains(client_says), "{error}");
    assert_eq!(plugin.count("has proved itself"), 0);
}

#[tokio::test]
async fn a_certificate_without_its_key_keeps_the_last_good_pair_and_is_told_once() {
    let (plugins, hosts) = (Authority::new("plugins"), Authority::new("hosts"));
    let (old, new) = (plugins.plugin(), plugins.plugin());
    let (plugin, files) = Process::start(|at| Files::new(at, &old, &[&hosts])).await;
    let config = host(&[&plugins], &hosts.host());
    let shown = async || {
        let stream = shake_hands(plugin.address, &config).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    files.set_certificate(&new);
    // Every connection looks at the files.
    for _ in 0..3 {
        assert_eq!(shown().await, *old.der());
    }
    plugin.says("keeping the last good certificates").await;
    assert_eq!(plugin.count("keeping the last good certificates"), 1);
    plugin.says("tls.crt").await;

    files.set_key(&new);
    assert_eq!(shown().await, *new.der());
    plugin.says("new certificates count from now on").await;

    std::fs::write(files.all().client_ca, "-----BEGIN CERTIFICATE-----\nMII").unwrap();
    ask(plugin.address, &config)
        .await
        .expect("by the last good authorities");
    plugin.says("ca.crt").await;
    assert_eq!(plugin.count("keeping the last good certificates"), 2);
}

#[tokio::test]
async fn peers_that_say_nothing_keep_nobody_out_and_are_dropped() {
    let (plugins, hosts) = (Authority::new("plugins"), Authority::new("hosts"));
    let (plugin, _) = Process::start(|at| Files::new(at, &plugins.plugin(), &[&hosts])).await;
    let mut silent = JoinSet::new();
    for _ in 0..CROWD {
        let mut stream = TcpStream::connect(plugin.address).await.unwrap();
        silent.spawn(async move { stream.read(&mut [0]).await });
    }
    let config = host(&[&plugins], &hosts.host());
    timeout(Duration::from_secs(2), ask(plugin.address, &config))
        .await
        .expect("long before the silent ones are dropped")
        .expect("let in");
    while let Some(ended) = timeout(PATIENCE, silent.join_next())
        .await
        .expect("dropped in time")
    {
        assert_eq!(ended.unwrap().unwrap_or_default(), 0);
    }
    plugin.says("refused more peers").await;
    plugin.says("its handshake took longer than 5s").await;
    assert!(plugin.count("refused a peer") < CROWD, "one line each");
}

/// A plugin in this process, on a free port.
async fn start(files: &Files, cloud: &Arc<Cloud>) -> (SocketAddr, JoinSet<Result<(), ServeError>>) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let options = ServeOptions::over_tls(&format!("https://{address}"), files.all()).unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve_until(
        CountingProvider(Arc::clone(cloud)),
        options,
        std::future::pending(),
    ));
    eventually("it listens", async || TcpStream::connect(address).await.is_ok()).await;
    (address, server)
}

#[tokio::test]
async fn certificates_and_authorities_of_both_sides_change_while_calls_run_and_none_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plugins, mut hosts) = (Authority::new("plugins 0"), Authority::new("hosts 0"));
    let files = Files::new(folder.path(), &plugins.plugin(), &[&hosts]);
    let cloud = Arc::new(Cloud::default());
    let (address, _server) = start(&files, &cloud).await;
    let stream = shake_hands(address, &host(&[&plugins], &hosts.host()))
        .await
        .unwrap();
    let mut resident = session(stream).await.unwrap();
    resident.lead("lease", 5, LONG).await.unwrap();
    resident.ready().await;
    let calls = AtomicUsize::new(0);
    let work = async {
        loop {
            let number = calls.fetch_add(1, Ordering::SeqCst);
            let answer = resident.ensure(&format!("bh-{}", number / 2), "").await;
            answer.unwrap_or_else(|status| panic!("call {number}: {status}"));
        }
    };
    let rotations = async {
        for round in 1..=3 {
            let (new_plugins, new_hosts) = (
                Authority::new(&format!("plugins {round}")),
                Authority::new(&format!("hosts {round}")),
            );
            let old_host = hosts.host();
            // First everybody trusts both authorities, then certificates change, then the old authorities go.
            files.set_authorities(&[&hosts, &new_hosts]);
            let trusted = [&plugins, &new_plugins];
            ask(address, &host(&trusted, &old_host))
                .await
                .expect("the old one");
            ask(address, &host(&trusted, &new_hosts.host()))
                .await
                .expect("the new one");
            let plugin = new_plugins.plugin();
            files.set_plugin(&plugin);
            let new_host = host(&[&new_plugins], &new_hosts.host());
            let stream = shake_hands(address, &new_host)
                .await
                .expect("by the new authority");
            assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0], *plugin.der());
            files.set_authorities(&[&new_hosts]);
            ask(address, &host(&trusted, &old_host))
                .await
                .expect_err("its authority is gone");
            ask(address, &new_host).await.expect("the new one");
            let before = calls.load(Ordering::SeqCst);
            eventually("calls go on", async || calls.load(Ordering::SeqCst) > before + 2).await;
            (plugins, hosts) = (new_plugins, new_hosts);
        }
    };
    tokio::select! {
        () = work => {}
        () = rotations => {}
    }
    assert!(cloud.creates.load(Ordering::SeqCst) > 0);
}

#[rstest]
#[case::no_certificate("tls.crt", None, |error: &TlsError| matches!(error, TlsError::Read { .. }))]
#[case::no_authority("ca.crt", Some(""), |error: &TlsError| matches!(error, TlsError::Pem { what: "certificate", .. }))]
#[case::no_key("tls.key", Some("key"), |error: &TlsError| matches!(error, TlsError::Pem { what: "private key", .. }))]
#[case::another_key("tls.key", Some("OTHER"), |error: &TlsError| matches!(error, TlsError::Pair { .. }))]
#[tokio::test]
async fn a_file_that_is_of_no_use_at_the_start_is_named(
    #[case] name: &str,
    #[case] content: Option<&str>,
    #[case] is_it: impl Fn(&TlsError) -> bool,
) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("both");
    let files = Files::new(folder.path(), &authority.plugin(), &[&authority]);
    match content {
        None => std::fs::remove_file(folder.path().join(name)).unwrap(),
        Some("OTHER") => files.set_key(&authority.plugin()),
        Some(text) => std::fs::write(folder.path().join(name), text).unwrap(),
    }
    let options = ServeOptions::over_tls("https://127.0.0.1:0", files.all()).unwrap();
    let error = serve_until(CountingProvider::default(), options, async {})
        .await
        .expect_err("refused");
    assert!(error.to_string().contains(name), "{error}");
    let ServeError::Port(PortError::Tls(error)) = error else {
        panic!("{error}");
    };
    assert!(is_it(&error), "{error}");
}
