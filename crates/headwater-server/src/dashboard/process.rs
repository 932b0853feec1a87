//! `/processes/{id}`: the story of one process, drawn and in words, and what can be done about it.

use axum::extract::{Path, State};
use axum::response::Response;
use headwater::process::{ProcessEvent, ProcessInstance, ProcessLogEntry, ProcessStatus};
use headwater::uuid::Uuid;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::components::{Confirm, Head, Tone, card, facts, process_status, text_field};
use super::icons::Icon;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, payload};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::problem::Problem;

mod timeline;

/// Events that are read.
const EVENTS: u32 = 500;

async fn find(app: &App, id: Uuid) -> Result<ProcessInstance, Failure> {
    let missing = || Problem::not_found("There is no such process. Those that ended long ago are removed.");
    Ok(app.headwater.processes().find_by_id(id).await?.ok_or_else(missing)?)
}

/// `GET /processes/{id}`
pub(crate) async fn page(Path(id): Path<Uuid>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Read, None)?;
    let process = find(&view.app, id).await?;
    let mut log = view.app.headwater.processes().log(id, EVENTS).await?;
    log.reverse();
    let title = process.business_key().map_or_else(|| id.to_string(), str::to_owned);
    let crumbs = [
        ("Processes", "/processes".to_owned()),
        (process.process_type(), super::url::with_query("/processes", &[("type", process.process_type())])),
    ];
    let data = process.data().map(|data| data.as_str().as_bytes().to_vec());
    let content = html! {
        (Head::new(&title).under(&crumbs).beside(view.live("status", process_status(process.status()))).acts(view.live("acts", acts(&view, &process, &log))))
        div.stack {
            (card("Timeline", html! {}, view.live("timeline", timeline::drawn(&process, &log, view.now))))
            div.cols-wide {
                (card("Events", html! { span.card-note { (counted(process.version(), "event", "events")) } }, view.live("events", events(&view, &log))))
                div.stack {
                    (card("Process", html! {}, view.live("facts", described(&view, &process))))
                    @if let Some(data) = data { (card("Data", html! {}, view.live("data", html! { div.card-body { (payload::shown(&data, payload::SHOWN_ALONE)) } }))) }
                }
            }
        }
    };
    Ok(view.page(Section::Processes, &title, content).await)
}

fn described(view: &View, process: &ProcessInstance) -> Markup {
    let mut rows =
        vec![("Id", html! { code { (process.id()) } }), ("Type", html! { (process.process_type()) })];
    rows.extend(process.current_step().map(|step| ("Step", html! { (step) @if process.retries() > 0 { ", " (counted(process.retries().into(), "failed attempt", "failed attempts")) } })));
    rows.extend(process.paused_in().map(|status| ("Paused in", html! { (status.as_str().to_lowercase()) })));
    rows.extend(process.created_at().map(|at| ("Started", format::ago(view.now, at))));
    rows.extend(process.updated_at().map(|at| ("Changed", format::ago(view.now, at))));
    facts(&rows)
}

/// Whether something of it can be tried again: the last word about a step is that it failed.
fn can_retry(process: &ProcessInstance, log: &[ProcessLogEntry]) -> bool {
    let is_open = matches!(process.status(), ProcessStatus::Running | ProcessStatus::Compensating);
    let last = log.iter().rev().find(|entry| entry.event.step().is_some()).map(|entry| &entry.event);
    let is_failed = matches!(
        last,
        Some(
            ProcessEvent::StepFailed { .. }
                | ProcessEvent::StepTimedOut { .. }
                | ProcessEvent::CompensationFailed { .. }
        )
    );
    is_open && is_failed
}

fn acts(view: &View, process: &ProcessInstance, log: &[ProcessLogEntry]) -> Markup {
    if !view.can_change(None) || process.status().is_end() {
        return html! {};
    }
    let address = format!("/processes/{}", process.id());
    html! {
        @if can_retry(process, log) { a.btn.is-primary href={ (address) "/retry" } data-dialog="" { (Icon::Retry) "Retry" } }
        @if process.status() == ProcessStatus::Paused { a.btn href={ (address) "/resume" } data-dialog="" { (Icon::Play) "Resume" } }
        @else { a.btn href={ (address) "/pause" } data-dialog="" { (Icon::Pause) "Pause" } }
        a.btn.is-danger href={ (address) "/fail" } data-dialog="" { (Icon::Dead) "End as failed" }
    }
}

