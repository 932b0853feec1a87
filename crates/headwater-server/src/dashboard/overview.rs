//! `/`: how everything is doing, and what needs attention.

use axum::response::Response;
use maud::{Markup, html};

use super::chart::{self, Line};
use super::components::{Head, Tile, Tone, card, empty, findings, group_issues, group_state, number};
use super::icons::Icon;
use super::layout::Section;
use super::topics::kept;
use super::view::{Failure, View};
use super::{format, url};
use crate::sampler::{GroupFigures, Snapshot, Span, TopicFigures};

/// Rows of each short list.
const ROWS: usize = 6;
/// Findings shown here; the others are on the page of maintenance.
const FINDINGS: usize = 8;

/// `GET /`
pub(crate) async fn page(view: View) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let content = html! {
        (Head::new("Overview"))
        div.stack {
            (view.live("tiles", tiles(&view, &snapshot)))
            (view.live("attention", attention(&snapshot)))
            div.cols-2 {
                (card("Messages per second", html! {}, view.live("rates", rates(&view))))
                (card("Lag of all groups", html! {}, view.live("lag", lag(&view))))
            }
            div.cols-2 {
                (card("Busiest topics", html! { a href="/topics?sort=rate" { "All topics" } }, view.live("topics", busiest(&view, &snapshot))))
                (card("Groups furthest behind", html! { a href="/groups?sort=lag" { "All groups" } }, view.live("groups", furthest(&view, &snapshot))))
            }
        }
    };
    Ok(view.page(Section::Overview, "Overview", content).await)
}

fn tiles(view: &View, snapshot: &Snapshot) -> Markup {
    let totals = &snapshot.totals;
    let past = view.app.sampler.total_past(Span::Minutes);
    let spark = |readings: Option<&crate::sampler::Readings>, style| {
        readings.map(|readings| chart::spark(readings, style)).unwrap_or_default()
    };
    let healthy = snapshot.groups.len() - totals.unhealthy;
    let of_all = format!("of {}", format::count(snapshot.groups.len() as u64));
    let (note, tone) = match totals.unhealthy {
        0 => ("every group is fine".to_owned(), Tone::Calm),
        some => (format!("{} with an issue", format::count(some as u64)), Tone::Warn),
    };
    let health =
        Tile::new("Healthy groups", format::count(healthy as u64)).unit(&of_all).note(note).tone(tone);
    html! {
        div.tiles {
            (Tile::new("Published", format::rate(totals.published_per_s)).unit("/s")
                .note(format!("{} topics", format::count(snapshot.topics.len() as u64))).to("/topics")
                .below(spark(past.as_ref().map(|past| &past.published), 1)))
            (Tile::new("Handled", format::rate(totals.handled_per_s)).unit("/s")
                .note(format!("{} in flight", format::count(totals.in_flight))).to("/groups")
                .below(spark(past.as_ref().map(|past| &past.handled), 2)))
            (Tile::new("Lag", format::compact(totals.lag)).note("messages not done, over all groups").to("/groups?sort=lag")
                .below(spark(past.as_ref().map(|past| &past.lag), 3)))
            (health.to("/groups?state=issue"))
            (Tile::new("Retrying", format::compact(totals.retrying)).note("wait for their next attempt").to("/groups?sort=retrying"))
            (Tile::new("Dead letters", format::compact(totals.dead_letters)).note("given up by their group").to("/dead-letters")
                .tone(if totals.dead_letters == 0 { Tone::Calm } else { Tone::Bad }))
        }
    }
}

fn attention(snapshot: &Snapshot) -> Markup {
    let found = &snapshot.findings;
    let more = found.len().saturating_sub(FINDINGS);
    let content = if found.is_empty() {
        html! {
            div.empty.is-small { (Icon::Check) h3 { "Nothing needs attention" } p { "Maintenance runs, every group is served, and nothing is about to be removed unread." } }
        }
    } else {
        html! {
            (findings(&found[..found.len().min(FINDINGS)]))
            @if more > 0 { div.card-foot { a href="/maintenance" { (format::count(more as u64)) " more" } } }
        }
    };
    let count =
        html! { @if !found.is_empty() { span.count.is-warn { (format::count(found.len() as u64)) } } };
    html! { section.card { div.card-head { h2 { "Needs attention " (count) } } (content) } }
}

