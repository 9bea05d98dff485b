//! TODO of its branch.

use anyhow::{Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Options {}

pub(crate) async fn run(_options: Options) -> Result<()> {
    bail!("not written yet")
}
