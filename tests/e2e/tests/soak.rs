//! A minute of `cargo xtask soak`.

use std::time::Duration;

use anyhow::Result;
use bulkhead_e2e::soak::{self, Options};
use bulkhead_harness::scenario;

/// Any would do; one that stays makes runs alike.
const SEED: u64 = 20_261_201;

#[tokio::test(flavor = "multi_thread")]
async fn churn_with_processes_that_die_at_any_moment_leaks_nothing_and_loses_nothing() -> Result<()> {
    scenario("soak.minute", async |workspace| {
        let options = Options {
            seed: SEED,
            length: Duration::from_secs(28),
        };
        soak::run(workspace, options, &mut |_| {}).await
    })
    .await
}