fn rates(view: &View) -> Markup {
    let Some(past) = view.app.sampler.total_past(Span::Minutes) else { return html! {} };
    let lines = [
        Line { name: "Published", unit: "/s", style: 1, readings: &past.published },
        Line { name: "Handled", unit: "/s", style: 2, readings: &past.handled },
    ];
    chart::chart("chart-rates", "Messages per second", &lines)
}

fn lag(view: &View) -> Markup {
    let Some(past) = view.app.sampler.total_past(Span::Minutes) else { return html! {} };
    let lines = [Line { name: "Not done", unit: "", style: 3, readings: &past.lag }];
    chart::chart("chart-lag", "Messages that are not done, over all groups", &lines)
}

fn busiest(view: &View, snapshot: &Snapshot) -> Markup {
    let mut topics: Vec<&TopicFigures> =
        snapshot.topics.iter().filter(|topic| view.sees(topic.status.topic.name.as_str())).collect();
    if topics.is_empty() {
        return empty(
            Icon::Topics,
            "No topics yet",
            "A topic is created by its first message, or here.",
            html! { a.btn.is-primary href="/new-topic" { (Icon::Plus) "New topic" } },
        );
    }
    topics.sort_by(|a, b| {
        let stored = |topic: &TopicFigures| kept(&topic.status);
        b.published_per_s.total_cmp(&a.published_per_s).then(stored(b).cmp(&stored(a)))
    });
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Topic" } th.num scope="col" { "Published" } th scope="col" { span.unseen { "Last five minutes" } } th.num scope="col" { "Stored" } } }
            tbody {
                @for topic in topics.iter().take(ROWS) {
                    @let name = topic.status.topic.name.as_str();
                    @let past = view.app.sampler.topic_past(topic.status.topic.topic_id, Span::Minutes);
                    tr data-key=(name) {
                        td.name { a href=(url::topic(name)) { (name) } }
                        td.num data-label="Published" { (format::rate(topic.published_per_s)) "/s" }
                        td.optional { @if let Some(past) = &past { (chart::spark(past, 1)) } }
                        td.num data-label="Stored" { (number(kept(&topic.status))) }
                    }
                }
            }
        }
    }
}

fn furthest(view: &View, snapshot: &Snapshot) -> Markup {
    let mut groups: Vec<&GroupFigures> =
        snapshot.groups.iter().filter(|group| view.sees(group.topic.as_str())).collect();
    if groups.is_empty() {
        return empty(
            Icon::Groups,
            "No groups yet",
            "A group appears here with its first consumer. One from the command line:",
            html! { pre.command { "headwater consume TOPIC --group GROUP" } },
        );
    }
    groups.sort_by_key(|group| std::cmp::Reverse((group.status.lag, group.issues.len())));
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Group" } th scope="col" { "State" } th.num scope="col" { "Lag" } th.num scope="col" { "Behind" } } }
            tbody {
                @for group in groups.iter().take(ROWS) {
                    @let (topic, name) = (group.topic.as_str(), group.status.group.as_str());
                    tr data-key={ (topic) "/" (name) } {
                        td.name { a href=(url::group(topic, name)) { (name) } small.faint { (topic) } }
                        td data-label="State" { span.badges { (group_state(group.status.state)) (group_issues(&group.issues)) } }
                        td.num data-label="Lag" { (number(group.status.lag)) }
                        td.num data-label="Behind" { @match group.behind { Some(behind) => { (format::duration(behind)) } None => { span.is-zero { "–" } } } }
                    }
                }
            }
        }
    }
}
