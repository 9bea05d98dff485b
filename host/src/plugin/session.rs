//! One session: from `Describe` to the end of its connection.

mod board;
mod lead;
mod poll;
mod state;
mod term_names;

use std::sync::Arc;

use bulkhead_core::clock::Timestamp;
use bulkhead_core::cloud::{Description, Failure};
use bulkhead_proto::{REVISION, v1};
use rustls::AlertDescription;
use tokio::sync::watch;

pub(crate) use self::board::Board;
pub use self::state::{Led, SessionState, SessionView};
pub(crate) use self::term_names::{TermNames, name as name_of_term};

use super::Settings;
use super::call::{Class, Verb, Wire, rpc};
use super::convert::description::{Incompatible, Limits, description};
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
    /// It does not trust this host.
    #[error("it refuses the certificate in this host's tls.certFile: {0:?}; the plugin's log says more")]
    Refused(AlertDescription),
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
    let described = match describe(settings, &wire).await {
        Ok(described) => described,
        Err(end) => return end,
    };
    let gatekeeper = Arc::clone(board.gatekeeper());
    let link = Arc::new(Link::new(settings, wire.clone(), described.limits, gatekeeper));
    board.began(described, link);
    let gone = wire.connection.gone.clone();
    let mut told = lead::Told::new(settings, board, &wire);
    let end = tokio::select! {
        biased;
        () = gone.cancelled() => End::Stream,
        // Who leads is the first thing that a session is told.
        never = told.follow(standing) => match never {},
        end = poll::poll(settings, board, &wire) => end,
    };
    if matches!(end, End::Drained) {
        // A plugin that is about to end can still say that it writes no more; one that does not is waited for.
        told.stand_down().await;
    }
    board.ended();
    end
}

/// What a process says of itself.
pub(crate) struct Described {
    description: Description,
    limits: Limits,
    /// When it started, where it says so.
    started: Option<Timestamp>,
}

/// Asks the plugin who it is.
async fn describe(settings: &Settings, wire: &Wire) -> Result<Described, End> {
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
    let answer =
        wire.within(DESCRIBE, deadline, call)
            .await
            .map_err(|error| match wire.connection.refusal.get() {
                Some(alert) => End::Refused(*alert),
                None => End::NoDescription(error.failure),
            })?;
    let started = answer.started_at.map(|at| {
        let micros = at.seconds.saturating_mul(1_000_000);
        Timestamp(micros.saturating_add(i64::from(at.nanos) / 1000))
    });
    let (description, limits) = description(answer, settings.provider.as_deref())?;
    Ok(Described {
        description,
        limits,
        started,
    })
}
