//! The signals that end the process: the first asks for an orderly end, the second for one at once.

use std::fmt;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM and SIGINT from the moment it is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

impl fmt::Display for EndSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

impl Signals {
    /// Takes the signals over from their default, which is to kill the process.
    ///
    /// # Errors
    /// The kernel refuses the handler.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Call it once for the orderly end, and go on waiting while that runs: the
    /// second signal means to end at once.
    pub async fn next(&mut self) -> EndSignal {
        tokio::select! {
            Some(()) = self.terminate.recv() => EndSignal::Terminate,
            Some(()) = self.interrupt.recv() => EndSignal::Interrupt,
            // Both streams ending would mean that the runtime is gone, and this future with it.
            else => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_signal_is_delivered_once_and_by_name() {
        let mut signals = Signals::install().unwrap();
        for (sent, expected) in [
            (Signal::TERM, EndSignal::Terminate),
            (Signal::INT, EndSignal::Interrupt),
        ] {
            kill_process(getpid(), sent).unwrap();
            assert_eq!(
                timeout(Duration::from_secs(10), signals.next()).await,
                Ok(expected)
            );
        }
    }
}
