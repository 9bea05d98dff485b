//! Whether a socket may be connected to, judged by its file and its folder.
//!
//! Whoever can replace a socket can pose as the plugin. The root of a plugins directory may be open to all, as
//! Kubernetes makes it; below it nobody but the plugin's own user may write.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use bulkhead_core::endpoint::SOCKET_PATH_LIMIT;

/// Mode bits that let the group, and anybody, write.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Why a socket is not connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The path does not fit the kernel's address.
    #[error("the socket's path has {length} bytes, {SOCKET_PATH_LIMIT} is the most that a unix socket takes")]
    LongPath {
        /// The path's length in bytes.
        length: usize,
    },
    /// The path has no folder.
    #[error("{} is no path of a socket", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// The socket or its folder is a symlink.
    #[error("{} is a symlink; name the real path", path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} is no {expected}", path.display())]
    WrongType {
        /// What is there.
        path: PathBuf,
        /// What should be.
        expected: &'static str,
    },
    /// Others could put a socket of their own there.
    #[error("{} has mode {mode:04o}: {who} may write to it; take that right away (chmod {chmod})", path.display())]
    Writable {
        /// The socket or its folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Who may write.
        who: &'static str,
        /// What takes the right away.
        chmod: &'static str,
    },
    /// A user that is not allowed could put a socket of his own there.
    #[error("{} belongs to uid {uid}; allow that uid for this plugin if it is meant to", path.display())]
    Owner {
        /// The plugin's folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    Socket,
    Symlink,
    Other,
}

/// What decides about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) kind: Kind,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Its owner.
    pub(crate) uid: u32,
}

impl File {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let kind = metadata.file_type();
        Self {
            kind: match () {
                () if kind.is_symlink() => Kind::Symlink,
                () if kind.is_dir() => Kind::Folder,
                () if kind.is_socket() => Kind::Socket,
                () => Kind::Other,
            },
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
        }
    }
}

/// How strictly a folder is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folder<'a> {
    /// Somebody configured the socket's path and so trusts its folder's owner and group.
    Configured,
    /// Anybody may have made it in a plugins directory: it must belong to one of these users, and to him alone.
    Found(&'a [u32]),
}

/// Judges the folder of a socket.
pub(crate) fn judge_folder(path: &Path, file: File, folder: Folder<'_>) -> Result<(), Refusal> {
    is_a(path, file, Kind::Folder)?;
    nobody_else_writes(path, file, matches!(folder, Folder::Found(_)))?;
    match folder {
        Folder::Found(uids) if !uids.contains(&file.uid) => Err(Refusal::Owner {
            path: path.to_owned(),
            uid: file.uid,
        }),
        Folder::Found(_) | Folder::Configured => Ok(()),
    }
}

/// Judges a socket. Writing to it is connecting, which the group may: its owner is asked for when it is connected.
pub(crate) fn judge_socket(path: &Path, file: File) -> Result<(), Refusal> {
    is_a(path, file, Kind::Socket)?;
    nobody_else_writes(path, file, false)
}

/// Whether a process of user `uid` may speak for a plugin of a host of user `own`.
pub(crate) fn may_speak(uid: u32, own: u32, allowed: &[u32]) -> bool {
    uid == 0 || uid == own || allowed.contains(&uid)
}

/// The folder of a socket whose path the kernel takes.
pub(crate) fn folder_of(socket: &Path) -> Result<&Path, Refusal> {
    let length = socket.as_os_str().len();
    if length > SOCKET_PATH_LIMIT {
        return Err(Refusal::LongPath { length });
    }
    socket.parent().ok_or_else(|| Refusal::NoFolder {
        path: socket.to_owned(),
    })
}

fn is_a(path: &Path, file: File, kind: Kind) -> Result<(), Refusal> {
    let path = path.to_owned();
    match file.kind {
        is if is == kind => Ok(()),
        Kind::Symlink => Err(Refusal::Symlink { path }),
        Kind::Folder | Kind::Socket | Kind::Other => Err(Refusal::WrongType {
            path,
            expected: if kind == Kind::Folder { "folder" } else { "socket" },
        }),
    }
}

