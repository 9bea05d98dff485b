//! Waiting for a condition of the outside world, with a deadline.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{sleep, timeout_at};

use crate::clock;

/// Between two looks: short for a person, long beside what a look costs.
const PAUSE: Duration = Duration::from_millis(50);

/// Looks again and again until `probe` answers `Ok`, and returns what it answered.
///
/// A probe's error says what it saw instead. A look that hangs is cut off at the deadline.
///
/// # Errors
///
/// After `within`, an error that names `what` was waited for and the last thing seen.
pub async fn eventually<T>(
    within: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = clock::after(within);
    let mut last = anyhow!("nothing, the first look has not ended");
    loop {
        match timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = seen,
            Err(_) => break,
        }
        if clock::now() + PAUSE >= deadline {
            break;
        }
        sleep(PAUSE).await;
    }
    Err(anyhow!("waited {within:?} for {what}; last seen: {last:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_error_names_what_was_waited_for_and_what_was_last_seen() {
        let mut looks = 0;
        let error = eventually(
            Duration::from_secs(1),
            "the tide to turn",
            async || -> Result<()> {
                looks += 1;
                Err(anyhow!("wave {looks}"))
            },
        )
        .await
        .unwrap_err()
        .to_string();
        assert_eq!(error, "waited 1s for the tide to turn; last seen: wave 20");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_ends_at_the_deadline() {
        let begun = clock::now();
        let result: Result<()> = eventually(Duration::from_secs(2), "an answer", async || {
            std::future::pending().await
        })
        .await;
        assert!(result.is_err());
        assert_eq!(clock::now() - begun, Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_is_returned_at_once() {
        let mut looks = 0;
        let value = eventually(Duration::from_secs(1), "three", async || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err(anyhow!("{looks}"))
            }
        })
        .await;
        assert_eq!(value.unwrap(), 3);
    }
}
