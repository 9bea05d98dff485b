//! The benchmarks: builds what they need, then becomes the program that measures.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::command;
use crate::demo::release_program;

/// `arguments`: which benchmark, and what it is told.
pub(crate) fn run(root: &Path, arguments: &[OsString]) -> Result<()> {
    let program = release_program(root, "bench", &["bulkhead-sim", "bulkhead-bench"])?;
    let mut bench = command(&program, root);
    bench.args(arguments);
    // Replacing this process leaves nobody between the terminal's signals and the benchmark, which cleans up by itself.
    Err(bench.exec()).with_context(|| format!("start {}", program.display()))
}
