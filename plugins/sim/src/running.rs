//! A cloud that runs: the value, the clock, and the patience that its answers take.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::cloud::{Answer, Caller, Cloud, CloudError, Op};

/// A cloud in this process. Clones are the same cloud.
#[derive(Clone, Debug)]
pub struct RunningCloud(Arc<Mutex<Cloud>>);

impl RunningCloud {
    /// Runs a cloud.
    pub fn new(cloud: Cloud) -> Self {
        Self(Arc::new(Mutex::new(cloud)))
    }

    /// One call. What is asked is done at once; the answer takes the cloud's latency, and may never come: whoever calls
    /// brings a deadline.
    ///
    /// # Errors
    ///
    /// What the cloud says.
    pub async fn call(&self, caller: &Caller, op: &Op) -> Result<Answer, CloudError> {
        let turn = self.with(|cloud, now| cloud.call(caller, op, now));
        if !turn.latency.is_zero() {
            tokio::time::sleep(turn.latency).await;
        }
        match turn.answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Looks at the cloud or changes it, with the time: one at a time, so that time never goes back in it.
    pub fn with<T>(&self, work: impl FnOnce(&mut Cloud, Duration) -> T) -> T {
        // Nothing in the model leaves it half changed.
        let mut cloud = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut cloud, clock::boot())
    }
}
