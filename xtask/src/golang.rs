//! Go: which modules there are, and how the toolchain is called.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::check::tracked_files;
use crate::command::{capture, command, run_with_heartbeat};

/// Go in a module's folder. It never fetches a toolchain, never changes go.mod or go.sum, and needs no C compiler.
/// The same settings for every command: the cache of one with others is no use to it.
pub(crate) fn go(folder: &Path, args: &[&str]) -> Command {
    let mut go = command("go", folder);
    go.args(args)
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off")
        .env("CGO_ENABLED", "0");
    go.env("GOFLAGS", "-mod=readonly -buildvcs=false -trimpath");
    go
}

/// Fails with one clear line where Go is missing.
pub(crate) fn require(root: &Path) -> Result<()> {
    capture(&mut go(root, &["version"]))
        .map(drop)
        .context("Go is needed to build the control plane for tests")
}

/// Format, vet and tests of every Go module.
pub(crate) fn check(root: &Path) -> Result<()> {
    require(root)?;
    let files = tracked_files(root)?;
    let modules = files
        .iter()
        .filter(|file| file.file_name().is_some_and(|name| name == "go.mod"));
    for module in modules.filter_map(|file| file.parent()) {
        format(root, module)?;
        let folder = root.join(module);
        let what = format!("go vet in {}", module.display());
        run_with_heartbeat(&mut go(&folder, &["vet", "./..."]), &what)?;
        let of_module =
            |file: &&PathBuf| file.starts_with(module) && file.to_string_lossy().ends_with("_test.go");
        if files.iter().any(|file| of_module(&file)) {
            run_with_heartbeat(&mut go(&folder, &["test", "./..."]), "go test")?;
        }
    }
    Ok(())
}

fn format(root: &Path, module: &Path) -> Result<()> {
    let unformatted = capture(command("gofmt", root).arg("-l").arg(module))?;
    if !unformatted.is_empty() {
        bail!("gofmt would change these files; run `gofmt -w` on them:\n{unformatted}");
    }
    Ok(())
}
