//! `bulkhead-sim`: reads the command line, does what it says, says in one line why it cannot.

use std::process::ExitCode;

fn main() -> ExitCode {
    bulkhead_sim::cli::main()
}
