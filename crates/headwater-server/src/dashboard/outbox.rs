//! `/outbox`: entries for other brokers, the relays that send them, and how far bridges have read.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use headwater::bridge::BridgePosition;
use headwater::outbox::{OutboxEntry, OutboxSelection, OutboxStatus};
use headwater::relays::RegisteredRelay;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::components::{Confirm, Head, Tone, badge, card, empty, facts};
use super::icons::Icon;
use super::input::given;
use super::layout::Section;
use super::topic::headers;
use super::view::{Failure, View};
use super::{format, payload, url};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::problem::Problem;
use crate::sampler::Snapshot;

/// How many entries a page has.
const PER_PAGE: u32 = 50;

/// What of them is shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    status: String,
    topic: String,
    /// The entry after which the page begins.
    after: Option<i64>,
}

impl Shown {
    fn link(&self, status: &str, after: Option<i64>) -> String {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        url::with_query("/outbox", &[("status", status), ("topic", &self.topic), ("after", &after)])
    }

    fn chosen(&self, status: Option<OutboxStatus>, all: OutboxSelection) -> OutboxSelection {
        let mut chosen = all.without_payloads().after(self.after.unwrap_or(0));
        if let Some(status) = status {
            chosen = chosen.status(status);
        }
        match given(Some(&self.topic)) {
            Some(topic) => chosen.topic(topic),
            None => chosen,
        }
    }
}

/// `GET /outbox`
pub(crate) async fn page(Query(shown): Query<Shown>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Read, None)?;
    let headwater = &view.app.headwater;
    let snapshot = view.app.sampler.snapshot().await?;
    let status = OutboxStatus::parse(&shown.status.to_uppercase());
    let entries = headwater.outbox().list(PER_PAGE, |all| shown.chosen(status, all)).await?;
    let (relays, positions) = (headwater.relays().list().await?, headwater.bridge_positions().list().await?);
    let content = html! {
        (Head::new("Outbox and relays").note("What leaves this store for other brokers, and what comes from them."))
        div.stack {
            section.card {
                div.card-head { h2 { "Outbox" } (filters(&shown)) }
                (view.live("entries", table(&view, &shown, &entries)))
            }
            (card("Relays and their sinks", html! {}, view.live("relays", relays_table(&view, &snapshot, &relays))))
            (card("Bridges", html! {}, view.live("bridges", bridges(&view, &positions))))
        }
    };
    Ok(view.page(Section::Outbox, "Outbox and relays", content).await)
}

fn filters(shown: &Shown) -> Markup {
    html! {
        nav.choices aria-label="Filter by status" {
            a href=(shown.link("", None)) aria-current=[shown.status.is_empty().then_some("true")] { "Unfinished" }
            @for status in OutboxStatus::ALL {
                @let word = status.as_str().to_lowercase();
                a href=(shown.link(&word, None)) aria-current=[(shown.status == word).then_some("true")] { (word) }
            }
        }
    }
}

fn status_badge(status: OutboxStatus) -> Markup {
    let (tone, icon) = match status {
        OutboxStatus::New => (Tone::Calm, Icon::Clock),
        OutboxStatus::Claimed => (Tone::Accent, Icon::Active),
        OutboxStatus::Published => (Tone::Good, Icon::Check),
        OutboxStatus::Failed => (Tone::Warn, Icon::Retry),
        OutboxStatus::Parked => (Tone::Bad, Icon::DeadLetters),
    };
    badge(tone, icon, &status.as_str().to_lowercase())
}

