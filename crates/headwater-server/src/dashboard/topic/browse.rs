//! The messages of a topic: the newest, which follow live, or those found by offset, time, key or id. Nothing is consumed.

use std::time::Duration;

use headwater::jiff::{SignedDuration, Timestamp};
use headwater::store::TopicStatus;
use headwater::uuid::Uuid;
use headwater::{Headwater, Message, Offset, Start};
use maud::{Markup, html};
use serde::Deserialize;
use tokio::time::Instant;

use crate::dashboard::components::{empty, facts};
use crate::dashboard::icons::Icon;
use crate::dashboard::input;
use crate::dashboard::view::{Failure, View};
use crate::dashboard::{format, payload, url};
use crate::problem::Problem;

/// Messages of a page.
const PER_PAGE: u32 = 50;
/// Messages that are read at a time in a search, and how long one request searches.
const SEARCH_STEP: i64 = 1_000;
const SEARCH_WITHIN: Duration = Duration::from_millis(30);
/// How far the time in an id may differ from when the message was published.
const ID_TIME_DIFFERS: SignedDuration = SignedDuration::from_secs(60);

/// What is searched for.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Search {
    /// `newest`, `offset`, `time`, `key` or `id`.
    #[serde(default)]
    by: String,
    #[serde(default)]
    value: String,
    /// Only messages before this offset.
    before: Option<i64>,
}

/// Messages that were found, newest first or offsets rising.
struct Found {
    messages: Vec<Message>,
    /// Where the search continues: below this offset.
    older: Option<i64>,
    /// Where it continues above.
    newer: Option<i64>,
    /// Which offsets were examined, if not all of them.
    examined: Option<(i64, i64)>,
}

/// The card with messages.
pub(super) async fn card(view: &View, status: &TopicStatus, search: &Search) -> Result<Markup, Failure> {
    let name = status.topic.name.as_str();
    if !view.can_read(Some(name)) {
        let text = "Your token does not have the scope “read” for this topic, so its messages are hidden.";
        let hidden = empty(Icon::Messages, "Messages are hidden", text, html! {});
        return Ok(html! { section.card { div.card-head { h2 { "Messages" } } (hidden) } });
    }
    let is_newest = search.by.is_empty() || search.by == "newest";
    let found = find(&view.app.headwater, status, search).await;
    let list = match &found {
        Ok(found) => list(view, status, search, found),
        Err(failure) => html! { div.card-body { div.callout.is-bad role="alert" { (failure.detail()) } } },
    };
    let list = if is_newest && search.before.is_none() { view.live("messages", list) } else { list };
    Ok(html! {
        section.card {
            div.card-head { h2 { "Messages" } (form(name, search)) }
            (list)
        }
    })
}

fn form(topic: &str, search: &Search) -> Markup {
    let choices = [
        ("newest", "Newest, live"),
        ("offset", "From offset"),
        ("time", "From time"),
        ("key", "By key"),
        ("id", "By id"),
    ];
    html! {
        form.search method="get" action=(url::topic(topic)) role="search" {
            select name="by" aria-label="Search by" { @for (by, text) in choices { option value=(by) selected[search.by == by] { (text) } } }
            input type="search" name="value" value=(search.value) aria-label="Offset, time, key or id" placeholder="Offset, time, key or id" autocomplete="off" spellcheck="false";
            button.btn { "Find" }
            @if !search.by.is_empty() { a.btn.is-quiet href=(url::topic(topic)) { "Newest" } }
        }
    }
}

async fn find(headwater: &Headwater, status: &TopicStatus, search: &Search) -> Result<Found, Failure> {
    let value = input::given(Some(&search.value));
    let needed = || value.ok_or_else(|| Problem::invalid("value", "write what to search for"));
    match search.by.as_str() {
        "" | "newest" => newest(headwater, status, search.before).await,
        "offset" => onwards(headwater, status, Start::Offset(input::offset("offset", needed()?)?)).await,
        "time" => onwards(headwater, status, Start::Timestamp(input::time("time", needed()?)?)).await,
        "key" => {
            let key = needed()?;
            backwards(headwater, status, search.before, |message| message.key.as_deref() == Some(key)).await
        }
        "id" => {
            let wrong =
                |_| Problem::invalid("id", "is not the id of a message; ids are of the form 0198c2a4-…");
            by_id(headwater, status, needed()?.parse().map_err(wrong)?, search.before).await
        }
        _ => Err(Problem::invalid("by", "must be newest, offset, time, key or id").into()),
    }
}

