//! A page that is being made: its visitor, its live parts, and the answer it becomes.
//!
//! A page is written once. [`View::live`] marks the parts that change; for the stream of live updates the same handler runs again, and only
//! these parts are sent (`live.rs`).

use std::sync::{Mutex, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use headwater::jiff::Timestamp;
use maud::{Markup, html};

use super::flash::{self, Flash};
use super::layout::{self, Section};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Visitor;
use crate::problem::Problem;

/// What makes a page: `async fn page(view: View) -> Result<Response, Failure>`.
pub(crate) struct View {
    pub(crate) app: App,
    pub(crate) visitor: Visitor,
    /// The page itself, with its query: where actions lead back to.
    pub(crate) address: String,
    pub(crate) now: Timestamp,
    flash: Option<Flash>,
    is_live: bool,
    fragments: Mutex<Vec<(String, String)>>,
}

/// Marks a request of the stream of live updates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveCall;

/// The live parts of a page: names and HTML.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fragments(pub(crate) Vec<(String, String)>);

impl FromRequestParts<App> for View {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let visitor = Visitor::from_request_parts(parts, app).await?;
        let address = parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        Ok(View {
            app: app.clone(),
            visitor,
            address,
            now: Timestamp::now(),
            flash: flash::take(&parts.headers),
            is_live: parts.extensions.get::<LiveCall>().is_some(),
            fragments: Mutex::default(),
        })
    }
}

impl View {
    /// A part of the page that changes while it is watched.
    pub(crate) fn live(&self, name: &str, content: Markup) -> Markup {
        let content = content.into_string();
        if self.is_live {
            let mut fragments = self.fragments.lock().unwrap_or_else(PoisonError::into_inner);
            fragments.push((name.to_owned(), content.clone()));
        }
        html! { div data-live=(name) { (maud::PreEscaped(content)) } }
    }

    /// Whether the caller may change things of a topic, or of the whole store.
    pub(crate) fn can_change(&self, topic: Option<&str>) -> bool {
        self.visitor.caller.can(Scope::Admin, topic)
    }

    /// Whether the caller may see keys, headers and payloads.
    pub(crate) fn can_read(&self, topic: Option<&str>) -> bool {
        self.visitor.caller.can(Scope::Read, topic)
    }

    /// Whether a topic is one that the caller has any right to.
    pub(crate) fn sees(&self, topic: &str) -> bool {
        [Scope::Read, Scope::Admin, Scope::Publish, Scope::Consume]
            .into_iter()
            .any(|scope| self.visitor.caller.can(scope, Some(topic)))
    }

    /// Refuses a topic that the caller has no right to, as if it did not exist for him.
    pub(crate) fn must_see(&self, topic: &str) -> Result<(), Failure> {
        if self.sees(topic) {
            return Ok(());
        }
        Err(self
            .visitor
            .caller
            .may(Scope::Read, Some(topic))
            .map_or_else(Failure::from, |()| Failure::from(Problem::not_found("no such topic"))))
    }

    /// The hidden field that every form has.
    pub(crate) fn csrf(&self) -> Markup {
        html! { input type="hidden" name="csrf" value=(self.visitor.csrf()); }
    }

    /// The whole page.
    pub(crate) async fn page(self, section: Section, title: &str, content: Markup) -> Response {
        if self.is_live {
            // The counts of the navigation change too.
            let _ = layout::navigation(&self, section).await;
            let fragments = self.fragments.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut response = StatusCode::OK.into_response();
            response.extensions_mut().insert(Fragments(fragments));
            return response;
        }
        let document = layout::document(&self, section, title, self.flash.as_ref(), content).await;
        let mut response = respond(StatusCode::OK, document);
        if self.flash.is_some() {
            response.headers_mut().append(header::SET_COOKIE, flash::forget());
        }
        response
    }
}

/// An answer with a document.
pub(crate) fn respond(status: StatusCode, document: Markup) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, document.into_string()).into_response()
}

/// Adds what protects a page: nothing inline runs, nothing is loaded from elsewhere, and no other page may frame it.
pub(crate) fn protect(headers: &mut HeaderMap) {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                          frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// A page that cannot be shown: why, and what to do.
#[derive(Debug)]
pub(crate) struct Failure(Problem);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure(problem)
    }
}

impl From<headwater::Error> for Failure {
    fn from(error: headwater::Error) -> Self {
        Failure(error.into())
    }
}

impl Failure {
    pub(crate) fn detail(&self) -> &str {
        self.0.detail()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut page = respond(self.0.status(), layout::failure(self.0.status(), self.0.detail()));
        // What layers around all routes read of a problem, such as that it is a denial.
        *page.extensions_mut() = self.0.into_response().into_parts().0.extensions;
        page
    }
}

/// For a path that no page has.
pub(crate) fn no_such_page() -> Failure {
    Problem::not_found("There is no such page.").into()
}
