//! The demo: builds what it needs, then becomes the program that shows it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::check::target_folder;
use crate::command::{self, cargo, command};
use crate::{cluster, say};

pub(crate) fn run(root: &Path, keep: bool) -> Result<()> {
    let program = release_program(root, "demo", &["bulkhead-demo"])?;
    let mut demo = command(&program, root);
    if keep {
        demo.arg("--keep");
    }
    // Replacing this process leaves nobody between the terminal's signals and the demo, which cleans up by itself.
    Err(demo.exec()).with_context(|| format!("start {}", program.display()))
}

/// Builds the test control plane, in release host and local plugin, and then `packages`, the program `bulkhead-NAME`
/// among them. Its path.
pub(crate) fn release_program(root: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    cluster::build(root)?;
    say(format!(
        "==> building host, plugin and {name} (some minutes the first time)"
    ));
    // On their own: together with others they would have the others' features too, and be larger than what is shipped.
    for packages in [&["bulkhead", "bulkhead-local"], packages] {
        let mut build = cargo(root, &["build", "--release", "--bins"]);
        for package in packages {
            build.args(["-p", package]);
        }
        command::run(&mut build)?;
    }
    Ok(target_folder(root)?
        .join("release")
        .join(format!("bulkhead-{name}")))
}
