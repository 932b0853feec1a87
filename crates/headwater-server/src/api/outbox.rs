//! The outbox: entries for external brokers, each with a status.

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater::Headers;
use headwater::jiff::Timestamp;
use headwater::outbox::{Category, OutboxEntry, OutboxStatus};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{JsonBody, PathOf, QueryOf};
use super::message::json_of;
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// Entries that one request requeues.
const IDS_MAX: usize = 1_000;

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(requeue))
}

/// Where an entry is on its way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
enum StatusName {
    /// Not claimed yet.
    New,
    /// A relay sends it, or gave it back until its `next_at`.
    Claimed,
    /// Sent.
    Published,
    /// Sending failed; due again at its `next_at`.
    Failed,
    /// Its attempts ran out: a dead letter has it.
    Parked,
}

impl From<StatusName> for OutboxStatus {
    fn from(name: StatusName) -> Self {
        match name {
            StatusName::New => OutboxStatus::New,
            StatusName::Claimed => OutboxStatus::Claimed,
            StatusName::Published => OutboxStatus::Published,
            StatusName::Failed => OutboxStatus::Failed,
            StatusName::Parked => OutboxStatus::Parked,
        }
    }
}

impl From<OutboxStatus> for StatusName {
    fn from(status: OutboxStatus) -> Self {
        match status {
            OutboxStatus::New => StatusName::New,
            OutboxStatus::Claimed => StatusName::Claimed,
            OutboxStatus::Published => StatusName::Published,
            OutboxStatus::Failed => StatusName::Failed,
            OutboxStatus::Parked => StatusName::Parked,
        }
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum CategoryName {
    /// Asks for something to be done.
    Command,
    /// Says that something has happened.
    Event,
    /// Answers a command.
    Reply,
}

impl From<CategoryName> for Category {
    fn from(name: CategoryName) -> Self {
        match name {
            CategoryName::Command => Category::Command,
            CategoryName::Event => Category::Event,
            CategoryName::Reply => Category::Reply,
        }
    }
}

impl From<Category> for CategoryName {
    fn from(category: Category) -> Self {
        match category {
            Category::Command => CategoryName::Command,
            Category::Event => CategoryName::Event,
            Category::Reply => CategoryName::Reply,
        }
    }
}

/// An entry of the outbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": 17, "status": "FAILED", "category": "event", "topic": "orders", "key": "customer-3", "type": "OrderCreated", "attempts": 1,
    "next_at": "2026-03-02T09:01:00Z", "claimed_by": "relay-1", "claimed_at": "2026-03-02T09:00:00Z", "created_at": "2026-03-02T08:59:59Z",
    "published_at": null, "last_error": "broker away", "headers": {}, "payload": {"id": 17}
}))]
struct EntryView {
    /// Its number, rising.
    id: i64,
    status: StatusName,
    category: CategoryName,
    /// The topic, queue or subject of the broker.
    topic: String,
    key: Option<String>,
    #[serde(rename = "type")]
    entry_type: String,
    /// How often it failed.
    attempts: u32,
    /// No relay takes it before this time.
    next_at: Option<Timestamp>,
    /// The relay that last claimed it.
    claimed_by: Option<String>,
    claimed_at: Option<Timestamp>,
    created_at: Timestamp,
    published_at: Option<Timestamp>,
    /// Why it last failed.
    last_error: Option<String>,
    headers: Headers,
    /// The payload, if it is JSON; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload, if it is not JSON; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl EntryView {
    fn without_payload(entry: OutboxEntry) -> Self {
        EntryView {
            id: entry.id,
            status: entry.status.into(),
            category: entry.category.into(),
            topic: entry.topic,
            key: entry.key,
            entry_type: entry.entry_type,
            attempts: entry.attempts,
            next_at: entry.next_at,
            claimed_by: entry.claimed_by,
            claimed_at: entry.claimed_at,
            created_at: entry.created_at,
            published_at: entry.published_at,
            last_error: entry.last_error,
            headers: entry.headers,
            payload: None,
            payload_base64: None,
        }
    }

