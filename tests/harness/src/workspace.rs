//! The folder of one test: everything its processes write is below it.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, anyhow, bail};
use tempfile::TempDir;

use crate::binaries::repository_root;

/// The longest path that a unix socket's address holds.
const UNIX_PATH_MAX: usize = 107;
/// What is left for the longest name of a socket below the folder, as `plugins/scripted/provider.sock`.
const SOCKET_NAME_MAX: usize = 60;
/// Says who uses a block of loopback addresses; below the node ports and the ephemeral ones.
const CLAIM_PORT: u16 = 29_999;
/// The blocks `127.64.x.0` to `127.127.x.0`: far from 127.0.x.x, which demos and people use.
const BLOCKS: u16 = 64 * 256;

/// A temporary folder with a short path, a block of loopback addresses of its own, and a memory of whether
/// the test failed: then the logs are kept in `target/e2e-logs/NAME`.
#[derive(Debug)]
pub struct Workspace {
    name: String,
    folder: TempDir,
    block: Block,
    failed: Arc<AtomicBool>,
    forbidden_because: Arc<OnceLock<&'static str>>,
}

#[derive(Debug)]
struct Block {
    first: Ipv4Addr,
    /// Held open: the block is ours while this listens.
    _claim: TcpListener,
}

/// Runs one scenario in a workspace of its own. An error, like a panic, keeps the logs.
///
/// # Errors
///
/// The scenario's error, or that the workspace cannot be made.
pub fn scenario<'a>(
    name: &'a str,
    run: impl AsyncFnOnce(&Workspace) -> Result<()> + 'a,
) -> impl Future<Output = Result<()>> + 'a {
    // A scenario is large: many processes are awaited in it.
    Box::pin(async move {
        let workspace = Workspace::new(name)?;
        let result = run(&workspace).await;
        if result.is_err() {
            workspace.mark_failed();
        }
        result
    })
}

impl Workspace {
    /// Makes the folder for the test `name`, below `TMPDIR` or `/tmp`.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or its path is so long that unix sockets below it would not work.
    pub fn new(name: &str) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bh-")
            .tempdir()
            .context("make the test's temporary folder")?;
        let length = folder.path().as_os_str().len();
        if length + SOCKET_NAME_MAX > UNIX_PATH_MAX {
            bail!(
                "{} leaves no room for unix socket paths ({UNIX_PATH_MAX} bytes): set TMPDIR to a shorter folder",
                folder.path().display()
            );
        }
        fs::create_dir(folder.path().join("logs")).context("make the folder of logs")?;
        Ok(Self {
            name: name.to_owned(),
            folder,
            block: Block::claim()?,
            failed: Arc::default(),
            forbidden_because: Arc::default(),
        })
    }

    /// The test's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder; removed at the end.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the folder; nothing is made there.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Where processes write their logs.
    pub fn logs(&self) -> PathBuf {
        self.join("logs")
    }

    /// The address 127.x.y.`host`, in a /24 that no other workspace on this machine uses meanwhile. 254 is
    /// taken.
    pub fn loopback(&self, host: u8) -> Ipv4Addr {
        let [a, b, c, _] = self.block.first.octets();
        Ipv4Addr::new(a, b, c, host)
    }

    /// Keeps the logs although the test does not panic.
    pub fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Says why the test means API servers to refuse something (403). In all other tests of a whole run that is a
    /// finding. Said once; later reasons are ignored.
    pub fn provokes_refusals(&self, because: &'static str) {
        self.forbidden_because.get_or_init(|| because);
    }

    pub(crate) fn forbidden_because(&self) -> Arc<OnceLock<&'static str>> {
        Arc::clone(&self.forbidden_because)
    }

    fn keep_logs(&self) -> Result<PathBuf> {
        let kept = repository_root()
            .join("target/e2e-logs")
            .join(self.name.replace("::", "."));
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        fs::create_dir_all(&kept)?;
        for log in fs::read_dir(self.logs())? {
            let log = log?;
            fs::copy(log.path(), kept.join(log.file_name()))?;
        }
        Ok(kept.canonicalize()?)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if std::thread::panicking() || self.failed.load(Ordering::Relaxed) {
            report(&self.name, &self.keep_logs());
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the test runner shows this beside the failed test"
)]
fn report(test: &str, kept: &Result<PathBuf>) {
    match kept {
        Ok(folder) => eprintln!("{test} failed; its logs are in {}", folder.display()),
        Err(error) => eprintln!("{test} failed, and its logs could not be kept: {error:#}"),
    }
}

impl Block {
    /// Tests run in several processes at once: an address on which one listens is the claim that all see.
    fn claim() -> Result<Self> {
        let offset = u16::try_from(std::process::id() % u32::from(BLOCKS))?;
        (0..BLOCKS)
            .map(|step| (offset + step) % BLOCKS)
            .find_map(|number| {
                let [high, low] = number.to_be_bytes();
                let claim = TcpListener::bind((Ipv4Addr::new(127, 64 + high, low, 254), CLAIM_PORT)).ok()?;
                Some(Self {
                    first: Ipv4Addr::new(127, 64 + high, low, 0),
                    _claim: claim,
                })
            })
            .ok_or_else(|| anyhow!("no free block of loopback addresses in 127.64.0.0/10"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workspaces_share_no_address() {
        let (one, other) = (Workspace::new("one").unwrap(), Workspace::new("other").unwrap());
        assert_ne!(one.loopback(1), other.loopback(1));
    }

    #[test]
    fn the_folder_is_gone_after_a_test_that_passed() {
        let workspace = Workspace::new("passes").unwrap();
        let path = workspace.path().to_path_buf();
        assert!(path.is_dir());
        drop(workspace);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_scenario_that_ends_in_an_error_keeps_its_logs() {
        let name = format!("kept-{}", uuid::Uuid::new_v4());
        let result = scenario(&name, async |workspace| {
            fs::write(workspace.logs().join("host.log"), "last words")?;
            Err(anyhow!("as intended"))
        })
        .await;
        assert!(result.is_err());
        let kept = repository_root().join("target/e2e-logs").join(&name);
        assert_eq!(fs::read_to_string(kept.join("host.log")).unwrap(), "last words");
        fs::remove_dir_all(kept).unwrap();
    }
}
