//! `/settings`: the tokens of this store, and what this server is.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use headwater::tokens::{NewToken, Scope as TokenScope, Token};
use maud::{Markup, html};
use serde::Deserialize;

use super::act::{Leads, change};
use super::components::{Confirm, Head, Tone, badge, card, empty, facts, field, text_field};
use super::icons::Icon;
use super::input::{self, given};
use super::layout::Section;
use super::url::{self, Name};
use super::view::{Failure, View};
use super::{flash, format};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::{Submitted, Visitor};

/// How long the old secret of a rotated token is accepted, unless it is chosen.
const GRACE: Duration = Duration::from_secs(3_600);

/// `GET /settings`
pub(crate) async fn page(view: View) -> Result<Response, Failure> {
    let content = html! { (Head::new("Settings")) (settings(&view).await?) };
    Ok(view.page(Section::Settings, "Settings", content).await)
}

async fn settings(view: &View) -> Result<Markup, Failure> {
    let can_change = view.can_change(None);
    let tokens = if can_change { view.app.headwater.tokens().list().await? } else { Vec::new() };
    let new = html! { @if can_change { a.btn.is-small href="/settings/new-token" data-dialog="" { (Icon::Plus) "New token" } } };
    Ok(html! {
        div.stack {
            (card("API tokens", new, if can_change { table(view, &tokens) } else { refused() }))
            div.cols-2 {
                (card("This server", html! {}, server(view)))
                (card("Keys", html! {}, keys()))
            }
        }
    })
}

fn refused() -> Markup {
    html! { p.card-body.soft { "Tokens are shown to callers with the scope “admin” for all topics." } }
}

fn table(view: &View, tokens: &[Token]) -> Markup {
    if tokens.is_empty() {
        return empty(
            Icon::Settings,
            "This store has no tokens",
            "As long as there is none, everyone who reaches this server may do everything: it listens on this machine only. With the first token, requests and this dashboard need one.",
            html! {},
        );
    }
    html! {
        table.data.stacks {
            thead { tr { th scope="col" { "Token" } th scope="col" { "Allows" } th scope="col" { "Topics" } th.num scope="col" { "Created" } th.num scope="col" { "Expires" } th scope="col" { span.unseen { "Actions" } } } }
            tbody { @for token in tokens { (row(view, token)) } }
        }
    }
}

fn row(view: &View, token: &Token) -> Markup {
    let address = format!("/settings/tokens/{}", url::segment(&token.id));
    let is_over = token.expires_at.is_some_and(|at| at <= view.now);
    html! {
        tr {
            td.name { (token.name) small.faint { code { (token.id) } } }
            td data-label="Allows" { span.badges { @for scope in &token.scopes { span.tag { (scope.as_str()) } } } }
            td data-label="Topics" { span.break { (token.topics.join(", ")) } }
            td.num data-label="Created" {
                (format::ago(view.now, token.created_at))
                @if let Some(at) = token.rotated_at { small.faint { " rotated " (format::ago(view.now, at)) } }
            }
            td.num data-label="Expires" {
                @match token.expires_at {
                    Some(_) if is_over => { (badge(Tone::Bad, Icon::Clock, "expired")) }
                    Some(at) => { (format::ago(view.now, at)) }
                    None => { span.faint { "never" } }
                }
            }
            td.acts {
                a.btn.is-small.is-quiet href={ (address) "/rotate" } data-dialog="" { "Rotate" }
                a.btn.is-small.is-quiet href={ (address) "/revoke" } data-dialog="" { "Revoke" }
            }
        }
    }
}

