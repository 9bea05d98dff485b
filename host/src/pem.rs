//! Certificates and keys out of PEM files, and what to say of a file that holds none.

use std::io;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a file gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds something else, or nothing.
    #[error("there is no {wanted} in PEM form that can be read in {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
        /// What the parser says.
        source: pem::Error,
    },
}

impl PemError {
    /// `path` cannot be read for this reason.
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    fn content(path: &Path, wanted: &'static str, source: pem::Error) -> Self {
        Self::Content {
            path: path.to_owned(),
            wanted,
            source,
        }
    }
}

/// The bytes of a file.
pub(crate) async fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    let content = tokio::fs::read(path).await;
    content.map_err(|source| PemError::read(path, source))
}

/// The certificates in `content`, which is that of `path`; at least one.
pub(crate) fn certificates(path: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all = CertificateDer::pem_slice_iter(content).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(none) if none.is_empty() => Err(pem::Error::NoItemsFound),
        result => result,
    }
    .map_err(|source| PemError::content(path, "certificate", source))
}

/// The private key in `content`, which is that of `path`.
pub(crate) fn private_key(path: &Path, content: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(content).map_err(|source| PemError::content(path, "private key", source))
}
