//! Who may ask this process to end: the system by a signal, a spawning host by closing our stdin.

use std::future::Future;
use std::io::{self, Read as _};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::options::Stdin;

/// A future that resolves at the first request to end. Signals are caught from now on.
pub(crate) fn requested(stdin: Stdin) -> io::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (end, ended) = oneshot::channel();
    match stdin {
        Stdin::EndsPlugin => watch_stdin(end)?,
        Stdin::Ignored => drop(end),
    }
    Ok(async move {
        let why = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            Ok(()) = ended => "end of file on stdin: the host is gone",
        };
        tracing::info!(why, "asked to end");
    })
}

/// A thread, since stdin may be of any kind and a blocking read cannot be cancelled: the runtime's own reader would
/// keep the process from ending.
fn watch_stdin(end: oneshot::Sender<()>) -> io::Result<()> {
    let watch = move || {
        let mut bytes = [0_u8; 64];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut bytes) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
        if end.send(()).is_err() {
            tracing::debug!("stdin ended after the process was asked to end");
        }
    };
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .stack_size(64 << 10)
        .spawn(watch)
        .map(drop)
}
