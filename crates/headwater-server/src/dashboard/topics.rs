//! `/topics`: all topics, searched and sorted here, and how a new one is made.

use axum::extract::{Query, State};
use axum::response::Response;
use headwater::store::TopicStatus;
use headwater::topic::Semantics;
use headwater::{Preset, TopicSettings};
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change};
use super::chart;
use super::components::{Head, Pages, Tone, badge, empty, number, text_field};
use super::icons::Icon;
use super::layout::Section;
use super::view::{Failure, View};
use super::{format, url};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::sampler::{Snapshot, Span, TopicFigures};

const PER_PAGE: usize = 50;

/// What of the list is shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Shown {
    #[serde(default)]
    q: String,
    #[serde(default)]
    sort: String,
    page: Option<usize>,
}

/// `GET /topics`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let new = html! { @if view.can_change(None) { a.btn.is-primary href="/new-topic" { (Icon::Plus) "New topic" } } };
    let content = html! {
        (Head::new("Topics").note("Logs of messages. Each group reads a topic at its own pace.").acts(new))
        section.card {
            div.card-head {
                form.search method="get" action="/topics" role="search" {
                    input type="search" name="q" value=(shown.q) placeholder="Search by name" aria-label="Search topics by name";
                    @if !shown.sort.is_empty() { input type="hidden" name="sort" value=(shown.sort); }
                    button.btn { "Search" }
                }
            }
            (view.live("list", list(&view, &snapshot, &shown)))
        }
    };
    Ok(view.page(Section::Topics, "Topics", content).await)
}

/// Offsets that may still be stored.
pub(crate) fn kept(status: &TopicStatus) -> u64 {
    u64::try_from(status.head.0 - status.first.0 + 1).unwrap_or(0)
}

/// The lag of the group that is furthest behind.
fn lag(snapshot: &Snapshot, topic: &TopicFigures) -> u64 {
    snapshot.groups_of(topic).iter().map(|group| group.status.lag).max().unwrap_or(0)
}

fn list(view: &View, snapshot: &Snapshot, shown: &Shown) -> Markup {
    let wanted = shown.q.to_lowercase();
    let mut topics: Vec<&TopicFigures> = snapshot
        .topics
        .iter()
        .filter(|topic| {
            let name = topic.status.topic.name.as_str();
            (wanted.is_empty() || name.to_lowercase().contains(&wanted)) && view.sees(name)
        })
        .collect();
    match shown.sort.as_str() {
        "rate" => topics.sort_by(|a, b| b.published_per_s.total_cmp(&a.published_per_s)),
        "stored" => topics.sort_by_key(|topic| std::cmp::Reverse(kept(&topic.status))),
        "lag" => topics.sort_by_key(|topic| std::cmp::Reverse(lag(snapshot, topic))),
        "groups" => topics.sort_by_key(|topic| std::cmp::Reverse(topic.status.subscriptions)),
        _ => {}
    }
    if topics.is_empty() {
        return nothing(shown);
    }
    let pages = Pages::new(shown.page, PER_PAGE, topics.len());
    let page = |page: usize| {
        url::with_query("/topics", &[("q", &shown.q), ("sort", &shown.sort), ("page", &page.to_string())])
    };
    html! {
        table.data.stacks {
            thead {
                tr {
                    (sorted(shown, "", "Topic", false))
                    (sorted(shown, "rate", "Published", true))
                    th.optional scope="col" { span.unseen { "Last five minutes" } }
                    (sorted(shown, "stored", "Stored", true))
                    (sorted(shown, "groups", "Groups", true))
                    (sorted(shown, "lag", "Lag", true))
                    th.num scope="col" { "Scheduled" }
                    th.num scope="col" { "Kept for" }
                }
            }
            tbody { @for topic in pages.of(&topics) { (row(view, snapshot, topic)) } }
        }
        (pages.render("topics", page))
    }
}

/// The head of a column that the list can be sorted by.
fn sorted(shown: &Shown, sort: &str, name: &str, is_number: bool) -> Markup {
    let is_chosen = shown.sort == sort;
    let direction = is_chosen.then_some(if is_number { "descending" } else { "ascending" });
    html! {
        th.num[is_number] scope="col" aria-sort=[direction] {
            a href=(url::with_query("/topics", &[("q", &shown.q), ("sort", sort)])) { (name) @if is_chosen { @if is_number { " ↓" } @else { " ↑" } } }
        }
    }
}

