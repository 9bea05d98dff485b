//! How a program of the tests ends.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;

/// The exit code of what ended so. An error goes to stderr as one line, without the backtrace that one from `main` may
/// carry.
///
/// # Errors
/// Nobody can be told.
pub fn exit_code(ended: Result<()>) -> io::Result<ExitCode> {
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            writeln!(io::stderr(), "{error:#}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}
