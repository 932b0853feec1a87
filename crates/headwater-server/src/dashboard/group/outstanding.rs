//! What a group has been handed out and has not done: leased, waiting for a retry, parked behind a key.

use headwater::store::{Outstanding, OutstandingState};
use maud::{Markup, html};

use crate::dashboard::components::{Tone, badge, empty};
use crate::dashboard::icons::Icon;
use crate::dashboard::view::{Failure, View};
use crate::dashboard::{format, url};

/// Ranges that are shown.
const SHOWN: u32 = 50;

/// The card with the ranges of a group.
pub(super) async fn card(view: &View, topic: &str, group: &str) -> Result<Markup, Failure> {
    let ranges = view.app.headwater.groups(topic).outstanding(group, SHOWN).await?;
    Ok(crate::dashboard::components::card(
        "In flight, retrying and parked",
        html! {},
        view.live("outstanding", list(view, topic, group, &ranges)),
    ))
}

fn list(view: &View, topic: &str, group: &str, ranges: &[Outstanding]) -> Markup {
    if ranges.is_empty() {
        return empty(
            Icon::Check,
            "Nothing is handed out",
            "Messages that processes are working on, and those that wait for a retry, are listed here with their last error.",
            html! {},
        );
    }
    let can_change = view.can_change(Some(topic));
    let can_read = view.can_read(Some(topic));
    html! {
        table.data.stacks {
            thead {
                tr {
                    th scope="col" { "Offsets" } th scope="col" { "State" } th.num scope="col" { "Attempt" } th scope="col" { "Due" }
                    th scope="col" { "Held by, last error" } th scope="col" { span.unseen { "Actions" } }
                }
            }
            tbody { @for range in ranges { (row(view, topic, group, range, can_change, can_read)) } }
        }
        @if ranges.len() == SHOWN as usize { div.card-foot { "The " (SHOWN) " that are due first are shown." } }
    }
}

fn row(
    view: &View,
    topic: &str,
    group: &str,
    range: &Outstanding,
    can_change: bool,
    can_read: bool,
) -> Markup {
    let (first, last) = (range.range.first.0, range.range.last.0);
    let is_one = first == last;
    let error = range.last_error.as_deref();
    html! {
        tr data-key={ (first) "-" (range.lane.map_or(-1, i32::from)) } {
            td.name {
                @if is_one { a href={ (url::topic(topic)) "/messages/" (first) } { (format::count(first.unsigned_abs())) } }
                @else { (format::count(first.unsigned_abs())) "–" (format::count(last.unsigned_abs())) }
                @if can_read { @if let Some(key) = &range.key { small.faint { "key " (key) } } }
                @if let Some(lane) = range.lane { small.faint { "lane " (lane) } }
            }
            td data-label="State" { (state(range)) @if range.suspect { " " (badge(Tone::Warn, Icon::Alert, "owner crashed")) } }
            td.num data-label="Attempt" { (range.attempts) }
            td data-label="Due" { @match range.due_at { Some(at) => { (format::ago(view.now, at)) } None => { span.faint { "–" } } } }
            td.text {
                @if let Some(owner) = &range.owner { div { code { (owner.as_str()) } } }
                @if let Some(error) = error { div.soft title=(error) { span.clip { (error) } } }
            }
            td.acts { @if can_change { (acts(view, topic, group, range, is_one)) } }
        }
    }
}

fn state(range: &Outstanding) -> Markup {
    match range.state {
        OutstandingState::Leased => badge(Tone::Accent, Icon::Active, "leased"),
        OutstandingState::Waiting if range.last_error.is_some() => badge(Tone::Warn, Icon::Retry, "retrying"),
        OutstandingState::Waiting => badge(Tone::Calm, Icon::Clock, "waiting"),
        OutstandingState::Parked => badge(Tone::Calm, Icon::Pause, "parked"),
    }
}

fn acts(view: &View, topic: &str, group: &str, range: &Outstanding, is_one: bool) -> Markup {
    let own = url::group(topic, group);
    html! {
        @if is_one && range.state == OutstandingState::Waiting {
            @for (act, word) in [("retry", "Retry now"), ("skip", "Skip"), ("bury", "Bury")] {
                form.inline method="post" action={ (url::topic(topic)) "/messages/" (range.range.first.0) "/" (act) } {
                    (view.csrf())
                    input type="hidden" name="group" value=(group);
                    input type="hidden" name="from" value=(own);
                    button.btn.is-small.is-quiet { (word) }
                }
            }
        }
        @if let (OutstandingState::Leased, Some(token)) = (range.state, range.token) {
            form.inline method="post" action={ (own) "/release" } {
                (view.csrf())
                input type="hidden" name="token" value=(token.0);
                button.btn.is-small.is-quiet title="Ends the lease: its messages are handed out again at once" { "Release" }
            }
        }
    }
}
