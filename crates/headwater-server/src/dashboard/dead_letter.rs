//! `/dead-letters/{id}`: one of them, why it was given up, and what can be done: redrive, edit and redrive, purge.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use headwater::store::{AnyDeadLetter, DeadLetterSource};
use headwater::uuid::Uuid;
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change, counted};
use super::components::{Confirm, Head, card, facts, field, text_field};
use super::dead_letters::{act_on_one, source, topic_of};
use super::icons::Icon;
use super::input::given;
use super::layout::Section;
use super::topic::headers;
use super::view::{Failure, View};
use super::{format, payload};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::problem::Problem;

async fn find(app: &App, id: Uuid) -> Result<AnyDeadLetter, Failure> {
    let missing = || Problem::not_found("There is no such dead letter any more: it was redriven or purged.");
    Ok(app.headwater.dead_letters().show(id).await?.ok_or_else(missing)?)
}

/// `GET /dead-letters/{id}`
pub(crate) async fn page(Path(id): Path<Uuid>, view: View) -> Result<Response, Failure> {
    let one = find(&view.app, id).await?;
    if let Some(topic) = topic_of(&one) {
        view.must_see(topic)?;
    }
    let can_read = view.can_read(topic_of(&one));
    let can_change = view.can_change(topic_of(&one));
    let error = one.error_message.as_deref().unwrap_or("no error was recorded");
    let acts = html! {
        @if can_change {
            a.btn.is-primary href={ "/dead-letters/" (id) "/redrive" } data-dialog="" { (Icon::Retry) "Redrive" }
            a.btn.is-danger href={ "/dead-letters/" (id) "/purge" } data-dialog="" { (Icon::Trash) "Purge" }
        }
    };
    let content = html! {
        (Head::new("Dead letter").under(&[("Dead letters", "/dead-letters".into())]).acts(acts))
        div.stack {
            section.card {
                div.card-head { h2 { "Why it was given up" } span.card-note { (format::ago(view.now, one.parked_at)) ", after " (counted(one.attempts.into(), "attempt", "attempts")) } }
                div.card-body { pre.payload tabindex="0" { (error) } }
                (described(&view, &one, can_read))
            }
            @if can_read { (card("Payload", html! {}, html! { div.card-body { (payload::shown(&one.payload, payload::SHOWN_ALONE)) } })) }
            @else { (card("Payload", html! {}, html! { div.card-body { (payload::hidden()) } })) }
            @if can_read && can_change { (edit(&view, &one)) }
        }
    };
    Ok(view.page(Section::DeadLetters, "Dead letter", content).await)
}

fn described(view: &View, one: &AnyDeadLetter, can_read: bool) -> Markup {
    let mut rows = vec![("From", html! { (source(one)) })];
    if let DeadLetterSource::Subscription { topic, offset, .. } = &one.source {
        rows.push(("Offset", html! { a href={ (super::url::topic(topic)) "/messages/" (offset.0) } { (format::count(offset.0.unsigned_abs())) } }));
    }
    rows.push(("Message or command", html! { code { (one.command_id) } }));
    let texts = [
        ("Type or name", &one.name),
        ("Status", &one.failed_status),
        ("Error class", &one.error_class),
        ("Given up by", &one.parked_by),
        ("Content type", &one.content_type),
    ];
    rows.extend(texts.into_iter().filter_map(|(name, text)| Some((name, html! { (text.as_deref()?) }))));
    if can_read {
        rows.extend(one.business_key.as_deref().map(|key| ("Key", html! { (key) })));
        if !one.headers.is_empty() {
            rows.push(("Headers", headers(&one.headers)));
        }
    }
    rows.push(("Given up at", html! { (format::exact(one.parked_at)) }));
    let _ = view;
    facts(&rows)
}

/// An edited copy: only of what a group gave up, and of text.
fn edit(view: &View, one: &AnyDeadLetter) -> Markup {
    let (DeadLetterSource::Subscription { topic, group, .. }, Ok(text)) =
        (&one.source, std::str::from_utf8(&one.payload))
    else {
        return html! {};
    };
    card(
        "Edit and redrive",
        html! {},
        html! {
            form.form.card-body method="post" action={ "/dead-letters/" (one.dead_letter_id) "/edit" } {
                (view.csrf())
                p.soft { "A log cannot be changed: the edited copy is a new message at the end of " b { (topic) } ", and this dead letter of " b { (group) } " is deleted." }
                (field("payload", "Payload", "", html! { textarea id="payload" name="payload" rows="10" spellcheck="false" { "\n" (text) } }))
                (text_field("key", "Key", "", one.business_key.as_deref().unwrap_or_default()))
                label.check { input type="checkbox" name="all_groups" value="yes"; span { "Other groups of the topic may get the copy too" } }
                div.form-acts { button.btn.is-primary { (Icon::Publish) "Publish the edited copy" } }
            }
        },
    )
}

