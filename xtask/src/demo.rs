//! The demo: builds what it needs, then becomes the program that shows it.

use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::check::target_folder;
use crate::command::{self, cargo, command};
use crate::{cluster, say};

pub(crate) fn run(root: &Path, keep: bool) -> Result<()> {
    cluster::build(root)?;
    say("==> building host, plugin and demo (about 4 minutes the first time)");
    command::run(&mut cargo(
        root,
        &[
            "build",
            "--release",
            "-p",
            "bulkhead",
            "-p",
            "bulkhead-local",
            "-p",
            "bulkhead-demo",
        ],
    ))?;
    let program = target_folder(root)?.join("release/bulkhead-demo");
    let mut demo = command(&program, root);
    if keep {
        demo.arg("--keep");
    }
    // Replacing this process leaves nobody between the terminal's signals and the demo, which cleans up by itself.
    Err(demo.exec()).with_context(|| format!("start {}", program.display()))
}
