//! The three durations of an election, and what makes them fit together.

use std::time::Duration;

/// A set of durations that cannot elect safely; the message names the flag to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The Lease stores whole seconds, so a fraction would be lost for every other candidate.
    #[error("--leader-elect-lease-duration must be a whole number of seconds, at least 1, but is {0:?}")]
    LeaseNotWholeSeconds(Duration),
    /// A candidate may take over before the holder gave up.
    #[error(
        "--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline, \
         but {lease_duration:?} is not greater than {renew_deadline:?}"
    )]
    LeaseNotAboveRenewDeadline {
        /// As configured.
        lease_duration: Duration,
        /// As configured.
        renew_deadline: Duration,
    },
    /// The holder would give up before it tried a second time.
    #[error(
        "--leader-elect-renew-deadline must be greater than 1.2 times --leader-elect-retry-period, \
         but {renew_deadline:?} is not greater than 1.2 times {retry_period:?}"
    )]
    RenewDeadlineNotAboveRetries {
        /// As configured.
        renew_deadline: Duration,
        /// As configured.
        retry_period: Duration,
    },
    /// Candidates would ask without a pause.
    #[error("--leader-elect-retry-period must be greater than zero")]
    RetryPeriodZero,
}

/// The durations of an election: lease > renew deadline > 1.2 × retry period > 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl Timing {
    /// Checks the three durations against each other.
    ///
    /// # Errors
    /// The first rule that is broken, with the names of its flags.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, TimingError> {
        if lease_duration.is_zero() || lease_duration.subsec_nanos() != 0 {
            return Err(TimingError::LeaseNotWholeSeconds(lease_duration));
        }
        if lease_duration <= renew_deadline {
            return Err(TimingError::LeaseNotAboveRenewDeadline {
                lease_duration,
                renew_deadline,
            });
        }
        if retry_period.is_zero() {
            return Err(TimingError::RetryPeriodZero);
        }
        if renew_deadline <= retry_period.saturating_mul(6) / 5 {
            return Err(TimingError::RenewDeadlineNotAboveRetries {
                renew_deadline,
                retry_period,
            });
        }
        Ok(Self {
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }

    /// How long a record counts after its last change.
    pub const fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// How long a leader goes on without a successful renewal.
    pub const fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// Time between two renewals, and the shortest time between two looks of a standby.
    pub const fn retry_period(&self) -> Duration {
        self.retry_period
    }

    /// The deadline of one request: two fit into the renew deadline.
    pub fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// The pause between two looks of a standby, `draw` in 0..=1 being its lot: the retry period lengthened
    /// by up to 1.2 of itself (client-go's jitter), so that candidates drift apart.
    pub fn poll_period(&self, draw: f64) -> Duration {
        self.retry_period + self.retry_period.mul_f64(1.2 * draw.clamp(0.0, 1.0))
    }
}

impl Default for Timing {
    /// Upstream's 15 s, 10 s and 2 s.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}
