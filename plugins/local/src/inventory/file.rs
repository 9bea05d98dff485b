//! Follows the inventory file.
//!
//! The content is compared once a second (not the modification time: a mounted volume swaps links).
//! A changed content counts once two reads a second apart agree: an editor that writes in place
//! shows half a file for a moment, and half a list would make the other half look gone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Inventory, ParseError, parse};
use crate::clock;

/// How often the file is read, and how long a new content must stay the same.
const PACE: Duration = Duration::from_secs(1);

/// 100,000 instances of 300 bytes and more; a larger file is a mistake.
const LARGEST_FILE: u64 = 64 * 1024 * 1024;

/// Why the file's present content is no inventory.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read the inventory {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is larger than any inventory.
    #[error("the inventory {path} has {size} bytes, more than {LARGEST_FILE}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
    /// It is not text.
    #[error("the inventory {path} is not UTF-8 text")]
    Encoding {
        /// The file.
        path: PathBuf,
    },
    /// Its text is wrong.
    #[error("inventory {path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, field and what is wrong.
        source: ParseError,
    },
}

/// The last good content.
#[derive(Debug, Clone)]
pub struct Read {
    /// What it says.
    pub inventory: Arc<Inventory>,
    /// When this content was taken: names it.
    pub taken: SystemTime,
    /// When the file last had exactly this content.
    pub as_of: SystemTime,
}

/// What is known now.
#[derive(Debug, Clone)]
pub struct View {
    /// The last good content; none if there never was one.
    pub good: Option<Read>,
    /// What is wrong with the file since when; `good` is old news then.
    pub broken: Option<(Arc<ReadError>, SystemTime)>,
    /// Whether the last read found a new content that has not been taken yet.
    pub settling: bool,
}

impl View {
    /// Whether `good` is what the file said at the last read.
    pub fn is_current(&self) -> bool {
        self.good.is_some() && self.broken.is_none() && !self.settling
    }
}

/// The file and what was read of it.
#[derive(Debug)]
pub struct InventoryFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    good: Option<(Vec<u8>, Read)>,
    broken: Option<(Arc<ReadError>, SystemTime)>,
    candidate: Option<Candidate>,
}

/// A new content and since when it is there.
#[derive(Debug)]
struct Candidate {
    content: Vec<u8>,
    since: Instant,
    refused: bool,
}

impl InventoryFile {
    /// A file that has not been read yet: [`InventoryFile::follow`] begins at once.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Reads the file now and says what is known after that.
    pub async fn look(&self) -> View {
        let content = self.read().await;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.observe(&self.path, content, clock::now());
        state.view()
    }

    /// What the last read said.
    pub fn view(&self) -> View {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).view()
    }

    /// Reads the file once a second, for ever.
    #[expect(clippy::infinite_loop, reason = "its owner ends it by dropping the task")]
    pub async fn follow(&self) {
        let mut ticks = interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    async fn read(&self) -> Result<Vec<u8>, ReadError> {
        let failed = |source| ReadError::Read {
            path: self.path.clone(),
            source,
        };
        let size = tokio::fs::metadata(&self.path).await.map_err(failed)?.len();
        if size > LARGEST_FILE {
            return Err(ReadError::TooLarge {
                path: self.path.clone(),
                size,
            });
        }
        tokio::fs::read(&self.path).await.map_err(failed)
    }
}

impl State {
    fn view(&self) -> View {
        View {
            good: self.good.as_ref().map(|(_, read)| read.clone()),
            broken: self.broken.clone(),
            settling: self.candidate.is_some(),
        }
    }

