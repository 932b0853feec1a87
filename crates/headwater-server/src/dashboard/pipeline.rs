//! `/pipeline`: the runs and services of a pipeline, and its world, which is a page of the pipeline's own.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use headwater::jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use super::components::{Head, Tone, badge, card, empty};
use super::format;
use super::icons::Icon;
use super::layout::Section;
use super::view::{Failure, View};
use crate::auth::Scope;

/// The largest answer of the pipeline that is read.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What is shown of the runs.
#[derive(Debug, Deserialize)]
struct Runs {
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Run {
    run_id: String,
    state: String,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    #[serde(default)]
    reason: String,
    indexed: Option<Indexed>,
}

#[derive(Debug, Deserialize)]
struct Indexed {
    first_tick: i64,
    last_tick: i64,
}

/// What is shown of a service.
#[derive(Debug, Deserialize)]
struct Service {
    service: String,
    #[serde(rename = "type")]
    service_type: String,
    state: String,
    since: Option<Timestamp>,
    error: Option<String>,
    health: Option<Health>,
}

#[derive(Debug, Deserialize)]
struct Health {
    #[serde(default)]
    counts: Counts,
    #[serde(default)]
    cells_per_second: f64,
    #[serde(default)]
    batches_per_second: f64,
    #[serde(default)]
    buffer_ticks: u64,
    #[serde(default)]
    error_count: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Counts {
    #[serde(default)]
    ticks_published: u64,
}

/// `GET /pipeline`
pub(crate) async fn page(view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Read, None)?;
    let head = Head::new("Pipeline").note("Snapshots of a simulation, persisted, indexed and queried.");
    let Some(pipeline) = view.app.pipeline.clone() else {
        let content = html! { (head) section.card { (absent()) } };
        return Ok(view.page(Section::Pipeline, "Pipeline", content).await);
    };
    let runs: Option<Runs> = ask(&pipeline, "/runs?limit=20").await;
    let services: Option<Vec<Service>> = ask(&pipeline, "/services").await;
    let content = html! {
        (head)
        div.stack {
            section.card {
                div.card-head { h2 { "World" } a href="/v1/pipeline/world" { "Open on its own page" } }
                iframe.world src="/v1/pipeline/world" title="World of the pipeline" loading="lazy" {}
            }
            div.cols-2 {
                (card("Services", html! {}, view.live("services", services_table(&view, services.as_deref()))))
                (card("Runs", html! {}, view.live("runs", runs_table(&view, runs.as_ref()))))
            }
        }
    };
    Ok(view.page(Section::Pipeline, "Pipeline", content).await)
}

/// An answer of the pipeline's queries; `None` if it has none.
async fn ask<T: DeserializeOwned>(pipeline: &Router, path: &str) -> Option<T> {
    let request = Request::get(path).header("accept", "application/json").body(Body::empty()).ok()?;
    let response = pipeline.clone().oneshot(request).await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.ok()?;
    serde_json::from_slice(&body).ok()
}

fn absent() -> Markup {
    empty(
        Icon::Pipeline,
        "No pipeline is connected",
        "This server was started without the index of a run. The demo has one; so has a server that is given a pipeline.",
        html! { pre.command { "headwater serve --demo" } },
    )
}

fn service_state(state: &str) -> Markup {
    let (tone, icon) = match state {
        "RUNNING" => (Tone::Good, Icon::Active),
        "PAUSED" => (Tone::Warn, Icon::Pause),
        "ERROR" => (Tone::Bad, Icon::Dead),
        _ => (Tone::Calm, Icon::Step),
    };
    badge(tone, icon, &state.to_lowercase())
}

fn services_table(view: &View, services: Option<&[Service]>) -> Markup {
    let Some(services) = services.filter(|services| !services.is_empty()) else {
        return html! { div.empty.is-small { p { "The services of this pipeline run in other processes: see " code { "headwater pipeline status" } " there." } } };
    };
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Service" } th scope="col" { "State" } th.num scope="col" { "Rate" } th.num scope="col" { "Buffered" } th.num scope="col" { "Errors" } } }
            tbody {
                @for service in services {
                    tr data-key=(service.service) {
                        td.name { (service.service) small.faint { (service.service_type) } @if let Some(error) = &service.error { small.soft { (error) } } }
                        td data-label="State" { (service_state(&service.state)) @if let Some(since) = service.since { small.faint { " " (format::ago(view.now, since)) } } }
                        (figures(service.health.as_ref()))
                    }
                }
            }
        }
    }
}

fn figures(health: Option<&Health>) -> Markup {
    let Some(health) = health else {
        return html! { td.num {} td.num {} td.num {} };
    };
    let rate = match health {
        Health { cells_per_second, .. } if *cells_per_second > 0.0 => {
            format!("{} cells/s", format::rate(*cells_per_second))
        }
        // A source writes no batches.
        Health { counts, .. } if counts.ticks_published > 0 => {
            format!("{} ticks so far", format::count(counts.ticks_published))
        }
        Health { batches_per_second, .. } => format!("{} batches/s", format::rate(*batches_per_second)),
    };
    html! {
        td.num data-label="Rate" { (rate) }
        td.num data-label="Buffered" { span.is-zero[health.buffer_ticks == 0] { (format::count(health.buffer_ticks)) } }
        td.num data-label="Errors" { span.is-zero[health.error_count == 0] { (format::count(health.error_count)) } }
    }
}

fn runs_table(view: &View, runs: Option<&Runs>) -> Markup {
    let Some(Runs { runs }) = runs else {
        return html! { div.empty.is-small { p { "The runs cannot be read at the moment." } } };
    };
    if runs.is_empty() {
        return html! { div.empty.is-small { p { "No run is registered yet." } } };
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Run" } th scope="col" { "State" } th.num scope="col" { "Indexed ticks" } th.num scope="col" { "Started" } } }
            tbody {
                @for run in runs {
                    tr data-key=(run.run_id) {
                        td.name { code { (run.run_id) } @if !run.reason.is_empty() { small.soft { (run.reason) } } }
                        td data-label="State" { (service_state(&run.state)) @if let Some(at) = run.ended_at { small.faint { " " (format::ago(view.now, at)) } } }
                        td.num data-label="Indexed ticks" { @match &run.indexed { Some(indexed) => { (format::count(indexed.first_tick.unsigned_abs())) "–" (format::count(indexed.last_tick.unsigned_abs())) } None => { span.faint { "–" } } } }
                        td.num data-label="Started" { @if let Some(at) = run.started_at { (format::ago(view.now, at)) } }
                    }
                }
            }
        }
    }
}
