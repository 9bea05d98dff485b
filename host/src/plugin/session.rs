//! One session: from `Describe` to the end of its connection.

mod board;
mod lead;
mod poll;
mod state;

use std::sync::Arc;

use bulkhead_core::cloud::Failure;
use bulkhead_proto::{REVISION, v1};
use tokio::sync::watch;

pub(crate) use self::board::Board;
pub use self::state::{Led, SessionState, SessionView};

use super::Settings;
use super::call::{Class, Verb, Wire, rpc};
use super::convert::description::{Incompatible, description};
use super::link::Link;
use crate::leader::Standing;

const DESCRIBE: Verb = Verb {
    name: "Describe",
    class: Class::Handshake,
};

/// Why a session ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The stream ended.
    #[error("its connection ended")]
    Stream,
    /// The plugin stopped answering.
    #[error("it does not answer health checks: {last}")]
    Health {
        /// What the last one came to.
        last: String,
    },
    /// Another process, or another provider, answers than the one that was described.
    #[error("it says that it is another process now")]
    AnotherProcess,
    /// It is about to end, and no call is in flight any more.
    #[error("it ends")]
    Drained,
    /// It did not answer `Describe`.
    #[error("it does not answer Describe: {}", .0.message)]
    NoDescription(Failure),
    /// It cannot be used.
    #[error(transparent)]
    Incompatible(#[from] Incompatible),
}

/// Serves one session over `wire` until it ends. `standing` says who leads.
pub(crate) async fn serve(
    settings: &Settings,
    board: &Board,
    wire: Wire,
    standing: watch::Receiver<Standing>,
) -> End {
    let (description, limits) = match describe(settings, &wire).await {
        Ok(described) => described,
        Err(end) => return end,
    };
    let gatekeeper = Arc::clone(board.gatekeeper());
    let link = Arc::new(Link::new(settings, wire.clone(), limits, Arc::clone(&gatekeeper)));
    board.began(description, link);
    let gone = wire.connection.gone.clone();
    let mut told = lead::Told::new(settings, board, &wire);
    let end = tokio::select! {
        biased;
        () = gone.cancelled() => End::Stream,
        // Who leads is the first thing that a session is told.
        never = told.follow(standing) => match never {},
        never = gatekeeper.keep() => match never {},
        end = poll::poll(settings, board, &wire) => end,
    };
    if matches!(end, End::Drained) {
        // A plugin that is about to end can still say that it writes no more; one that does not is waited for.
        told.stand_down().await;
    }
    board.ended();
    end
}

/// Asks the plugin who it is.
async fn describe(
    settings: &Settings,
    wire: &Wire,
) -> Result<
    (
        bulkhead_core::cloud::Description,
        super::convert::description::Limits,
    ),
    End,
> {
    let request = v1::DescribeRequest {
        cluster: Some(v1::Cluster {
            uid: settings.cluster.uid.clone(),
            name: settings.cluster.name.clone(),
        }),
        host_name: settings.host_name.clone(),
        host_version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_revisions: vec![REVISION],
    };
    let deadline = settings.timing.handshake;
    let send = rpc!(describe);
    let call = wire.send(deadline, request, send);
    let answer = wire
        .within(DESCRIBE, deadline, call)
        .await
        .map_err(|error| End::NoDescription(error.failure))?;
    Ok(description(answer, settings.provider.as_deref())?)
}
