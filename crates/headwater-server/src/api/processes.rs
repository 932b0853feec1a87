//! Processes (sagas): list, show, events, pause, resume, retry, cancel.
//!
//! Each change is in the log of the process and in the audit, with the caller.

use axum::Json;
use axum::extract::State;
use headwater::jiff::Timestamp;
use headwater::process::{ProcessInstance, ProcessLogEntry, ProcessPlace, ProcessStatus};
use headwater::{Headwater, Result as Done};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::body::{OptionalBody, PathOf, QueryOf};
use super::page::{self, Page};
use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::problem::{Problem, Problems};

/// The routes.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(events))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(retry))
        .routes(routes!(cancel))
}

/// The status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
enum StatusName {
    /// No step has started.
    New,
    /// Steps are under way.
    Running,
    /// An end: every step is completed.
    Succeeded,
    /// An end: it failed, and completed steps were not undone.
    Failed,
    /// A step failed, and completed steps are being undone.
    Compensating,
    /// An end: it failed, and completed steps were undone.
    Compensated,
    /// Stopped by a person.
    Paused,
}

impl From<ProcessStatus> for StatusName {
    fn from(status: ProcessStatus) -> Self {
        match status {
            ProcessStatus::New => StatusName::New,
            ProcessStatus::Running => StatusName::Running,
            ProcessStatus::Succeeded => StatusName::Succeeded,
            ProcessStatus::Failed => StatusName::Failed,
            ProcessStatus::Compensating => StatusName::Compensating,
            ProcessStatus::Compensated => StatusName::Compensated,
            ProcessStatus::Paused => StatusName::Paused,
        }
    }
}

impl From<StatusName> for ProcessStatus {
    fn from(name: StatusName) -> Self {
        match name {
            StatusName::New => ProcessStatus::New,
            StatusName::Running => ProcessStatus::Running,
            StatusName::Succeeded => ProcessStatus::Succeeded,
            StatusName::Failed => ProcessStatus::Failed,
            StatusName::Compensating => ProcessStatus::Compensating,
            StatusName::Compensated => ProcessStatus::Compensated,
            StatusName::Paused => ProcessStatus::Paused,
        }
    }
}

/// A process: its status, its step and what it knows.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "type": "order", "key": "o-17", "status": "RUNNING", "paused_in": null, "step": "charge", "retries": 1,
    "version": 4, "created_at": "2026-03-02T09:00:00Z", "updated_at": "2026-03-02T09:00:02Z", "data": {"total": 250}
}))]
struct ProcessView {
    id: Uuid,
    #[serde(rename = "type")]
    process_type: String,
    /// What it is about.
    key: Option<String>,
    status: StatusName,
    /// The status that a pause interrupted.
    paused_in: Option<StatusName>,
    /// The step it is at.
    step: Option<String>,
    /// Failed attempts of the step.
    retries: u32,
    /// The number of its newest event.
    version: u64,
    created_at: Option<Timestamp>,
    updated_at: Option<Timestamp>,
    /// What it knows; null in lists.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
}

impl From<ProcessInstance> for ProcessView {
    fn from(process: ProcessInstance) -> Self {
        ProcessView {
            id: process.id(),
            process_type: process.process_type().to_owned(),
            key: process.business_key().map(str::to_owned),
            status: process.status().into(),
            paused_in: process.paused_in().map(StatusName::from),
            step: process.current_step().map(str::to_owned),
            retries: process.retries(),
            version: process.version(),
            created_at: process.created_at(),
            updated_at: process.updated_at(),
            data: process.data().and_then(|data| raw(data.as_str())),
        }
    }
}

