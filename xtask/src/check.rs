//! What no compiler checks: purity of the core, files that nothing reaches, paths of somebody's machine, lints that
//! are off, binaries, tests that documents name, sizes.

mod orphans;
mod paths;
mod purity;
mod shown;
mod sizes;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{capture, cargo, command};
use crate::say;

/// The crate that holds generated code, and so its own table of lints.
const OWN_LINTS: &str = "bulkhead-proto";

/// Binary files that belong into the repository.
const BINARIES: &[&str] = &["proto/baseline.binpb"];

/// How much of a file is looked at to tell a binary: what git looks at.
const SNIFFED_BYTES: usize = 8000;

/// Runs every check and reports all findings at once.
pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = metadata(root)?;
    let files = tracked_files(root)?;
    let mut findings = Vec::new();
    let mut part = |name: &str, mut found: Vec<String>| {
        let verdict = if found.is_empty() {
            "ok".to_owned()
        } else {
            format!("{} findings", found.len())
        };
        say(format!("    {name}: {verdict}"));
        findings.append(&mut found);
    };
    part(
        "bulkhead-core depends on nothing that does I/O",
        purity::findings(&metadata)?,
    );
    part(
        "every Rust file is reached by a mod",
        orphans::findings(root, &metadata, &files)?,
    );
    part("no path of one machine", paths::findings(root, &files));
    part("every crate has the workspace's lints", lints(&metadata)?);
    part("no binary files", binaries(root, &files));
    part(
        "what documents say is shown by tests that exist",
        shown::findings(root),
    );
    for warning in sizes::warnings(root, &files) {
        say(format!("    warning: {warning}"));
    }
    if !findings.is_empty() {
        bail!("{}", findings.join("\n       "));
    }
    Ok(())
}

/// All files that are, or would be, in the repository, relative to its root.
pub(crate) fn tracked_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = command("git", root);
    let listing = capture(git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    let files = listing
        .split('\0')
        .filter(|file| !file.is_empty())
        .map(PathBuf::from);
    // A file that was removed and not yet committed is still listed.
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

/// Cargo's folder for what it builds.
pub(crate) fn target_folder(root: &Path) -> Result<PathBuf> {
    Ok(PathBuf::from(text(&metadata(root)?, "target_directory")?))
}

fn metadata(root: &Path) -> Result<Value> {
    let json = capture(&mut cargo(
        root,
        &["metadata", "--format-version", "1", "--quiet"],
    ))?;
    serde_json::from_str(&json).context("parse what cargo metadata prints")
}

/// The crates of this repository, as cargo describes them.
fn members(metadata: &Value) -> Result<Vec<&Value>> {
    let ids = list(metadata, "workspace_members")?;
    let packages = list(metadata, "packages")?;
    Ok(packages
        .iter()
        .filter(|package| ids.iter().any(|id| Some(id) == package.get("id")))
        .collect())
}

fn lints(metadata: &Value) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for package in members(metadata)? {
        let name = text(package, "name")?;
        let path = text(package, "manifest_path")?;
        let manifest = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        if name != OWN_LINTS && !manifest.contains("[lints]\nworkspace = true\n") {
            found.push(format!("crate {name} lacks `[lints] workspace = true`"));
        }
    }
    Ok(found)
}

fn binaries(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let is_binary = |file: &&PathBuf| {
        fs::read(root.join(file))
            .is_ok_and(|content| content.iter().take(SNIFFED_BYTES).any(|byte| *byte == 0))
    };
    let allowed = |file: &&PathBuf| BINARIES.iter().any(|known| file.as_path() == Path::new(known));
    files
        .iter()
        .filter(|file| !allowed(file))
        .filter(is_binary)
        .map(|file| format!("{} is a binary file", file.display()))
        .collect()
}

fn list<'a>(value: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    value
        .get(field)
        .and_then(Value::as_array)
        .with_context(|| format!("cargo metadata has no list {field}"))
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value
        .get(field)
        .and_then(Value::as_str)
        .with_context(|| format!("cargo metadata has no text {field}"))
}
