//! A rate of our own over requests, where one is wanted: the API server's flow control usually does better.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tokio::sync::Mutex;
use tower::{Layer, Service};

use crate::bucket::Bucket;
use crate::clock;
use crate::config::RateConfig;

/// Hands out turns at a rate, in the order in which they are asked for. Clones share it.
#[derive(Clone, Debug)]
pub struct Pace(Arc<Mutex<Bucket>>);

/// A turn that was waited for already, as an extension of its request.
#[derive(Clone, Copy, Debug)]
pub struct Turn(());

impl Pace {
    /// A pace with `rate`.
    pub fn new(rate: RateConfig) -> Self {
        Self(Arc::new(Mutex::new(Bucket::new(rate))))
    }

    /// Waits for a turn. Who gives up waiting takes none.
    pub async fn turn(&self) -> Turn {
        // The lock is held by the next in the order, while it waits.
        let mut bucket = self.0.lock().await;
        loop {
            let now = clock::now();
            if bucket.try_take(now) {
                return Turn(());
            }
            tokio::time::sleep(bucket.wait(now)).await;
        }
    }
}

/// Holds requests back that come without their turn.
impl<S> Layer<S> for Pace {
    type Service = Paced<S>;

    fn layer(&self, inner: S) -> Paced<S> {
        Paced {
            inner,
            pace: self.clone(),
        }
    }
}

#[derive(Debug)]
pub struct Paced<S> {
    inner: S,
    pace: Pace,
}

impl<B, S: Service<Request<B>>> Service<Request<B>> for Paced<S>
where
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let has_turn = request.extensions().get::<Turn>().is_some();
        let pace = self.pace.clone();
        // The inner future sends nothing before it is polled.
        let call = self.inner.call(request);
        Box::pin(async move {
            if !has_turn {
                pace.turn().await;
            }
            call.await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use futures::FutureExt as _;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    /// One request at once, the next ones each after `Duration`.
    fn pace(interval: Duration) -> Pace {
        let per_second = interval.as_secs_f64().recip();
        Pace::new(RateConfig {
            per_second,
            burst: NonZeroUsize::MIN,
        })
    }

    #[tokio::test]
    async fn who_gives_up_waiting_takes_no_turn() {
        let pace = pace(Duration::from_millis(200));
        pace.turn().await;
        for _ in 0..100 {
            assert!(pace.turn().now_or_never().is_none());
        }
        // Of a hundred turns the last would come in 20 s.
        tokio::time::timeout(Duration::from_secs(10), pace.turn())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_request_waits_unless_it_has_its_turn() {
        let pace = pace(Duration::from_hours(1));
        let send = |request: Request<()>| {
            pace.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(())))
                .oneshot(request)
        };
        let mut request = Request::new(());
        request.extensions_mut().insert(pace.turn().await);
        assert_eq!(send(request).now_or_never(), Some(Ok(())));
        assert_eq!(send(Request::new(())).now_or_never(), None);
    }
}
