//! Dead letters of every source: list, show, redrive, edit and redrive, purge.
//!
//! Those of a group are its topic's: a caller needs the right to it. Those of the outbox and parked commands are the whole store's.

mod selection;

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater::jiff::Timestamp;
use headwater::store::{AnyDeadLetter, DeadLetterPlace, DeadLetterSource};
use headwater::{Headers, Headwater, Published};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use self::selection::{Chosen, STEP, Selection, SourceName};
use super::body::{JsonBody, PathOf, QueryOf, optional_object};
use super::message::{json_of, payload_of};
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(redrive))
        .routes(routes!(purge))
}

/// A dead letter: a message that a group gave up on, an entry of the outbox without an attempt left, or a parked command.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": "7f3c2a10-5b1e-4c6d-9a3f-0d2b4e6f8a10", "source": "subscription", "topic": "orders", "group": "email", "offset": 17, "outbox_id": null,
    "message_id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "type": "order", "key": "customer-1", "error": "no such customer", "error_class": null,
    "failed_status": "FAILED", "attempts": 10, "parked_by": "mailer-1", "buried_at": "2026-03-02T09:00:00Z", "content_type": "application/json",
    "headers": {}, "payload_bytes": 8, "payload": {"id": 7}
}))]
struct DeadLetterView {
    id: Uuid,
    source: SourceName,
    /// The topic: of the group, of the broker, or to which a redrive publishes a command.
    topic: Option<String>,
    /// The group that gave up on it.
    group: Option<String>,
    /// The offset of the message.
    offset: Option<i64>,
    /// The entry of the outbox.
    outbox_id: Option<i64>,
    /// The id of the message or command.
    message_id: String,
    /// The type of the message, or the name of the command.
    #[serde(rename = "type")]
    message_type: Option<String>,
    /// The key of the message, or the business key.
    key: Option<String>,
    /// Why it became a dead letter.
    error: Option<String>,
    /// The class of the error.
    error_class: Option<String>,
    /// How it failed: FAILED, TIMED_OUT, REJECTED or another word.
    failed_status: Option<String>,
    /// How often it was tried.
    attempts: u32,
    /// The process or component that gave it up; null if an operator did.
    parked_by: Option<String>,
    /// When it became a dead letter.
    buried_at: Timestamp,
    /// The media type of the payload.
    content_type: Option<String>,
    headers: Headers,
    /// The size of the payload.
    payload_bytes: u64,
    /// The payload, if it is JSON; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload, if it is not JSON; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl DeadLetterView {
    fn without_payload(one: AnyDeadLetter) -> Self {
        let source = SourceName::of(&one.source);
        let (topic, group, offset, outbox_id) = match one.source {
            DeadLetterSource::Subscription { topic, group, offset, .. } => {
                (Some(topic), Some(group), Some(offset.0), None)
            }
            DeadLetterSource::Outbox { id, topic } => (Some(topic), None, None, Some(id)),
            DeadLetterSource::Command { topic } => (topic, None, None, None),
        };
        DeadLetterView {
            id: one.dead_letter_id,
            source,
            topic,
            group,
            offset,
            outbox_id,
            message_id: one.command_id,
            message_type: one.name,
            key: one.business_key,
            error: one.error_message,
            error_class: one.error_class,
            failed_status: one.failed_status,
            attempts: one.attempts,
            parked_by: one.parked_by,
            buried_at: one.parked_at,
            content_type: one.content_type,
            headers: one.headers,
            payload_bytes: one.payload_bytes,
            payload: None,
            payload_base64: None,
        }
    }

    fn whole(one: AnyDeadLetter) -> Self {
        let bytes = one.payload.clone();
        let payload = json_of(&bytes).map(std::borrow::Cow::into_owned);
        let payload_base64 = payload.is_none().then(|| STANDARD.encode(&bytes));
        DeadLetterView { payload, payload_base64, ..DeadLetterView::without_payload(one) }
    }
}

/// Whether a caller has a scope for a dead letter: for the topic of its group, or for the whole store.
fn can(caller: &Caller, scope: Scope, one: &AnyDeadLetter) -> bool {
    caller.can(scope, topic_of(&one.source))
}

