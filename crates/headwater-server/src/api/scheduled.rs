//! Scheduled messages: list, cancel, move.

use axum::Json;
use axum::extract::State;
use headwater::Headers;
use headwater::jiff::Timestamp;
use headwater::store::{Scheduled, ScheduledPlace};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::body::{JsonBody, PathOf, QueryOf};
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(cancel, reschedule))
}

/// A message that is not due yet, without its payload.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "message_id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "deliver_at": "2026-03-03T09:00:00Z", "key": "order-7", "type": "reminder",
    "content_type": "application/json", "headers": {}, "correlation_id": null, "dedup_key": null, "payload_bytes": 5
}))]
struct ScheduledView {
    message_id: Uuid,
    /// When it is delivered, at the earliest.
    deliver_at: Timestamp,
    key: Option<String>,
    #[serde(rename = "type")]
    message_type: Option<String>,
    content_type: Option<String>,
    headers: Headers,
    correlation_id: Option<String>,
    dedup_key: Option<String>,
    /// The size of its payload.
    payload_bytes: u64,
}

impl From<Scheduled> for ScheduledView {
    fn from(scheduled: Scheduled) -> Self {
        ScheduledView {
            message_id: scheduled.message_id,
            deliver_at: scheduled.deliver_at,
            key: scheduled.key,
            message_type: scheduled.message_type,
            content_type: scheduled.content_type,
            headers: scheduled.headers,
            correlation_id: scheduled.correlation_id,
            dedup_key: scheduled.dedup_key,
            payload_bytes: scheduled.payload_bytes,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ScheduledQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists the scheduled messages of a topic, by their time.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/scheduled",
    tag = "scheduled",
    params(("topic" = String, Path, description = "The topic", example = "reminders"), ScheduledQuery),
    responses((status = 200, description = "Scheduled messages", body = Page<ScheduledView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    PathOf(topic): PathOf<String>,
    QueryOf(query): QueryOf<ScheduledQuery>,
) -> Result<Json<Page<ScheduledView>>, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    let limit = page::limit(query.limit)?;
    let scheduled = app.headwater.scheduled(&topic);
    let found = match page::decode::<(Timestamp, i64)>(query.cursor.as_deref())? {
        Some((deliver_at, number)) => {
            scheduled.list_after(ScheduledPlace { deliver_at, number }, limit + 1).await?
        }
        None => scheduled.list(limit + 1).await?,
    };
    let place = |one: &Scheduled| (one.deliver_at, one.number);
    Ok(Json(Page::of(found, limit, place, ScheduledView::from)))
}

/// A scheduled message after an act.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"topic": "reminders", "message_id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "cancelled": true}))]
struct CancelledMessage {
    topic: String,
    message_id: Uuid,
    cancelled: bool,
}

fn not_scheduled(topic: &str, id: Uuid) -> Problem {
    let detail = format!(
        "message {id} is not scheduled in topic {topic}: it was delivered or cancelled, or never scheduled; nothing was changed"
    );
    Problem::not_found(detail).at("message_id")
}

/// Cancels a scheduled message: it is never delivered.
#[utoipa::path(
    delete,
    path = "/v1/topics/{topic}/scheduled/{message_id}",
    tag = "scheduled",
    params(
        ("topic" = String, Path, description = "The topic", example = "reminders"),
        ("message_id" = Uuid, Path, description = "The message", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59"),
    ),
    responses((status = 200, description = "Cancelled", body = CancelledMessage), Problems),
)]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, message_id)): PathOf<(String, Uuid)>,
) -> Result<Json<CancelledMessage>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    if !app.acting(&caller).scheduled(&topic).cancel(message_id).await? {
        return Err(not_scheduled(&topic, message_id));
    }
    Ok(Json(CancelledMessage { topic, message_id, cancelled: true }))
}

/// When a scheduled message is delivered instead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"deliver_at": "2026-03-04T09:00:00Z"}))]
struct Reschedule {
    /// The time; one in the past delivers it at once.
    deliver_at: Timestamp,
}

/// A scheduled message that was moved.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"topic": "reminders", "message_id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "deliver_at": "2026-03-04T09:00:00Z"}))]
struct MovedMessage {
    topic: String,
    message_id: Uuid,
    deliver_at: Timestamp,
}

/// Moves a scheduled message to another time, at most 366 days from now.
#[utoipa::path(
    patch,
    path = "/v1/topics/{topic}/scheduled/{message_id}",
    tag = "scheduled",
    params(
        ("topic" = String, Path, description = "The topic", example = "reminders"),
        ("message_id" = Uuid, Path, description = "The message", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59"),
    ),
    request_body = Reschedule,
    responses((status = 200, description = "Moved", body = MovedMessage), Problems),
)]
async fn reschedule(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, message_id)): PathOf<(String, Uuid)>,
    JsonBody(Reschedule { deliver_at }): JsonBody<Reschedule>,
) -> Result<Json<MovedMessage>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    if !app.acting(&caller).scheduled(&topic).reschedule(message_id, deliver_at).await? {
        return Err(not_scheduled(&topic, message_id));
    }
    Ok(Json(MovedMessage { topic, message_id, deliver_at }))
}