fn server(view: &View) -> Markup {
    let limits = &view.app.limits;
    let store = match view.app.headwater.namespace() {
        Some(namespace) => format!("PostgreSQL, namespace {}", namespace.as_str()),
        None => "SQLite, embedded".into(),
    };
    facts(&[
        ("Version", html! { (env!("CARGO_PKG_VERSION")) }),
        ("Started", format::ago(view.now, view.app.started_at)),
        (
            "Database",
            html! { (view.app.label.name) @if view.app.label.production { " " (badge(Tone::Bad, Icon::Alert, "production")) } },
        ),
        ("Store", html! { (store) }),
        ("You are", html! { (view.visitor.caller.name()) }),
        ("Largest request", html! { (format::bytes(limits.body_bytes_max as u64)) }),
        ("Largest batch", html! { (format::count(limits.batch_max as u64)) " messages" }),
        ("Longest wait", html! { (format::duration(limits.wait_max)) }),
        (
            "API",
            html! { a href="/v1/openapi.json" { "OpenAPI document" } ", " a href="/metrics" { "metrics" } },
        ),
    ])
}

fn keys() -> Markup {
    facts(&[
        ("Search this page", html! { kbd { "/" } }),
        (
            "Go to a page",
            html! { kbd { "g" } " then " kbd { "o" } " overview, " kbd { "t" } " topics, " kbd { "r" } " groups, " kbd { "d" } " dead letters, " kbd { "c" } " scheduled, " kbd { "p" } " processes, " kbd { "x" } " outbox, " kbd { "l" } " pipeline, " kbd { "m" } " maintenance, " kbd { "a" } " audit, " kbd { "s" } " settings" },
        ),
        ("Values of a chart", html! { kbd { "←" } " " kbd { "→" } " on a chart that has the focus" }),
    ])
}

/// `GET /settings/new-token`
pub(crate) async fn ask_new(view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let means = [
        (TokenScope::Read, "See topics, groups, messages and figures"),
        (TokenScope::Publish, "Publish messages"),
        (TokenScope::Consume, "Claim and settle messages"),
        (TokenScope::Admin, "Change topics, groups, dead letters and tokens"),
    ];
    let confirm = Confirm {
        title: "New token",
        text: html! {},
        fields: html! {
            (text_field("name", "Name", "Unique; the audit shows it", ""))
            fieldset.form {
                legend { "Allows" }
                @for (scope, text) in means {
                    label.check { input type="checkbox" name="scope" value=(scope.as_str()); span { strong { (scope.as_str()) } " " span.soft { (text) } } }
                }
            }
            div.fields {
                (text_field("topics", "Topics", "Names, with * for any characters, separated by spaces; empty for all", ""))
                (text_field("expires", "Expires in", "30d, 90d; empty for never", ""))
            }
        },
        act: "Create token",
        is_dangerous: false,
        dry_run: None,
        action: "/settings/tokens".into(),
        back: "/settings".into(),
    };
    let content =
        html! { (Head::new("New token").under(&[("Settings", "/settings".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::Settings, "New token", content).await)
}

/// `POST /settings/tokens`: the answer has the secret, once, and not a redirect: it must not get into a cookie.
pub(crate) async fn create(
    State(app): State<App>,
    view: View,
    Submitted { visitor, form }: Submitted<Vec<(String, String)>>,
) -> Response {
    if let Err(denied) = visitor.caller.may(Scope::Admin, None) {
        return Failure::from(denied).into_response();
    }
    match created(&app, &visitor, &form).await {
        Ok((name, secret)) => shown_once(view, &format!("Token {name} is created"), &secret).await,
        Err(why) => flash::refused("/settings", &why),
    }
}

async fn created(
    app: &App,
    visitor: &Visitor,
    form: &[(String, String)],
) -> Result<(String, String), Failure> {
    let values =
        |name: &'static str| form.iter().filter(move |(of, _)| of == name).map(|(_, value)| value.as_str());
    let mut new = NewToken::new(values("name").next().unwrap_or_default().trim());
    for scope in values("scope") {
        new = new.scope(scope.parse()?);
    }
    for pattern in values("topics").flat_map(str::split_whitespace) {
        new = new.topic(pattern.trim_end_matches(','));
    }
    if let Some(expires) = given(values("expires").next()) {
        new = new.expires_in(input::duration("expires", expires)?);
    }
    let issued = app.acting(&visitor.caller).tokens().create(&new).await?;
    app.tokens.forget();
    Ok((new.name, issued.secret().to_owned()))
}

/// The page that has a secret.
async fn shown_once(view: View, title: &str, secret: &str) -> Response {
    let content = html! {
        (Head::new(title).under(&[("Settings", "/settings".into())]))
        section.card.confirm {
            div.card-body.form {
                p { "Copy it now: the store has only a hash of it, and it cannot be shown again." }
                code.secret id="secret" { (secret) }
                div.form-acts {
                    button.btn type="button" data-copy="secret" hidden { "Copy" }
                    a.btn.is-primary href="/settings" { "Done" }
                }
            }
        }
    };
    view.page(Section::Settings, title, content).await
}

/// `GET /settings/tokens/{id}/rotate`: the question.
pub(crate) async fn ask_rotate(Path(Name(id)): Path<Name>, view: View) -> Result<Response, Failure> {
    ask(view, &id, "rotate").await
}

/// `GET /settings/tokens/{id}/revoke`: the question.
pub(crate) async fn ask_revoke(Path(Name(id)): Path<Name>, view: View) -> Result<Response, Failure> {
    ask(view, &id, "revoke").await
}

async fn ask(view: View, id: &str, act: &str) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, None)?;
    let tokens = view.app.headwater.tokens().list().await?;
    let missing = || crate::problem::Problem::not_found("There is no such token any more.");
    let token = tokens.iter().find(|token| token.id == id).ok_or_else(missing)?;
    let is_rotation = act == "rotate";
    let title = if is_rotation {
        format!("Rotate token {}", token.name)
    } else {
        format!("Revoke token {}", token.name)
    };
    let confirm = Confirm {
        title: &title,
        text: match is_rotation {
            true => {
                html! { p { "It gets a new secret, which is shown once. The old one is accepted for a while, so that programs can change over." } }
            }
            false => {
                html! { p { "It is refused within seconds, everywhere, and so are sessions that were started with it. This cannot be undone." } }
            }
        },
        fields: html! {
            @if is_rotation { (field("grace", "The old secret is accepted for", "", html! { input type="text" id="grace" name="grace" value="1h" autocomplete="off"; })) }
        },
        act: if is_rotation { "Rotate" } else { "Revoke" },
        is_dangerous: !is_rotation,
        dry_run: None,
        action: format!("/settings/tokens/{}/{act}", url::segment(id)),
        back: "/settings".into(),
    };
    let content =
        html! { (Head::new(&title).under(&[("Settings", "/settings".into())])) (confirm.render(&view)) };
    Ok(view.page(Section::Settings, &title, content).await)
}

/// How long the old secret is accepted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Grace {
    grace: String,
}