    fn whole(entry: OutboxEntry) -> Self {
        let bytes = entry.payload.clone();
        let payload = json_of(&bytes).map(std::borrow::Cow::into_owned);
        let payload_base64 = payload.is_none().then(|| STANDARD.encode(&bytes));
        EntryView { payload, payload_base64, ..EntryView::without_payload(entry) }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutboxQuery {
    /// Only entries of this status; without it those that are not published.
    #[param(inline, example = "PARKED")]
    status: Option<StatusName>,
    /// Only entries of this category.
    #[param(inline, example = "event")]
    category: Option<CategoryName>,
    /// Only entries for this topic.
    #[param(example = "orders", min_length = 1, max_length = 255)]
    topic: Option<String>,
    /// Only entries of this key.
    #[param(example = "customer-3", min_length = 1, max_length = 255)]
    key: Option<String>,
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists entries of the outbox, oldest first, without their payloads.
#[utoipa::path(
    get,
    path = "/v1/outbox",
    tag = "outbox",
    params(OutboxQuery),
    responses((status = 200, description = "Entries", body = Page<EntryView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<OutboxQuery>,
) -> Result<Json<Page<EntryView>>, Problem> {
    caller.may(Scope::Read, None)?;
    let limit = page::limit(query.limit)?;
    let after: Option<i64> = page::decode(query.cursor.as_deref())?;
    let outbox = app.headwater.outbox();
    let found = outbox.list(limit + 1, |all| {
        let mut all = all.without_payloads().after(after.unwrap_or(0));
        all = query.status.map_or(all.clone(), |status| all.status(status.into()));
        all = query.category.map_or(all.clone(), |category| all.category(category.into()));
        all = query.topic.map_or(all.clone(), |topic| all.topic(topic));
        query.key.map_or(all.clone(), |key| all.key(key))
    });
    Ok(Json(Page::of(found.await?, limit, |entry| entry.id, EntryView::without_payload)))
}

/// Shows an entry of the outbox with its payload.
#[utoipa::path(
    get,
    path = "/v1/outbox/{id}",
    tag = "outbox",
    params(("id" = i64, Path, description = "The entry", example = 17)),
    responses((status = 200, description = "The entry", body = EntryView), Problems),
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<i64>,
) -> Result<Json<EntryView>, Problem> {
    caller.may(Scope::Read, None)?;
    match app.headwater.outbox().show(id).await? {
        Some(entry) => Ok(Json(EntryView::whole(entry))),
        None => Err(Problem::not_found(format!(
            "no such outbox entry: {id}; it may have been published and removed"
        ))
        .at("id")),
    }
}

/// Entries to send again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ids": [17]}))]
struct Requeue {
    /// At most 1000.
    #[schema(min_items = 1, max_items = 1000)]
    ids: Vec<i64>,
}

/// Entries that are sent again.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"requeued": [17]}))]
struct Requeued {
    /// Those that were FAILED or PARKED: they are NEW now, with no attempts, and their dead letters are deleted.
    requeued: Vec<i64>,
}

/// Makes entries that failed or are parked NEW again, with no attempts. Others are left alone.
#[utoipa::path(
    post,
    path = "/v1/outbox/requeue",
    tag = "outbox",
    request_body = Requeue,
    responses((status = 200, description = "Requeued", body = Requeued), Problems),
)]
async fn requeue(
    State(app): State<App>,
    caller: Caller,
    JsonBody(Requeue { ids }): JsonBody<Requeue>,
) -> Result<Json<Requeued>, Problem> {
    caller.may(Scope::Admin, None)?;
    if ids.is_empty() || ids.len() > IDS_MAX {
        return Err(Problem::invalid("ids", format!("{}, from 1 to {IDS_MAX} are allowed", ids.len())));
    }
    Ok(Json(Requeued { requeued: app.acting(&caller).outbox().requeue(&ids).await? }))
}
