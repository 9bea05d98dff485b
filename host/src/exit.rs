//! How the process ends: the exit codes, which are part of the command line's contract.

use std::fmt::Write;
use std::process::{ExitCode, Termination};

/// Why the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Asked to end, and ended in order.
    Done,
    /// A failure at run time that no other code names.
    Failure,
    /// A flag, or a file named by one, is wrong. Nothing was started.
    Usage,
    /// An address of the host's own could not be bound.
    Bind,
    /// A task ended that must not.
    TaskDied,
    /// Told to end, but not in order: a second signal came, or the grace time ran out. The lease was not
    /// released.
    Forced,
}

impl Exit {
    /// Every way to end, by code.
    pub const ALL: [Self; 6] = [
        Self::Done,
        Self::Failure,
        Self::Usage,
        Self::Bind,
        Self::TaskDied,
        Self::Forced,
    ];

    /// The process's exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Bind => 3,
            Self::TaskDied => 4,
            Self::Forced => 5,
        }
    }

    /// What the code tells the operator, in one line.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "ended in order",
            Self::Failure => "failed at run time",
            Self::Usage => "a flag, or a file that a flag names, is wrong",
            Self::Bind => "could not bind --bind-address and --secure-port, or --admin-socket",
            Self::TaskDied => "a task of the host ended that must not, most likely by a panic",
            Self::Forced => "second signal, or --shutdown-grace ran out: ended without releasing the lease",
        }
    }

    /// The table of codes for `--help` and the reference.
    pub fn table() -> String {
        let mut table = String::from("Exit codes:");
        for exit in Self::ALL {
            // Writing to a String cannot fail.
            _ = write!(table, "\n  {}  {}", exit.code(), exit.meaning());
        }
        table
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_and_stands_in_the_table() {
        let table = Exit::table();
        for (code, exit) in (0..).zip(Exit::ALL) {
            assert_eq!(exit.code(), code);
            assert!(
                table.contains(&format!("  {code}  {}", exit.meaning())),
                "{table}"
            );
        }
    }
}
