//! The control API: what a process runs and uses, and actions on it, over HTTP on this machine only.
//!
//! | request | answer |
//! |---|---|
//! | `GET /services` | all services with state, figures and last errors |
//! | `GET /resources` | all resources with the sum over their bindings |
//! | `POST /services/{service}/{action}` | start, stop, pause, resume or restart one; its state afterwards |
//! | `POST /services/{action}` | the same for all |
//!
//! It has no passwords. A page in a browser must not reach it either: a request has to name this machine as its host, and a change has to have
//! the content type of JSON, which pages of other origins cannot send.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::bindings::Bindings;
use crate::error::{Error, ErrorCode, Result};
use crate::manager::{Action, Manager};

mod client;

pub use client::Client;

/// How long the end waits for requests that are under way.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A control API that listens.
pub struct Control {
    address: SocketAddr,
    stop: tokio::sync::oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Control {
    /// Listens at an address of this machine.
    pub async fn listen(address: SocketAddr, manager: Arc<Manager>, bindings: Arc<Bindings>) -> Result<Self> {
        let refused = |error: &dyn std::fmt::Display| {
            let advice = "another process may use it: choose another with control.listen, or --control";
            Error::permanent(
                ErrorCode::InvalidConfiguration,
                format!("control API cannot listen on {address}: {error}; {advice}"),
            )
        };
        if !address.ip().is_loopback() {
            return Err(refused(&"it is not this machine"));
        }
        let listener = TcpListener::bind(address).await.map_err(|error| refused(&error))?;
        let address = listener.local_addr().map_err(|error| refused(&error))?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let router = router(manager, bindings);
        let serving = tokio::spawn(async move {
            let ended = async {
                let _ = stopped.await;
            };
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(ended).await {
                tracing::error!(%error, "control API ended");
            }
        });
        Ok(Control { address, stop, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it. Connections that are kept open are cut.
    pub async fn close(mut self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(END_WITHIN, &mut self.serving).await.is_err() {
            self.serving.abort();
        }
    }
}

struct Parts {
    manager: Arc<Manager>,
    bindings: Arc<Bindings>,
}

/// The API of a process.
pub fn router(manager: Arc<Manager>, bindings: Arc<Bindings>) -> Router {
    Router::new()
        .route("/services", get(services))
        .route("/resources", get(resources))
        .route("/services/{action}", post(act_on_all))
        .route("/services/{service}/{action}", post(act))
        .layer(middleware::from_fn(only_from_here))
        .with_state(Arc::new(Parts { manager, bindings }))
}

/// What a process runs and uses, without actions: a larger server decides who may read it.
pub(crate) fn reading(manager: Arc<Manager>, bindings: Arc<Bindings>) -> Router {
    Router::new()
        .route("/services", get(services))
        .route("/resources", get(resources))
        .with_state(Arc::new(Parts { manager, bindings }))
}

async fn services(State(parts): State<Arc<Parts>>) -> Response {
    Json(parts.manager.list()).into_response()
}

async fn resources(State(parts): State<Arc<Parts>>) -> Response {
    Json(parts.bindings.resources()).into_response()
}

async fn act_on_all(State(parts): State<Arc<Parts>>, Path(action): Path<String>) -> Response {
    let acted = match Action::parse(&action) {
        Ok(action) => parts.manager.act_on_all(action).await,
        Err(error) => Err(error),
    };
    acted.map_or_else(|error| refused(StatusCode::BAD_REQUEST, &error), |all| Json(all).into_response())
}

async fn act(State(parts): State<Arc<Parts>>, Path((service, action)): Path<(String, String)>) -> Response {
    if let Err(error) = parts.manager.status(&service) {
        return refused(StatusCode::NOT_FOUND, &error);
    }
    match Action::parse(&action) {
        Err(error) => refused(StatusCode::BAD_REQUEST, &error),
        Ok(action) => match parts.manager.act(action, &service).await {
            Ok(status) => Json(vec![status]).into_response(),
            Err(error) => refused(StatusCode::CONFLICT, &error),
        },
    }
}

fn refused(status: StatusCode, error: &dyn std::fmt::Display) -> Response {
    (status, Json(json!({ "error": error.to_string() }))).into_response()
}

/// Refuses what a page of another origin could send.
async fn only_from_here(request: Request, next: Next) -> Response {
    if !names_this_machine(request.headers()) {
        return refused(StatusCode::FORBIDDEN, &"the host of the request is not this machine");
    }
    let is_json =
        request.headers().get(header::CONTENT_TYPE).is_some_and(|found| found == "application/json");
    if request.method() == Method::POST && !is_json {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, &"a change needs content-type: application/json");
    }
    next.run(request).await
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.parse::<SocketAddr>() {
        Ok(address) => return address.ip().is_loopback(),
        Err(_) => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name == "localhost" || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
