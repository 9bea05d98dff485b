//! The end in order: who may write gives that up before the lease is.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::leader::{Ending, ReleaseError};
use crate::tasks::StillRunning;

/// What is kept of the time for an end, for what holds no right to write. A short time is shared.
const LAST_STAGES: Duration = Duration::from_secs(2);

/// Until when the host must have ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    hand_over: Instant,
    all: Instant,
}

impl Deadline {
    /// `grace` from now.
    pub(super) fn after(grace: Duration) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "a limit of timers, which run on this clock"
        )]
        let now = Instant::now();
        Self {
            hand_over: now + grace.saturating_sub(LAST_STAGES.min(grace / 4)),
            all: now + grace,
        }
    }

    /// What is left for the last stages.
    pub(super) fn left(self) -> Duration {
        #[expect(
            clippy::disallowed_methods,
            reason = "a limit of timers, which run on this clock"
        )]
        self.all.saturating_duration_since(Instant::now())
    }

    /// What is left until the lease must be released.
    pub(super) fn left_to_hand_over(self) -> Duration {
        self.left().saturating_sub(self.all - self.hand_over)
    }
}

/// Why the lease was not released.
#[derive(Debug, thiserror::Error)]
pub(super) enum Kept {
    #[error("calls have not ended: {0}")]
    Calls(StillRunning),
    #[error("a plugin has not answered that it stands down, and may still write")]
    Plugin,
    #[error("the API server does not answer")]
    Api,
}

/// Releases the lease once nobody writes any more because of it: neither a worker nor a plugin.
///
/// # Errors
/// Not all of that happened in time.
pub(super) async fn hand_over(
    deadline: Deadline,
    workers: impl Future<Output = Result<(), StillRunning>>,
    stood_down: impl Future<Output = ()>,
    release: impl Future<Output = Result<Ending, ReleaseError>>,
) -> Result<(), Kept> {
    workers.await.map_err(Kept::Calls)?;
    let until = deadline.hand_over;
    tracing::info!("no call is in flight; waiting until no plugin holds a right to write");
    timeout_at(until, stood_down).await.map_err(|_| Kept::Plugin)?;
    match timeout_at(until, release).await {
        Ok(Ok(ending)) => {
            tracing::info!(?ending, "the lease is given up");
            Ok(())
        }
        Ok(Err(error)) => {
            tracing::warn!("{error}");
            Ok(())
        }
        Err(_) => Err(Kept::Api),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rstest::rstest;
    use tokio::time::sleep;

    use super::*;

    const GRACE: Duration = Duration::from_secs(25);

    /// When each part is done, in seconds; 99: never.
    struct Parts {
        workers: u64,
        stood_down: u64,
        release: u64,
    }

    #[rstest]
    #[case::at_once(Parts { workers: 0, stood_down: 0, release: 0 }, "")]
    #[case::all_of_the_time(Parts { workers: 10, stood_down: 10, release: 2 }, "")]
    #[case::workers_hang(
        Parts { workers: 99, stood_down: 0, release: 0 }, "calls have not ended: still running: worker"
    )]
    #[case::the_plugin_may_write(
        Parts { workers: 20, stood_down: 99, release: 0 },
        "a plugin has not answered that it stands down, and may still write"
    )]
    #[case::together_too_slow(
        Parts { workers: 10, stood_down: 10, release: 5 }, "the API server does not answer"
    )]
    #[tokio::test(start_paused = true)]
    async fn the_lease_is_released_last_and_in_time_or_not_at_all(
        #[case] parts: Parts,
        #[case] expected: &str,
    ) {
        let deadline = Deadline::after(GRACE);
        let asked = AtomicBool::new(false);
        let span = |seconds| Duration::from_secs(seconds);
        let limit = deadline.left_to_hand_over();
        let workers = async {
            let running = || StillRunning {
                tasks: vec!["worker".to_owned()],
            };
            tokio::time::timeout(limit, sleep(span(parts.workers)))
                .await
                .map_err(|_| running())
        };
        let release = async {
            asked.store(true, Ordering::Relaxed);
            sleep(span(parts.release)).await;
            Ok(Ending::Released)
        };
        let stood_down = async { sleep(span(parts.stood_down)).await };
        let result = hand_over(deadline, workers, stood_down, release).await;
        assert_eq!(
            result
                .as_ref()
                .map_or_else(ToString::to_string, |()| String::new()),
            expected
        );
        assert_eq!(asked.into_inner(), matches!(result, Ok(()) | Err(Kept::Api)));
        assert!(
            deadline.left() >= LAST_STAGES,
            "nothing is left for the last stages"
        );
    }

    #[rstest]
    #[case::long(GRACE, Duration::from_secs(23))]
    #[case::short(Duration::from_secs(4), Duration::from_secs(3))]
    #[case::none(Duration::ZERO, Duration::ZERO)]
    #[tokio::test(start_paused = true)]
    async fn a_part_of_the_time_is_kept_for_the_last_stages(
        #[case] grace: Duration,
        #[case] expected: Duration,
    ) {
        let deadline = Deadline::after(grace);
        assert_eq!((deadline.left_to_hand_over(), deadline.left()), (expected, grace));
    }

    #[tokio::test(start_paused = true)]
    async fn without_time_nothing_is_waited_for() {
        let result = hand_over(
            Deadline::after(Duration::ZERO),
            ready(Ok(())),
            pending(),
            pending(),
        )
        .await;
        assert!(matches!(result, Err(Kept::Plugin)));
    }
}
