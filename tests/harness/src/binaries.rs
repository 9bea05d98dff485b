//! Where the binaries under test are.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// The folder of the workspace's `Cargo.toml`.
pub fn repository_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The path of a binary of this workspace: what the environment variable `override_by` says, else the file
/// beside the running test or program in cargo's folder of the profile.
///
/// # Errors
///
/// If the file is not there; the message says how it is built.
pub fn resolve(name: &str, override_by: &str) -> Result<PathBuf> {
    let path = match env::var_os(override_by) {
        Some(path) => PathBuf::from(path),
        None => profile_folder()?.join(name),
    };
    if !path.is_file() {
        bail!(
            "{} does not exist: build it with `cargo build --bin {name}`, `cargo xtask test` builds all, or set {override_by}",
            path.display()
        );
    }
    Ok(path)
}

/// The path of `bulkhead-cluster`, which cargo does not build: `BULKHEAD_CLUSTER_BIN`, else
/// `target/tools/bulkhead-cluster` in the repository.
pub(crate) fn cluster() -> Result<PathBuf> {
    let path = env::var_os("BULKHEAD_CLUSTER_BIN").map_or_else(
        || repository_root().join("target/tools/bulkhead-cluster"),
        PathBuf::from,
    );
    if !path.is_file() {
        bail!(
            "the test control plane {} does not exist: `cargo xtask test` and `cargo xtask demo` build it, or set BULKHEAD_CLUSTER_BIN",
            path.display()
        );
    }
    Ok(path)
}

/// `target/debug` or alike: cargo puts tests into its folder `deps` and programs into it.
fn profile_folder() -> Result<PathBuf> {
    let program = env::current_exe().context("find the running program's path")?;
    let folder = program
        .parent()
        .with_context(|| format!("{} has no folder", program.display()))?;
    let in_deps = folder
        .file_name()
        .is_some_and(|name| name == "deps" || name == "examples");
    Ok(if in_deps {
        folder.join("..")
    } else {
        folder.to_path_buf()
    })
}
