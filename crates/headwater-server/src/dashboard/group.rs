//! `/topics/{topic}/groups/{group}`: how a group is doing, what it holds, and what can be done with it.

use std::time::Duration;

use axum::extract::{Path, Query};
use axum::response::Response;
use headwater::store::{Backfill, BackfillState, GroupHealth, HealthIssue, SubscriptionStatus, TopicStatus};
use headwater::{DeliveryPolicy, SubscriptionState};
use maud::{Markup, html};
use serde::Deserialize;

use super::chart::{self, Line};
use super::components::{Head, Tile, Tone, backfill_state, card, facts, group_issues, group_state};
use super::format;
use super::icons::Icon;
use super::layout::Section;
use super::topic::find;
use super::url::{self, Name};
use super::view::{Failure, View};
use crate::sampler::{GroupFigures, Span};

pub(crate) mod change;
mod outstanding;
pub(crate) mod subscribe;

/// Which part of the past is shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Shown {
    #[serde(default)]
    span: String,
}

impl Shown {
    fn span(&self) -> Span {
        if self.span == "hour" { Span::Hour } else { Span::Minutes }
    }
}

/// `GET /topics/{topic}/groups/{group}`
pub(crate) async fn page(
    Path((Name(topic), Name(name))): Path<(Name, Name)>,
    Query(shown): Query<Shown>,
    view: View,
) -> Result<Response, Failure> {
    let snapshot = view.app.sampler.snapshot().await?;
    let status_of_topic = &find(&view, &topic).await?;
    // Read now: the page must show what was just done.
    let groups = view.app.headwater.groups(&topic);
    let group = groups.get(&name).await?;
    let policy = match group.status.state {
        SubscriptionState::Cancelled => DeliveryPolicy::default(),
        _ => groups.policy(&name).await?,
    };
    let figures = snapshot.group(&topic, &name);
    let backfill =
        snapshot.backfills.iter().find(|one| one.topic.as_str() == topic && one.group.as_str() == name);
    let outstanding = outstanding::card(&view, &topic, &name).await?;
    let crumbs = [
        ("Topics", "/topics".to_owned()),
        (topic.as_str(), url::topic(&topic)),
        ("Groups", format!("{}/groups", url::topic(&topic))),
    ];
    let content = html! {
        (Head::new(&name).under(&crumbs).beside(view.live("state", state(&group))).acts(view.live("acts", acts(&view, &topic, &group.status))))
        div.stack {
            (view.live("notices", notices(&view, &topic, &group)))
            (view.live("tiles", tiles(&topic, &group, figures)))
            (card("Lag and rate", spans(&topic, &name, &shown), view.live("chart", past(&view, &group.status, shown.span()))))
            (card("Position in the log", html! {}, view.live("position", position(&group.status, status_of_topic))))
            @if let Some(backfill) = backfill { (view.live("backfill", backfilling(&view, backfill))) }
            (outstanding)
            div.cols-2 {
                (card("Processes", html! {}, view.live("processes", processes(&view, &group.status))))
                (card("Delivery", policy_link(&view, &topic, &name), delivery(&policy, status_of_topic, &group.status)))
            }
        }
    };
    Ok(view.page(Section::Groups, &format!("{name} on {topic}"), content).await)
}

fn state(group: &GroupHealth) -> Markup {
    html! { span.badges { (group_state(group.status.state)) (group_issues(&group.health_issues)) } }
}

/// What the state allows. Each leads to a question first.
fn acts(view: &View, topic: &str, status: &SubscriptionStatus) -> Markup {
    if !view.can_change(Some(topic)) {
        return html! {};
    }
    let address = url::group(topic, status.group.as_str());
    let pause: (&str, &str, Icon, bool) = ("pause", "Pause", Icon::Pause, false);
    let (resume, resurrect) =
        (("resume", "Resume", Icon::Play, false), ("resurrect", "Resurrect", Icon::Retry, false));
    let (seek, cancel) = (("seek", "Seek", Icon::Seek, false), ("cancel", "Cancel", Icon::Cancelled, true));
    let remove = ("remove", "Remove", Icon::Trash, true);
    let possible: Vec<_> = match status.state {
        SubscriptionState::Active => vec![pause, seek, cancel],
        SubscriptionState::Paused => vec![resume, seek, cancel],
        SubscriptionState::Dead => vec![resurrect, seek, cancel],
        SubscriptionState::Cancelled => vec![remove],
    };
    html! {
        @for (act, word, icon, is_dangerous) in possible {
            a.btn.is-danger[is_dangerous] href={ (address) "/" (act) } data-dialog="" { (icon) (word) }
        }
    }
}