fn nobody_else_writes(path: &Path, file: File, not_even_the_group: bool) -> Result<(), Refusal> {
    let by_others = file.mode & OTHERS_WRITE != 0;
    let by_group = not_even_the_group && file.mode & GROUP_WRITES != 0;
    let (who, chmod) = match (by_others, by_group) {
        (false, false) => return Ok(()),
        (true, false) => ("others", "o-w"),
        (false, true) => ("its group", "g-w"),
        (true, true) => ("its group and others", "go-w"),
    };
    Err(Refusal::Writable {
        path: path.to_owned(),
        mode: file.mode,
        who,
        chmod,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const UIDS: &[u32] = &[0, 1000];

    fn file(kind: Kind, mode: u32, uid: u32) -> File {
        File { kind, mode, uid }
    }

    #[rstest]
    #[case::as_the_protocol_has_it(Kind::Folder, 0o750, 1000, Ok(()))]
    #[case::with_the_roots_group(Kind::Folder, 0o2750, 1000, Ok(()))]
    #[case::readable_by_all(Kind::Folder, 0o755, 0, Ok(()))]
    #[case::open_to_all(
        Kind::Folder,
        0o777,
        1000,
        Err("/r/p has mode 0777: its group and others may write to it; take that right away (chmod go-w)")
    )]
    #[case::sticky_and_open_to_all(
        Kind::Folder,
        0o1777,
        1000,
        Err("/r/p has mode 1777: its group and others may write to it; take that right away (chmod go-w)")
    )]
    #[case::open_to_the_group(
        Kind::Folder,
        0o770,
        1000,
        Err("/r/p has mode 0770: its group may write to it; take that right away (chmod g-w)")
    )]
    #[case::of_another_user(
        Kind::Folder,
        0o750,
        1001,
        Err("/r/p belongs to uid 1001; allow that uid for this plugin if it is meant to")
    )]
    #[case::a_link(Kind::Symlink, 0o777, 1000, Err("/r/p is a symlink; name the real path"))]
    #[case::a_file(Kind::Other, 0o644, 1000, Err("/r/p is no folder"))]
    fn folders_in_a_plugins_directory(
        #[case] kind: Kind,
        #[case] mode: u32,
        #[case] uid: u32,
        #[case] expected: Result<(), &str>,
    ) {
        let judged = judge_folder(Path::new("/r/p"), file(kind, mode, uid), Folder::Found(UIDS));
        assert_eq!(
            judged.map_err(|it| it.to_string()),
            expected.map_err(str::to_owned)
        );
    }

    #[rstest]
    #[case::of_another_user_with_a_common_group(0o770, 1001, Ok(()))]
    #[case::open_to_all(
        0o777,
        1000,
        Err("/r/p has mode 0777: others may write to it; take that right away (chmod o-w)")
    )]
    fn folders_of_configured_sockets(
        #[case] mode: u32,
        #[case] uid: u32,
        #[case] expected: Result<(), &str>,
    ) {
        let judged = judge_folder(
            Path::new("/r/p"),
            file(Kind::Folder, mode, uid),
            Folder::Configured,
        );
        assert_eq!(
            judged.map_err(|it| it.to_string()),
            expected.map_err(str::to_owned)
        );
    }

    #[rstest]
    #[case::as_the_protocol_has_it(Kind::Socket, 0o660, Ok(()))]
    #[case::open_to_all(
        Kind::Socket,
        0o666,
        Err("/s has mode 0666: others may write to it; take that right away (chmod o-w)")
    )]
    #[case::a_link(Kind::Symlink, 0o777, Err("/s is a symlink; name the real path"))]
    #[case::a_pipe(Kind::Other, 0o660, Err("/s is no socket"))]
    #[case::a_folder(Kind::Folder, 0o750, Err("/s is no socket"))]
    fn sockets(#[case] kind: Kind, #[case] mode: u32, #[case] expected: Result<(), &str>) {
        let judged = judge_socket(Path::new("/s"), file(kind, mode, 1000));
        assert_eq!(
            judged.map_err(|it| it.to_string()),
            expected.map_err(str::to_owned)
        );
    }

    #[rstest]
    #[case::the_hosts_own(1000, true)]
    #[case::root(0, true)]
    #[case::one_that_is_allowed(1001, true)]
    #[case::any_other(1002, false)]
    fn who_may_speak_for_a_plugin(#[case] uid: u32, #[case] expected: bool) {
        assert_eq!(may_speak(uid, 1000, &[1001]), expected);
    }

    #[test]
    fn a_path_may_have_107_bytes() {
        let path = |length: usize| PathBuf::from(format!("/{}", "x".repeat(length - 1)));
        assert_eq!(folder_of(&path(107)), Ok(Path::new("/")));
        assert_eq!(folder_of(&path(108)), Err(Refusal::LongPath { length: 108 }));
    }
}
