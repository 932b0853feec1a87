//! `/scheduled`: messages that are not due yet, and cron jobs, which publish one per tick.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use headwater::jiff::Timestamp;
use headwater::store::{CronStatus, Scheduled};
use headwater::uuid::Uuid;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::components::{Confirm, Head, card, empty, text_field};
use super::format;
use super::icons::Icon;
use super::input::{self, given};
use super::layout::Section;
use super::url::{self, Name};
use super::view::{Failure, View};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::problem::Problem;
use crate::sampler::Snapshot;

/// Messages of one topic, and topics whose messages are listed together.
const SHOWN: u32 = 100;
const TOPICS: usize = 10;

/// Of which topic; of all without.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    topic: String,
}

/// `GET /scheduled`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let messages = messages(&view, &snapshot, &shown.topic).await?;
    let jobs = view.app.headwater.cron_jobs().await?;
    let content = html! {
        (Head::new("Scheduled").note("Messages with a time in the future, and jobs that publish by the clock. Times are in UTC."))
        div.stack {
            section.card {
                div.card-head { h2 { "Messages not due yet" } (view.live("topics", topics(&view, &snapshot, &shown.topic))) }
                (view.live("messages", table(&view, &messages)))
            }
            (card("Cron jobs", html! {}, view.live("cron", cron(&view, &jobs))))
        }
    };
    Ok(view.page(Section::Scheduled, "Scheduled", content).await)
}

/// The next messages of a topic, or of those with the most.
async fn messages(
    view: &View,
    snapshot: &Snapshot,
    topic: &str,
) -> Result<Vec<(String, Scheduled)>, Failure> {
    let mut found = Vec::new();
    let names: Vec<String> = if topic.is_empty() {
        with_some(view, snapshot).into_iter().take(TOPICS).map(|(name, _)| name.to_owned()).collect()
    } else {
        view.must_see(topic)?;
        vec![topic.to_owned()]
    };
    for name in names {
        match view.app.headwater.scheduled(&name).list(SHOWN).await {
            Ok(listed) => found.extend(listed.into_iter().map(|one| (name.clone(), one))),
            // Deleted since the figures were read.
            Err(error) if error.kind() == headwater::ErrorKind::NoSuchTopic && topic.is_empty() => {}
            Err(error) => return Err(error.into()),
        }
    }
    found.sort_by_key(|(_, one)| (one.deliver_at, one.message_id));
    found.truncate(SHOWN as usize);
    Ok(found)
}

/// The topics that have scheduled messages, those with the most first.
fn with_some<'a>(view: &View, snapshot: &'a Snapshot) -> Vec<(&'a str, u64)> {
    let mut topics: Vec<_> = snapshot
        .topics
        .iter()
        .map(|topic| (topic.status.topic.name.as_str(), topic.status.scheduled))
        .filter(|(name, scheduled)| *scheduled > 0 && view.sees(name))
        .collect();
    topics.sort_by_key(|(_, scheduled)| std::cmp::Reverse(*scheduled));
    topics
}

fn topics(view: &View, snapshot: &Snapshot, chosen: &str) -> Markup {
    let topics = with_some(view, snapshot);
    html! {
        nav.choices aria-label="Filter by topic" {
            @if !topics.is_empty() || !chosen.is_empty() { a href="/scheduled" aria-current=[chosen.is_empty().then_some("true")] { "All" } }
            @for (name, scheduled) in topics.iter().take(TOPICS) {
                a href=(url::with_query("/scheduled", &[("topic", name)])) aria-current=[(chosen == *name).then_some("true")] { (format::cut(name, 30)) " " span.faint { (format::compact(*scheduled)) } }
            }
        }
    }
}

fn table(view: &View, messages: &[(String, Scheduled)]) -> Markup {
    if messages.is_empty() {
        return empty(
            Icon::Scheduled,
            "Nothing is scheduled",
            "A message published with a delay waits here and gets its offset when it is due.",
            html! { pre.command { "headwater publish reminders 'pay' --delay 1h" } },
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Due" } th scope="col" { "Topic" } th scope="col" { "Key" } th scope="col" { "Type" } th.num scope="col" { "Size" } th scope="col" { span.unseen { "Actions" } } } }
            tbody {
                @for (topic, one) in messages {
                    @let can_read = view.can_read(Some(topic));
                    tr data-key=(one.message_id) {
                        td.name { (format::ago(view.now, one.deliver_at)) small.faint { (format::clock(view.now, one.deliver_at)) } }
                        td data-label="Topic" { a href=(url::topic(topic)) { (topic) } }
                        td data-label="Key" { @match (&one.key, can_read) { (Some(key), true) => { (key) } _ => { span.faint { "–" } } } }
                        td data-label="Type" { @match &one.message_type { Some(name) => { (name) } None => { span.faint { "–" } } } }
                        td.num data-label="Size" { (format::bytes(one.payload_bytes)) }
                        td.acts { @if view.can_change(Some(topic)) { (acts(topic, one.message_id)) } }
                    }
                }
            }
        }
        div.pager { span { @if messages.len() == SHOWN as usize { "The next " (SHOWN) " are shown" } @else { (counted(messages.len() as u64, "message", "messages")) } } }
    }
}

