//! Certificates of hosts and of plugins on a network, as files that are replaced while both run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};

/// The name in plugins' certificates.
pub const PLUGIN: &str = "plugin.test";
/// The name in hosts' certificates.
pub const HOST: &str = "host.test";

/// Signs certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If there is no key for it.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// A certificate for `name` that is good now.
    ///
    /// # Errors
    ///
    /// If there is no key for it.
    pub fn sign(&self, name: &str) -> Result<Identity> {
        self.signed(name, false)
    }

    /// A certificate for `name` that was good once.
    ///
    /// # Errors
    ///
    /// If there is no key for it.
    pub fn sign_expired(&self, name: &str) -> Result<Identity> {
        self.signed(name, true)
    }

    fn signed(&self, name: &str, is_expired: bool) -> Result<Identity> {
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        if is_expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate()?;
        Ok(Identity {
            cert: params.signed_by(&key, &self.0)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A certificate and its key, in PEM.
#[derive(Debug)]
pub struct Identity {
    cert: String,
    key: String,
}

/// The three files of one side. They are replaced one after the other, each never half.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
}

impl Files {
    /// Writes all three into `folder`, which is made.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn new(folder: PathBuf, identity: &Identity, trusted: &[&Authority]) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let files = Self { folder };
        files.prove_by(identity)?;
        files.trust(trusted)?;
        Ok(files)
    }

    /// Replaces certificate and key.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn prove_by(&self, identity: &Identity) -> Result<()> {
        self.replace("tls.crt", &identity.cert)?;
        self.replace("tls.key", &identity.key)
    }

    /// Replaces the authorities by which the other side is known.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    pub fn trust(&self, authorities: &[&Authority]) -> Result<()> {
        let bundle: String = authorities.iter().map(|authority| authority.0.pem()).collect();
        self.replace("ca.crt", &bundle)
    }

    fn replace(&self, name: &str, content: &str) -> Result<()> {
        let fresh = self.folder.join(format!("{name}.fresh"));
        fs::write(&fresh, content)?;
        Ok(fs::rename(fresh, self.path(name))?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The arguments by which a plugin uses them.
    pub fn arguments(&self) -> Vec<String> {
        let argument = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        vec![
            argument("tls-cert-file", &self.path("tls.crt")),
            argument("tls-private-key-file", &self.path("tls.key")),
            argument("client-ca-file", &self.path("ca.crt")),
        ]
    }

    /// The section of a plugin in the host's configuration by which the host uses them.
    pub fn section(&self) -> Value {
        json!({
            "certFile": self.path("tls.crt"),
            "keyFile": self.path("tls.key"),
            "caFile": self.path("ca.crt"),
            "serverName": PLUGIN,
        })
    }
}