/// What is stored from this offset on, at most so many messages.
async fn read(headwater: &Headwater, topic: &str, start: Start, most: u32) -> Result<Vec<Message>, Failure> {
    let mut tail = headwater.tail(topic, start).await?.messages_max(most);
    Ok(tail.next(Duration::ZERO).await?)
}

async fn newest(headwater: &Headwater, status: &TopicStatus, before: Option<i64>) -> Result<Found, Failure> {
    let name = status.topic.name.as_str();
    let mut messages = match before {
        None => read(headwater, name, Start::BeginningBounded(PER_PAGE.into()), PER_PAGE).await?,
        Some(before) => {
            let from = Start::Offset(Offset((before - i64::from(PER_PAGE)).max(1)));
            let mut page = read(headwater, name, from, PER_PAGE).await?;
            page.retain(|message| message.offset.0 < before);
            page
        }
    };
    messages.reverse();
    let lowest = messages.last().map(|message| message.offset.0);
    let older = lowest.filter(|lowest| *lowest > status.first.0.max(1));
    Ok(Found { messages, older, newer: None, examined: None })
}

async fn onwards(headwater: &Headwater, status: &TopicStatus, start: Start) -> Result<Found, Failure> {
    let messages = read(headwater, status.topic.name.as_str(), start, PER_PAGE).await?;
    let newer = messages.last().filter(|_| messages.len() == PER_PAGE as usize).map(|last| last.offset.0 + 1);
    Ok(Found { messages, older: None, newer, examined: None })
}

/// Searches from the newest message back, for a bounded time.
async fn backwards(
    headwater: &Headwater,
    status: &TopicStatus,
    before: Option<i64>,
    is_wanted: impl Fn(&Message) -> bool,
) -> Result<Found, Failure> {
    let (name, began) = (status.topic.name.as_str(), Instant::now());
    let upper = before.unwrap_or(i64::MAX).min(status.head.0 + 1);
    let (mut end, mut messages) = (upper, Vec::new());
    while end > status.first.0.max(1) && messages.len() < PER_PAGE as usize && began.elapsed() < SEARCH_WITHIN
    {
        let from = (end - SEARCH_STEP).max(1);
        let mut at = from;
        let mut step = Vec::new();
        // A page may end early where payloads are large.
        while at < end {
            let most = u32::try_from(end - at).unwrap_or(1_000);
            let page = read(headwater, name, Start::Offset(Offset(at)), most).await?;
            let Some(last) = page.last().map(|message| message.offset.0) else { break };
            at = last + 1;
            step.extend(page.into_iter().filter(|message| message.offset.0 < end && is_wanted(message)));
        }
        step.reverse();
        messages.extend(step);
        end = from;
    }
    let has_more = end > status.first.0.max(1);
    Ok(Found { messages, older: has_more.then_some(end), newer: None, examined: Some((end, upper - 1)) })
}

/// An id that this library made begins with the time: the message is near it.
async fn by_id(
    headwater: &Headwater,
    status: &TopicStatus,
    id: Uuid,
    before: Option<i64>,
) -> Result<Found, Failure> {
    if before.is_none()
        && let Some(published) = time_of(id)
    {
        let start = Start::Timestamp(published.checked_sub(ID_TIME_DIFFERS).unwrap_or(published));
        let mut tail = headwater.tail(status.topic.name.as_str(), start).await?.messages_max(1_000);
        let began = Instant::now();
        while began.elapsed() < SEARCH_WITHIN {
            let page = tail.next(Duration::ZERO).await?;
            let is_past = page.last().is_none_or(|last| last.created_at > published + ID_TIME_DIFFERS);
            if let Some(message) = page.into_iter().find(|message| message.message_id == id) {
                return Ok(Found { messages: vec![message], older: None, newer: None, examined: None });
            }
            if is_past {
                break;
            }
        }
    }
    backwards(headwater, status, before, |message| message.message_id == id).await
}

