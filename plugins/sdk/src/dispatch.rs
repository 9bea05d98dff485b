//! Two gRPC services on one connection: health by its name, everything else to the plugin's own.

use std::task::{Context, Poll};

use bulkhead_proto::v1::cloud_provider_server::CloudProviderServer;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;

use crate::health::HealthService;
use crate::provider::CloudProvider;
use crate::service;

/// What the server serves. An unknown path ends in the plugin's service, which answers UNIMPLEMENTED.
#[derive(Debug)]
pub(crate) struct Dispatch<P> {
    provider: CloudProviderServer<service::Service<P>>,
    health: HealthServer<HealthService>,
}

impl<P> Dispatch<P> {
    pub(crate) fn new(
        provider: CloudProviderServer<service::Service<P>>,
        health: HealthServer<HealthService>,
    ) -> Self {
        Self { provider, health }
    }
}

impl<P> Clone for Dispatch<P> {
    fn clone(&self) -> Self {
        Self {
            provider: self.provider.clone(),
            health: self.health.clone(),
        }
    }
}

type Provided<P> = CloudProviderServer<service::Service<P>>;

impl<P: CloudProvider> Service<http::Request<Body>> for Dispatch<P> {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = <Provided<P> as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = request.uri().path().split('/').nth(1);
        if service == Some(<HealthServer<HealthService> as NamedService>::NAME) {
            self.health.call(request)
        } else {
            self.provider.call(request)
        }
    }
}
