//! The pages: health in Kubernetes' form, plugins as JSON, metrics in Prometheus' text format.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bulkhead_core::clock::Timestamp;
use prometheus_client::encoding::prometheus_text;
use serde_json::json;

use super::Sources;
use super::access::{Denial, Gate};
use crate::clock;
use crate::readiness::{Check, PluginState};
use crate::telemetry::Chain;

pub(super) fn router(sources: Sources, gate: Gate) -> Router {
    Router::new()
        .route("/livez", get(livez))
        // Upstream's only health page, used by probes of existing manifests: what it means there is liveness.
        .route("/healthz", get(livez))
        .route("/readyz", get(readyz))
        .route("/readyz/plugins", get(plugins))
        .route("/metrics", get(metrics))
        .with_state(sources)
        .layer(middleware::from_fn_with_state(Arc::new(gate), admit))
}

async fn admit(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let verb = request.method().as_str().to_ascii_lowercase();
    let admitted = gate
        .admit(&verb, request.uri().path(), bearer_token(request.headers()))
        .await;
    let mut response = match admitted {
        Ok(()) => next.run(request).await,
        Err(denial) => deny(&denial),
    };
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
}

fn deny(denial: &Denial) -> Response {
    let status = match denial {
        Denial::Unauthorized => StatusCode::UNAUTHORIZED,
        Denial::Forbidden { .. } => StatusCode::FORBIDDEN,
        Denial::Unreviewed { .. } => {
            tracing::error!(error = %Chain(denial), "cannot answer a request to the admin server");
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    (status, format!("{denial}\n")).into_response()
}

type Parameters = Query<Vec<(String, String)>>;

async fn livez(State(sources): State<Sources>, Query(parameters): Parameters) -> Response {
    let mut checks = vec![Check {
        name: "ping".to_owned(),
        verdict: Ok(()),
    }];
    checks.extend(sources.health.liveness(clock::now()));
    health_page("livez", &checks, &parameters, &[])
}

async fn readyz(State(sources): State<Sources>, Query(parameters): Parameters) -> Response {
    health_page(
        "readyz",
        &sources.health.readiness(),
        &parameters,
        &sources.health.plugins(),
    )
}

/// Kubernetes' form: `ok`; with `?verbose` or on failure a line a check, and status 500 on failure.
/// `?exclude=` leaves a check out of the verdict. Plugins are shown and never count.
fn health_page(
    page: &str,
    checks: &[Check],
    parameters: &[(String, String)],
    plugins: &[PluginState],
) -> Response {
    let excluded: Vec<&str> = parameters
        .iter()
        .filter(|(key, _)| key == "exclude")
        .map(|(_, name)| name.as_str())
        .collect();
    let mut lines = Vec::new();
    let mut is_healthy = true;
    for Check { name, verdict } in checks {
        match verdict {
            _ if excluded.contains(&name.as_str()) => lines.push(format!("[+]{name} excluded: ok")),
            Ok(()) => lines.push(format!("[+]{name} ok")),
            Err(reason) => {
                is_healthy = false;
                lines.push(format!("[-]{name} failed: {reason}"));
            }
        }
    }
    let is_known = |name: &&&str| checks.iter().any(|check| check.name == **name);
    let unknown = excluded.iter().filter(|name| !is_known(name));
    lines.extend(unknown.map(|name| format!("warn: no check {name:?} to exclude")));
    lines.extend(plugins.iter().map(plugin_line));
    if is_healthy && !parameters.iter().any(|(key, _)| key == "verbose") {
        return "ok".into_response();
    }
    let (status, outcome) = if is_healthy {
        (StatusCode::OK, "passed")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "failed")
    };
    lines.push(format!("{page} check {outcome}\n"));
    (status, lines.join("\n")).into_response()
}

fn plugin_line(plugin: &PluginState) -> String {
    let PluginState {
        name,
        state,
        since,
        message,
        held_back,
        ..
    } = plugin;
    let reasons = std::iter::once(message)
        .chain(held_back)
        .filter(|it| !it.is_empty());
    let reasons: Vec<&str> = reasons.map(String::as_str).collect();
    let reason = if reasons.is_empty() {
        String::new()
    } else {
        format!(": {}", reasons.join("; "))
    };
    format!("[ ]plugin {name} {state} since {}{reason}", display(*since))
}

async fn plugins(State(sources): State<Sources>) -> Response {
    let plugins: Vec<_> = sources.health.plugins().iter().map(plugin_json).collect();
    let body = json!({ "plugins": plugins });
    ([(CONTENT_TYPE, "application/json")], format!("{body:#}\n")).into_response()
}

fn plugin_json(plugin: &PluginState) -> serde_json::Value {
    json!({
        "name": plugin.name,
        "state": plugin.state,
        "since": display(plugin.since),
        "message": plugin.message,
        "details": plugin.details,
    })
}

fn display(time: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(time.0)
        .unwrap_or_default()
        .to_string()
}

async fn metrics(State(sources): State<Sources>) -> Response {
    let mut text = String::new();
    match prometheus_text::encode(&mut text, &sources.registry) {
        Ok(()) => ([(CONTENT_TYPE, prometheus_text::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
