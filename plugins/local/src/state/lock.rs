//! The right to use a state directory: one process at a time.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const FILE: &str = "lock";

/// Why the lock can be neither had nor waited for.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// There is no directory and none can be made.
    #[error("cannot create the state directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The lock file cannot be opened, locked or written.
    #[error("cannot lock {path}: {source}")]
    File {
        /// The lock file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Who holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(Option<u32>);

impl Holder {
    /// The process, unless it has not written its ID yet.
    pub fn pid(self) -> Option<u32> {
        self.0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// What came of trying to take the lock.
#[derive(Debug)]
pub enum Attempt {
    /// It is ours.
    Held(Lock),
    /// It is somebody else's.
    Busy(Holder),
}

/// The lock, until dropped. The system takes it back from a process that dies in any way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Tries to take the lock of `dir`, which is made (mode 0700) if it is not there.
    pub fn attempt(dir: &Path) -> Result<Attempt, LockError> {
        let directory = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        directory.map_err(|source| LockError::Directory {
            path: dir.to_owned(),
            source,
        })?;
        let path = dir.join(FILE);
        Self::attempt_file(&path).map_err(|source| LockError::File { path, source })
    }

    fn attempt_file(path: &Path) -> io::Result<Attempt> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                file.rewind()?;
                writeln!(file, "{}", std::process::id())?;
                Ok(Attempt::Held(Self { _file: file }))
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.take(32).read_to_string(&mut text).ok();
                Ok(Attempt::Busy(Holder(text.trim().parse().ok())))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_waits_and_knows_for_whom() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("made/on/demand");
        let Attempt::Held(first) = Lock::attempt(&inner).unwrap() else {
            panic!("nobody else holds it")
        };
        let Attempt::Busy(holder) = Lock::attempt(&inner).unwrap() else {
            panic!("it is held")
        };
        assert_eq!(holder.pid(), Some(std::process::id()));
        drop(first);
        assert!(matches!(Lock::attempt(&inner).unwrap(), Attempt::Held(_)));
    }
}
