//! The load balancers on disk.
//!
//! One JSON file, replaced atomically and only by the holder of the [`Lock`], so that a plugin that
//! was killed at any moment finds either the old or the new content. A file that cannot be
//! understood is never overwritten and never taken for an empty one: addresses that Services have
//! would be given away again. It is copied aside, and nothing is served until a person has repaired
//! or removed it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::balancer::{Balancer, HealthCheck, Ports, ProxyProtocol, ServiceKey, Targets};
use crate::cidr::Cidr;

mod lock;

#[cfg(test)]
mod tests;

pub use lock::{Attempt, Holder, Lock, LockError};

/// Of the document; raised with every change that an older plugin would misread.
const VERSION: u32 = 2;

const FILE: &str = "balancers.json";

/// How many unreadable files are kept; more tell nothing new.
const KEPT_ASIDE: u32 = 9;

/// Why the stored load balancers cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is there and cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another plugin wrote it.
    #[error(
        "{path} has version {found}, this plugin knows version {VERSION}: run the plugin that wrote it, or remove the file (Services keep their addresses by their status)"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It is not what any plugin writes.
    #[error(
        "{path} is corrupt ({problem}): repair it, or remove it to start without load balancers ({copy})"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
        /// Where the content was kept, in words.
        copy: String,
    },
}

/// Why the load balancers could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The content could not be written out.
    #[error("cannot store the load balancers in {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The content could not be put into words.
    #[error("cannot write the load balancers as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    /// The thread that wrote was lost.
    #[error("storing the load balancers was interrupted: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// The state directory, while this process owns it.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    _lock: Lock,
}

impl Store {
    /// The directory that `lock` is held in.
    pub fn new(dir: &Path, lock: Lock) -> Self {
        Self {
            dir: dir.to_owned(),
            _lock: lock,
        }
    }

    /// Reads what is stored: none if nothing ever was.
    pub fn load(&self) -> Result<Vec<Balancer>, LoadError> {
        let path = self.dir.join(FILE);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(LoadError::Read { path, source }),
        };
        match decode(&content) {
            Ok(balancers) => Ok(balancers),
            Err(DecodeError::Version(found)) => Err(LoadError::Version { path, found }),
            Err(
                error @ (DecodeError::Json(_) | DecodeError::Twice { .. } | DecodeError::NoNodeSet { .. }),
            ) => {
                let copy = self.keep_aside(&content);
                Err(LoadError::Corrupt {
                    path,
                    problem: error.to_string(),
                    copy,
                })
            }
        }
    }

    /// Replaces the stored content: durable when this returns.
    pub fn write(&self, content: &[u8]) -> Result<(), SaveError> {
        let path = self.dir.join(FILE);
        replace(&self.dir, &path, content).map_err(|source| SaveError::Write { path, source })
    }

    /// Copies a content that cannot be understood to a name of its own, once; says where.
    fn keep_aside(&self, content: &[u8]) -> String {
        for number in 1..=KEPT_ASIDE {
            let path = self.dir.join(format!("{FILE}.corrupt-{number}"));
            let written = File::create_new(&path).and_then(|mut copy| copy.write_all(content));
            match written {
                Ok(()) => return format!("a copy is in {}", path.display()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if fs::read(&path).is_ok_and(|old| old == content) {
                        return format!("a copy is in {}", path.display());
                    }
                }
                Err(error) => return format!("no copy could be kept: {error}"),
            }
        }
        format!("no copy was kept: there are {KEPT_ASIDE} already")
    }
}

/// Write beside, flush, rename over, flush the directory: after a crash the name is either content.
fn replace(dir: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = dir.join(format!(".{FILE}.tmp"));
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(dir)?.sync_all()
}

/// The document. Hundreds of load balancers have the same nodes, so each set of nodes is there once.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document<Set> {
    version: u32,
    node_sets: Vec<Set>,
    balancers: Vec<Stored>,
}

/// A [`Balancer`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Stored {
    mark: String,
    cluster: String,
    service: ServiceKey,
    spec_digest: String,
    addresses: Vec<IpAddr>,
    ports: Ports,
    /// Which of the document's node sets, from 0.
    nodes: usize,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    sources: BTreeSet<Cidr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    health_check: Option<HealthCheck>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    affinity_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "is_off")]
    proxy_protocol: ProxyProtocol,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_off(proxy_protocol: &ProxyProtocol) -> bool {
    *proxy_protocol == ProxyProtocol::Off
}

