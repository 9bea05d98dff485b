//! The files by which a plugin on a network proves itself and knows its hosts: read again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// The files for mutual TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The plugin's certificate, with its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that sign the certificates of hosts: whoever has one of theirs may connect.
    pub client_ca: PathBuf,
}

/// Why the files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is no PEM, or of another kind.
    #[error("there is no {what} in PEM in {path:?}: {source}")]
    Pem {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: pem::Error,
    },
    /// A certificate of the authorities is none.
    #[error("a certificate authority in {path:?} cannot be used: {source}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// Nobody could be let in.
    #[error("the certificate authorities in {path:?} cannot be used: {source}")]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: VerifierBuilderError,
    },
    /// Certificate and key are of no use together.
    #[error(
        "cannot use the certificate {cert:?} with the key {key:?}: {source}; give a certificate and its own key"
    )]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
}

/// What counts now, and the files that say what counts next.
#[derive(Debug)]
pub(crate) struct Credentials {
    files: TlsFiles,
    current: Arc<ServerConfig>,
    /// What `current` was made of.
    content: Content,
    /// What was complained of last, so that it is said once.
    complaint: Option<String>,
}

#[derive(PartialEq, Eq)]
struct Content {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

impl Credentials {
    pub(crate) async fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let content = Content::read(&files).await?;
        Ok(Self {
            current: content.parse(&files)?,
            content,
            files,
            complaint: None,
        })
    }

    /// What the files say now. While they say nothing that can be used, as when one of a pair has been replaced and the
    /// other not yet, what they said before.
    pub(crate) async fn current(&mut self) -> Arc<ServerConfig> {
        match self.refresh().await {
            Ok(()) => self.complaint = None,
            Err(error) => {
                let complaint = error.to_string();
                if self.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(
                        error = complaint,
                        "keeping the last good certificates until the files are in order"
                    );
                    self.complaint = Some(complaint);
                }
            }
        }
        Arc::clone(&self.current)
    }

    async fn refresh(&mut self) -> Result<(), TlsError> {
        let content = Content::read(&self.files).await?;
        if content == self.content {
            return Ok(());
        }
        self.current = content.parse(&self.files)?;
        self.content = content;
        let TlsFiles { cert, client_ca, .. } = &self.files;
        tracing::info!(cert = %cert.display(), client_ca = %client_ca.display(), "new certificates count from now on");
        Ok(())
    }
}

impl Content {
    async fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = async |path: &Path| {
            let bytes = tokio::fs::read(path).await;
            bytes.map_err(|source| TlsError::Read {
                path: path.to_owned(),
                source,
            })
        };
        Ok(Self {
            cert: read(&files.cert).await?,
            key: read(&files.key).await?,
            client_ca: read(&files.client_ca).await?,
        })
    }

    fn parse(&self, files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
        let pair = |source| TlsError::Pair {
            cert: files.cert.clone(),
            key: files.key.clone(),
            source,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = self.authorities(&files.client_ca)?;
        let hosts = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|source| TlsError::Authorities {
                path: files.client_ca.clone(),
                source,
            })?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|source| TlsError::Pem {
            what: "private key",
            path: files.key.clone(),
            source,
        })?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(pair)?
            .with_client_cert_verifier(hosts)
            .with_single_cert(certificates(&files.cert, &self.cert)?, key)
            .map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // By a ticket a host would come back without its certificate being looked at again.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn authorities(&self, path: &Path) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path, &self.client_ca)? {
            roots.add(certificate).map_err(|source| TlsError::Authority {
                path: path.to_owned(),
                source,
            })?;
        }
        Ok(roots)
    }
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    certificates
        .and_then(|all| {
            if all.is_empty() {
                Err(pem::Error::NoItemsFound)
            } else {
                Ok(all)
            }
        })
        .map_err(|source| TlsError::Pem {
            what: "certificate",
            path: path.to_owned(),
            source,
        })
}

impl std::fmt::Debug for Content {
    /// Without the key.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Content").finish_non_exhaustive()
    }
}
