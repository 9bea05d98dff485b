//! Carries the provider through its terms: initialise at the beginning, stand down at the end, one after another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::Result;
use crate::provider::CloudProvider;
use crate::runner::{Runner, panicked};
use crate::term::Term;

/// How long calls of an ended term, and the provider's own ending, are waited for: the hard deadline of a write.
const STAND_DOWN: Duration = Duration::from_mins(1);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Runs until the process ends.
pub(crate) async fn follow<P: CloudProvider>(runner: Arc<Runner<P>>) {
    let mut terms: watch::Receiver<Option<Term>> = runner.leadership().terms();
    loop {
        let term = terms.borrow_and_update().clone();
        if let Some(term) = term {
            serve_term(&runner, &term).await;
        }
        tokio::select! {
            changed = terms.changed() => if changed.is_err() { return },
            () = runner.closing().cancelled() => return,
        }
    }
}

async fn serve_term<P: CloudProvider>(runner: &Runner<P>, term: &Term) {
    tracing::info!(
        lease = term.epoch().lease,
        transitions = term.epoch().transitions,
        "leading"
    );
    initialise(runner, term).await;
    tokio::select! {
        () = term.ended().cancelled() => {}
        () = runner.closing().cancelled() => term.end(),
    }
    let running = term.calls().len();
    if tokio::time::timeout(STAND_DOWN, term.calls().wait())
        .await
        .is_err()
    {
        tracing::error!(running, "calls of an ended term still run; they start no write");
    }
    let provider = Arc::clone(&runner.provider);
    let ending = runner.tasks().spawn(async move { provider.stand_down().await });
    match tokio::time::timeout(STAND_DOWN, ending).await {
        Ok(Ok(())) => tracing::info!("standing by"),
        Ok(Err(error)) => drop(panicked("stand_down", error)),
        Err(_) => tracing::error!("the provider does not end its background work"),
    }
}

/// Tries until it succeeds or the term is over.
async fn initialise<P: CloudProvider>(runner: &Runner<P>, term: &Term) {
    let mut pause = FIRST_PAUSE;
    while !term.ended().is_cancelled() && !runner.closing().is_cancelled() {
        match attempt(runner, term).await {
            Ok(()) => return runner.leadership().set_ready(term),
            Err(error) => {
                tracing::error!(%error, retry_in = ?pause, "the provider cannot initialise");
                runner.leadership().set_problem(error.to_string());
            }
        }
        tokio::select! {
            () = term.ended().cancelled() => {}
            () = runner.closing().cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

async fn attempt<P: CloudProvider>(runner: &Runner<P>, term: &Term) -> Result<()> {
    let provider = Arc::clone(&runner.provider);
    let term = term.clone();
    let task = runner
        .tasks()
        .spawn(async move { provider.initialise(&term).await });
    task.await
        .unwrap_or_else(|error| Err(panicked("initialise", error)))
}