/// Stored JSON as it is.
fn raw(text: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(text.to_owned()).ok()
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ProcessesQuery {
    /// Only processes of this type.
    #[serde(rename = "type")]
    #[param(example = "order", min_length = 1, max_length = 255)]
    process_type: Option<String>,
    /// Only processes of this status.
    #[param(inline, example = "RUNNING")]
    status: Option<StatusName>,
    /// Only processes whose type, key or step contains this text; upper and lower case are the same in ASCII.
    #[param(example = "o-17", max_length = 255)]
    search: Option<String>,
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists processes, newest first, without their data.
#[utoipa::path(
    get,
    path = "/v1/processes",
    tag = "processes",
    params(ProcessesQuery),
    responses((status = 200, description = "Processes", body = Page<ProcessView>), Problems),
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    QueryOf(query): QueryOf<ProcessesQuery>,
) -> Result<Json<Page<ProcessView>>, Problem> {
    caller.may(Scope::Read, None)?;
    let limit = page::limit(query.limit)?;
    let before: Option<(Timestamp, Uuid)> = page::decode(query.cursor.as_deref())?;
    let search = page::search(query.search);
    let processes = app.headwater.processes();
    let found = processes.find(limit + 1, |all| {
        let mut all = all.without_data();
        all = query.process_type.map_or(all.clone(), |name| all.process_type(name));
        all = query.status.map_or(all.clone(), |status| all.status(status.into()));
        all = search.map_or(all.clone(), |text| all.contains(text));
        before.map_or(all.clone(), |(created_at, id)| all.before(ProcessPlace { created_at, id }))
    });
    let place = |process: &ProcessInstance| (process.created_at(), process.id());
    Ok(Json(Page::of(found.await?, limit, place, ProcessView::from)))
}

async fn find(headwater: &Headwater, id: Uuid) -> Result<ProcessInstance, Problem> {
    let no_such = || {
        let detail = format!("no such process: {id}; it may have ended and been removed");
        Problem::new(axum::http::StatusCode::NOT_FOUND, "no-such-process", detail)
    };
    headwater.processes().find_by_id(id).await?.ok_or_else(no_such)
}

/// Shows a process with its data.
#[utoipa::path(
    get,
    path = "/v1/processes/{id}",
    tag = "processes",
    params(("id" = Uuid, Path, description = "The process", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59")),
    responses((status = 200, description = "The process", body = ProcessView), Problems),
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Json<ProcessView>, Problem> {
    caller.may(Scope::Read, None)?;
    Ok(Json(find(&app.headwater, id).await?.into()))
}

/// An event in the log of a process.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "sequence": 4, "at": "2026-03-02T09:00:02Z", "event": "StepStarted", "fields": {"step": "charge", "command_id": "c-2"}, "status": "RUNNING",
    "step": "charge", "retries": null
}))]
struct EventView {
    /// Its number, from 1.
    sequence: u64,
    at: Timestamp,
    /// What happened.
    event: String,
    /// The particulars.
    #[schema(value_type = serde_json::Value)]
    fields: Option<Box<RawValue>>,
    /// The new status, if it changed.
    status: Option<StatusName>,
    /// The new step, if it changed; empty if there is none any more.
    step: Option<String>,
    /// The new number of failed attempts, if it changed.
    retries: Option<u32>,
}

