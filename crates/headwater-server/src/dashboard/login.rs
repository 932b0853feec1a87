//! `/login`: a session of the dashboard for an API token.

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::icons::{Icon, mark};
use super::layout::bare;
use super::url;
use super::view::{Failure, respond};
use crate::app::App;
use crate::auth::session::{self, Submitted};

/// Where to go afterwards.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    next: String,
}

/// `GET /login`
pub(crate) async fn page(State(app): State<App>, Query(wanted): Query<Wanted>) -> Response {
    respond(StatusCode::OK, form(&app, &wanted.next, None))
}

fn form(app: &App, next: &str, problem: Option<&str>) -> Markup {
    let name = app.label.name.as_str();
    bare(
        "Log in · Headwater",
        html! {
            div.card {
                span.brand { (mark()) "Headwater" }
                form.form method="post" action="/login" {
                    h1 { "Log in" }
                    @if app.label.production { p.callout.is-bad { strong { "Production" } (name) } }
                    @else if !name.is_empty() { p.soft { (name) } }
                    @if let Some(problem) = problem { div.flash.is-bad role="alert" { (Icon::Alert) span { (problem) } } }
                    input type="hidden" name="next" value=(url::local(next));
                    div.field {
                        label for="token" { "API token" }
                        input type="password" id="token" name="token" autocomplete="current-password" required autofocus aria-describedby="token-hint";
                        span.hint id="token-hint" { "Made by " code { "headwater token create NAME --scope read" } }
                    }
                    button.btn.is-primary { "Log in" }
                }
            }
        },
    )
}

/// A token.
#[derive(Deserialize)]
pub(crate) struct Presented {
    #[serde(default)]
    token: String,
    #[serde(default)]
    next: String,
}

/// `POST /login`
pub(crate) async fn login(
    State(app): State<App>,
    headers: HeaderMap,
    Form(form): Form<Presented>,
) -> Response {
    match session::start(&app, &headers, form.token.trim()).await {
        Ok(cookie) => leading_to(url::local(&form.next), cookie),
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => {
            let text = "This token is not valid here: it may be mistyped, expired or revoked.";
            respond(StatusCode::UNAUTHORIZED, self::form(&app, &form.next, Some(text)))
        }
        Err(problem) => Failure::from(problem).into_response(),
    }
}

/// Nothing but the CSRF token.
#[derive(Debug, Deserialize)]
pub(crate) struct Nothing {}

/// `POST /logout`
pub(crate) async fn logout(
    State(app): State<App>,
    headers: HeaderMap,
    Submitted { form: Nothing {}, .. }: Submitted<Nothing>,
) -> Response {
    match session::end(&app, &headers).await {
        Ok(cookie) => leading_to("/login", cookie),
        Err(problem) => Failure::from(problem).into_response(),
    }
}

fn leading_to(page: &str, cookie: HeaderValue) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_str(page).unwrap_or(HeaderValue::from_static("/")));
    headers.append(header::SET_COOKIE, cookie);
    response
}
