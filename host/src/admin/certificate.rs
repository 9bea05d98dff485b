//! The admin server's certificate: made in memory, or read from files and again when they change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::clock::Instant;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};

use super::write_atomically;
use crate::config::CertificateSource;
use crate::pem::{self, PemError};
use crate::telemetry::Chain;

/// Upstream's name for the pair of files and for the subject.
const NAME: &str = "cloud-controller-manager";
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read, or holds something else.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Certificate and key do not go together, or are of a kind that TLS here does not know.
    #[error("certificate {certificate} cannot be served")]
    Unusable {
        /// Where it comes from.
        certificate: String,
        /// Why not.
        source: rustls::Error,
    },
    /// No certificate could be made.
    #[error("cannot make a self-signed certificate")]
    SelfSign(#[source] rcgen::Error),
}

/// The certificate in use, and where to look for the next one.
#[derive(Debug)]
pub(super) struct Certificates {
    files: Option<Files>,
    current: Arc<ServerConfig>,
    /// Digest of the content last looked at, good or not.
    seen: Option<[u8; 32]>,
    checked: Instant,
    /// What was last complained of, so that it is said once.
    complaint: Option<String>,
}

/// A certificate chain and its key, as files.
#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

/// The files' content.
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Certificates {
    /// Reads or makes the first certificate.
    ///
    /// # Errors
    /// See [`CertificateError`].
    pub(super) fn load(source: CertificateSource, now: Instant) -> Result<Self, CertificateError> {
        let files = match source {
            CertificateSource::Memory => {
                let current = self_signed()?.1;
                return Ok(Self {
                    files: None,
                    current,
                    seen: None,
                    checked: now,
                    complaint: None,
                });
            }
            CertificateSource::Folder(folder) => Files::in_folder(&folder)?,
            CertificateSource::Files { certificate, key } => Files { certificate, key },
        };
        let pair = files.read()?;
        let current = files.parse(&pair)?;
        Ok(Self {
            files: Some(files),
            current,
            seen: Some(pair.digest()),
            checked: now,
            complaint: None,
        })
    }

    /// The certificate to serve now: the newest good one. Looks at the files at most once a second.
    pub(super) async fn current(&mut self, now: Instant) -> Arc<ServerConfig> {
        let is_due = now.saturating_since(self.checked) >= CHECK_PERIOD;
        if let Some(files) = self.files.clone().filter(|_| is_due) {
            self.checked = now;
            match self.refresh(&files).await {
                Ok(()) => self.complaint = None,
                Err(error) => self.complain(&error),
            }
        }
        Arc::clone(&self.current)
    }

    async fn refresh(&mut self, files: &Files) -> Result<(), CertificateError> {
        let pair = files.read_async().await?;
        let digest = pair.digest();
        if self.seen == Some(digest) {
            return Ok(());
        }
        // While both are being replaced they may not match for a moment: the next look sees other content.
        self.current = files.parse(&pair)?;
        self.seen = Some(digest);
        tracing::info!(certificate = %files.certificate.display(), "serving a new certificate");
        Ok(())
    }

    fn complain(&mut self, error: &CertificateError) {
        let complaint = Chain(error).to_string();
        if self.complaint.as_ref() != Some(&complaint) {
            tracing::warn!(
                error = complaint,
                "keeping the admin server's last good certificate"
            );
            self.complaint = Some(complaint);
        }
    }
}

impl Files {
    /// Upstream's pair of files in `folder`, made if there is none.
    fn in_folder(folder: &Path) -> Result<Self, CertificateError> {
        let files = Self {
            certificate: folder.join(NAME).with_extension("crt"),
            key: folder.join(NAME).with_extension("key"),
        };
        if files.certificate.exists() && files.key.exists() {
            return Ok(files);
        }
        let (pair, _) = self_signed()?;
        let write = |path: &Path, content: &[u8], mode| {
            let path = path.to_owned();
            write_atomically(&path, content, mode).map_err(|source| CertificateError::Write { path, source })
        };
        std::fs::create_dir_all(folder).map_err(|source| CertificateError::Write {
            path: folder.to_owned(),
            source,
        })?;
        write(&files.key, &pair.key, 0o600)?;
        write(&files.certificate, &pair.certificate, 0o644)?;
        Ok(files)
    }

    fn read(&self) -> Result<Pair, PemError> {
        let read = |path: &Path| std::fs::read(path).map_err(|source| PemError::read(path, source));
        Ok(Pair {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
        })
    }

    async fn read_async(&self) -> Result<Pair, PemError> {
        Ok(Pair {
            certificate: pem::read(&self.certificate).await?,
            key: pem::read(&self.key).await?,
        })
    }

    fn parse(&self, pair: &Pair) -> Result<Arc<ServerConfig>, CertificateError> {
        let chain = pem::certificates(&self.certificate, &pair.certificate)?;
        let key = pem::private_key(&self.key, &pair.key)?;
        let served = server_config(chain, key);
        served.map_err(|source| CertificateError::Unusable {
            certificate: self.certificate.display().to_string(),
            source,
        })
    }
}

impl Pair {
    fn digest(&self) -> [u8; 32] {
        let of_each = [Sha256::digest(&self.certificate), Sha256::digest(&self.key)];
        Sha256::digest(of_each.concat()).into()
    }
}

fn self_signed() -> Result<(Pair, Arc<ServerConfig>), CertificateError> {
    let make = || {
        let key = KeyPair::generate()?;
        let names = [NAME, "localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, NAME);
        Ok((params.self_signed(&key)?, key))
    };
    let (certificate, key) = make().map_err(CertificateError::SelfSign)?;
    let der = PrivatePkcs8KeyDer::from(key.serialize_der());
    let served = server_config(vec![certificate.der().clone()], der.into());
    let served = served.map_err(|source| CertificateError::Unusable {
        certificate: NAME.to_owned(),
        source,
    })?;
    let pair = Pair {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    };
    Ok((pair, served))
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
