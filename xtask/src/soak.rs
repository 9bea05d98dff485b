//! The soak: builds what it needs, then becomes the program that plays it.

use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::check::target_folder;
use crate::command::{self, cargo, command};
use crate::{cluster, say};

pub(crate) fn run(root: &Path, minutes: u32, seed: Option<u64>) -> Result<()> {
    cluster::build(root)?;
    say("==> building host, plugin and soak (about 4 minutes the first time)");
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
            "bulkhead-e2e",
            "--bins",
        ],
    ))?;
    let program = target_folder(root)?.join("release/bulkhead-soak");
    let mut soak = command(&program, root);
    soak.arg("--minutes").arg(minutes.to_string());
    if let Some(seed) = seed {
        soak.arg("--seed").arg(seed.to_string());
    }
    // Replacing this process leaves nobody between the terminal's signals and the soak, which cleans up by itself.
    Err(soak.exec()).with_context(|| format!("start {}", program.display()))
}