/// `GET /dead-letters/{id}/{act}`: the question.
pub(crate) async fn ask(Path((id, act)): Path<(Uuid, String)>, view: View) -> Result<Response, Failure> {
    let one = find(&view.app, id).await?;
    view.visitor.caller.may(Scope::Admin, topic_of(&one))?;
    let (title, text, is_dangerous) = match act.as_str() {
        "redrive" => ("Redrive", redrive_means(&one), false),
        "purge" => (
            "Purge",
            html! { p { "It is deleted permanently. Its message counts as done for the group." } },
            true,
        ),
        _ => return Err(Problem::not_found("There is no such action.").into()),
    };
    let confirm = Confirm {
        title: &format!("{title} this dead letter"),
        text,
        fields: html! {},
        act: title,
        is_dangerous,
        dry_run: None,
        action: format!("/dead-letters/{id}/{act}"),
        back: format!("/dead-letters/{id}"),
    };
    let content = html! { (Head::new(title).under(&[("Dead letters", "/dead-letters".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::DeadLetters, title, content).await)
}

fn redrive_means(one: &AnyDeadLetter) -> Markup {
    match &one.source {
        DeadLetterSource::Subscription { group, topic, .. } => {
            html! { p { "The message is handed to group " b { (group) } " on " b { (topic) } " again, with attempts reset, and to no other group." } }
        }
        DeadLetterSource::Outbox { topic, .. } => {
            html! { p { "The entry becomes new, with no attempts: a relay sends it to " b { (topic) } " again." } }
        }
        DeadLetterSource::Command { topic: Some(topic) } => {
            html! { p { "The command is published to " b { (topic) } ", once." } }
        }
        DeadLetterSource::Command { topic: None } => {
            html! { div.callout.is-warn { strong { "This command has no topic" } "Send it by its own means, and then purge it here." } }
        }
    }
}

/// Nothing but the CSRF token.
#[derive(Debug, Deserialize)]
pub(crate) struct Nothing {}

/// `POST /dead-letters/{id}/{act}`
pub(crate) async fn act(
    State(app): State<App>,
    Path((id, act)): Path<(Uuid, String)>,
    Submitted { visitor, form: Nothing {} }: Submitted<Nothing>,
) -> Response {
    match find(&app, id).await {
        Ok(one) => act_on_one(&app, &visitor, topic_of(&one), id, &act).await,
        Err(gone) => super::flash::refused("/dead-letters", &gone),
    }
}

/// An edited copy.
#[derive(Debug, Deserialize)]
pub(crate) struct Edited {
    payload: String,
    #[serde(default)]
    key: String,
    all_groups: Option<String>,
}

/// `POST /dead-letters/{id}/edit`
pub(crate) async fn edited(
    State(app): State<App>,
    Path(id): Path<Uuid>,
    Submitted { visitor, form }: Submitted<Edited>,
) -> Response {
    let one = match find(&app, id).await {
        Ok(one) => one,
        Err(gone) => return super::flash::refused("/dead-letters", &gone),
    };
    let DeadLetterSource::Subscription { topic, group, .. } = &one.source else {
        let why = Problem::invalid("dead letter", "only what a group gave up can be edited");
        return Failure::from(why).into_response();
    };
    let own = format!("/dead-letters/{id}");
    let leads = Leads { done: "/dead-letters", refused: &own };
    let replaces = async {
        let dead_letters = app.acting(&visitor.caller).dead_letters().of(topic, group);
        let missing = || Problem::not_found("There is no such dead letter any more.");
        let mut message = dead_letters.show(id).await?.ok_or_else(missing)?.to_message();
        message.payload = form.payload.replace("\r\n", "\n").into();
        message.key = given(Some(&form.key)).map(str::to_owned);
        let published = dead_letters.replace(id, message, form.all_groups.is_some()).await?;
        let offset = published.offset.map_or_else(String::new, |offset| {
            format!(" at offset {}", format::count(offset.0.unsigned_abs()))
        });
        Ok(format!("Edited copy published to {topic}{offset}."))
    };
    change(&app, &visitor, (Scope::Admin, Some(topic)), leads, replaces).await
}