/// Why it is in its state, and what to do about its issues.
fn notices(view: &View, topic: &str, group: &GroupHealth) -> Markup {
    let status = &group.status;
    let since = html! { " since " (format::ago(view.now, status.state_since)) };
    html! {
        @match status.state {
            SubscriptionState::Paused => {
                div.callout.is-warn {
                    strong { "Paused" (since) }
                    span { @match &status.state_reason { Some(reason) => { (reason) } None => { "No reason was given." } } }
                    span { "Nothing is lost: messages wait until it is resumed." }
                }
            }
            SubscriptionState::Dead => {
                div.callout.is-bad {
                    strong { "Dead" (since) }
                    span { "No process sent a heartbeat for longer than " (format::duration(status.heartbeat_timeout)) ". Start a process of the group, which resurrects it at its position, or resurrect it here." }
                }
            }
            SubscriptionState::Cancelled => {
                div.callout { strong { "Cancelled" (since) } span { "It gets no messages any more. Subscribing again creates a new group." } }
            }
            SubscriptionState::Active => {}
        }
        @for issue in &group.health_issues {
            @if let Some(advice) = advice(*issue, status) {
                div.callout.is-warn { strong { (capital(issue.as_str())) } span { (advice) } }
            }
        }
        @if status.missed.count > 0 {
            p.soft {
                "Retention removed " (format::count(status.missed.count)) " messages before this group had done them"
                @if let Some((first, last)) = status.missed.range { ", between offsets " (format::count(first.0.unsigned_abs())) " and " (format::count(last.0.unsigned_abs())) }
                ". See the topic’s " a href={ (url::topic(topic)) "/settings" } { "retention" } "."
            }
        }
    }
}

