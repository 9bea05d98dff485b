//! The control plane for tests: a Go program, built when its sources changed.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::run_with_heartbeat;
use crate::golang::{self, go};
use crate::{say, tools};

/// The Kubernetes that `tests/cluster/go.mod` names, as clients are told it.
const KUBERNETES: Version = Version {
    full: "v1.36.3",
    major: "1",
    minor: "36",
};

/// Packages that answer a client's question for the version.
const VERSION_PACKAGES: &[&str] = &["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

struct Version {
    full: &'static str,
    major: &'static str,
    minor: &'static str,
}

/// Builds `target/tools/bulkhead-cluster`, unless it was built from the same sources.
pub(crate) fn build(root: &Path) -> Result<()> {
    let source = root.join("tests/cluster");
    let folder = tools::folder(root);
    let (binary, stamp) = (
        folder.join("bulkhead-cluster"),
        folder.join("bulkhead-cluster.sources"),
    );
    let sources = fingerprint(&source)?;
    if binary.is_file() && fs::read_to_string(&stamp).ok().as_deref() == Some(sources.as_str()) {
        say("==> the control plane is built");
        return Ok(());
    }
    golang::require(root)?;
    say("==> building the control plane: Kubernetes' API server with etcd (about 3 minutes the first time)");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut build = go(&source, &["build", "-ldflags", &link_flags(), "-o"]);
    run_with_heartbeat(build.arg(&binary).arg("."), "building the control plane")?;
    fs::write(&stamp, sources).with_context(|| format!("write {}", stamp.display()))
}

/// Stripped, and with a version that clients can parse.
fn link_flags() -> String {
    let Version { full, major, minor } = KUBERNETES;
    let values = [
        ("gitVersion", full),
        ("gitMajor", major),
        ("gitMinor", minor),
        ("gitTreeState", "clean"),
    ];
    let version_of = |package: &&str| values.map(|(name, value)| format!("-X {package}.{name}={value}"));
    let versions: Vec<String> = VERSION_PACKAGES.iter().flat_map(version_of).collect();
    format!("-s -w {}", versions.join(" "))
}

/// Changes with every source file's name or content, and with the flags.
fn fingerprint(source: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    link_flags().hash(&mut hasher);
    for file in sources(source)? {
        file.file_name().hash(&mut hasher);
        fs::read(&file)
            .with_context(|| format!("read {}", file.display()))?
            .hash(&mut hasher);
    }
    Ok(format!("{:016x}\n", hasher.finish()))
}

/// What the Go compiler reads in the module, in a stable order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(sources(&path)?);
        } else if path
            .extension()
            .is_some_and(|ending| ["go", "mod", "sum"].iter().any(|known| ending == *known))
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
