//! A way to the API server on which single requests are refused, or their answers lost.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{ApiServer, User};

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The API server does not see it; this status is the answer.
    Answer {
        /// The HTTP status.
        code: u16,
        /// `Retry-After`, in seconds.
        retry_after: Option<u32>,
    },
    /// The API server does what it says; no answer ever comes.
    LoseAnswer,
}

/// Forwards requests over plain HTTP to an API server, as one user, whatever token they carry. Dropping it closes all
/// connections.
#[derive(Debug)]
pub struct ApiProxy {
    address: SocketAddr,
    kubeconfig: PathBuf,
    rules: Rules,
    _task: JoinSet<()>,
}

type Rules = Arc<Mutex<Vec<Rule>>>;

#[derive(Debug)]
struct Rule {
    method: Method,
    path: String,
    fault: Fault,
    left: usize,
    met: usize,
}

impl ApiProxy {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// If there is none, or the kubeconfig for it cannot be written.
    pub async fn start(server: &ApiServer, user: User) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("bind the proxy")?;
        let address = listener.local_addr()?;
        let kubeconfig = server.kubeconfig_at(user, &format!("http://{address}"))?;
        let rules = Rules::default();
        let forward = Forward {
            client: server.client(user).await?,
            rules: Arc::clone(&rules),
        };
        let mut task = JoinSet::new();
        task.spawn(forward.serve(listener));
        Ok(Self {
            address,
            kubeconfig,
            rules,
            _task: task,
        })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig that goes through it.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    /// The next `times` requests of this method whose path with its query contains `path` meet this fault. An earlier rule
    /// that still holds goes first.
    pub fn fault(&self, method: Method, path: &str, times: usize, fault: Fault) {
        self.rules().push(Rule {
            method,
            path: path.to_owned(),
            fault,
            left: times,
            met: 0,
        });
    }

    /// How many requests have met a fault so far.
    pub fn met(&self) -> usize {
        self.rules().iter().map(|rule| rule.met).sum()
    }

    /// From now on all requests pass.
    pub fn pass(&self) {
        for rule in self.rules().iter_mut() {
            rule.left = 0;
        }
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Forward {
    client: Client,
    rules: Rules,
}

impl Forward {
    async fn serve(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { return };
                    let this = self.clone();
                    connections.spawn(async move {
                        let service = service_fn(|request| this.answer(request));
                        // Either side's error ends the connection, which is how the other side learns of it.
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let fault = self.meet(request.method(), &request.uri().to_string());
        if let Some(Fault::Answer { code, retry_after }) = fault {
            return Ok(refusal(code, retry_after));
        }
        // A bad gateway says what went wrong between us and the API server.
        let answer = self.forward(request).await.unwrap_or_else(|_| refusal(502, None));
        if fault == Some(Fault::LoseAnswer) {
            std::future::pending::<()>().await;
        }
        Ok(answer)
    }

    fn meet(&self, method: &Method, path: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let rule = rules
            .iter_mut()
            .find(|rule| rule.left > 0 && rule.method == *method && path.contains(&rule.path))?;
        rule.left -= 1;
        rule.met += 1;
        Some(rule.fault)
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let target = head.uri.path_and_query().context("a request without a path")?;
        let mut forwarded = Request::builder().method(head.method).uri(target.as_str());
        for name in [header::ACCEPT, header::CONTENT_TYPE, header::USER_AGENT] {
            if let Some(value) = head.headers.get(&name) {
                forwarded = forwarded.header(name, value);
            }
        }
        let body = body.collect().await?.to_bytes();
        let mut answer = self.client.send(forwarded.body(Body::from(body))?).await?;
        // Of the connection behind us.
        for name in [
            header::CONNECTION,
            header::TRANSFER_ENCODING,
            header::CONTENT_LENGTH,
        ] {
            answer.headers_mut().remove(name);
        }
        Ok(answer)
    }
}

fn refusal(code: u16, retry_after: Option<u32>) -> Response<Body> {
    let mut answer = Response::new(Body::from(format!("{code} by the proxy").into_bytes()));
    if let Ok(code) = http::StatusCode::from_u16(code) {
        *answer.status_mut() = code;
    }
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}
