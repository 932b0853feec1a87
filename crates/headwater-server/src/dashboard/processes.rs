//! `/processes`: sagas, by type and status, or one by its id or business key.

use std::collections::BTreeSet;

use axum::extract::Query;
use axum::response::{IntoResponse, Redirect, Response};
use headwater::process::{ProcessInstance, ProcessPlace, ProcessSelection, ProcessStatus};
use headwater::uuid::Uuid;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::counted;
use super::components::{Head, empty, process_status};
use super::icons::Icon;
use super::input::given;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, url};
use crate::auth::Scope;

/// How many a page has.
const PER_PAGE: u32 = 50;

/// What of them is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    status: String,
    #[serde(rename = "type")]
    process_type: String,
    /// An id, or a part of the type, the business key or the step.
    q: String,
    /// The place before which the page begins.
    before: String,
}

impl Shown {
    fn link(&self, status: &str, before: &str) -> String {
        url::with_query(
            "/processes",
            &[("status", status), ("type", &self.process_type), ("q", &self.q), ("before", before)],
        )
    }
}

/// `GET /processes`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Read, None)?;
    if let Ok(id) = shown.q.trim().parse::<Uuid>() {
        return Ok(Redirect::to(&format!("/processes/{id}")).into_response());
    }
    let found = list(&view, &shown).await?;
    let types: BTreeSet<&str> = found.iter().map(ProcessInstance::process_type).collect();
    let content = html! {
        (Head::new("Processes").note("Work in several steps, each undone by its compensation if a later one fails."))
        section.card {
            div.card-head {
                form.search method="get" action="/processes" role="search" {
                    input type="search" name="q" value=(shown.q) placeholder="Id, key, type or step" aria-label="Id, key, type or step";
                    input.short type="text" name="type" value=(shown.process_type) placeholder="Type" aria-label="Type" list="types";
                    datalist id="types" { @for name in types { option value=(name) {} } }
                    @if !shown.status.is_empty() { input type="hidden" name="status" value=(shown.status); }
                    button.btn { "Search" }
                }
                nav.choices aria-label="Filter by status" {
                    a href=(shown.link("", "")) aria-current=[shown.status.is_empty().then_some("true")] { "All" }
                    @for status in ProcessStatus::ALL {
                        @let word = status.as_str().to_lowercase();
                        a href=(shown.link(&word, "")) aria-current=[(shown.status == word).then_some("true")] { (word) }
                    }
                }
            }
            (view.live("list", table(&view, &shown, &found)))
        }
    };
    Ok(view.page(Section::Processes, "Processes", content).await)
}

async fn list(view: &View, shown: &Shown) -> Result<Vec<ProcessInstance>, Failure> {
    let status = match shown.status.as_str() {
        "" => None,
        word => Some(word.parse::<ProcessStatus>()?),
    };
    let chosen = |all: ProcessSelection| {
        let mut chosen = all.without_data();
        if let Some(status) = status {
            chosen = chosen.status(status);
        }
        if let Some(process_type) = given(Some(&shown.process_type)) {
            chosen = chosen.process_type(process_type);
        }
        if let Some(text) = given(Some(&shown.q)) {
            chosen = chosen.contains(text);
        }
        match place_of(&shown.before) {
            Some(place) => chosen.before(place),
            None => chosen,
        }
    };
    Ok(view.app.headwater.processes().find(PER_PAGE, chosen).await?)
}

/// A place in the list, as it is in addresses.
fn place_of(text: &str) -> Option<ProcessPlace> {
    let (created_at, id) = text.split_once('_')?;
    Some(ProcessPlace { created_at: created_at.parse().ok()?, id: id.parse().ok()? })
}

fn table(view: &View, shown: &Shown, found: &[ProcessInstance]) -> Markup {
    if found.is_empty() {
        return nothing(shown);
    }
    let last = found.last().filter(|_| found.len() == PER_PAGE as usize).and_then(ProcessInstance::place);
    let next = last.map(|place| format!("{}_{}", place.created_at, place.id));
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Process" } th scope="col" { "Status" } th scope="col" { "Step" } th.num scope="col" { "Retries" } th.num scope="col" { "Started" } th.num scope="col" { "Changed" } } }
            tbody {
                @for process in found {
                    @let name = process.business_key().map_or_else(|| process.id().to_string(), str::to_owned);
                    tr data-key=(process.id()) data-arrives="" {
                        td.name { a href={ "/processes/" (process.id()) } { (name) } small.faint { (process.process_type()) } }
                        td data-label="Status" { (process_status(process.status())) }
                        td data-label="Step" { @match process.current_step() { Some(step) => { (step) } None => { span.faint { "–" } } } }
                        td.num data-label="Retries" { span.is-zero[process.retries() == 0] { (process.retries()) } }
                        td.num data-label="Started" { @if let Some(at) = process.created_at() { (format::ago(view.now, at)) } }
                        td.num data-label="Changed" { @if let Some(at) = process.updated_at() { (format::ago(view.now, at)) } }
                    }
                }
            }
        }
        div.pager {
            span { (counted(found.len() as u64, "process", "processes")) ", newest first" }
            nav aria-label="Parts of the list" {
                @if !shown.before.is_empty() { a.btn.is-small href=(shown.link(&shown.status, "")) { (Icon::Back) "Newest" } }
                @if let Some(next) = next { a.btn.is-small rel="next" href=(shown.link(&shown.status, &next)) { "Older" (Icon::Forward) } }
            }
        }
    }
}

fn nothing(shown: &Shown) -> Markup {
    if shown.status.is_empty() && shown.process_type.is_empty() && shown.q.is_empty() {
        return empty(
            Icon::Processes,
            "No processes yet",
            "A program starts one with Headwater::processes. See the guide “Processes”, or the example order_saga.",
            html! {},
        );
    }
    empty(
        Icon::Processes,
        "No process matches",
        "Another status, type or word may find some.",
        html! { a.btn href="/processes" { "Show all processes" } },
    )
}
