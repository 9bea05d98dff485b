//! The command line of the small programs.

use anyhow::{Context, Result};

/// What follows `flag` on this process's command line.
///
/// # Errors
///
/// If nothing does.
pub fn argument(flag: &str) -> Result<String> {
    std::env::args()
        .skip_while(|word| word != flag)
        .nth(1)
        .with_context(|| format!("{flag} is missing"))
}
