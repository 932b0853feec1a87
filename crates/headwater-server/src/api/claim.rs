//! Claiming: messages of a group under a lease, with a long poll.

use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use headwater::consumer::{ClaimOptions, ClaimedMessage, Holder};
use headwater::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{OptionalBody, PathOf};
use super::message::DeliveredMessage;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::limits::Limits;
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(claim))
}

/// What to claim.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"max": 10, "wait_ms": 20000, "lease_ms": 30000}))]
struct ClaimBody {
    /// Messages at most; 1 by default.
    #[schema(minimum = 1, maximum = 1000)]
    max: Option<u32>,
    /// How long to wait if there is nothing; 0 by default.
    #[schema(minimum = 0, maximum = 60000)]
    wait_ms: Option<u64>,
    /// How long the lease lasts; the group's lease time by default.
    #[schema(minimum = 1, maximum = 31_622_400_000u64)]
    lease_ms: Option<u64>,
}

/// What was claimed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"messages": [{
    "receipt": "AdJxQ6", "attempt": 1, "lease_until": "2026-03-02T09:00:30Z", "offset": 17, "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59",
    "key": "customer-1", "type": "order", "payload": {"id": 7}, "content_type": "application/json", "headers": {}, "correlation_id": null,
    "published_at": "2026-03-02T09:00:00Z"
}], "lease_until": "2026-03-02T09:00:30Z"}))]
struct ClaimAnswer<'a> {
    /// Offsets rise. Empty if nothing came in time, or the group is paused.
    messages: Vec<DeliveredMessage<'a>>,
    /// When the first lease ends; null without messages.
    lease_until: Option<Timestamp>,
}

/// Claims messages of a group.
///
/// They are leased to the caller until `lease_until`, and handed to no other meanwhile. Settle each by its receipt, at this server or any other of the store; what
/// is not settled in time is handed out again. The lease outlives the server.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/claim",
    tag = "consuming",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = Option<ClaimBody>,
    responses((status = 200, description = "Claimed", body = ClaimAnswer<'static>), Problems),
)]
async fn claim(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    OptionalBody(body): OptionalBody<ClaimBody>,
) -> Result<Response, Problem> {
    caller.may(Scope::Consume, Some(&topic))?;
    let max = in_batch(&app.limits, "max", body.max.unwrap_or(1) as usize)?;
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0));
    if wait > app.limits.wait_max {
        let rule = format!("at most {} ms; ask again instead", app.limits.wait_max.as_millis());
        return Err(Problem::invalid("wait_ms", rule));
    }
    let options = ClaimOptions { wait, lease: lease(body.lease_ms)?, ..ClaimOptions::at_most(max) };
    let claims = app.claims.get(&app, &topic, &group).await?;
    let claimed = tokio::select! {
        claimed = claims.claim(Holder::new(), &options) => claimed?,
        // What it may have claimed is released.
        () = app.stopping.stopped() => Vec::new(),
    };
    Ok(answer(&claimed))
}

/// Written at once: thousands of messages a second are.
fn answer(claimed: &[ClaimedMessage]) -> Response {
    let lease_until = claimed.iter().map(|claimed| claimed.lease_until).min();
    let answer = ClaimAnswer { messages: claimed.iter().map(DeliveredMessage::from).collect(), lease_until };
    match serde_json::to_vec(&answer) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => Problem::unwritable(&error).into_response(),
    }
}

/// A number of messages within the limit of batches.
pub(super) fn in_batch(limits: &Limits, field: &str, count: usize) -> Result<u32, Problem> {
    match u32::try_from(count) {
        Ok(number) if count >= 1 && count <= limits.batch_max => Ok(number),
        _ => Err(Problem::invalid(field, format!("{count}, from 1 to {} are allowed", limits.batch_max))),
    }
}

/// The lease that a client asks for.
pub(super) fn lease(lease_ms: Option<u64>) -> Result<Option<Duration>, Problem> {
    match lease_ms {
        Some(0) => Err(Problem::invalid("lease_ms", "0; must be above 0 and at most 366 days")),
        lease_ms => Ok(lease_ms.map(Duration::from_millis)),
    }
}
