//! Two gRPC services on one connection, without a router.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use tonic::{
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
};

/// What goes to `named` by its name; everything else to `other`.
#[derive(Debug, Clone)]
pub(crate) struct Dispatch<N, O> {
    pub(crate) named: N,
    pub(crate) other: O,
}

type Answer = BoxFuture<http::Response<Body>, Infallible>;

impl<N, O> Service<http::Request<Body>> for Dispatch<N, O>
where
    N: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future = Answer>
        + NamedService,
    O: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future = Answer>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        if request.uri().path().split('/').nth(1) == Some(N::NAME) {
            self.named.call(request)
        } else {
            self.other.call(request)
        }
    }
}
