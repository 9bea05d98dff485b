//! Plugins on a network: both sides prove who they are.

use std::net::SocketAddr;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rstest::rstest;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use super::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for `name`, and its key.
fn certificate(authority: &Authority, name: &str, expired: bool) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    if expired {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// A plugin behind TLS: what comes is handed on to its socket.
async fn serve(
    socket: &Path,
    plugin: &Authority,
    host: &Authority,
    expired: bool,
    tasks: &Tasks,
) -> SocketAddr {
    let mut roots = RootCertStore::empty();
    roots.add(host.der().clone()).unwrap();
    let (certificate, key) = certificate(plugin, "plugin.test", expired);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from(certificate)],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (socket, tasks, stop) = (socket.to_owned(), tasks.clone(), tasks.stop_token().clone());
    let connections = tasks.clone();
    let accept = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, socket) = (acceptor.clone(), socket.clone());
            drop(connections.spawn_finite("connection", async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let mut inner = UnixStream::connect(socket).await.unwrap();
                    drop(copy_bidirectional(&mut stream, &mut inner).await);
                }
            }));
        }
    };
    drop(tasks.spawn_finite("proxy", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept => {}
        }
    }));
    address
}

/// What a host has: its files, signed by `own`, and whom it trusts.
fn files(folder: &Path, own: &Authority, trusts: &Authority) -> TlsConfig {
    let (certificate, key) = certificate(own, "host.test", false);
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    TlsConfig {
        ca_file: write("ca.pem", trusts.pem()),
        cert_file: write("cert.pem", certificate.pem()),
        key_file: write("key.pem", key.serialize_pem()),
        server_name: Some("plugin.test".to_owned()),
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::Https {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

#[tokio::test]
async fn both_sides_prove_themselves_and_rotated_files_are_used_by_the_next_session() {
    let (folder, tasks) = (TempDir::new().unwrap(), Tasks::new());
    let (host_ca, plugin_ca, new_ca) = (authority(), authority(), authority());
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let address = serve(&server.socket, &plugin_ca, &host_ca, false, &tasks).await;
    let tls = files(folder.path(), &host_ca, &plugin_ca);
    let host = Host::start(endpoint(address), Standing::Leading(term(1)), |settings| {
        settings.tls = Some(tls.clone());
    });
    host.is(SessionState::Active).await;
    // Authorities, certificates and keys are replaced on both sides.
    files(folder.path(), &new_ca, &new_ca);
    host.is(SessionState::Active).await;
    drop(server);
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    host.sees(|view| view.reason.contains("certificate")).await;
    files(folder.path(), &host_ca, &plugin_ca);
    host.is(SessionState::Active).await;
    drop(server);
}

#[rstest]
#[case::an_authority_that_the_host_does_not_trust(false, true, false, "invalid peer certificate")]
#[case::a_name_that_is_another(false, false, true, "not valid for name")]
#[case::an_expired_certificate(true, false, false, "expired")]
#[tokio::test]
async fn a_plugin_that_cannot_prove_itself_is_refused(
    #[case] expired: bool,
    #[case] distrusted: bool,
    #[case] misnamed: bool,
    #[case] expected: &str,
) {
    let (folder, tasks) = (TempDir::new().unwrap(), Tasks::new());
    let (host_ca, plugin_ca) = (authority(), authority());
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let address = serve(&server.socket, &plugin_ca, &host_ca, expired, &tasks).await;
    let mut tls = files(
        folder.path(),
        &host_ca,
        if distrusted { &host_ca } else { &plugin_ca },
    );
    if misnamed {
        tls.server_name = Some("other.test".to_owned());
    }
    let host = Host::start(endpoint(address), Standing::Standby, |settings| {
        settings.tls = Some(tls);
    });
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert_eq!(view.session, 0);
    assert!(view.reason.contains(expected), "{}", view.reason);
}

#[tokio::test]
async fn a_host_that_the_plugin_does_not_trust_gets_no_session() {
    let (folder, tasks) = (TempDir::new().unwrap(), Tasks::new());
    let (host_ca, plugin_ca, stranger) = (authority(), authority(), authority());
    let server = Server::start(&folder.path().join("p.sock"), Scripted::new(|_| {}));
    let address = serve(&server.socket, &plugin_ca, &host_ca, false, &tasks).await;
    let tls = files(folder.path(), &stranger, &plugin_ca);
    let host = Host::start(endpoint(address), Standing::Standby, |settings| {
        settings.tls = Some(tls);
    });
    let view = host.sees(|view| !view.reason.is_empty()).await;
    assert_eq!(view.session, 0, "{}", view.reason);
}