fn topic_of(source: &DeadLetterSource) -> Option<&str> {
    match source {
        DeadLetterSource::Subscription { topic, .. } => Some(topic),
        _ => None,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeadLettersQuery {
    /// Only those of this source.
    #[param(inline, example = "subscription")]
    source: Option<SourceName>,
    /// Only those of this topic.
    #[param(example = "orders", max_length = 255)]
    topic: Option<String>,
    /// Only those of groups of this name.
    #[param(example = "email", max_length = 255)]
    group: Option<String>,
    /// Only those whose error, type, key or command id contains this text; upper and lower case are the same in ASCII.
    #[param(example = "no such customer", max_length = 255)]
    search: Option<String>,
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists dead letters, oldest first, without their payloads.
///
/// A token for some topics sees those of their groups.
#[utoipa::path(
    get,
    path = "/v1/dead-letters",
    tag = "dead letters",
    params(DeadLettersQuery),
    responses((status = 200, description = "Dead letters", body = Page<DeadLetterView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<DeadLettersQuery>,
) -> Result<Json<Page<DeadLetterView>>, Problem> {
    caller.has(Scope::Read)?;
    let limit = page::limit(query.limit)?;
    let cursor: Option<(i64, Uuid)> = page::decode(query.cursor.as_deref())?;
    let chosen = Chosen {
        source: query.source,
        topic: query.topic,
        group: query.group,
        search: page::search(query.search),
        ..Chosen::default()
    };
    let headwater = app.headwater.clone();
    let read = |after: Option<(i64, Uuid)>, limit: u32| {
        let (headwater, chosen) = (headwater.clone(), chosen.clone());
        async move { chosen.read(&headwater, after.map(place), limit).await }
    };
    let at = |one: &AnyDeadLetter| (one.place().number, one.place().dead_letter_id);
    let page = page::seen(limit, cursor, read, at, |one| can(&caller, Scope::Read, one)).await?;
    Ok(Json(page.map(DeadLetterView::without_payload)))
}

fn place((number, dead_letter_id): (i64, Uuid)) -> DeadLetterPlace {
    DeadLetterPlace { number, dead_letter_id }
}

/// A dead letter that exists, and that the caller has the scope for.
async fn find(
    headwater: &Headwater,
    caller: &Caller,
    scope: Scope,
    id: Uuid,
) -> Result<AnyDeadLetter, Problem> {
    let Some(found) = headwater.dead_letters().show(id).await? else {
        return Err(Problem::not_found(format!(
            "no such dead letter: {id}; it may have been redriven or purged"
        ))
        .at("id"));
    };
    caller.may(scope, topic_of(&found.source))?;
    Ok(found)
}

/// Shows a dead letter with its payload.
#[utoipa::path(
    get,
    path = "/v1/dead-letters/{id}",
    tag = "dead letters",
    params(("id" = Uuid, Path, description = "The dead letter", example = "7f3c2a10-5b1e-4c6d-9a3f-0d2b4e6f8a10")),
    responses((status = 200, description = "The dead letter", body = DeadLetterView), Problems),
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Json<DeadLetterView>, Problem> {
    caller.has(Scope::Read)?;
    Ok(Json(DeadLetterView::whole(find(&app.headwater, &caller, Scope::Read, id).await?)))
}

/// Which dead letters are redriven, and how one is edited.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ids": ["7f3c2a10-5b1e-4c6d-9a3f-0d2b4e6f8a10"]}))]
struct Redrive {
    /// These, at most 1000.
    #[schema(max_items = 1000)]
    ids: Option<Vec<Uuid>>,
    /// Or all that match every field that is set.
    #[serde(default, deserialize_with = "optional_object")]
    selection: Option<Selection>,
    /// Publishes a copy with another payload instead: only for one dead letter of a group.
    #[serde(default, deserialize_with = "optional_object")]
    edit: Option<Edit>,
    /// Changes nothing: the answer shows how many would be redriven.
    #[serde(default)]
    dry_run: bool,
}

/// Another payload for a copy of a dead letter: exactly one of `payload` and `payload_base64`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"payload": {"id": 8}}))]
struct Edit {
    /// The payload, any JSON value.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload, any bytes.
    payload_base64: Option<String>,
    /// Whether other groups of the topic may get the copy too: it is a new message.
    #[serde(default)]
    all_groups: bool,
}

/// A field that is there, be it null.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

/// What became of dead letters that were redriven.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(example = json!({"dry_run": false, "redriven": 1, "gone": 0, "published": null}))]
struct Redriven {
    /// Whether nothing was changed.
    dry_run: bool,
    /// How many were handed to their group, the outbox or a topic again.
    redriven: u64,
    /// How many stay, because their message is no longer in the log.
    gone: u64,
    /// The edited copy, if there is one.
    published: Option<EditedCopy>,
}

/// A new message with the edited payload.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"topic": "orders", "offset": 1201, "message_id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59"}))]
struct EditedCopy {
    topic: String,
    offset: Option<i64>,
    message_id: Uuid,
}

/// Redrives dead letters: a message is handed to its group again, an entry of the outbox is sent again, a command is published to its topic.
///
/// Each once, even if the request is repeated; at most 100,000 of a selection, and those that are buried meanwhile are not part of it. With `edit` a copy of one dead letter of a group is published with another payload, and the dead letter is
/// deleted.
#[utoipa::path(
    post,
    path = "/v1/dead-letters/redrive",
    tag = "dead letters",
    request_body = Redrive,
    responses((status = 200, description = "Redriven", body = Redriven), Problems),
)]
async fn redrive(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody<Redrive>,
) -> Result<Json<Redriven>, Problem> {
    caller.has(Scope::Admin)?;
    let headwater = app.acting(&caller);
    if let Some(edit) = body.edit {
        return replace(&headwater, &caller, body.ids.as_deref(), edit, body.dry_run).await;
    }
    let found = Chosen::of(body.ids, body.selection)?.all(&headwater, &caller).await?;
    let mut done = Redriven { dry_run: body.dry_run, ..Redriven::default() };
    if body.dry_run {
        let would = selection::count(&headwater, &found).await?;
        return Ok(Json(Redriven { redriven: would.redriven, gone: would.gone, ..done }));
    }
    for step in found.chunks(STEP as usize) {
        let ids: Vec<Uuid> = step.iter().map(|one| one.id).collect();
        let step = headwater.dead_letters().redrive(&ids).await?;
        done.redriven += step.redriven;
        done.gone += step.gone;
    }
    Ok(Json(done))
}

/// Publishes an edited copy of one dead letter of a group.
async fn replace(
    headwater: &Headwater,
    caller: &Caller,
    ids: Option<&[Uuid]>,
    edit: Edit,
    dry_run: bool,
) -> Result<Json<Redriven>, Problem> {
    let Some(&[id]) = ids else {
        return Err(Problem::invalid("edit", "changes one dead letter; name it as the only one in ids"));
    };
    let found = find(headwater, caller, Scope::Admin, id).await?;
    let DeadLetterSource::Subscription { topic, group, .. } = found.source else {
        let rule = "only a dead letter of a group can be edited; redrive this one unchanged";
        return Err(Problem::invalid("edit", rule));
    };
    let payload = payload_of(edit.payload.as_deref(), edit.payload_base64.as_deref());
    let (payload, detected) = payload.map_err(|problem| problem.inside("edit"))?;
    if dry_run {
        return Ok(Json(Redriven { dry_run, redriven: 1, ..Redriven::default() }));
    }
    let letters = headwater.dead_letters().of(&topic, &group);
    let Some(letter) = letters.show(id).await? else {
        return Err(Problem::not_found(format!("no such dead letter: {id}; it was redriven or purged")));
    };
    let mut copy = letter.to_message();
    copy.payload = payload;
    copy.content_type = detected.or(copy.content_type);
    let Published { offset, message_id, .. } = letters.replace(id, copy, edit.all_groups).await?;
    let published = Some(EditedCopy { topic, offset: offset.map(|offset| offset.0), message_id });
    Ok(Json(Redriven { dry_run: false, redriven: 1, gone: 0, published }))
}

/// Which dead letters are purged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ids": ["7f3c2a10-5b1e-4c6d-9a3f-0d2b4e6f8a10"], "dry_run": true}))]
struct Purge {
    /// These, at most 1000.
    #[schema(max_items = 1000)]
    ids: Option<Vec<Uuid>>,
    /// Or all that match every field that is set.
    #[serde(default, deserialize_with = "optional_object")]
    selection: Option<Selection>,
    /// Changes nothing: the answer shows how many would be purged.
    #[serde(default)]
    dry_run: bool,
}

/// How many dead letters were purged, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"dry_run": true, "purged": 1}))]
struct Purged {
    /// Whether nothing was changed.
    dry_run: bool,
    purged: u64,
}

/// Deletes dead letters permanently; that of a parked entry of the outbox with the entry.
#[utoipa::path(
    post,
    path = "/v1/dead-letters/purge",
    tag = "dead letters",
    request_body = Purge,
    responses((status = 200, description = "Purged", body = Purged), Problems),
)]
async fn purge(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body): JsonBody<Purge>,
) -> Result<Json<Purged>, Problem> {
    caller.has(Scope::Admin)?;
    let headwater = app.acting(&caller);
    let found = Chosen::of(body.ids, body.selection)?.all(&headwater, &caller).await?;
    if body.dry_run {
        return Ok(Json(Purged { dry_run: true, purged: found.len() as u64 }));
    }
    let mut purged = 0;
    for step in found.chunks(STEP as usize) {
        let ids: Vec<Uuid> = step.iter().map(|one| one.id).collect();
        purged += headwater.dead_letters().delete(&ids).await?;
    }
    Ok(Json(Purged { dry_run: false, purged }))
}
