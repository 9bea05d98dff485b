//! `cargo xtask`: the project's own commands. Everything they need beyond Rust, Go, Python and a C compiler they
//! install themselves.

mod generate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Regenerate committed generated files
    Gen {
        /// Change nothing; fail if a generated file differs from what would be generated
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Gen { check } => generate::run(&root(), check),
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
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Prints one line for the person who runs the command.
#[expect(clippy::print_stderr, reason = "this is a command-line tool: people read what it prints")]
fn say(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}