fn table(view: &View, shown: &Shown, entries: &[OutboxEntry]) -> Markup {
    if entries.is_empty() {
        let (title, text) = match shown.status.as_str() {
            "" => (
                "Nothing waits in the outbox",
                "Entries that a program inserts in its own transaction wait here until a relay has sent them.",
            ),
            _ => ("No entry has this status", "Published entries are removed when their retention ends."),
        };
        return empty(Icon::Outbox, title, text, html! {});
    }
    let next = entries.last().filter(|_| entries.len() == PER_PAGE as usize).map(|last| last.id);
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Entry" } th scope="col" { "Status" } th scope="col" { "To" } th scope="col" { "Type" } th.num scope="col" { "Attempts" } th scope="col" { "Last error" } th.num scope="col" { "Inserted" } } }
            tbody {
                @for entry in entries {
                    tr data-key=(entry.id) data-arrives="" {
                        td.name { a href={ "/outbox/" (entry.id) } { (format::count(entry.id.unsigned_abs())) } small.faint { (entry.category.as_str()) } }
                        td data-label="Status" { (status_badge(entry.status)) }
                        td data-label="To" { span.break { (entry.topic) } }
                        td data-label="Type" { span.break { (entry.entry_type) } }
                        td.num data-label="Attempts" { span.is-zero[entry.attempts == 0] { (entry.attempts) } }
                        td.text { @if let Some(error) = &entry.last_error { span.clip.soft { (error) } } }
                        td.num data-label="Inserted" { (format::ago(view.now, entry.created_at)) }
                    }
                }
            }
        }
        div.pager {
            span { (counted(entries.len() as u64, "entry", "entries")) ", oldest first" }
            nav aria-label="Parts of the list" {
                @if shown.after.is_some() { a.btn.is-small href=(shown.link(&shown.status, None)) { (Icon::Back) "Oldest" } }
                @if next.is_some() { a.btn.is-small rel="next" href=(shown.link(&shown.status, next)) { "Next" (Icon::Forward) } }
            }
        }
    }
}

/// Relays, with the group that holds what each has not sent.
fn relays_table(view: &View, snapshot: &Snapshot, relays: &[RegisteredRelay]) -> Markup {
    if relays.is_empty() {
        return empty(
            Icon::Outbox,
            "No relays are registered",
            "A relay sends the messages of a topic, or the outbox, to Kafka, RabbitMQ, NATS, a webhook or files.",
            html! { pre.command { "headwater relay add orders-kafka --source orders --to kafka://broker:9092/orders" } },
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Relay" } th scope="col" { "From" } th scope="col" { "To" } th.num scope="col" { "Waiting" } th.num scope="col" { "Processes" } th.num scope="col" { "Added" } } }
            tbody {
                @for relay in relays {
                    @let group = snapshot.group(&relay.source, &format!("relay-{}", relay.name)).or_else(|| snapshot.group(&relay.source, &relay.name));
                    tr data-key=(relay.name) {
                        td.name { (relay.name) }
                        td data-label="From" { @if relay.source == "outbox" { "outbox" } @else { a href=(url::topic(&relay.source)) { (relay.source) } } }
                        td data-label="To" { code { (without_password(&relay.target)) } }
                        td.num data-label="Waiting" { @match group { Some(group) => { a href=(url::group(group.topic.as_str(), group.status.group.as_str())) { (format::count(group.status.lag)) } } None => { span.faint { "–" } } } }
                        td.num data-label="Processes" { @match group { Some(group) => { (group.status.processes) } None => { span.faint { "–" } } } }
                        td.num data-label="Added" { (format::ago(view.now, relay.created_at)) }
                    }
                }
            }
        }
    }
}

/// A URL without what is between the scheme and an `@`, should a password have got into it.
fn without_password(target: &str) -> String {
    let Some((scheme, rest)) = target.split_once("://") else { return target.to_owned() };
    let authority = rest.find('/').unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) => format!("{scheme}://…@{}", &rest[at + 1..]),
        None => target.to_owned(),
    }
}

fn bridges(view: &View, positions: &[BridgePosition]) -> Markup {
    if positions.is_empty() {
        return empty(
            Icon::Outbox,
            "No bridge has read anything",
            "A bridge reads another broker into a topic and stores how far it got, together with what it published.",
            html! {},
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Bridge" } th scope="col" { "Reads" } th.num scope="col" { "Next position" } th.num scope="col" { "Stored" } } }
            tbody {
                @for position in positions {
                    tr data-key={ (position.bridge) "/" (position.source) } {
                        td.name { (position.bridge) }
                        td data-label="Reads" { span.break { (position.source) } }
                        td.num data-label="Next position" { (format::count(position.position.unsigned_abs())) }
                        td.num data-label="Stored" { (format::ago(view.now, position.updated_at)) }
                    }
                }
            }
        }
    }
}

