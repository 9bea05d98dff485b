//! The demo: builds what it needs, then becomes the program that shows it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::check::target_folder;
use crate::command::{self, cargo, command};
use crate::{cluster, say};

pub(crate) fn run(root: &Path, keep: bool) -> Result<()> {
    let program = release_program(root, "demo", "bulkhead-demo")?;
    let mut demo = command(&program, root);
    if keep {
        demo.arg("--keep");
    }
    // Replacing this process leaves nobody between the terminal's signals and the demo, which cleans up by itself.
    Err(demo.exec()).with_context(|| format!("start {}", program.display()))
}

/// Builds the test control plane, and in release host, plugin and the program `bulkhead-NAME` of `package`. Its path.
pub(crate) fn release_program(root: &Path, name: &str, package: &str) -> Result<PathBuf> {
    cluster::build(root)?;
    say(format!(
        "==> building host, plugin and {name} (about 4 minutes the first time)"
    ));
    let arguments = [
        "build",
        "--release",
        "--bins",
        "-p",
        "bulkhead",
        "-p",
        "bulkhead-local",
        "-p",
        "bulkhead-sim",
        "-p",
        package,
    ];
    command::run(&mut cargo(root, &arguments))?;
    Ok(target_folder(root)?
        .join("release")
        .join(format!("bulkhead-{name}")))
}
