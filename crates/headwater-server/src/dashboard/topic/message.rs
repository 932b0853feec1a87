//! `/topics/{topic}/messages/{offset}`: one message, its state in each group, and what can be done about it there.

use axum::extract::{Path, State};
use axum::response::Response;
use headwater::store::{MessageState, MessageStatus, Outstanding};
use headwater::{GroupName, Offset};
use maud::{Markup, html};
use serde::Deserialize;

use super::browse::described;
use super::{Tab, find, head};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::dashboard::act::{Leads, change};
use crate::dashboard::components::{Tone, badge, card};
use crate::dashboard::icons::Icon;
use crate::dashboard::layout::Section;
use crate::dashboard::url::{self, Name};
use crate::dashboard::view::{Failure, View};
use crate::dashboard::{format, payload};
use crate::problem::Problem;

/// `GET /topics/{topic}/messages/{offset}`
pub(crate) async fn page(
    Path((Name(topic), offset)): Path<(Name, i64)>,
    view: View,
) -> Result<Response, Failure> {
    view.must_see(&topic)?;
    view.visitor.caller.may(Scope::Read, Some(&topic))?;
    let status = &find(&view, &topic).await?;
    let found = view.app.headwater.groups(&topic).message(Offset(offset)).await?;
    let title = format!("Offset {}", format::count(offset.unsigned_abs()));
    let content = html! {
        (head(&view, status, Tab::Messages))
        div.stack {
            section.card {
                div.card-head {
                    h2 { (title) }
                    span {
                        a.btn.is-small href=(neighbour(&topic, offset - 1)) { (Icon::Back) "Before" } " "
                        a.btn.is-small href=(neighbour(&topic, offset + 1)) { "After" (Icon::Forward) }
                    }
                }
                div { (described(&found.message)) }
                div.card-body { (payload::shown(&found.message.payload, payload::SHOWN_ALONE)) }
            }
            (card("State in each group", html! {}, view.live("states", states(&view, &topic, &found))))
        }
    };
    Ok(view.page(Section::Topics, &format!("{title} of {topic}"), content).await)
}

fn neighbour(topic: &str, offset: i64) -> String {
    url::with_query(&url::topic(topic), &[("by", "offset"), ("value", &offset.max(1).to_string())])
}

fn states(view: &View, topic: &str, found: &MessageStatus) -> Markup {
    if found.groups.is_empty() {
        return html! { p.card-body.soft { "No group reads this topic." } };
    }
    let can_change = view.can_change(Some(topic));
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Group" } th scope="col" { "State" } th scope="col" { "More" } th scope="col" { span.unseen { "Actions" } } } }
            tbody {
                @for (group, state) in &found.groups {
                    tr data-key=(group.as_str()) {
                        td.name { a href=(url::group(topic, group.as_str())) { (group.as_str()) } }
                        td data-label="State" { (state_badge(state)) }
                        td.text { (more(view, state)) }
                        td.acts { @if can_change { (acts(view, topic, group, found.message.offset, state)) } }
                    }
                }
            }
        }
    }
}

fn state_badge(state: &MessageState) -> Markup {
    let word = state.as_str().replace('_', " ");
    match state {
        MessageState::Done => badge(Tone::Good, Icon::Check, &word),
        MessageState::Buried(_) => badge(Tone::Bad, Icon::DeadLetters, "dead letter"),
        MessageState::NotHandedOut => badge(Tone::Calm, Icon::Clock, &word),
        MessageState::Outstanding(_) => badge(Tone::Accent, Icon::Active, &word),
    }
}

fn more(view: &View, state: &MessageState) -> Markup {
    match state {
        MessageState::Outstanding(Outstanding { attempts, due_at, last_error, owner, .. }) => html! {
            "Attempt " (attempts)
            @if let Some(owner) = owner { ", held by " code { (owner.as_str()) } }
            @if let Some(at) = due_at { ", due " (format::ago(view.now, *at)) }
            @if let Some(error) = last_error { div.soft { (error) } }
        },
        MessageState::Buried(id) => html! { a href={ "/dead-letters/" (id) } { "Show the dead letter" } },
        MessageState::NotHandedOut | MessageState::Done => html! {},
    }
}

/// Buttons that apply to the state: each is a form of its own.
fn acts(view: &View, topic: &str, group: &GroupName, offset: Offset, state: &MessageState) -> Markup {
    let possible: &[(&str, &str)] = match state {
        MessageState::NotHandedOut => &[("skip", "Skip"), ("bury", "Bury")],
        MessageState::Outstanding(range) => match range.state.as_str() {
            "waiting" => &[("retry", "Retry now"), ("skip", "Skip"), ("bury", "Bury")],
            "parked" => &[("skip", "Skip"), ("bury", "Bury")],
            _ => &[],
        },
        MessageState::Buried(_) | MessageState::Done => &[],
    };
    html! {
        @for (act, word) in possible {
            form method="post" action={ (url::topic(topic)) "/messages/" (offset.0) "/" (act) } {
                (view.csrf())
                input type="hidden" name="group" value=(group.as_str());
                button.btn.is-small { (word) }
            }
        }
    }
}

/// Which group.
#[derive(Debug, Deserialize)]
pub(crate) struct OfGroup {
    group: String,
    /// Where it was asked for, if not on the page of the message.
    from: Option<String>,
}

/// `POST /topics/{topic}/messages/{offset}/{act}`
pub(crate) async fn act(
    State(app): State<App>,
    Path((Name(topic), offset, act)): Path<(Name, i64, String)>,
    Submitted { visitor, form }: Submitted<OfGroup>,
) -> Response {
    let own_page = format!("{}/messages/{offset}", url::topic(&topic));
    let page = form.from.as_deref().map_or(own_page.as_str(), url::local);
    let (groups, group) = (app.acting(&visitor.caller).groups(&topic), form.group.as_str());
    let acts = async {
        let of = format!("offset {offset} for group {group}");
        Ok(match act.as_str() {
            "skip" => {
                groups.skip(group, Offset(offset), false).await?;
                format!("Skipped {of}: it counts as done.")
            }
            "bury" => {
                groups.bury(group, Offset(offset), "buried by an operator in the dashboard", false).await?;
                format!("Buried {of}: it is a dead letter now.")
            }
            "retry" => {
                groups.retry(group, Offset(offset), false).await?;
                format!("Retrying {of} now.")
            }
            _ => return Err(Problem::not_found("There is no such action.").into()),
        })
    };
    change(&app, &visitor, (Scope::Admin, Some(&topic)), Leads::to(page), acts).await
}