fn capital(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// What to do about an issue that the state does not explain.
fn advice(issue: HealthIssue, status: &SubscriptionStatus) -> Option<String> {
    Some(match issue {
        HealthIssue::Silent => "No heartbeat for longer than its timeout, and maintenance has not declared it dead: run maintenance, and start a process of the group.".into(),
        HealthIssue::NearTimeout => "Most of its heartbeat timeout has passed without a heartbeat.".into(),
        HealthIssue::Unserved => "It has messages to handle and no process serves it. Start one, or cancel the group.".into(),
        HealthIssue::NeverServed => "No process ever served it, and retention waits for it. Start one, or cancel the group.".into(),
        HealthIssue::Flapping => format!("Its processes registered {} times lately without progress. Read their logs: they end before they ack anything.", status.restarts),
        HealthIssue::Stuck => format!("{} messages are not done for more than an hour. The ranges below show which, and why.", format::count(status.stuck)),
        HealthIssue::LaneFull => format!("{} lanes are full of messages behind a key that failed. The ranges below show the message that fails.", status.lanes_full),
        HealthIssue::Burying => format!("{} messages became dead letters within the last hour. Their errors are among the dead letters.", format::count(status.buried_lately)),
        HealthIssue::Dead | HealthIssue::Paused | HealthIssue::Missed => return None,
    })
}

fn tiles(topic: &str, group: &GroupHealth, figures: Option<&GroupFigures>) -> Markup {
    let status = &group.status;
    let handled = figures.map_or(0.0, |figures| figures.handled_per_s);
    let dead = url::with_query("/dead-letters", &[("topic", topic), ("group", status.group.as_str())]);
    let waits = status.lag.saturating_sub(status.in_flight + status.retrying);
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let left = (handled > 0.5 && status.lag > 0)
        .then(|| Duration::from_secs_f64((status.lag as f64 / handled).min(1e9)));
    let left = left.map_or_else(
        || format!("{} wait", format::compact(waits)),
        |left| format!("about {} at this rate", format::duration(left)),
    );
    html! {
        div.tiles {
            (Tile::new("Lag", format::compact(status.lag)).note(left))
            (Tile::new("Behind", group.behind.map_or_else(|| "–".into(), format::duration)).note("age of the oldest message not done"))
            (Tile::new("Handled", format::rate(handled)).unit("/s").note(format!("{} by living processes", format::compact(status.activity.processed))))
            (Tile::new("In flight", format::compact(status.in_flight)).note(format!("in {} leases", format::count(status.leased))))
            (Tile::new("Retrying", format::compact(status.retrying)).note(format!("{} attempts failed", format::compact(status.activity.failed))))
            (Tile::new("Dead letters", format::compact(status.dead_letters)).note(format!("{} in the last hour", format::count(status.buried_lately)))
                .tone(if status.dead_letters == 0 { Tone::Calm } else { Tone::Bad }).to(dead))
        }
    }
}

fn spans(topic: &str, group: &str, shown: &Shown) -> Markup {
    html! {
        nav.choices aria-label="Time shown" {
            @for (span, word) in [("", "5 minutes"), ("hour", "1 hour")] {
                a href=(url::with_query(&url::group(topic, group), &[("span", span)])) aria-current=[(shown.span == span).then_some("true")] { (word) }
            }
        }
    }
}

fn past(view: &View, status: &SubscriptionStatus, span: Span) -> Markup {
    let Some(past) = view.app.sampler.group_past(status.subscription_id, span) else {
        return html! { p.card-body.soft { "The past of this group is not kept: it is cancelled, or there are too many groups." } };
    };
    html! {
        div.charts {
            (chart::chart("chart-lag", "Messages that are not done", &[Line { name: "Lag", unit: "", style: 3, readings: &past.lag }]))
            (chart::chart("chart-handled", "Messages done per second", &[Line { name: "Handled", unit: "/s", style: 1, readings: &past.handled }]))
        }
    }
}

/// Where the group is between the first stored message and the head.
#[expect(clippy::cast_precision_loss, reason = "a drawing")]
fn position(status: &SubscriptionStatus, topic: &TopicStatus) -> Markup {
    // The topic was read a moment before.
    let (first, head) = (topic.first.0.max(1), topic.head.0.max(status.next.0 - 1));
    let length = (head - first + 1).max(1) as f64;
    let at = |offset: i64| ((offset - first).clamp(0, head - first + 1)) as f64 / length * 100.0;
    let (done, handed_out) = (at(status.floor.0 + 1), at(status.next.0));
    let share = |from: f64, to: f64| format!("{:.2}", (to - from).max(0.0));
    let summary = format!(
        "Done up to offset {}, handed out up to {}, head at {}",
        status.floor.0,
        status.next.0 - 1,
        head
    );
    html! {
        div.card-body.form {
            svg.position viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=(summary) {
                rect.rest width="100" height="6" {}
                rect.done width=(share(0.0, done)) height="6" {}
                rect.out x=(format!("{done:.2}")) width=(share(done, handed_out)) height="6" {}
            }
            ul.chart-legend {
                li { svg.position.key viewBox="0 0 10 6" aria-hidden="true" { rect.done width="10" height="6" {} } "Done up to " b { (format::count(status.floor.0.unsigned_abs())) } }
                li { svg.position.key viewBox="0 0 10 6" aria-hidden="true" { rect.out width="10" height="6" {} } "Handed out up to " b { (format::count((status.next.0 - 1).unsigned_abs())) } }
                li { svg.position.key viewBox="0 0 10 6" aria-hidden="true" { rect.rest width="10" height="6" {} } "Head at " b { (format::count(head.unsigned_abs())) } }
                li { "First stored " b { (format::count(first.unsigned_abs())) } }
            }
        }
    }
}

fn backfilling(view: &View, backfill: &Backfill) -> Markup {
    let address = url::group(backfill.topic.as_str(), backfill.group.as_str());
    let can_change = view.can_change(Some(backfill.topic.as_str()));
    let is_stopped = matches!(backfill.state, BackfillState::Cancelled | BackfillState::Failed);
    card(
        "Backfill",
        backfill_state(backfill.state),
        html! {
            div.card-body.form {
                p {
                    (format::count(backfill.processed)) " of " (format::count(backfill.total)) " messages, " (format::rate(backfill.rate)) "/s of at most " (format::count(backfill.rate_max.into())) "/s"
                    @if let Some(left) = backfill.remaining() { ", about " (format::duration(left)) " left" }
                }
                (chart::meter("Backfill", backfill.processed, backfill.total))
                @if let Some(error) = &backfill.error { div.callout.is-bad { strong { "It failed" } (error) } }
                @if backfill.left_out > 0 { p.soft { (format::count(backfill.left_out)) " older messages are left out by its limit." } }
                @if can_change {
                    div.form-acts {
                        @if backfill.state.is_open() { a.btn.is-small.is-danger href={ (address) "/backfill-cancel" } data-dialog="" { "Cancel backfill" } }
                        @if is_stopped { a.btn.is-small href={ (address) "/backfill-resume" } data-dialog="" { "Resume backfill" } }
                    }
                }
            }
        },
    )
}

fn processes(view: &View, status: &SubscriptionStatus) -> Markup {
    let heartbeat = match (status.heartbeat_at, status.heartbeat_age) {
        (Some(at), Some(age)) => {
            html! { time datetime=(format::exact(at)) title=(format::exact(at)) { (format::duration(age)) " ago" } }
        }
        _ => html! { "never" },
    };
    let activity = &status.activity;
    facts(&[
        ("Living processes", html! { (status.processes) }),
        (
            "Last heartbeat",
            html! { (heartbeat) ", dead after " (format::duration(status.heartbeat_timeout)) },
        ),
        (
            "Handling time",
            html! { "mean " (format::duration(activity.handling_mean)) ", 95 % within " (format::duration(activity.handling_p95)) },
        ),
        (
            "Handled",
            html! { (format::count(activity.processed)) ", " (format::count(activity.filtered)) " of them accepted by no member" },
        ),
        ("Failed attempts", html! { (format::count(activity.failed)) }),
        (
            "Taken over",
            html! { (format::count(status.reassigned)) " leases expired and went to another process" },
        ),
        ("In this state", html! { "since " (format::ago(view.now, status.state_since)) }),
    ])
}

fn policy_link(view: &View, topic: &str, group: &str) -> Markup {
    html! { @if view.can_change(Some(topic)) { a href={ (url::group(topic, group)) "/policy" } data-dialog="" { "Change" } } }
}

fn delivery(policy: &DeliveryPolicy, topic: &TopicStatus, status: &SubscriptionStatus) -> Markup {
    let own = |is_own: bool| html! { @if is_own { " " span.tag { "own" } } };
    let applied = policy.apply_to(&topic.topic.settings);
    let order = match status.lanes {
        0 => "none".to_owned(),
        lanes => format!("by key, in {lanes} lanes"),
    };
    facts(&[
        ("Order", html! { (order) }),
        ("Lease", html! { (format::duration(applied.lease)) (own(policy.lease.is_some())) }),
        ("Attempts", html! { (applied.max_attempts) (own(policy.max_attempts.is_some())) }),
        (
            "Back-off",
            html! { (format::duration(applied.backoff_initial)) " to " (format::duration(applied.backoff_max)) (own(policy.backoff_initial.is_some() || policy.backoff_max.is_some())) },
        ),
        (
            "Heartbeat",
            html! { "every " (format::duration(applied.heartbeat_interval)) ", dead after " (format::duration(applied.heartbeat_timeout)) (own(policy.heartbeat_interval.is_some() || policy.heartbeat_timeout.is_some())) },
        ),
    ])
}
