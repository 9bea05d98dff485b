//! `SimControl`: served to whoever drives the simulation, and a client for tests.

mod client;
mod service;

pub use client::{Client, ControlError};
pub(crate) use service::{ControlService, service};

use std::io;
use std::path::Path;

use crate::api::CloudApi;
use crate::plugin::PluginFaults;

/// Serves the control of a plugin's process, and of its cloud if that is in the process, for ever.
///
/// # Errors
///
/// The socket cannot be taken.
pub async fn serve(api: &CloudApi, faults: PluginFaults, path: &Path) -> io::Result<()> {
    let control = service(ControlService::new(api.here().cloned(), Some(faults)));
    let listener = crate::endpoint::bind(path).await?;
    crate::endpoint::serve(control, listener, std::future::pending()).await
}