fn acts(topic: &str, id: Uuid) -> Markup {
    let address = format!("{}/scheduled/{id}", url::topic(topic));
    html! {
        a.btn.is-small.is-quiet href={ (address) "/move" } data-dialog="" { "Move" }
        a.btn.is-small.is-quiet href={ (address) "/cancel" } data-dialog="" { "Cancel" }
    }
}

fn cron(view: &View, jobs: &[CronStatus]) -> Markup {
    if jobs.is_empty() {
        return empty(
            Icon::Clock,
            "No cron jobs",
            "A program starts a job with Headwater::cron, or from the command line. Each tick publishes one message, whichever processes run.",
            html! { pre.command { "headwater cron run nightly '0 2 * * *' --topic reports" } },
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Job" } th scope="col" { "Schedule" } th scope="col" { "Topic" } th.num scope="col" { "Last tick" } th.num scope="col" { "Next tick" } th.num scope="col" { "Started" } } }
            tbody { @for job in jobs { (job_row(view, job)) } }
        }
    }
}

fn job_row(view: &View, job: &CronStatus) -> Markup {
    let description = job.description.as_ref();
    let next: Option<Timestamp> = job.next_tick(view.now);
    html! {
        tr data-key=(job.job) {
            td.name { (job.job) }
            td data-label="Schedule" { @if let Some(description) = description { code { (description.expression) } small.faint { " " (description.time_zone) } } @else { span.faint { "not known" } } }
            td data-label="Topic" { @if let Some(description) = description { a href=(url::topic(description.topic.as_str())) { (description.topic.as_str()) } } }
            td.num data-label="Last tick" { (format::ago(view.now, job.last_tick)) }
            td.num data-label="Next tick" { @match next { Some(at) => { (format::ago(view.now, at)) } None => { span.faint { "–" } } } }
            td.num data-label="Started" { @match job.started_at { Some(at) => { (format::ago(view.now, at)) } None => { span.faint { "–" } } } }
        }
    }
}

/// `GET /topics/{topic}/scheduled/{id}/{act}`: the question.
pub(crate) async fn ask(
    Path((Name(topic), id, act)): Path<(Name, Uuid, String)>,
    view: View,
) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, Some(&topic))?;
    let (title, text, fields, is_dangerous) = match act.as_str() {
        "move" => (
            "Move",
            html! { p { "It is delivered at the new time and not before. A time that has passed delivers it at once." } },
            html! { div.fields {
                (text_field("delay", "From now", "30s, 5m, 2h, 1d", ""))
                (text_field("at", "Or at", "A time like 2026-03-02T09:00:00Z, in UTC", ""))
            } },
            false,
        ),
        "cancel" => {
            ("Cancel", html! { p { "It is never delivered. Its dedup key is free again." } }, html! {}, true)
        }
        _ => return Err(Problem::not_found("There is no such action.").into()),
    };
    let confirm = Confirm {
        title: &format!("{title} a scheduled message"),
        text: html! { (text) p.soft { code { (id) } " of " (topic) } },
        fields,
        act: if is_dangerous { "Cancel message" } else { "Move message" },
        is_dangerous,
        dry_run: None,
        action: format!("{}/scheduled/{id}/{act}", url::topic(&topic)),
        back: "/scheduled".into(),
    };
    let content =
        html! { (Head::new(title).under(&[("Scheduled", "/scheduled".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::Scheduled, title, content).await)
}

/// Where a message is moved to.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Moved {
    delay: String,
    at: String,
}

/// `POST /topics/{topic}/scheduled/{id}/{act}`
pub(crate) async fn act(
    State(app): State<App>,
    Path((Name(topic), id, act)): Path<(Name, Uuid, String)>,
    Submitted { visitor, form }: Submitted<Moved>,
) -> Response {
    let scheduled = app.acting(&visitor.caller).scheduled(&topic);
    let acts = async {
        let was_there = match act.as_str() {
            "cancel" => scheduled.cancel(id).await?,
            "move" => match (given(Some(&form.delay)), given(Some(&form.at))) {
                (Some(delay), None) => scheduled.delay(id, input::duration("delay", delay)?).await?,
                (None, Some(at)) => scheduled.reschedule(id, input::time("at", at)?).await?,
                _ => return Err(Problem::invalid("time", "write either how long from now, or a time").into()),
            },
            _ => return Err(Problem::not_found("There is no such action.").into()),
        };
        if !was_there {
            return Err(Problem::not_found("It has been delivered meanwhile; nothing was changed.").into());
        }
        Ok(if act == "cancel" {
            "The message is cancelled.".to_owned()
        } else {
            "The message is moved.".to_owned()
        })
    };
    change(&app, &visitor, (Scope::Admin, Some(&topic)), Leads::to("/scheduled"), acts).await
}
