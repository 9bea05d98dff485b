//! An API server for tests: answers are made by a function, and come through kube's whole client.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use ::kube::Client;
use ::kube::client::Body;
use axum::body::Body as Answer;
use futures::{StreamExt, stream};
use http::{Request, Response};
use serde_json::{Value, json};
use tower::service_fn;

/// A request as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    /// Method, path and query.
    pub(crate) line: String,
    pub(crate) content_type: Option<String>,
    /// `null` if there is none.
    pub(crate) body: Value,
}

/// What was sent so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Sent>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<Sent> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.all().into_iter().map(|sent| sent.line).collect()
    }
}

/// A client whose requests are answered by `answer`.
pub(crate) fn client(answer: impl Fn(&Sent) -> Response<Answer> + Send + Sync + 'static) -> (Client, Log) {
    let (log, answer) = (Log::default(), Arc::new(answer));
    let sent = log.clone();
    let service = service_fn(move |request: Request<Body>| {
        let (sent, answer) = (sent.clone(), Arc::clone(&answer));
        async move {
            let request = read(request).await;
            sent.0.lock().unwrap().push(request.clone());
            Ok::<_, Infallible>(answer(&request))
        }
    });
    (Client::new(service, "default"), log)
}

/// A client that never gets an answer.
pub(crate) fn silent_client() -> Client {
    let service =
        service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Answer>, Infallible>>());
    Client::new(service, "default")
}

async fn read(request: Request<Body>) -> Sent {
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await.unwrap();
    Sent {
        line: format!("{} {}", head.method, head.uri),
        content_type: head
            .headers
            .get("content-type")
            .map(|value| value.to_str().unwrap().to_owned()),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    }
}

/// An answer with a JSON body.
pub(crate) fn json_answer(code: u16, body: &Value) -> Response<Answer> {
    Response::builder()
        .status(code)
        .body(Answer::from(body.to_string()))
        .unwrap()
}

/// The beginning of a watch: `events`, and then silence.
pub(crate) fn watch_answer(events: &[Value]) -> Response<Answer> {
    let lines: Vec<_> = events
        .iter()
        .map(|event| Ok::<_, Infallible>(format!("{event}\n")))
        .collect();
    Response::new(Answer::from_stream(stream::iter(lines).chain(stream::pending())))
}

/// A refusal, as API servers write it.
pub(crate) fn refusal(code: u16, reason: &str, details: &Value) -> Response<Answer> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason,
        "details": details, "code": code,
    });
    json_answer(code, &body)
}
