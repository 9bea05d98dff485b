//! Generated files: the Rust of the protocol, the roles of `deploy/manifests`, the schema of the host's configuration
//! file. No protoc and no build script: protox parses, tonic-prost-build writes, and the result is committed, so that
//! nobody needs a generator to build.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prost::Message;

use crate::command::{capture, cargo};
use crate::say;

mod roles;

/// A protobuf package, and where its Rust goes.
struct Package {
    /// The root of its `.proto` files, below the repository's.
    root: &'static str,
    /// Its folder, below `root`.
    folder: &'static str,
    /// The folder of the generated file, below the repository's root.
    generated: &'static str,
}

const PROTOCOL: Package = Package {
    root: "proto",
    folder: "bulkhead/cloudprovider/v1",
    generated: "proto/src/gen",
};

const SIM: Package = Package {
    root: "plugins/sim/proto",
    folder: "bulkhead/sim/v1",
    generated: "plugins/sim/src/gen",
};

/// The descriptor set that later versions of the protocol are compared with, below `proto/`.
pub(crate) const BASELINE: &str = "baseline.binpb";

/// Writes the baseline from the `.proto` files as they are: without comments, which break nothing.
pub(crate) fn baseline(root: &Path) -> Result<()> {
    let proto = root.join("proto");
    let mut compiler = protox::Compiler::new([&proto]).context("open the folder of the .proto files")?;
    compiler
        .include_imports(true)
        .open_files(PROTOCOL.sources(root)?)
        .context("parse the .proto files")?;
    let path = proto.join(BASELINE);
    fs::write(&path, compiler.encode_file_descriptor_set())
        .with_context(|| format!("write {}", path.display()))?;
    say(format!("wrote {}", path.display()));
    Ok(())
}

/// Writes the generated files, or with `check` only compares them.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    for package in [PROTOCOL, SIM] {
        package.generate(root, check)?;
    }
    let manifests = root.join("deploy/manifests");
    for (name, text) in roles::files() {
        settle(text.as_bytes(), &manifests.join(name), check)?;
    }
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
    let schema = capture(&mut cargo(root, &host))?;
    settle(
        schema.as_bytes(),
        &root.join("docs/reference").join(SCHEMA),
        check,
    )
}

/// The JSON Schema of the host's configuration file.
const SCHEMA: &str = "hostconfiguration.schema.json";

impl Package {
    fn generate(&self, root: &Path, check: bool) -> Result<()> {
        let fresh = root.join("target/gen");
        fs::create_dir_all(&fresh).context("make a folder for generated files")?;
        let descriptors = protox::compile(self.sources(root)?, [root.join(self.root)])
            .with_context(|| format!("parse the .proto files of {}", self.folder))?;
        let name = self.folder.replace('/', ".");
        fs::write(fresh.join(format!("{name}.binpb")), descriptors.encode_to_vec())
            .context("write the descriptor set")?;
        tonic_prost_build::configure()
            .btree_map(".")
            .out_dir(&fresh)
            .compile_fds(descriptors)
            .with_context(|| format!("generate Rust from the .proto files of {}", self.folder))?;
        let name = format!("{name}.rs");
        let rust = fs::read(fresh.join(&name)).context("read the generated Rust")?;
        settle(&rust, &root.join(self.generated).join(&name), check)
    }

    /// All `.proto` files of the package, in a stable order, relative to its root.
    fn sources(&self, root: &Path) -> Result<Vec<PathBuf>> {
        let folder = root.join(self.root).join(self.folder);
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
}

/// Writes `wanted` where `committed` is, or with `check` fails if they differ.
fn settle(wanted: &[u8], committed: &Path, check: bool) -> Result<()> {
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
