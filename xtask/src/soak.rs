//! The soak: builds what it needs, then becomes the program that plays it.

use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::command;
use crate::demo::release_program;

pub(crate) fn run(root: &Path, minutes: u32, seed: Option<u64>) -> Result<()> {
    let program = release_program(root, "soak", &["bulkhead-e2e"])?;
    let mut soak = command(&program, root);
    soak.arg("--minutes").arg(minutes.to_string());
    if let Some(seed) = seed {
        soak.arg("--seed").arg(seed.to_string());
    }
    // Replacing this process leaves nobody between the terminal's signals and the soak, which cleans up by itself.
    Err(soak.exec()).with_context(|| format!("start {}", program.display()))
}
