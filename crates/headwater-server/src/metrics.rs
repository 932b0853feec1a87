//! `/metrics`: everything that the library and the server count, for Prometheus, in one registry.
//!
//! All metrics of the server are registered here; `docs/server.md` lists them. The library uses the recorder of the process that is there when a store is
//! opened: [`record_metrics`] comes first.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body::{Body as HttpBody, Frame, SizeHint};
use metrics::{Counter, Gauge, Histogram, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::Problem;

const REQUESTS: &str = "headwater_http_requests_total";
const SECONDS: &str = "headwater_http_request_seconds";
const CONNECTIONS: &str = "headwater_http_connections";
const WAITING: &str = "headwater_http_waiting";
const DENIED: &str = "headwater_http_denied_total";
const UNAUDITED: &str = "headwater_http_denied_unaudited_total";
const DROPPED: &str = "headwater_http_dropped_total";

/// Each metric with its type, its labels and its meaning.
const DESCRIBED: [(&str, &str, &str, &str); 7] = [
    (REQUESTS, "counter", "method, route, status", "Requests that were answered"),
    (SECONDS, "histogram", "method, route", "Time of a request that does not wait for messages"),
    (CONNECTIONS, "gauge", "", "Open connections"),
    (WAITING, "gauge", "kind", "Clients that wait for messages or figures"),
    (DENIED, "counter", "reason", "Requests that were denied"),
    (UNAUDITED, "counter", "", "Denied requests that are not in the audit because there were too many"),
    (DROPPED, "counter", "reason", "Connections that were closed because of a limit"),
];

/// The bounds of histograms, in seconds: from an index lookup to a long wait.
const BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The registry; `None` if the process has a recorder of another kind.
static REGISTRY: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Makes this process count for `/metrics`. To be called before a store is opened: a store counts with the recorder that it finds. A process that has
/// installed a recorder of its own keeps it, and `/metrics` says so.
pub fn record_metrics() {
    REGISTRY.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let suffix = Matcher::Suffix("_seconds".to_owned());
        let builder =
            builder.set_buckets_for_metric(suffix, &BUCKETS).unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("the process has a recorder of its own; /metrics is empty");
            return None;
        }
        for (name, kind, _, text) in DESCRIBED {
            match kind {
                "counter" => metrics::describe_counter!(name, Unit::Count, text),
                "gauge" => metrics::describe_gauge!(name, Unit::Count, text),
                _ => metrics::describe_histogram!(name, Unit::Seconds, text),
            }
        }
        Some(handle)
    });
}

/// Moves what histograms have recorded to their buckets; to be called now and then, so that it does not pile up between scrapes.
pub(crate) fn upkeep() {
    if let Some(registry) = REGISTRY.get().and_then(Option::as_ref) {
        registry.run_upkeep();
    }
}

/// The route.
pub(crate) fn routes() -> Router<App> {
    Router::new().route("/metrics", get(metrics_text))
}

async fn metrics_text(caller: Caller) -> Result<Response, Problem> {
    caller.may(Scope::Read, None)?;
    let Some(registry) = REGISTRY.get().and_then(Option::as_ref) else {
        let detail = "this process has a recorder of its own, which exports its metrics";
        return Err(Problem::not_found(detail));
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], registry.render())
        .into_response())
}

/// Counts and times the requests of all routes.
pub(crate) async fn measure(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let is_claim = route.ends_with("/claim");
    let waits = is_claim.then(|| waiting("claim"));
    let began = Instant::now();
    let response = next.run(request).await;
    drop(waits);
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    let of = Measured::find(&method, route, response.status());
    of.requests.increment(1);
    if is_stream {
        return response.map(|body| Body::new(Counted { body, _waits: waiting(kind_of(route)) }));
    }
    if !is_claim {
        of.seconds.record(began.elapsed());
    }
    response
}

/// What the stream of a route is counted as.
fn kind_of(route: &str) -> &'static str {
    match route.rsplit('/').next() {
        Some("stream") => "stream",
        Some("tail") => "tail",
        _ => "live",
    }
}

/// The metrics of a method, a route and a status. Registered in the registry once: a server answers tens of thousands of requests a second.
#[derive(Clone)]
struct Measured {
    method: Method,
    status: StatusCode,
    requests: Counter,
    seconds: Histogram,
}

impl Measured {
    fn find(method: &Method, route: &str, status: StatusCode) -> Measured {
        static KNOWN: OnceLock<RwLock<HashMap<String, Vec<Measured>>>> = OnceLock::new();
        let known = KNOWN.get_or_init(RwLock::default);
        let is_it = |one: &&Measured| one.method == *method && one.status == status;
        let found = known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(route)
            .and_then(|of_route| of_route.iter().find(is_it).cloned());
        if let Some(found) = found {
            return found;
        }
        // Methods that no route knows are one, so that a client cannot make new series.
        let name = if is_usual(method) { method.as_str() } else { "other" };
        let labels = [("method", name.to_owned()), ("route", route.to_owned())];
        let of = Measured {
            method: method.clone(),
            status,
            requests: metrics::counter!(REQUESTS, "method" => name.to_owned(), "route" => route.to_owned(), "status" => status.as_str().to_owned()),
            seconds: metrics::histogram!(SECONDS, &labels),
        };
        if is_usual(method) {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            known.entry(route.to_owned()).or_default().push(of.clone());
        }
        of
    }
}

fn is_usual(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        .contains(method)
}

/// Raises a gauge for as long as it lives.
pub(crate) struct Open(Gauge);

impl Open {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Open(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A client that waits: `claim`, `stream`, `tail`, `socket` or `live`.
pub(crate) fn waiting(kind: &'static str) -> Open {
    Open::new(metrics::gauge!(WAITING, "kind" => kind))
}

/// An open connection.
pub(crate) fn connection() -> Open {
    Open::new(metrics::gauge!(CONNECTIONS))
}

/// A request that was denied, by the kind of its problem.
pub(crate) fn denied(reason: &str) {
    metrics::counter!(DENIED, "reason" => reason.to_owned()).increment(1);
}

/// A denied request that is not in the audit.
pub(crate) fn unaudited() {
    metrics::counter!(UNAUDITED).increment(1);
}

/// A connection that was closed: `slow`, or beyond a `limit`.
pub(crate) fn dropped(reason: &'static str) {
    metrics::counter!(DROPPED, "reason" => reason).increment(1);
}

/// The body of a stream, which counts until it ends or its client is gone.
struct Counted {
    body: Body,
    _waits: Open,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_lists_what_is_registered() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server.md");
        let guide = std::fs::read_to_string(guide).expect("the guide");
        let rows = guide.lines().filter(|line| line.starts_with("| `headwater_"));
        let listed: Vec<Vec<String>> = rows
            .map(|row| {
                row.split('|').skip(1).take(3).map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
            })
            .collect();
        let registered = DESCRIBED
            .map(|(name, kind, labels, _)| vec![name.to_owned(), kind.to_owned(), labels.to_owned()]);
        assert_eq!(listed, registered);
    }

    #[test]
    fn nothing_else_registers_metrics() {
        fn visit(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    visit(&path, found);
                } else if std::fs::read_to_string(&path).is_ok_and(|text| {
                    ["counter!(", "gauge!(", "histogram!("]
                        .iter()
                        .any(|call| text.contains(&format!("metrics::{call}")))
                }) {
                    found.push(path);
                }
            }
        }
        let mut found = Vec::new();
        visit(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
        let own = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics.rs"));
        assert_eq!(found, [own], "the guide would not list them");
    }
}
