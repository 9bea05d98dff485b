//! Generated files: the Rust of the protocol, and the schema of the host's configuration file. No protoc and no build script: protox parses, tonic-prost-build
//! writes, and the result is committed, so that nobody needs a generator to build.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prost::Message;

use crate::command::{capture, cargo};
use crate::say;

/// The protocol's package folder, below `proto/`.
const PACKAGE: &str = "bulkhead/cloudprovider/v1";

/// The descriptor set that later versions of the protocol are compared with, below `proto/`.
pub(crate) const BASELINE: &str = "baseline.binpb";

/// Writes the baseline from the `.proto` files as they are: without comments, which break nothing.
pub(crate) fn baseline(root: &Path) -> Result<()> {
    let proto = root.join("proto");
    let mut compiler = protox::Compiler::new([&proto]).context("open the folder of the .proto files")?;
    compiler
        .include_imports(true)
        .open_files(sources(&proto)?)
        .context("parse the .proto files")?;
    let path = proto.join(BASELINE);
    fs::write(&path, compiler.encode_file_descriptor_set())
        .with_context(|| format!("write {}", path.display()))?;
    say(format!("wrote {}", path.display()));
    Ok(())
}

/// Writes the generated files, or with `check` only compares them.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let proto = root.join("proto");
    let fresh = root.join("target/gen");
    fs::create_dir_all(&fresh).context("make a folder for generated files")?;
    let descriptors = protox::compile(sources(&proto)?, [&proto]).context("parse the .proto files")?;
    fs::write(fresh.join("v1.binpb"), descriptors.encode_to_vec()).context("write the descriptor set")?;
    tonic_prost_build::configure()
        .btree_map(".")
        .out_dir(&fresh)
        .compile_fds(descriptors)
        .context("generate Rust from the .proto files")?;
    let name = "bulkhead.cloudprovider.v1.rs";
    settle(&fresh.join(name), &proto.join("src/gen").join(name), check)?;
    if check {
        // A unit test of the host compares its schema: no need to build the host for that here.
        return Ok(());
    }
    let host = [
        "run",
        "--quiet",
        "--package",
        "bulkhead",
        "--bin",
        "bulkhead",
        "--",
        "schema",
    ];
    let schema = fresh.join(SCHEMA);
    fs::write(&schema, capture(&mut cargo(root, &host))?).context("write the schema")?;
    settle(&schema, &root.join("docs/reference").join(SCHEMA), false)
}

/// The JSON Schema of the host's configuration file.
const SCHEMA: &str = "hostconfiguration.schema.json";

/// All `.proto` files of the package, in a stable order, relative to `proto/`.
fn sources(proto: &Path) -> Result<Vec<PathBuf>> {
    let folder = proto.join(PACKAGE);
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "proto") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Puts `fresh` where `committed` is, or with `check` fails if they differ.
fn settle(fresh: &Path, committed: &Path, check: bool) -> Result<()> {
    let wanted = fs::read(fresh).with_context(|| format!("read {}", fresh.display()))?;
    if fs::read(committed).is_ok_and(|present| present == wanted) {
        say(format!("    {} is up to date", committed.display()));
        return Ok(());
    }
    if check {
        bail!(
            "{} is not what its sources generate: run `cargo xtask gen` and commit the result",
            committed.display()
        );
    }
    if let Some(folder) = committed.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(committed, wanted).with_context(|| format!("write {}", committed.display()))?;
    say(format!("generated {}", committed.display()));
    Ok(())
}
