//! Actions: a form was sent, something is changed in the name of the caller, and the answer leads to a page that says what happened.

use axum::response::{IntoResponse, Response};

use super::flash;
use super::view::Failure;
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Visitor;

/// Changes something of a topic, or of the whole store, for a caller who may do that. `changes` says in words what it did; it goes through
/// [`App::acting`], so that the audit names the caller.
///
/// What the store refuses is said on the page: nothing was changed. A caller without the right gets a page of its own.
pub(crate) async fn change(
    app: &App,
    visitor: &Visitor,
    (scope, topic): (Scope, Option<&str>),
    leads: Leads<'_>,
    changes: impl Future<Output = Result<String, Failure>>,
) -> Response {
    if let Err(denied) = visitor.caller.may(scope, topic) {
        return Failure::from(denied).into_response();
    }
    let changed = changes.await;
    app.sampler.outdate();
    match changed {
        Ok(text) => flash::done(leads.done, &text),
        Err(why) => flash::refused(leads.refused, &why),
    }
}

/// Where an action leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leads<'a> {
    pub(crate) done: &'a str,
    pub(crate) refused: &'a str,
}

impl<'a> Leads<'a> {
    /// To the same page, whether it was done or refused.
    pub(crate) fn to(page: &'a str) -> Self {
        Leads { done: page, refused: page }
    }
}

/// One of several, in words.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{} {many}", super::format::count(count)) }
}
