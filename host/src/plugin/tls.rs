//! `https://` endpoints: TLS 1.3 in which both sides prove who they are.
//!
//! The files are read for each connection, so that what was rotated is used by the next session and nobody has to watch
//! for it. A session that lives keeps what it was begun with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::TlsConfig;
use crate::pem::{self, PemError};

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// A certificate of the authorities is none.
    #[error("a certificate authority in {} cannot be used", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// Certificate and key are of no use.
    #[error("cannot use {} with {}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// The name is none that a certificate could have.
    #[error("{name:?} is no name that a certificate could have; set another server name")]
    Name {
        /// The name.
        name: String,
    },
    /// The two do not trust each other.
    #[error("no TLS connection")]
    Handshake(#[source] std::io::Error),
}

/// Proves this host to the plugin at the other end of `stream`, and lets it prove that it is `host`.
pub(super) async fn connect(
    stream: TcpStream,
    host: &str,
    config: &TlsConfig,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = config.server_name.as_deref().unwrap_or(host);
    let server = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name {
        name: name.to_owned(),
    })?;
    let client = client(config).await?;
    TlsConnector::from(Arc::new(client))
        .connect(server, stream)
        .await
        .map_err(TlsError::Handshake)
}

/// By what the plugin refuses this host, if that is what ended a stream. It comes after the handshake: in TLS 1.3 the
/// host's certificate is the last thing that is looked at.
pub(super) fn refusal(error: &std::io::Error) -> Option<AlertDescription> {
    if let rustls::Error::AlertReceived(alert) = error.get_ref()?.downcast_ref()? {
        return Some(*alert);
    }
    None
}

async fn client(files: &TlsConfig) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca_file).await? {
        roots.add(certificate).map_err(|source| TlsError::Authority {
            path: files.ca_file.clone(),
            source,
        })?;
    }
    let key = pem::private_key(&files.key_file, &pem::read(&files.key_file).await?)?;
    let pair = |source| TlsError::Pair {
        cert: files.cert_file.clone(),
        key: files.key_file.clone(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(pair)?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(&files.cert_file).await?, key)
        .map_err(pair)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(client)
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    pem::certificates(path, &pem::read(path).await?)
}