/// An event: its appearance, and what happened in words.
fn told(event: &ProcessEvent) -> (Tone, Icon, String) {
    let step = event.step().unwrap_or_default();
    match event {
        ProcessEvent::ProcessStarted { .. } => (Tone::Accent, Icon::Play, "Started".into()),
        ProcessEvent::StepStarted { .. } => (Tone::Accent, Icon::Step, format!("Step {step} started")),
        ProcessEvent::StepCompleted { .. } => (Tone::Good, Icon::Check, format!("Step {step} completed")),
        ProcessEvent::StepFailed { retryable: true, .. } => {
            (Tone::Warn, Icon::Retry, format!("Step {step} failed, and is tried again"))
        }
        ProcessEvent::StepFailed { .. } => (Tone::Bad, Icon::Dead, format!("Step {step} failed")),
        ProcessEvent::StepTimedOut { .. } => {
            (Tone::Bad, Icon::Clock, format!("Step {step} did not answer in time"))
        }
        ProcessEvent::CompensationStarted { .. } => (Tone::Warn, Icon::Undo, format!("Undoing step {step}")),
        ProcessEvent::CompensationCompleted { .. } => (Tone::Good, Icon::Undo, format!("Step {step} undone")),
        ProcessEvent::CompensationFailed { .. } => {
            (Tone::Bad, Icon::Alert, format!("Step {step} could not be undone"))
        }
        ProcessEvent::ProcessCompleted { .. } => (Tone::Good, Icon::Check, "Completed".into()),
        ProcessEvent::ProcessFailed { .. } => (Tone::Bad, Icon::Dead, "Failed".into()),
        ProcessEvent::ProcessPaused { paused_by, .. } => {
            (Tone::Warn, Icon::Pause, format!("Paused by {paused_by}"))
        }
        ProcessEvent::ProcessResumed { resumed_by, .. } => {
            (Tone::Accent, Icon::Play, format!("Resumed by {resumed_by}"))
        }
        other => (Tone::Calm, Icon::Step, other.tag().to_owned()),
    }
}

fn events(view: &View, log: &[ProcessLogEntry]) -> Markup {
    html! {
        ol.events {
            @for entry in log.iter().rev() {
                @let (tone, icon, text) = told(&entry.event);
                li.(tone.class()) data-key=(entry.sequence) {
                    (icon)
                    span.faint.nowrap { (format::at_clock(view.now, entry.at)) }
                    div.what {
                        (text)
                        @if let Some(reason) = entry.event.reason().filter(|reason| !reason.is_empty()) { div.more { (reason) } }
                        @if let Some(id) = entry.event.command_id() { div.more { "command " code { (id) } } }
                    }
                }
            }
        }
        @if log.len() == EVENTS as usize { div.card-foot { "The newest " (EVENTS) " events are shown." } }
    }
}

/// `GET /processes/{id}/{act}`: the question.
pub(crate) async fn ask(Path((id, act)): Path<(Uuid, String)>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let process = find(&view.app, id).await?;
    let (title, text, is_dangerous) = match act.as_str() {
        "pause" => (
            "Pause process",
            "No further command is sent, and no time-out counts, until it is resumed. Commands that were sent may still be carried out.",
            false,
        ),
        "resume" => (
            "Resume process",
            "What was under way is waited for again, and what was decided meanwhile is carried out.",
            false,
        ),
        "retry" => (
            "Retry process",
            "What failed is tried again now: a step that waits for its back-off, or a compensation that was given up.",
            false,
        ),
        "fail" => (
            "End process as failed",
            "It ends at once. What it completed is not undone, and replies that still come are ignored.",
            true,
        ),
        _ => return Err(Problem::not_found("There is no such action.").into()),
    };
    let confirm = Confirm {
        title,
        text: html! { p { (text) } p.soft { (process.process_type()) " " (process.business_key().unwrap_or_default()) ", " (process.status().as_str().to_lowercase()) } },
        fields: html! { @if act != "retry" { (text_field("reason", "Reason", "Kept in its log", "")) } },
        act: title,
        is_dangerous,
        dry_run: None,
        action: format!("/processes/{id}/{act}"),
        back: format!("/processes/{id}"),
    };
    let content =
        html! { (Head::new(title).under(&[("Processes", "/processes".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::Processes, title, content).await)
}

/// Why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reason {
    reason: String,
}

/// `POST /processes/{id}/{act}`
pub(crate) async fn act(
    State(app): State<App>,
    Path((id, act)): Path<(Uuid, String)>,
    Submitted { visitor, form }: Submitted<Reason>,
) -> Response {
    let page = format!("/processes/{id}");
    let acts = async {
        let (processes, reason) = (app.acting(&visitor.caller).processes(), form.reason.trim());
        Ok(match act.as_str() {
            "pause" => {
                processes.pause(id, reason).await?;
                "The process is paused.".to_owned()
            }
            "resume" => {
                processes.resume(id, reason).await?;
                "The process is resumed.".to_owned()
            }
            "retry" => {
                processes.retry(id).await?;
                "The process is tried again by its manager.".to_owned()
            }
            "fail" => {
                processes.fail(id, reason).await?;
                "The process is ended as failed.".to_owned()
            }
            _ => return Err(Problem::not_found("There is no such action.").into()),
        })
    };
    change(&app, &visitor, (Scope::Admin, None), Leads::to(&page), acts).await
}
