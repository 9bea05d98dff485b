//! `cargo xtask test`: every check of the project, cheap ones first, and how long each took.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::clock::{Stopwatch, readable};
use crate::command::{cargo, run as run_command};
use crate::{check, cluster, generate, golang, protocol, rights, say, shell};

/// One step; the order of the variants is the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    Fmt,
    Gen,
    Check,
    Proto,
    Shell,
    Clippy,
    Build,
    Cluster,
    Unit,
    Doc,
    Go,
    E2e,
    Rights,
}

impl Step {
    fn purpose(self) -> &'static str {
        match self {
            Self::Fmt => "Rust is formatted",
            Self::Gen => "generated files are what their sources generate",
            Self::Check => "the core is pure, no file is an orphan, lints are on, no binaries",
            Self::Proto => "the protocol lints, does not break, and its test vectors hold",
            Self::Shell => "shell scripts pass shellcheck",
            Self::Clippy => "clippy finds nothing",
            Self::Unit => "unit, law and component tests, and examples in documents",
            Self::Doc => "the documents of protocol, core and SDK have no broken link",
            Self::Build => "host, plugins and test programs build",
            Self::Cluster => "the control plane for tests builds",
            Self::Go => "Go is formatted and vetted",
            Self::E2e => "host and plugins as processes against a real API server",
            Self::Rights => "in that run nothing was forbidden, and every right granted was used",
        }
    }

    fn run(self, root: &Path) -> Result<()> {
        match self {
            Self::Fmt => run_command(&mut cargo(root, &["fmt", "--all", "--check"])),
            Self::Gen => generate::run(root, true),
            Self::Check => check::run(root),
            Self::Proto => protocol::run(root),
            Self::Shell => shell::check(root),
            Self::Clippy => run_command(&mut clippy(root)),
            Self::Unit => run_command(&mut cargo(
                root,
                &["test", "--workspace", "--exclude", "bulkhead-e2e"],
            )),
            Self::Doc => run_command(&mut doc(root)),
            // All targets, so that crates are built with the features that the tests need, once.
            Self::Build => run_command(&mut cargo(root, &["build", "--workspace", "--all-targets"])),
            Self::Cluster => cluster::build(root),
            Self::Go => golang::check(root),
            Self::E2e => run_command(&mut end_to_end(root)?),
            Self::Rights => rights::check(root),
        }
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn clippy(root: &Path) -> Command {
    cargo(
        root,
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    )
}

/// The end-to-end tests by name: selecting their package would build everything below it anew, with fewer features.
fn end_to_end(root: &Path) -> Result<Command> {
    // All of them, whatever fails: one run shows every fault there is.
    let mut test = cargo(root, &["test", "--workspace", "--no-fail-fast"]);
    test.env(rights::FOLDER_VARIABLE, rights::prepare(root)?);
    let folder = root.join("tests/e2e/tests");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "rs") {
            names.extend(path.file_stem().map(ToOwned::to_owned));
        }
    }
    names.sort();
    for name in names {
        test.arg("--test").arg(name);
    }
    Ok(test)
}

fn doc(root: &Path) -> Command {
    let packages = [
        "-p",
        "bulkhead-proto",
        "-p",
        "bulkhead-core",
        "-p",
        "bulkhead-plugin",
    ];
    let mut doc = cargo(root, &["doc", "--no-deps"]);
    doc.args(packages).env("RUSTDOCFLAGS", "-D warnings");
    doc
}

/// Prints the steps.
pub(crate) fn list() {
    for step in Step::value_variants() {
        say(format!("{:<8} {}", step.name(), step.purpose()));
    }
}

/// Runs the steps of `only`, or all; stops at the first that fails. A table at the end says how long each took.
pub(crate) fn run(root: &Path, only: &[Step]) -> Result<()> {
    let mut rows = Vec::new();
    let mut result = Ok(());
    for step in chosen(only) {
        if result.is_err() {
            rows.push(Row {
                step,
                state: State::NotRun,
            });
            continue;
        }
        say(format!("==> {}: {}", step.name(), step.purpose()));
        let watch = Stopwatch::start();
        result = step.run(root).with_context(|| format!("step {}", step.name()));
        let took = watch.elapsed();
        rows.push(Row {
            step,
            state: if result.is_ok() {
                State::Passed(took)
            } else {
                State::Failed(took)
            },
        });
    }
    say(table(&rows));
    result
}

/// In their own order, whatever the order asked for.
fn chosen(only: &[Step]) -> Vec<Step> {
    let all = Step::value_variants().iter().copied();
    all.filter(|step| only.is_empty() || only.contains(step))
        .collect()
}

struct Row {
    step: Step,
    state: State,
}

enum State {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

fn table(rows: &[Row]) -> String {
    let lines = rows.iter().map(|Row { step, state }| {
        let (word, took) = match state {
            State::Passed(took) => ("passed", readable(*took)),
            State::Failed(took) => ("FAILED", readable(*took)),
            State::NotRun => ("not run", String::new()),
        };
        format!("\n{:<8} {word:<8} {took:>12}", step.name())
            .trim_end()
            .to_owned()
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_in_their_own_order() {
        assert_eq!(chosen(&[Step::E2e, Step::Fmt]), [Step::Fmt, Step::E2e]);
        assert_eq!(chosen(&[]), Step::value_variants());
    }

    #[test]
    fn the_table_says_what_passed_failed_and_did_not_run() {
        let rows = [
            Row {
                step: Step::Fmt,
                state: State::Passed(Duration::from_millis(900)),
            },
            Row {
                step: Step::Clippy,
                state: State::Failed(Duration::from_secs(61)),
            },
            Row {
                step: Step::E2e,
                state: State::NotRun,
            },
        ];
        let lines: Vec<String> = table(&rows).lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "fmt      passed          0.9 s");
        assert_eq!(lines[2], "clippy   FAILED      1 min 1 s");
        assert_eq!(lines[3], "e2e      not run");
    }
}
