//! What plugins were asked, what they answered and what they wrote to their cloud, in order.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::script::Rpc;

/// One thing that happened. Times are nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A request arrived.
    Asked {
        /// The name of the plugin that was asked.
        plugin: String,
        /// Unique among the calls of one plugin process.
        number: u64,
        /// What was asked.
        rpc: Rpc,
        /// Names of nodes, or `namespace/name` of Services.
        about: Vec<String>,
        /// Of the intent; empty for reads.
        request_id: String,
        /// When.
        at: u64,
    },
    /// A request has ended.
    Ended {
        /// The name of the plugin.
        plugin: String,
        /// Of [`Entry::Asked`].
        number: u64,
        /// The gRPC status, as `Ok`; `Dropped` if the client gave the call up.
        code: String,
        /// When.
        at: u64,
    },
    /// The plugin was told who leads, and took it.
    Led(Grant),
    /// Something changed in the cloud.
    Wrote(Write),
}

/// A `Lead` that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The name of the plugin.
    pub plugin: String,
    /// The Lease's uid.
    pub lease: String,
    /// How often the Lease has changed hands.
    pub transitions: i64,
    /// The valid time that was sent, in milliseconds; 0 ends the term.
    pub valid_for: u64,
    /// Until when cloud writes may start; a time in the past if the `Lead` granted nothing.
    pub until: u64,
    /// When it arrived.
    pub at: u64,
}

/// A change of the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The name of the plugin.
    pub plugin: String,
    /// When it was started.
    pub began: u64,
    /// When it was done.
    pub ended: u64,
    /// What changed.
    pub change: Change,
}

/// What changed in the cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A load balancer was made.
    Created {
        /// Whose it is.
        mark: String,
        /// What it is reached by.
        address: String,
    },
    /// A load balancer got these ports and targets.
    Configured {
        /// Whose it is.
        mark: String,
        /// As `TCP/80`, sorted.
        ports: Vec<String>,
        /// Provider IDs, sorted.
        targets: Vec<String>,
    },
    /// A load balancer was removed.
    Deleted {
        /// Whose it was.
        mark: String,
    },
}

/// A call with its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The name of the plugin that was asked.
    pub plugin: String,
    /// What was asked.
    pub rpc: Rpc,
    /// Names of nodes, or `namespace/name` of Services.
    pub about: Vec<String>,
    /// Of the intent; empty for reads.
    pub request_id: String,
    /// When it arrived.
    pub began: u64,
    /// When it ended and how: a gRPC status as `Ok`, or `Dropped`. `None`: it has not, or the plugin died.
    pub ended: Option<(u64, String)>,
}

/// Keeps entries in memory, or in a file that outlives the process and that several may write.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Store>);

#[derive(Debug)]
enum Store {
    Memory(Mutex<Vec<Entry>>),
    /// One JSON text a line. A line is written in one go, and so never torn by another process.
    File(PathBuf),
}

impl Journal {
    /// A journal of this process.
    pub fn in_memory() -> Self {
        Self(Arc::new(Store::Memory(Mutex::default())))
    }

    /// A journal in a file, which need not exist yet.
    pub fn at(path: &Path) -> Self {
        Self(Arc::new(Store::File(path.to_owned())))
    }

