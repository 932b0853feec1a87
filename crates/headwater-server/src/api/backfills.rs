//! Backfills: list, start, cancel, resume.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use headwater::jiff::Timestamp;
use headwater::store::{Backfill, BackfillLimits};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{OptionalBody, PathOf, QueryOf};
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_all))
        .routes(routes!(list))
        .routes(routes!(start))
        .routes(routes!(cancel))
        .routes(routes!(resume))
}

/// A backfill and its progress.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "topic": "orders", "group": "audit", "state": "in_progress", "first": 1, "last": 1000000, "checkpoint": 250000, "processed": 250000, "total": 1000000,
    "created_at": "2026-03-02T09:00:00Z", "progressed_at": "2026-03-02T09:00:10Z", "rate": 25000.0, "rate_max": 50000, "batch_max": null,
    "target_latency_ms": null, "remaining_ms": 30000, "left_out": 0, "error": null
}))]
struct BackfillView {
    topic: String,
    group: String,
    /// `not_started`, `in_progress`, `completed`, `cancelled` or `failed`.
    state: &'static str,
    /// The first offset it covers.
    first: i64,
    /// The last offset.
    last: i64,
    /// Everything at or below it is done.
    checkpoint: i64,
    /// Offsets processed.
    processed: u64,
    /// Offsets to process in total.
    total: u64,
    created_at: Timestamp,
    /// When its checkpoint last moved.
    progressed_at: Option<Timestamp>,
    /// Offsets per second over the time it ran.
    rate: f64,
    /// The highest allowed rate.
    rate_max: u32,
    /// The most messages of a batch, if it has a limit of its own.
    batch_max: Option<u32>,
    /// How long a small piece of work of an application may take beside it, if it has a target of its own.
    target_latency_ms: Option<u64>,
    /// The estimated time left; null while it is not known.
    remaining_ms: Option<u64>,
    /// Messages that its limit left out.
    left_out: u64,
    /// Why it failed.
    error: Option<String>,
}

impl From<Backfill> for BackfillView {
    fn from(backfill: Backfill) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        BackfillView {
            remaining_ms: backfill.remaining().map(millis),
            topic: backfill.topic.as_str().to_owned(),
            group: backfill.group.as_str().to_owned(),
            state: backfill.state.as_str(),
            first: backfill.first.0,
            last: backfill.last.0,
            checkpoint: backfill.checkpoint.0,
            processed: backfill.processed,
            total: backfill.total,
            created_at: backfill.created_at,
            progressed_at: backfill.progressed_at,
            rate: backfill.rate,
            rate_max: backfill.rate_max,
            batch_max: backfill.batch_max,
            target_latency_ms: backfill.target_latency.map(millis),
            left_out: backfill.left_out,
            error: backfill.error,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BackfillsQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

fn page_of(backfills: Vec<Backfill>, query: &BackfillsQuery) -> Result<Json<Page<BackfillView>>, Problem> {
    let limit = page::limit(query.limit)?;
    // No name has a control character: the key sorts by topic and then by group.
    let key = |backfill: &Backfill| format!("{}\u{1}{}", backfill.topic, backfill.group);
    Page::of_whole(backfills, limit, query.cursor.as_deref(), key, BackfillView::from).map(Json)
}

/// Lists the backfills of all topics, by topic and group.
///
/// A token for some topics sees those of these.
#[utoipa::path(
    get,
    path = "/v1/backfills",
    tag = "backfills",
    params(BackfillsQuery),
    responses((status = 200, description = "Backfills", body = Page<BackfillView>), Problems),
)]
async fn list_all(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<BackfillsQuery>,
) -> Result<Json<Page<BackfillView>>, Problem> {
    caller.has(Scope::Read)?;
    let mut backfills = app.headwater.backfills().await?;
    backfills.retain(|backfill| caller.can(Scope::Read, Some(backfill.topic.as_str())));
    page_of(backfills, &query)
}

/// Lists the backfill of a group, if it has one.
#[utoipa::path(
    get,
    path = "/v1/topics/{topic}/groups/{group}/backfills",
    tag = "backfills",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "audit"),
        BackfillsQuery,
    ),
    responses((status = 200, description = "Backfills", body = Page<BackfillView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<BackfillsQuery>,
) -> Result<Json<Page<BackfillView>>, Problem> {
    caller.may(Scope::Read, Some(&topic))?;
    let groups = app.headwater.groups(&topic);
    groups.get(&group).await?;
    let mut backfills = groups.backfills().await?;
    backfills.retain(|backfill| backfill.group.as_str() == group);
    page_of(backfills, &query)
}

/// The limits of a backfill.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"messages_max": 200000, "rate_max": 5000}))]
struct Limits {
    /// The most messages it covers, the last ones before the group subscribed; 1,000,000 by default.
    #[schema(minimum = 1)]
    messages_max: Option<u64>,
    /// Messages per second at most; 50,000 by default.
    #[schema(minimum = 1)]
    rate_max: Option<u32>,
    /// Messages of a batch at most.
    #[schema(minimum = 1)]
    batch_max: Option<u32>,
    /// Slows down while a small piece of work of an application takes longer than this.
    #[schema(minimum = 1, maximum = 31_622_400_000u64)]
    target_latency_ms: Option<u64>,
}

impl From<Limits> for BackfillLimits {
    fn from(limits: Limits) -> Self {
        let standard = BackfillLimits::default();
        BackfillLimits {
            messages_max: limits.messages_max.unwrap_or(standard.messages_max),
            rate_max: limits.rate_max.unwrap_or(standard.rate_max),
            batch_max: limits.batch_max,
            target_latency: limits.target_latency_ms.map(Duration::from_millis),
        }
    }
}

/// Starts a backfill of a group, which maintenance runs: adds it to the completion records of messages published before it.
///
/// Refused with 409 while one is under way, and where the topic has no completion records.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/backfill",
    tag = "backfills",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "audit"),
    ),
    request_body = Option<Limits>,
    responses((status = 200, description = "Started", body = BackfillView), Problems),
)]
async fn start(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    OptionalBody(limits): OptionalBody<Limits>,
) -> Result<Json<BackfillView>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let started = app.acting(&caller).groups(&topic).start_backfill(&group, &limits.into()).await;
    let started = started.map_err(|error| {
        Problem::from(error).renamed(&[
            ("backfill_messages_max", "messages_max"),
            ("backfill_rate_max", "rate_max"),
            ("backfill_batch_max", "batch_max"),
            ("backfill_target_latency", "target_latency_ms"),
        ])
    });
    Ok(Json(started?.into()))
}

/// Cancels the backfill of a group; what it has done stays.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/backfill/cancel",
    tag = "backfills",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "audit"),
    ),
    responses((status = 200, description = "Cancelled", body = BackfillView), Problems),
)]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
) -> Result<Json<BackfillView>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    Ok(Json(app.acting(&caller).groups(&topic).cancel_backfill(&group).await?.into()))
}

/// Resumes a cancelled or failed backfill from its checkpoint.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/backfill/resume",
    tag = "backfills",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "audit"),
    ),
    responses((status = 200, description = "Resumed", body = BackfillView), Problems),
)]
async fn resume(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
) -> Result<Json<BackfillView>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    Ok(Json(app.acting(&caller).groups(&topic).resume_backfill(&group).await?.into()))
}
