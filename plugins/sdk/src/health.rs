//! `grpc.health.v1.Health`: `""` is the process, the service's full name is readiness to work.
//!
//! Our own, because readiness must change in the same moment as the role: a host that asks after the answer to `Lead`
//! must not see the readiness of an earlier term.

use std::pin::Pin;
use std::sync::Arc;

use bulkhead_proto::SERVICE_NAME;
use futures::Stream;
use futures::stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::term::Leadership;

/// Answers health checks from the role.
#[derive(Debug)]
pub(crate) struct HealthService {
    leadership: Arc<Leadership>,
    alive: watch::Sender<bool>,
    closing: CancellationToken,
}

/// A stream of health changes.
type Watch = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

impl HealthService {
    /// Watches end when `closing` is cancelled: an open one would keep the server from ever returning.
    pub(crate) fn new(leadership: Arc<Leadership>, closing: CancellationToken) -> Self {
        Self {
            leadership,
            alive: watch::Sender::new(true),
            closing,
        }
    }

    /// A switch that is on while the named service serves.
    fn switch(&self, service: &str) -> Result<watch::Receiver<bool>, Status> {
        match service {
            "" => Ok(self.alive.subscribe()),
            SERVICE_NAME => Ok(self.leadership.ready()),
            _ => Err(Status::not_found(format!(
                "health is known of \"\" and {SERVICE_NAME} only"
            ))),
        }
    }
}

fn answer(serving: bool) -> HealthCheckResponse {
    let status = if serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let serving = *self.switch(&request.get_ref().service)?.borrow();
        Ok(Response::new(answer(serving)))
    }

    type WatchStream = Watch;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        let mut switch = self.switch(&request.get_ref().service)?;
        switch.mark_changed();
        let closing = self.closing.clone();
        let changes = stream::unfold((switch, closing), |(mut switch, closing)| async move {
            tokio::select! {
                () = closing.cancelled() => None,
                changed = switch.changed() => {
                    changed.ok()?;
                    let item = answer(*switch.borrow_and_update());
                    Some((Ok(item), (switch, closing)))
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
