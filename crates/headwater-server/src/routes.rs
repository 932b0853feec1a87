//! All routes, and the layer around them.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::guard;
use crate::problem::{Problem, no_such_method};
use crate::{api, dashboard, metrics};

/// How long the store may take to say that it is there.
const READY_WITHIN: std::time::Duration = std::time::Duration::from_secs(2);

/// The routes of the server.
pub(crate) fn routes(app: App) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(async || Json(json!({ "status": "ok" }))))
        .route("/readyz", get(ready))
        .merge(api::routes())
        .merge(metrics::routes())
        .merge(dashboard::routes());
    if let Some(pipeline) = app.pipeline.clone() {
        let reader = middleware::from_fn_with_state(app.clone(), guard::readers_only);
        router = router.nest_service("/v1/pipeline", pipeline.layer(reader));
    }
    router
        .fallback(dashboard::no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(app.clone(), guard::guard))
        .layer(middleware::from_fn(metrics::measure))
        .with_state(app)
}

/// Whether requests can be answered: the store is there, and the server does not stop.
async fn ready(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let unavailable =
        |detail: String| Problem::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail);
    if app.stopping.is_stopping() {
        return Err(unavailable("the server stops".into()));
    }
    match tokio::time::timeout(READY_WITHIN, app.tokens.store().any()).await {
        Ok(Ok(_)) => Ok(Json(json!({ "status": "ready" }))),
        // Without the text: it may name the database to any caller.
        Ok(Err(error)) => Err(unavailable(format!("the store does not answer: {:?}", error.kind()))),
        Err(_) => Err(unavailable(format!("the store does not answer within {READY_WITHIN:?}"))),
    }
}
