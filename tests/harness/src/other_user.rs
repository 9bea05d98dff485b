//! Processes of another user, and what they must be able to reach.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};

use crate::Workspace;

/// A command that runs `binary` under `uid`. Only root can. Users are not let into each other's folders: the workspace may
/// be passed through from now on, and what runs is a copy in it, since nobody else reaches what cargo builds.
pub(crate) fn command(workspace: &Workspace, uid: u32, binary: &Path) -> Result<Command> {
    let name = binary.file_name().context("the binary has no name")?;
    let copy = workspace.join(name);
    fs::copy(binary, &copy).with_context(|| format!("copy {}", binary.display()))?;
    fs::set_permissions(workspace.path(), Permissions::from_mode(0o711))?;
    let mut command = Command::new(copy);
    command.uid(uid);
    Ok(command)
}