async fn find(app: &App, id: i64) -> Result<OutboxEntry, Failure> {
    let missing = || {
        Problem::not_found("There is no such entry: published entries are removed when their retention ends.")
    };
    Ok(app.headwater.outbox().show(id).await?.ok_or_else(missing)?)
}

/// `GET /outbox/{id}`
pub(crate) async fn entry_page(Path(id): Path<i64>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Read, None)?;
    let entry = find(&view.app, id).await?;
    let title = format!("Entry {}", format::count(id.unsigned_abs()));
    let can_requeue =
        matches!(entry.status, OutboxStatus::Failed | OutboxStatus::Parked) && view.can_change(None);
    let acts = html! { @if can_requeue { a.btn.is-primary href={ "/outbox/" (id) "/requeue" } data-dialog="" { (Icon::Retry) "Send again" } } };
    let content = html! {
        (Head::new(&title).under(&[("Outbox", "/outbox".into())]).beside(status_badge(entry.status)).acts(acts))
        div.stack {
            @if let Some(error) = &entry.last_error { (card("Last error", html! {}, html! { div.card-body { pre.payload tabindex="0" { (error) } } })) }
            (card("Entry", html! {}, described(&view, &entry)))
            (card("Payload", html! {}, html! { div.card-body { (payload::shown(&entry.payload, payload::SHOWN_ALONE)) } }))
        }
    };
    Ok(view.page(Section::Outbox, &title, content).await)
}

fn described(view: &View, entry: &OutboxEntry) -> Markup {
    let mut rows = vec![
        ("Category", html! { (entry.category.as_str()) }),
        ("To", html! { (entry.topic) }),
        ("Type", html! { (entry.entry_type) }),
        ("Attempts", html! { (entry.attempts) }),
        ("Inserted", format::ago(view.now, entry.created_at)),
    ];
    rows.extend(entry.key.as_deref().map(|key| ("Key", html! { (key) })));
    rows.extend(entry.next_at.map(|at| ("Due", format::ago(view.now, at))));
    rows.extend(entry.claimed_by.as_deref().map(|by| ("Claimed by", html! { (by) })));
    rows.extend(entry.published_at.map(|at| ("Published", format::ago(view.now, at))));
    if !entry.headers.is_empty() {
        rows.push(("Headers", headers(&entry.headers)));
    }
    facts(&rows)
}

/// `GET /outbox/{id}/requeue`: the question.
pub(crate) async fn ask(Path(id): Path<i64>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let entry = find(&view.app, id).await?;
    let confirm = Confirm {
        title: "Send this entry again",
        text: html! { p { "It becomes new, with no attempts, and its dead letter is deleted. A relay sends it to " b { (entry.topic) } "." } },
        fields: html! {},
        act: "Send again",
        is_dangerous: false,
        dry_run: None,
        action: format!("/outbox/{id}/requeue"),
        back: format!("/outbox/{id}"),
    };
    let content =
        html! { (Head::new("Send again").under(&[("Outbox", "/outbox".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::Outbox, "Send again", content).await)
}

/// Nothing but the CSRF token.
#[derive(Debug, Deserialize)]
pub(crate) struct Nothing {}

/// `POST /outbox/{id}/requeue`
pub(crate) async fn requeue(
    State(app): State<App>,
    Path(id): Path<i64>,
    Submitted { visitor, form: Nothing {} }: Submitted<Nothing>,
) -> Response {
    let page = format!("/outbox/{id}");
    let requeues = async {
        let changed = app.acting(&visitor.caller).outbox().requeue([id]).await?;
        if changed.is_empty() {
            return Err(Problem::invalid(
                "entry",
                "it has neither failed nor is it parked; nothing was changed",
            )
            .into());
        }
        Ok("The entry is new again, and is sent by the next relay.".to_owned())
    };
    change(&app, &visitor, (Scope::Admin, None), Leads::to(&page), requeues).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_target_is_not_shown() {
        assert_eq!(without_password("amqp://user:secret@broker/x"), "amqp://…@broker/x");
        assert_eq!(without_password("kafka://broker:9092/orders"), "kafka://broker:9092/orders");
        assert_eq!(without_password("https://a@b:c@host/p@th"), "https://…@host/p@th");
        assert_eq!(without_password("file.jsonl"), "file.jsonl");
    }
}