#[derive(Debug, thiserror::Error)]
enum DecodeError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("version {0}")]
    Version(u32),
    #[error("{what} {value:?} is there twice")]
    Twice { what: &'static str, value: String },
    #[error("load balancer {mark:?} has node set {number}, and there is none")]
    NoNodeSet { mark: String, number: usize },
}

/// Puts load balancers into words.
pub fn encode<'a>(balancers: impl IntoIterator<Item = &'a Balancer>) -> Result<Vec<u8>, SaveError> {
    let mut sets = NodeSets::default();
    let balancers = balancers
        .into_iter()
        .map(|balancer| stored(balancer, &mut sets))
        .collect();
    let mut content = serde_json::to_vec(&Document {
        version: VERSION,
        node_sets: sets.all.iter().map(|set| &**set).collect(),
        balancers,
    })?;
    content.push(b'\n');
    Ok(content)
}

/// The node sets of a document that is being written.
#[derive(Default)]
struct NodeSets {
    all: Vec<Arc<Targets>>,
    numbers: BTreeMap<Arc<Targets>, usize>,
}

impl NodeSets {
    fn number(&mut self, targets: &Arc<Targets>) -> usize {
        // Most have the set of the one before, and that is the same in memory.
        if let Some(last) = self.all.last()
            && Arc::ptr_eq(last, targets)
        {
            return self.all.len() - 1;
        }
        let next = self.all.len();
        let number = *self.numbers.entry(Arc::clone(targets)).or_insert(next);
        if number == next {
            self.all.push(Arc::clone(targets));
        }
        number
    }
}

fn decode(content: &[u8]) -> Result<Vec<Balancer>, DecodeError> {
    /// Read alone and first: a newer document may differ in everything else.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_slice(content)?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let document: Document<Targets> = serde_json::from_slice(content)?;
    let (mut marks, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for balancer in &document.balancers {
        if !marks.insert(balancer.mark.clone()) {
            return Err(DecodeError::Twice {
                what: "mark",
                value: balancer.mark.clone(),
            });
        }
        for address in &balancer.addresses {
            if !addresses.insert(*address) {
                return Err(DecodeError::Twice {
                    what: "address",
                    value: address.to_string(),
                });
            }
        }
    }
    let Document {
        node_sets, balancers, ..
    } = document;
    let node_sets: Vec<Arc<Targets>> = node_sets.into_iter().map(Arc::new).collect();
    balancers
        .into_iter()
        .map(|stored| restored(stored, &node_sets))
        .collect()
}

fn stored(balancer: &Balancer, sets: &mut NodeSets) -> Stored {
    Stored {
        mark: balancer.mark.clone(),
        cluster: balancer.cluster.clone(),
        service: balancer.service.clone(),
        spec_digest: balancer.spec_digest.clone(),
        addresses: balancer.addresses.clone(),
        ports: balancer.ports.clone(),
        nodes: sets.number(&balancer.targets),
        sources: balancer.sources.clone(),
        health_check: balancer.health_check.clone(),
        affinity_seconds: balancer.affinity.map(|timeout| timeout.as_secs()),
        proxy_protocol: balancer.proxy_protocol,
    }
}

fn restored(stored: Stored, sets: &[Arc<Targets>]) -> Result<Balancer, DecodeError> {
    let Some(targets) = sets.get(stored.nodes) else {
        return Err(DecodeError::NoNodeSet {
            mark: stored.mark,
            number: stored.nodes,
        });
    };
    Ok(Balancer {
        mark: stored.mark,
        cluster: stored.cluster,
        service: stored.service,
        spec_digest: stored.spec_digest,
        addresses: stored.addresses,
        ports: stored.ports,
        targets: Arc::clone(targets),
        sources: stored.sources,
        health_check: stored.health_check,
        affinity: stored.affinity_seconds.map(Duration::from_secs),
        proxy_protocol: stored.proxy_protocol,
    })
}