fn row(view: &View, snapshot: &Snapshot, topic: &TopicFigures) -> Markup {
    let status = &topic.status;
    let name = status.topic.name.as_str();
    let past = view.app.sampler.topic_past(status.topic.topic_id, Span::Minutes);
    let is_idle = topic.published_per_s < 0.05;
    html! {
        tr data-key=(name) {
            td.name { a href=(url::topic(name)) { (name) } " " (semantics(&status.topic.settings)) (issues(status)) }
            td.num data-label="Published" { span.is-zero[is_idle] { (format::rate(topic.published_per_s)) "/s" } }
            td.optional { @if let Some(past) = &past { (chart::spark(past, 1)) } }
            td.num data-label="Stored" { (number(kept(status))) }
            td.num data-label="Groups" { (number(status.subscriptions)) }
            td.num data-label="Lag" { (number(lag(snapshot, topic))) }
            td.num data-label="Scheduled" { (number(status.scheduled)) }
            td.num data-label="Kept for" { (retention(&status.topic.settings)) }
        }
    }
}

/// Queue or pub/sub.
pub(crate) fn semantics(settings: &TopicSettings) -> Markup {
    let (word, means) = match settings.semantics {
        Semantics::Queue => ("queue", "One group; its members share the messages"),
        Semantics::PubSub => ("pub/sub", "Every group gets every message"),
    };
    html! { span.tag title=(means) { (word) } }
}

/// What is wrong with a topic.
pub(crate) fn issues(status: &TopicStatus) -> Markup {
    html! { @for issue in status.health_issues() { " " (badge(Tone::Warn, Icon::Alert, issue.as_str())) } }
}

/// How long messages are kept after they are done.
pub(crate) fn retention(settings: &TopicSettings) -> String {
    settings.message_retention.map_or_else(|| "forever".into(), format::duration)
}

fn nothing(shown: &Shown) -> Markup {
    if !shown.q.is_empty() {
        return empty(
            Icon::Topics,
            "No topic has this in its name",
            "Names are compared without regard to case.",
            html! { a.btn href="/topics" { "Show all topics" } },
        );
    }
    empty(
        Icon::Topics,
        "No topics yet",
        "A topic is created by its first message, or here. From the command line:",
        html! {
            pre.command { "headwater publish orders '{\"order\": 1}'" }
            a.btn.is-primary href="/new-topic" { (Icon::Plus) "New topic" }
        },
    )
}

const PRESETS: [(Preset, &str, &str); 5] = [
    (Preset::Queue, "Queue", "Work for one group. Messages wait for it however long it takes."),
    (Preset::Standard, "Standard", "Events for any number of groups, kept for a day after all are done."),
    (
        Preset::Critical,
        "Critical",
        "Must not be lost: kept for a week, and publishing fails while no group subscribes.",
    ),
    (Preset::Audit, "Audit", "Kept for ninety days, and publishing fails while no group subscribes."),
    (Preset::Ephemeral, "Ephemeral", "Soon outdated: kept for an hour."),
];

/// `GET /new-topic`
pub(crate) async fn new_topic(view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let content = html! {
        (Head::new("New topic").under(&[("Topics", "/topics".into())]))
        section.card.confirm {
            form.form.card-body method="post" action="/topics" {
                (view.csrf())
                (text_field("name", "Name", "1 to 255 bytes; dots and slashes help to sort: shop.orders", ""))
                fieldset.form {
                    legend { "Kind" }
                    @for (preset, name, means) in PRESETS {
                        label.check {
                            input type="radio" name="preset" value=(preset.as_str()) checked[preset == Preset::Queue];
                            span { strong { (name) } " " span.soft { (means) } }
                        }
                    }
                }
                label.check { input type="checkbox" name="ordered" value="yes"; span { "Messages of one key are handled strictly in order" } }
                p.soft { "Everything else has a default that can be changed later." }
                div.form-acts { button.btn.is-primary { "Create topic" } a.btn.is-quiet href="/topics" { "Cancel" } }
            }
        }
    };
    Ok(view.page(Section::Topics, "New topic", content).await)
}

/// What makes a topic.
#[derive(Debug, Deserialize)]
pub(crate) struct NewTopic {
    name: String,
    preset: String,
    ordered: Option<String>,
}

/// `POST /topics`
pub(crate) async fn create(
    State(app): State<App>,
    Submitted { visitor, form }: Submitted<NewTopic>,
) -> Response {
    let preset =
        Preset::ALL.into_iter().find(|preset| preset.as_str() == form.preset).unwrap_or(Preset::Queue);
    let name = form.name.trim();
    let mut topic = app.acting(&visitor.caller).topic(name).preset(preset);
    if form.ordered.is_some() {
        topic = topic.ordered_by_key();
    }
    let creates = async {
        topic.create().await?;
        Ok(format!("Topic {name} created."))
    };
    let leads = Leads { done: &url::topic(name), refused: "/new-topic" };
    change(&app, &visitor, (Scope::Admin, Some(name)), leads, creates).await
}
