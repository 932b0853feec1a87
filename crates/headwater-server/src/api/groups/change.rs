//! The life cycle of a group: pause, resume, cancel, resurrect, seek; and what an operator does with one lease or message of it.
//!
//! An act that leads to a state succeeds if the group is in it already, so that a client may repeat a request whose answer was lost.

use axum::Json;
use axum::extract::State;
use headwater::store::{LeaseToken, Moved, Resurrected};
use headwater::{ErrorKind, Offset, SubscriptionState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::super::body::{JsonBody, OptionalBody, PathOf};
use super::super::position::Position;
use super::view::StateName;
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// Outstanding ranges that are searched for a lease.
const LEASES_MAX: u32 = 10_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(cancel))
        .routes(routes!(resurrect))
        .routes(routes!(seek))
        .routes(routes!(release))
        .routes(routes!(skip))
        .routes(routes!(bury))
        .routes(routes!(retry))
}

/// A group after an act.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"topic": "orders", "group": "email", "state": "paused", "changed": true}))]
struct ReachedState {
    topic: String,
    group: String,
    state: StateName,
    /// Whether this request changed it: false if it was in this state already.
    changed: bool,
}

/// The answer to an act that leads to a state. A group that is in it already is fine.
async fn reached(
    app: &App,
    (topic, group): (String, String),
    done: headwater::Result<()>,
    wanted: SubscriptionState,
) -> Result<Json<ReachedState>, Problem> {
    let changed = done.is_ok();
    if let Err(error) = done {
        let is_there = error.kind() == ErrorKind::InvalidTransition
            && app.headwater.groups(&topic).get(&group).await?.status.state == wanted;
        if !is_there {
            return Err(error.into());
        }
    }
    Ok(Json(ReachedState { topic, group, state: wanted.into(), changed }))
}

/// Why a group is paused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"reason": "stock is counted"}))]
struct Pause {
    /// Shown with the group until it is resumed, and kept in the audit.
    #[schema(min_length = 1, max_length = 2048)]
    reason: Option<String>,
}

/// Stops delivery to a group in every process. Nothing is lost.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/pause",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = Option<Pause>,
    responses((status = 200, description = "Paused", body = ReachedState), Problems),
)]
async fn pause(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    OptionalBody(pause): OptionalBody<Pause>,
) -> Result<Json<ReachedState>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let groups = app.acting(&caller).groups(&topic);
    let done = match &pause.reason {
        Some(reason) => groups.pause_because(&group, reason).await,
        None => groups.pause(&group).await,
    };
    reached(&app, (topic, group), done, SubscriptionState::Paused).await
}

/// Starts delivery to a paused group again.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/resume",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    responses((status = 200, description = "Resumed", body = ReachedState), Problems),
)]
async fn resume(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
) -> Result<Json<ReachedState>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let done = app.acting(&caller).groups(&topic).resume(&group).await;
    reached(&app, (topic, group), done, SubscriptionState::Active).await
}

/// Cancels a group permanently: its leases are lost at once and retention no longer waits for it.
///
/// It stays visible until it is removed. Subscribing again creates a new group of that name.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/cancel",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    responses((status = 200, description = "Cancelled", body = ReachedState), Problems),
)]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
) -> Result<Json<ReachedState>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let done = app.acting(&caller).groups(&topic).cancel(&group).await;
    reached(&app, (topic, group), done, SubscriptionState::Cancelled).await
}

/// How far behind a group may be when it returns.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"behind_max": 1000}))]
struct Resurrect {
    /// It continues at most this many messages behind the head; at its position if this is not given.
    behind_max: Option<u64>,
}

/// A resurrected group.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"group": "email", "resurrected": true, "next": 1180, "missed": 0, "missed_first": null, "missed_last": null}))]
struct ResurrectedGroup {
    group: String,
    /// Whether this request resurrected it: false if it was active already.
    resurrected: bool,
    /// Where it continues.
    next: i64,
    /// Messages that retention removed before they were done.
    missed: u64,
    missed_first: Option<i64>,
    missed_last: Option<i64>,
}

/// Makes a dead group active again.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/resurrect",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = Option<Resurrect>,
    responses((status = 200, description = "Active", body = ResurrectedGroup), Problems),
)]
async fn resurrect(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    OptionalBody(body): OptionalBody<Resurrect>,
) -> Result<Json<ResurrectedGroup>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let Resurrected { resurrected, next, missed } =
        app.acting(&caller).groups(&topic).resurrect(&group, body.behind_max).await?;
    Ok(Json(ResurrectedGroup {
        group,
        resurrected,
        next: next.0,
        missed: missed.count,
        missed_first: missed.range.map(|(first, _)| first.0),
        missed_last: missed.range.map(|(_, last)| last.0),
    }))
}

/// Where a group is moved to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "last:100", "dry_run": true}))]
struct Seek {
    /// The position.
    to: Position,
    /// Changes nothing: the answer shows what would be.
    #[serde(default)]
    dry_run: bool,
}

/// A group that was moved, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"group": "email", "dry_run": true, "from": 1189, "to": 1101, "replayed": 88, "skipped": 0, "leases_lost": 1}))]
struct MovedGroup {
    group: String,
    /// Whether nothing was changed.
    dry_run: bool,
    /// The position before.
    from: i64,
    /// The position after.
    to: i64,
    /// Messages that are handed out again although they were done.
    replayed: u64,
    /// Messages that are never handed out.
    skipped: u64,
    /// Leases that are lost.
    leases_lost: u64,
}

