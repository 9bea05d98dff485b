//! Certificates, and clients that have them.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_plugin::TlsFiles;
use bulkhead_plugin::v1::cloud_provider_client::CloudProviderClient;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::fixture::{Host, PATIENCE};

/// The name in plugins' certificates.
const PLUGIN: &str = "plugin.test";
/// The name in hosts' certificates.
pub(crate) const HOST: &str = "host.test";

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub(crate) struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn plugin(&self) -> Identity {
        self.sign(PLUGIN, |_| {})
    }

    pub(crate) fn host(&self) -> Identity {
        self.sign(HOST, |_| {})
    }

    pub(crate) fn expired_host(&self) -> Identity {
        self.sign(HOST, |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1))
    }

    fn sign(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        adjust(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity { certificate, key }
    }
}

impl Identity {
    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

/// The files of a plugin.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(folder: &Path, plugin: &Identity, authorities: &[&Authority]) -> Self {
        let files = Self(folder.to_owned());
        files.set_plugin(plugin);
        files.set_authorities(authorities);
        files
    }

    pub(crate) fn all(&self) -> TlsFiles {
        let [cert, key, client_ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| self.0.join(name));
        TlsFiles { cert, key, client_ca }
    }

    pub(crate) fn set_plugin(&self, plugin: &Identity) {
        self.set_certificate(plugin);
        self.set_key(plugin);
    }

    pub(crate) fn set_certificate(&self, plugin: &Identity) {
        std::fs::write(self.all().cert, plugin.pem()).unwrap();
    }

    pub(crate) fn set_key(&self, plugin: &Identity) {
        std::fs::write(self.all().key, plugin.key_pem()).unwrap();
    }

    pub(crate) fn set_authorities(&self, authorities: &[&Authority]) {
        let bundle: String = authorities.iter().map(|authority| authority.pem()).collect();
        std::fs::write(self.all().client_ca, bundle).unwrap();
    }
}

/// How a client comes.
pub(crate) fn client(
    trusts: &[&Authority],
    identity: Option<&Identity>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in trusts {
        roots.add(authority.0.der().clone()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => {
            let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
            builder
                .with_client_auth_cert(vec![identity.der().clone()], key)
                .unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// A client as hosts are: TLS 1.3, with a certificate.
pub(crate) fn host(trusts: &[&Authority], identity: &Identity) -> Arc<ClientConfig> {
    client(trusts, Some(identity), &[&rustls::version::TLS13])
}

/// Shakes hands. In TLS 1.3 the client's part succeeds before the server has seen the client's certificate.
pub(crate) async fn shake_hands(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(PLUGIN).unwrap();
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await
}

/// The session of a host over `stream`.
pub(crate) async fn session(stream: TlsStream<TcpStream>) -> Result<Host, tonic::transport::Error> {
    let mut once = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = once.take().ok_or_else(|| std::io::Error::other("one connection"));
        async move { stream }
    });
    let channel = Endpoint::from_static("http://plugin.test")
        .timeout(PATIENCE)
        .connect_with_connector(connector)
        .await?;
    Ok(Host {
        client: CloudProviderClient::new(channel.clone()),
        health: HealthClient::new(channel),
    })
}

/// Connects and asks one thing; what went wrong. On the heap, since tonic's futures are large.
pub(crate) fn ask(address: SocketAddr, config: &Arc<ClientConfig>) -> BoxFuture<'_, Result<(), String>> {
    Box::pin(async move {
        let stream = shake_hands(address, config)
            .await
            .map_err(|error| chain(&error))?;
        let mut host = session(stream).await.map_err(|error| chain(&error))?;
        let question = HealthCheckRequest::default();
        let answer = host.health.check(question).await;
        answer.map(drop).map_err(|status| chain(&status))
    })
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (**error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