    /// One read of the file.
    fn observe(&mut self, path: &Path, content: Result<Vec<u8>, ReadError>, now: Instant) {
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                self.candidate = None;
                return self.breaks(error);
            }
        };
        if let Some((good, read)) = &mut self.good
            && *good == content
        {
            read.as_of = clock::wall();
            self.candidate = None;
            if self.broken.take().is_some() {
                tracing::info!(path = %path.display(), "the inventory is as it was");
            }
            return;
        }
        let settled = match &mut self.candidate {
            Some(candidate) if candidate.content == content => {
                !candidate.refused && now.duration_since(candidate.since) >= PACE
            }
            // Before the first good content there is nothing that a torn one could take away.
            other => {
                *other = Some(Candidate {
                    content: content.clone(),
                    since: now,
                    refused: false,
                });
                self.good.is_none()
            }
        };
        if settled {
            self.judge(path, content);
        }
    }

    fn judge(&mut self, path: &Path, content: Vec<u8>) {
        let judged = match std::str::from_utf8(&content) {
            Err(_) => Err(ReadError::Encoding {
                path: path.to_owned(),
            }),
            Ok(text) => parse(text).map_err(|source| ReadError::Parse {
                path: path.to_owned(),
                source,
            }),
        };
        match judged {
            Ok(inventory) => {
                tracing::info!(path = %path.display(), instances = inventory.len(), "inventory read");
                let now = clock::wall();
                let read = Read {
                    inventory: Arc::new(inventory),
                    taken: now,
                    as_of: now,
                };
                *self = Self {
                    good: Some((content, read)),
                    broken: None,
                    candidate: None,
                };
            }
            Err(error) => {
                if let Some(candidate) = &mut self.candidate {
                    candidate.refused = true;
                }
                self.breaks(error);
            }
        }
    }

    /// Logs a problem once, however often it is seen.
    fn breaks(&mut self, error: ReadError) {
        let known = self
            .broken
            .as_ref()
            .is_some_and(|(old, _)| old.to_string() == error.to_string());
        if known {
            return;
        }
        let kept = self.good.as_ref().map_or(0, |(_, read)| read.inventory.len());
        tracing::error!(%error, kept, "the inventory is broken: the last good one is kept");
        self.broken = Some((Arc::new(error), clock::wall()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "instances: [{id: i-1, name: a}]";
    const TWO: &str = "instances: [{id: i-1, name: a}, {id: i-2, name: b}]";

    fn ids(view: &View) -> usize {
        view.good.as_ref().map_or(0, |read| read.inventory.len())
    }

    async fn opened(content: &str) -> (tempfile::TempDir, PathBuf, InventoryFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("inventory.yaml");
        std::fs::write(&path, content).unwrap();
        let file = InventoryFile::new(&path);
        file.look().await;
        (dir, path, file)
    }

    #[tokio::test]
    async fn the_first_content_is_taken_at_once() {
        let (_dir, _path, file) = opened(ONE).await;
        assert!(file.view().is_current());
        assert_eq!(ids(&file.view()), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_content_is_taken_when_it_stays_for_a_second() {
        let (_dir, path, file) = opened(ONE).await;
        std::fs::write(&path, TWO).unwrap();
        let seen = file.look().await;
        assert_eq!((ids(&seen), seen.is_current()), (1, false));
        assert_eq!(
            ids(&file.look().await),
            1,
            "two looks at one moment prove nothing"
        );
        tokio::time::advance(PACE).await;
        let seen = file.look().await;
        assert_eq!((ids(&seen), seen.is_current()), (2, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_content_keeps_the_last_good_one_and_names_the_line() {
        let (_dir, path, file) = opened(ONE).await;
        std::fs::write(&path, "instances:\n- {id: 'a b', name: a}\n").unwrap();
        file.look().await;
        tokio::time::advance(PACE).await;
        let seen = file.look().await;
        assert_eq!((ids(&seen), seen.is_current()), (1, false));
        let (error, _) = seen.broken.unwrap();
        assert!(error.to_string().contains("line 2: id \"a b\""), "{error}");

        std::fs::write(&path, ONE).unwrap();
        assert!(
            file.look().await.is_current(),
            "the old content needs no second look"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_vanishes_and_returns_changes_nothing_between() {
        let (_dir, path, file) = opened(ONE).await;
        std::fs::remove_file(&path).unwrap();
        let seen = file.look().await;
        assert_eq!((ids(&seen), seen.is_current()), (1, false));
        std::fs::write(&path, ONE).unwrap();
        assert!(file.look().await.is_current());
    }

    #[tokio::test(start_paused = true)]
    async fn without_any_good_content_the_view_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let file = InventoryFile::new(&dir.path().join("none.yaml"));
        let view = file.look().await;
        assert!(view.good.is_none());
        assert!(
            view.broken
                .unwrap()
                .0
                .to_string()
                .starts_with("cannot read the inventory")
        );
    }
}