fn time_of(id: Uuid) -> Option<Timestamp> {
    let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
    Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanoseconds).ok()?).ok()
}

fn list(view: &View, status: &TopicStatus, search: &Search, found: &Found) -> Markup {
    let name = status.topic.name.as_str();
    let link = |by: &str, value: &str, before: &str| {
        url::with_query(&url::topic(name), &[("by", by), ("value", value), ("before", before)])
    };
    html! {
        @if found.messages.is_empty() { (nothing(search, found)) }
        @for message in &found.messages { (row(view, name, message)) }
        @if found.older.is_some() || found.newer.is_some() || found.examined.is_some() {
            div.pager {
                span {
                    @if let Some((first, last)) = found.examined { "Offsets " (format::count(first.unsigned_abs())) "–" (format::count(last.unsigned_abs())) " searched" }
                    @else { (format::count(found.messages.len() as u64)) " messages" }
                }
                nav aria-label="Parts of the log" {
                    @if let Some(older) = found.older {
                        @let by = if search.by.is_empty() { "newest" } else { &search.by };
                        a.btn.is-small href=(link(by, &search.value, &older.to_string())) { (Icon::Back) @if found.examined.is_some() { "Search further back" } @else { "Older" } }
                    }
                    @if let Some(newer) = found.newer { a.btn.is-small href=(link("offset", &newer.to_string(), "")) { "Newer" (Icon::Forward) } }
                }
            }
        }
    }
}

fn nothing(search: &Search, found: &Found) -> Markup {
    match (search.by.as_str(), found.older) {
        ("" | "newest", _) => empty(
            Icon::Messages,
            "No messages are stored",
            "What is published appears here at once. Messages that every group has done are removed when their retention ends.",
            html! {},
        ),
        (_, Some(_)) => empty(
            Icon::Messages,
            "Not found so far",
            "The search stopped early so that it does not burden the store. It can be continued.",
            html! {},
        ),
        _ => empty(
            Icon::Messages,
            "No such message is stored",
            "It may have been removed by retention, or it is scheduled and not due yet.",
            html! {},
        ),
    }
}

/// One message: a line that opens.
fn row(view: &View, topic: &str, message: &Message) -> Markup {
    let offset = message.offset.0.to_string();
    html! {
        details.message data-key=(offset) data-arrives="" {
            summary {
                span.offset { (format::count(message.offset.0.unsigned_abs())) }
                span.faint { (format::at_clock(view.now, message.created_at)) }
                span title=[message.key.as_deref()] { @match &message.key { Some(key) => { (key) } None => { span.faint { "no key" } } } }
                span.preview { (payload::preview(&message.payload)) }
            }
            div.message-body {
                (described(message))
                (payload::shown(&message.payload, payload::SHOWN_IN_LIST))
                p { a href={ (url::topic(topic)) "/messages/" (offset) } { "State in each group" } }
            }
        }
    }
}

/// Everything of a message but its payload.
pub(super) fn described(message: &Message) -> Markup {
    let mut rows = vec![
        ("Id", html! { code { (message.message_id) } }),
        ("Published", html! { (format::exact(message.created_at)) }),
    ];
    let texts = [
        ("Key", &message.key),
        ("Type", &message.message_type),
        ("Content type", &message.content_type),
        ("Correlation", &message.correlation_id),
    ];
    rows.extend(texts.into_iter().filter_map(|(name, text)| Some((name, html! { (text.as_deref()?) }))));
    if let Some(at) = message.expires_at() {
        rows.push(("Expires", html! { (format::exact(at)) }));
    }
    if !message.headers.is_empty() {
        rows.push(("Headers", headers(&message.headers)));
    }
    facts(&rows)
}

/// Headers, one a line.
pub(crate) fn headers(headers: &headwater::Headers) -> Markup {
    html! { @for (name, value) in headers { div { code { (name) } ": " (value) } } }
}
