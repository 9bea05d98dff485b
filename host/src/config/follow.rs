//! Follows the configuration file while the host runs.
//!
//! The content is compared, not the modification time: a mounted `ConfigMap` swaps links. A changed content counts once
//! two looks agree, since an editor that writes in place shows half a file for a moment, and half a list of plugins would
//! take the others away. SIGHUP makes it count at once.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::Config;
use super::file::{Source, digest};
use super::reload::{Change, Reload, changes};
use crate::cli::Stop;
use crate::tasks::Tasks;
use crate::telemetry::Detail;

/// Time between two looks at the file.
const PACE: Duration = Duration::from_secs(1);

/// Makes the configuration anew, from the same command line.
pub type Load = Box<dyn FnMut() -> Result<Config, Stop> + Send>;

/// What following a configuration takes.
pub struct Means {
    /// Called again for each content of the file that is new.
    pub load: Load,
    /// The log's detail, which changes at once.
    pub detail: Detail,
    /// SIGHUP.
    pub hangups: Signal,
}

impl fmt::Debug for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Means").finish_non_exhaustive()
    }
}

/// Starts the task that follows the file of `config`, if there is one. It says in the log what changes and what cannot.
/// Whoever holds the receiver sees one new value for each change, and makes it true.
pub fn follow(config: Config, means: Means, tasks: &Tasks) -> watch::Receiver<Arc<Config>> {
    let Means {
        load,
        detail,
        hangups,
    } = means;
    let file = config.file.clone();
    let (sender, receiver) = watch::channel(Arc::new(config));
    let stop = tasks.stop_token().clone();
    let follower = Follower {
        current: sender,
        load,
        detail,
    };
    tasks.spawn("configuration file", async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = follower.run(file, hangups) => stop.cancelled().await,
        }
    });
    receiver
}

struct Follower {
    current: watch::Sender<Arc<Config>>,
    load: Load,
    detail: Detail,
}

/// A content of the file: its digest, or why it cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Digest([u8; 32]),
    Unreadable(std::io::ErrorKind),
}

async fn look(path: &Path) -> Content {
    match tokio::fs::read(path).await {
        Ok(bytes) => Content::Digest(digest(&bytes)),
        Err(error) => Content::Unreadable(error.kind()),
    }
}

impl Follower {
    async fn run(mut self, file: Option<Source>, mut hangups: Signal) {
        let Some(Source { path, digest }) = file else {
            while hangups.recv().await.is_some() {
                tracing::info!("SIGHUP: there is no configuration file to read again");
            }
            return;
        };
        let mut tick = interval(PACE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What was read last, and what was seen last: a change counts when both of two looks have it.
        let mut known = Content::Digest(digest);
        let mut seen = known.clone();
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    let now = look(&path).await;
                    if now != known && now == seen {
                        self.reload("it has changed");
                        known.clone_from(&now);
                    }
                    seen = now;
                }
                Some(()) = hangups.recv() => {
                    known = look(&path).await;
                    seen.clone_from(&known);
                    self.reload("SIGHUP");
                }
            }
        }
    }

    /// Reads it, and publishes what can change.
    fn reload(&mut self, why: &str) {
        let new = match (self.load)() {
            Ok(new) => new,
            Err(stop) => {
                let said = stop.line();
                return tracing::error!(
                    "configuration not read again ({why}), the one before goes on: {said}"
                );
            }
        };
        let Reload {
            config,
            apply,
            refused,
        } = changes(&self.current.borrow(), &new);
        if apply.is_empty() && refused.is_empty() {
            tracing::info!("configuration read again ({why}): nothing is different");
        }
        for change in &apply {
            tracing::info!("configuration read again ({why}): {change}");
            if let Change::Verbosity(level) = change {
                self.detail.set(*level);
            }
        }
        if !refused.is_empty() {
            let fields = refused.join(", ");
            tracing::warn!("configuration read again ({why}): a restart is needed for changes of {fields}");
        }
        if !apply.is_empty() {
            self.current.send_replace(Arc::new(config));
        }
    }
}

#[cfg(test)]
mod tests;
