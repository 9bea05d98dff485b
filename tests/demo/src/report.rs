//! What the demo prints: one line a fact, and whether it holds.

use std::fmt::Display;
use std::io::{self, Write};

use bulkhead_harness::Stopwatch;

/// The lines so far.
#[derive(Debug)]
pub(crate) struct Report {
    begun: Stopwatch,
    held: usize,
    failed: usize,
}

impl Report {
    pub(crate) fn begin() -> Self {
        Self {
            begun: Stopwatch::start(),
            held: 0,
            failed: 0,
        }
    }

    /// A fact that was checked and holds.
    pub(crate) fn holds(&mut self, fact: impl Display) -> io::Result<()> {
        self.held += 1;
        self.line('✓', fact)
    }

    /// A fact that does not hold.
    pub(crate) fn failed(&mut self, fact: impl Display) -> io::Result<()> {
        self.failed += 1;
        self.line('✗', fact)
    }

    /// Text for the user that claims nothing.
    #[expect(clippy::unused_self, reason = "whoever has no report must not print")]
    pub(crate) fn say(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout(), "{text}")
    }

    /// The last line: how many facts hold.
    pub(crate) fn sum(&self) -> io::Result<()> {
        let Self { begun, held, failed } = self;
        let verdict = match failed {
            0 => format!("{held} facts checked, all hold"),
            _ => format!("{failed} of {} facts do not hold", held + failed),
        };
        self.say(&format!("\n{verdict}; {}", begun.read()))
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.failed == 0
    }

    fn line(&self, sign: char, fact: impl Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{:5.1} s  {sign} {fact}", self.begun.elapsed().as_secs_f64())?;
        out.flush()
    }
}
