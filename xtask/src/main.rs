//! `cargo xtask`: the project's own commands. Everything they need beyond Rust, Go, Python and a C compiler they
//! install themselves, below `target/tools`.

mod bench;
mod check;
mod clock;
mod cluster;
mod command;
mod demo;
mod generate;
mod golang;
mod protocol;
mod rights;
mod shell;
mod soak;
mod steps;
mod tools;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::steps::Step;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show Bulkhead at work: a real API server, a load balancer, a plugin killed in front of your eyes
    Demo {
        /// Leave everything running, and print how to use kubectl with it
        #[arg(long)]
        keep: bool,
    },
    /// Look for what is left behind: Services, nodes and processes come and go for minutes, clients never stop
    Soak {
        /// How long, without start and end
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        minutes: u32,
        /// What decides what happens; a random one if not given
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
    },
    /// Measure: `local`, `latency` or `isolation`; `cargo xtask bench NAME --help` says more
    Bench {
        /// Which benchmark, and what it is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<OsString>,
    },
    /// Run all checks and tests, cheap ones first
    Test {
        /// Run this step only; repeat it for several
        #[arg(long, value_name = "STEP", value_enum)]
        only: Vec<Step>,
        /// Print the steps and what each does
        #[arg(long)]
        list: bool,
    },
    /// Regenerate committed generated files
    Gen {
        /// Change nothing; fail if a generated file differs from what would be generated
        #[arg(long)]
        check: bool,
        /// Take the protocol as it is now for the baseline of `cargo xtask proto`
        #[arg(long, conflicts_with = "check")]
        baseline: bool,
    },
    /// Check the tree: purity of the core, orphan files, machine paths, lints, binaries
    Check,
    /// Check the protocol: lint, breaking changes since the baseline, test vectors
    Proto,
    /// Build the control plane for tests, if its sources changed
    Cluster,
}

fn main() -> ExitCode {
    let root = root();
    let result = match Arguments::parse().command {
        Command::Demo { keep } => demo::run(&root, keep),
        Command::Soak { minutes, seed } => soak::run(&root, minutes, seed),
        Command::Bench { arguments } => bench::run(&root, &arguments),
        Command::Test { list: true, .. } => {
            steps::list();
            Ok(())
        }
        Command::Test { only, list: false } => steps::run(&root, &only),
        Command::Gen { baseline: true, .. } => generate::baseline(&root),
        Command::Gen {
            check,
            baseline: false,
        } => generate::run(&root, check),
        Command::Check => check::run(&root),
        Command::Proto => protocol::run(&root),
        Command::Cluster => cluster::build(&root),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Prints one line for the person who runs the command.
#[expect(
    clippy::print_stderr,
    reason = "this is a command-line tool: people read what it prints"
)]
fn say(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}
