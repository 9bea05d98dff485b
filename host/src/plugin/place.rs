//! Where processes of a plugin may be found, now.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// How often sockets are looked for: a newer process of a plugin makes itself known by nothing else.
pub(crate) const RESCAN: Duration = Duration::from_secs(1);

/// One place where a process may listen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// How it is reached.
    pub(crate) address: Address,
    /// Which file the socket is; `None`: there is none, or it does not matter.
    pub(crate) stamp: Option<Stamp>,
}

/// How a process is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Address {
    /// A unix socket.
    Socket(PathBuf),
    /// A port on a network.
    Network {
        /// A DNS name or an IP address.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(formatter, "{}", path.display()),
            Self::Network { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            Self::Network { host, port } => write!(formatter, "{host}:{port}"),
        }
    }
}

/// Tells a socket from another one that was bound to the same path later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    /// The number of an inode is used again.
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of a file.
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The places of one plugin. Whoever holds the sender looks for them.
pub(crate) type Places = watch::Receiver<BTreeSet<Place>>;

/// One place that stays as it is.
pub(crate) fn fixed(address: Address) -> Places {
    let place = Place { address, stamp: None };
    watch::Sender::new(BTreeSet::from([place])).subscribe()
}

/// Looks again and again which file a socket's path is. A path that cannot be read is a place without a file: whoever
/// connects to it finds out why. Ends when nobody listens.
pub(crate) async fn follow(socket: &Path, places: &watch::Sender<BTreeSet<Place>>) {
    while !places.is_closed() {
        let place = Place {
            address: Address::Socket(socket.to_owned()),
            stamp: stamp(socket).await.ok(),
        };
        let now = BTreeSet::from([place]);
        places.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
        sleep(RESCAN).await;
    }
}

async fn stamp(socket: &Path) -> io::Result<Stamp> {
    Ok(Stamp::of(&tokio::fs::symlink_metadata(socket).await?))
}
