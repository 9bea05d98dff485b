//! Shell scripts: all that are tracked go through shellcheck.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::check::tracked_files;
use crate::command::{command, run};
use crate::tools;

pub(crate) fn check(root: &Path) -> Result<()> {
    let scripts: Vec<PathBuf> = tracked_files(root)?
        .into_iter()
        .filter(|file| is_script(root, file))
        .collect();
    let mut shellcheck = command(tools::python_tool(root, "shellcheck")?, root);
    run(shellcheck.arg("--").args(scripts))
}

/// By its name, or by its first line.
fn is_script(root: &Path, file: &Path) -> bool {
    let named = file.extension().is_some_and(|ending| ending == "sh");
    named
        || fs::read(root.join(file)).is_ok_and(|content| {
            let first = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
            first.starts_with(b"#!") && (first.ends_with(b"/sh") || first.ends_with(b"bash"))
        })
}