    /// All entries so far.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let path = match &*self.0 {
            Store::Memory(entries) => {
                return Ok(entries.lock().unwrap_or_else(PoisonError::into_inner).clone());
            }
            Store::File(path) => path,
        };
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.with_context(|| format!("read the journal {}", path.display()))?,
        };
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let parse =
            |line| serde_json::from_str(line).with_context(|| format!("read the journal's line {line}"));
        complete.lines().map(parse).collect()
    }

    /// Adds one.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn add(&self, entry: Entry) -> Result<()> {
        match &*self.0 {
            Store::Memory(entries) => {
                entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
                Ok(())
            }
            Store::File(path) => {
                let line = format!("{}\n", serde_json::to_string(&entry)?);
                let mut file = OpenOptions::new().create(true).append(true).open(path)?;
                file.write_all(line.as_bytes())
                    .with_context(|| format!("write the journal {}", path.display()))
            }
        }
    }

    /// The calls of one RPC, in the order in which they arrived.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn calls(&self, rpc: Rpc) -> Result<Vec<Call>> {
        let mut calls: Vec<(u64, Call)> = Vec::new();
        for entry in self.entries()? {
            match entry {
                Entry::Asked {
                    plugin,
                    number,
                    rpc: asked,
                    about,
                    request_id,
                    at,
                } if asked == rpc => {
                    let call = Call {
                        plugin,
                        rpc,
                        about,
                        request_id,
                        began: at,
                        ended: None,
                    };
                    calls.push((number, call));
                }
                Entry::Ended {
                    plugin,
                    number,
                    code,
                    at,
                } => {
                    let is_it = |(asked, call): &&mut (u64, Call)| *asked == number && call.plugin == plugin;
                    // A later process of the same name counts from the start again: its calls are the last.
                    if let Some((_, call)) = calls.iter_mut().rev().find(is_it) {
                        call.ended = Some((at, code));
                    }
                }
                Entry::Asked { .. } | Entry::Led(_) | Entry::Wrote(_) => {}
            }
        }
        Ok(calls.into_iter().map(|(_, call)| call).collect())
    }

    /// The changes of the cloud, in the order in which they were done.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn writes(&self) -> Result<Vec<Write>> {
        let write = |entry| match entry {
            Entry::Wrote(write) => Some(write),
            Entry::Asked { .. } | Entry::Ended { .. } | Entry::Led(_) => None,
        };
        Ok(self.entries()?.into_iter().filter_map(write).collect())
    }

    /// How many load balancers were ever made, by anybody, for anybody.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn creates(&self) -> Result<usize> {
        let is_create = |write: &&Write| matches!(write.change, Change::Created { .. });
        Ok(self.writes()?.iter().filter(is_create).count())
    }

    /// The `Lead`s that were taken, in the order in which they arrived.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn grants(&self) -> Result<Vec<Grant>> {
        let grant = |entry| match entry {
            Entry::Led(grant) => Some(grant),
            Entry::Asked { .. } | Entry::Ended { .. } | Entry::Wrote(_) => None,
        };
        Ok(self.entries()?.into_iter().filter_map(grant).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_in_a_file_is_read_by_whoever_opens_it_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let write = Write {
            plugin: "a".to_owned(),
            began: 1,
            ended: 2,
            change: Change::Deleted { mark: "m".to_owned() },
        };
        assert!(Journal::at(&path).entries().unwrap().is_empty());
        Journal::at(&path).add(Entry::Wrote(write.clone())).unwrap();
        fs::write(&path, format!("{}{{\"Wro", fs::read_to_string(&path).unwrap())).unwrap();
        assert_eq!(
            Journal::at(&path).writes().unwrap(),
            [write],
            "and what is half written does not count"
        );
    }

    #[test]
    fn a_call_has_the_end_that_its_own_process_gave_it() {
        let journal = Journal::in_memory();
        let asked = |at| Entry::Asked {
            plugin: "a".to_owned(),
            number: 0,
            rpc: Rpc::Describe,
            about: Vec::new(),
            request_id: String::new(),
            at,
        };
        let end = Entry::Ended {
            plugin: "a".to_owned(),
            number: 0,
            code: "Ok".to_owned(),
            at: 9,
        };
        for entry in [asked(1), asked(5), end] {
            journal.add(entry).unwrap();
        }
        let ends: Vec<_> = journal
            .calls(Rpc::Describe)
            .unwrap()
            .into_iter()
            .map(|call| call.ended)
            .collect();
        assert_eq!(ends, [None, Some((9, "Ok".to_owned()))]);
    }
}