/// Moves the position of a group. What it has outstanding is dropped.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/seek",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = Seek,
    responses((status = 200, description = "Moved", body = MovedGroup), Problems),
)]
async fn seek(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    JsonBody(seek): JsonBody<Seek>,
) -> Result<Json<MovedGroup>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let moved = app.acting(&caller).groups(&topic).seek(&group, seek.to.start("to")?, seek.dry_run).await;
    let Moved { from, to, replayed, skipped, leases_lost } =
        moved.map_err(|error| Problem::from(error).renamed(&[("start_offset", "to")]))?;
    Ok(Json(MovedGroup {
        group,
        dry_run: seek.dry_run,
        from: from.0,
        to: to.0,
        replayed,
        skipped,
        leases_lost,
    }))
}

/// A lease to end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 77}))]
struct Release {
    /// The token of the lease, from the outstanding ranges of the group.
    token: i64,
}

/// A lease that was ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"token": 77, "released": true}))]
struct Released {
    token: i64,
    released: bool,
}

/// Ends a lease by hand, whichever process holds it: its messages are handed out again at once, and no attempt is counted.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/release-lease",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
    ),
    request_body = Release,
    responses((status = 200, description = "Released", body = Released), Problems),
)]
async fn release(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group)): PathOf<(String, String)>,
    JsonBody(Release { token }): JsonBody<Release>,
) -> Result<Json<Released>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    let headwater = app.acting(&caller);
    // The token of another group would be one of another topic, which the caller may not change.
    let ranges = headwater.groups(&topic).outstanding(&group, LEASES_MAX).await?;
    if !ranges.iter().any(|range| range.token == Some(LeaseToken(token))) {
        let rule = format!("no lease of group {group} on topic {topic} has it; see its outstanding ranges");
        return Err(Problem::invalid("token", rule));
    }
    headwater.release_lease(LeaseToken(token)).await?;
    Ok(Json(Released { token, released: true }))
}

/// Whether a lease may be ended for an act on one of its messages.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"force": true}))]
struct Act {
    /// Also while the message is leased: the lease is ended, and its other messages are handed out again.
    force: bool,
}

/// A message that becomes a dead letter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "cannot be parsed"}))]
struct BuryBody {
    /// Why.
    #[schema(min_length = 1)]
    reason: String,
    /// Also while the message is leased: the lease is ended, and its other messages are handed out again.
    #[serde(default)]
    force: bool,
}

/// The state of a message in a group.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"topic": "orders", "group": "email", "offset": 1189, "state": "done"}))]
struct MessageInGroup {
    topic: String,
    group: String,
    offset: i64,
    /// `not_handed_out`, `leased`, `waiting`, `parked`, `done` or `buried`.
    state: Option<&'static str>,
}

async fn state_of(
    app: &App,
    (topic, group, offset): (String, String, i64),
) -> Result<Json<MessageInGroup>, Problem> {
    let status = app.headwater.groups(&topic).message(Offset(offset)).await?;
    let of = status.groups.iter().find(|(name, _)| name.as_str() == group);
    let state = of.map(|(_, state)| state.as_str());
    Ok(Json(MessageInGroup { topic, group, offset, state }))
}

/// Marks a message as done for a group, without handling it.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/messages/{offset}/skip",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        ("offset" = i64, Path, description = "The offset", example = 17, minimum = 1),
    ),
    request_body = Option<Act>,
    responses((status = 200, description = "Done", body = MessageInGroup), Problems),
)]
async fn skip(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group, offset)): PathOf<(String, String, i64)>,
    OptionalBody(act): OptionalBody<Act>,
) -> Result<Json<MessageInGroup>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    app.acting(&caller).groups(&topic).skip(&group, Offset(offset), act.force).await?;
    state_of(&app, (topic, group, offset)).await
}

/// Makes a message a dead letter of a group.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/messages/{offset}/bury",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        ("offset" = i64, Path, description = "The offset", example = 17, minimum = 1),
    ),
    request_body = BuryBody,
    responses((status = 200, description = "Buried", body = MessageInGroup), Problems),
)]
async fn bury(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group, offset)): PathOf<(String, String, i64)>,
    JsonBody(BuryBody { reason, force }): JsonBody<BuryBody>,
) -> Result<Json<MessageInGroup>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    app.acting(&caller).groups(&topic).bury(&group, Offset(offset), &reason, force).await?;
    state_of(&app, (topic, group, offset)).await
}

/// Hands a message that waits for its retry time to its group at once.
#[utoipa::path(
    post,
    path = "/v1/topics/{topic}/groups/{group}/messages/{offset}/retry",
    tag = "groups",
    params(
        ("topic" = String, Path, description = "The topic", example = "orders"),
        ("group" = String, Path, description = "The group", example = "email"),
        ("offset" = i64, Path, description = "The offset", example = 17, minimum = 1),
    ),
    request_body = Option<Act>,
    responses((status = 200, description = "Due", body = MessageInGroup), Problems),
)]
async fn retry(
    State(app): State<App>,
    caller: Caller,
    PathOf((topic, group, offset)): PathOf<(String, String, i64)>,
    OptionalBody(act): OptionalBody<Act>,
) -> Result<Json<MessageInGroup>, Problem> {
    caller.may(Scope::Admin, Some(&topic))?;
    app.acting(&caller).groups(&topic).retry(&group, Offset(offset), act.force).await?;
    state_of(&app, (topic, group, offset)).await
}
