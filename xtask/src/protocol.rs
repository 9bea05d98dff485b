//! The protocol's own checks: lint, breaking changes since the baseline, test vectors.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{self, command};
use crate::{generate, say, tools};

/// buf's exit code for "it ran, and found something".
const FINDINGS: i32 = 100;

/// Lints the `.proto` files, compares them with the baseline, and computes the test vectors a second time.
/// Breaking changes only print until the file `proto/STABLE` exists.
pub(crate) fn run(root: &Path) -> Result<()> {
    let proto = root.join("proto");
    command::run(&mut buf(root, &["lint"])?)?;
    command::run(buf(root, &["lint"])?.current_dir(root.join("plugins/sim/proto")))?;
    breaking(root, &proto)?;
    command::run(command("python3", &proto).arg("vectors/check.py"))
}

fn breaking(root: &Path, proto: &Path) -> Result<()> {
    let status = command::run_for_status(&mut buf(root, &["breaking", "--against", generate::BASELINE])?)?;
    match (status.code(), proto.join("STABLE").exists()) {
        (Some(0), _) => Ok(()),
        (Some(FINDINGS), false) => {
            say("    the protocol is a draft: these changes are allowed until proto/STABLE exists");
            Ok(())
        }
        (Some(FINDINGS), true) => bail!("version 1 is stable: make the change an addition, or a new version"),
        _ => bail!("buf breaking failed: {status}"),
    }
}

fn buf(root: &Path, args: &[&str]) -> Result<Command> {
    let mut buf = command(tools::python_tool(root, "buf")?, &root.join("proto"));
    buf.args(args)
        .env("BUF_CACHE_DIR", tools::folder(root).join("buf-cache"));
    Ok(buf)
}