/// `POST /settings/tokens/{id}/rotate`
pub(crate) async fn rotate(
    State(app): State<App>,
    Path(Name(id)): Path<Name>,
    view: View,
    Submitted { visitor, form }: Submitted<Grace>,
) -> Response {
    if let Err(denied) = visitor.caller.may(Scope::Admin, None) {
        return Failure::from(denied).into_response();
    }
    let rotates = async {
        let grace = given(Some(&form.grace)).map_or(Ok(GRACE), |text| input::duration("grace", text))?;
        let issued = app.acting(&visitor.caller).tokens().rotate(&id, grace).await?;
        app.tokens.forget();
        Ok::<_, Failure>(issued.secret().to_owned())
    };
    match rotates.await {
        Ok(secret) => shown_once(view, "The token has a new secret", &secret).await,
        Err(why) => flash::refused("/settings", &why),
    }
}

/// `POST /settings/tokens/{id}/revoke`
pub(crate) async fn revoke(
    State(app): State<App>,
    Path(Name(id)): Path<Name>,
    Submitted { visitor, form: Grace { .. } }: Submitted<Grace>,
) -> Response {
    let revokes = async {
        let was_there = app.acting(&visitor.caller).tokens().revoke(&id).await?;
        app.tokens.forget();
        Ok(if was_there {
            "The token is revoked.".to_owned()
        } else {
            "There was no such token any more.".to_owned()
        })
    };
    change(&app, &visitor, (Scope::Admin, None), Leads::to("/settings"), revokes).await
}
