//! Leading without an election: the same words, no Lease.

use std::time::Duration;

use bulkhead_core::election::{Ending, Epoch, Leading};
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use super::stage::Stage;
use crate::clock;

/// Time between renewals.
const PACE: Duration = Duration::from_secs(2);
/// Makes a `Lead` valid for 15 s: those are seven eighths of it.
const LEASE_DURATION: Duration = Duration::from_nanos(15_000_000_000 * 8 / 7);

/// Leads until the release.
pub(super) async fn run(mut stage: Stage, ended: watch::Sender<Option<Ending>>) {
    let epoch = Epoch {
        lease_uid: Uuid::new_v4().to_string(),
        transitions: 0,
    };
    loop {
        stage.lead(
            Leading {
                epoch: epoch.clone(),
                renewed: clock::now(),
            },
            LEASE_DURATION,
        );
        tokio::select! {
            () = stage.release_wanted() => break,
            () = sleep(PACE) => {}
        }
    }
    stage.stand_by();
    ended.send_replace(Some(Ending::Released));
}