impl From<ProcessLogEntry> for EventView {
    fn from(entry: ProcessLogEntry) -> Self {
        EventView {
            sequence: entry.sequence,
            at: entry.at,
            event: entry.event.tag().to_owned(),
            fields: raw(entry.event.fields().as_str()),
            status: entry.change.status.map(StatusName::from),
            step: entry.change.current_step.map(Option::unwrap_or_default),
            retries: entry.change.retries,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Items at most; 100 by default.
    #[param(minimum = 1, maximum = 1000, example = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists what happened to a process, newest first.
#[utoipa::path(
    get,
    path = "/v1/processes/{id}/events",
    tag = "processes",
    params(
        ("id" = Uuid, Path, description = "The process", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59"),
        EventsQuery,
    ),
    responses((status = 200, description = "Events", body = Page<EventView>), Problems),
)]
async fn events(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    QueryOf(query): QueryOf<EventsQuery>,
) -> Result<Json<Page<EventView>>, Problem> {
    caller.may(Scope::Read, None)?;
    let limit = page::limit(query.limit)?;
    let before: Option<u64> = page::decode(query.cursor.as_deref())?;
    let version = find(&app.headwater, id).await?.version();
    // The numbers of a log have no gap: those of the pages before are read again and left out.
    let left_out = before.map_or(0, |before| version.saturating_sub(before.saturating_sub(1)));
    let count = u32::try_from(left_out.saturating_add(u64::from(limit) + 1)).unwrap_or(u32::MAX);
    let mut entries = app.headwater.processes().log(id, count).await?;
    entries.retain(|entry| before.is_none_or(|before| entry.sequence < before));
    Ok(Json(Page::of(entries, limit, |entry| entry.sequence, EventView::from)))
}

/// Why a process is changed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"reason": "stock is counted"}))]
struct Why {
    /// Kept in the log of the process.
    #[schema(max_length = 2048)]
    reason: String,
}

/// The answer to a change, which is noted in the audit.
async fn changed(
    headwater: &Headwater,
    act: &str,
    id: Uuid,
    reason: Option<&str>,
    done: Done<ProcessInstance>,
) -> Result<Json<ProcessView>, Problem> {
    let process = done?;
    let detail = json!({ "process": id, "type": process.process_type(), "reason": reason });
    headwater.note_act(act, None, None, &detail).await?;
    Ok(Json(process.into()))
}

/// Pauses a process: no further command is sent, and no time-out counts, until it is resumed.
#[utoipa::path(
    post,
    path = "/v1/processes/{id}/pause",
    tag = "processes",
    params(("id" = Uuid, Path, description = "The process", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59")),
    request_body = Option<Why>,
    responses((status = 200, description = "Paused", body = ProcessView), Problems),
)]
async fn pause(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    OptionalBody(why): OptionalBody<Why>,
) -> Result<Json<ProcessView>, Problem> {
    caller.may(Scope::Admin, None)?;
    let headwater = app.acting(&caller);
    let done = headwater.processes().pause(id, &why.reason).await;
    changed(&headwater, "pause_process", id, Some(&why.reason), done).await
}

/// Resumes a paused process.
#[utoipa::path(
    post,
    path = "/v1/processes/{id}/resume",
    tag = "processes",
    params(("id" = Uuid, Path, description = "The process", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59")),
    request_body = Option<Why>,
    responses((status = 200, description = "Resumed", body = ProcessView), Problems),
)]
async fn resume(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    OptionalBody(why): OptionalBody<Why>,
) -> Result<Json<ProcessView>, Problem> {
    caller.may(Scope::Admin, None)?;
    let headwater = app.acting(&caller);
    let done = headwater.processes().resume(id, &why.reason).await;
    changed(&headwater, "resume_process", id, Some(&why.reason), done).await
}

/// Tries what failed again, now: a step that waits for its back-off, or a compensation that was given up.
#[utoipa::path(
    post,
    path = "/v1/processes/{id}/retry",
    tag = "processes",
    params(("id" = Uuid, Path, description = "The process", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59")),
    responses((status = 200, description = "Its manager tries it again", body = ProcessView), Problems),
)]
async fn retry(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Json<ProcessView>, Problem> {
    caller.may(Scope::Admin, None)?;
    let headwater = app.acting(&caller);
    let done = headwater.processes().retry(id).await;
    changed(&headwater, "retry_process", id, None, done).await
}

/// Whether a process is ended.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"reason": "the customer withdrew", "dry_run": true}))]
struct Cancel {
    /// Kept in the log of the process.
    #[schema(max_length = 2048)]
    reason: String,
    /// Changes nothing: the answer shows the process as it is.
    dry_run: bool,
}

/// Ends a process as FAILED, at once. What it completed is not undone, and replies that still come are ignored.
#[utoipa::path(
    post,
    path = "/v1/processes/{id}/cancel",
    tag = "processes",
    params(("id" = Uuid, Path, description = "The process", example = "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59")),
    request_body = Option<Cancel>,
    responses((status = 200, description = "Ended", body = ProcessView), Problems),
)]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    OptionalBody(body): OptionalBody<Cancel>,
) -> Result<Json<ProcessView>, Problem> {
    caller.may(Scope::Admin, None)?;
    let headwater = app.acting(&caller);
    if body.dry_run {
        return Ok(Json(find(&headwater, id).await?.into()));
    }
    let done = headwater.processes().fail(id, &body.reason).await;
    changed(&headwater, "fail_process", id, Some(&body.reason), done).await
}
