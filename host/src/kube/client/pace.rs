//! A rate of our own over requests, where one is wanted: the API server's flow control usually does better.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tower::{Layer, Service};

use crate::clock;
use crate::kube::bucket::{Bucket, Rate};

/// Holds requests back to a rate.
#[derive(Clone, Debug)]
pub(super) struct PaceLayer(Arc<Mutex<Bucket>>);

impl PaceLayer {
    pub(super) fn new(rate: Rate) -> Self {
        Self(Arc::new(Mutex::new(Bucket::new(rate))))
    }
}

impl<S> Layer<S> for PaceLayer {
    type Service = Pace<S>;

    fn layer(&self, inner: S) -> Pace<S> {
        Pace {
            inner,
            bucket: Arc::clone(&self.0),
        }
    }
}

#[derive(Debug)]
pub(super) struct Pace<S> {
    inner: S,
    bucket: Arc<Mutex<Bucket>>,
}

impl<R, S: Service<R>> Service<R> for Pace<S>
where
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let wait = self
            .bucket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(clock::now());
        // The inner future sends nothing before it is polled.
        let call = self.inner.call(request);
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            call.await
        })
    }
}
