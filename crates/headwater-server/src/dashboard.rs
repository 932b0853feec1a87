//! The dashboard: pages that are rendered here and kept live by server-sent events.
//!
//! Each page has a file of its name and is complete without scripts: actions are forms, answered with a redirect (303) and a message. The
//! scripts in `assets/` add live updates, dialogs and values under the pointer.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::app::App;
use crate::problem;

mod act;
mod assets;
mod audit;
mod chart;
mod components;
mod dead_letter;
mod dead_letters;
mod flash;
mod format;
mod group;
mod groups;
mod icons;
mod input;
mod layout;
mod live;
mod login;
mod maintenance;
mod outbox;
mod overview;
mod payload;
mod pipeline;
mod process;
mod processes;
mod scheduled;
mod settings;
mod topic;
mod topics;
mod url;
mod view;

/// The routes of all pages and assets.
pub(crate) fn routes() -> Router<App> {
    let pages = pages();
    let watched = pages.clone();
    let live = async move |State(app): State<App>, request: Request| {
        let pages = watched.clone().with_state(app.clone());
        live::stream(app, pages, request.into_parts().0).await
    };
    Router::new()
        .merge(pages)
        .merge(actions())
        .route("/live", get(live))
        .route("/login", get(login::page).post(login::login))
        .route("/logout", post(login::logout))
        .route("/assets/{hash}/{name}", get(assets::serve))
        .route("/favicon.svg", get(assets::icon))
        .layer(map_response(protected))
}

/// What is shown. None of these changes anything.
fn pages() -> Router<App> {
    Router::new()
        .route("/", get(overview::page))
        .route("/topics", get(topics::page))
        .route("/new-topic", get(topics::new_topic))
        .route("/topics/{topic}", get(topic::page))
        .route("/topics/{topic}/groups", get(topic::groups_page))
        .route("/topics/{topic}/subscribe", get(group::subscribe::ask))
        .route("/topics/{topic}/publish", get(topic::publish::page))
        .route("/topics/{topic}/settings", get(topic::settings::page))
        .route("/topics/{topic}/purge", get(topic::ask_purge))
        .route("/topics/{topic}/delete", get(topic::ask_delete))
        .route("/topics/{topic}/messages/{offset}", get(topic::message::page))
        .route("/topics/{topic}/scheduled/{id}/{act}", get(scheduled::ask))
        .route("/topics/{topic}/groups/{group}", get(group::page))
        .route("/topics/{topic}/groups/{group}/{act}", get(group::change::ask))
        .route("/groups", get(groups::page))
        .route("/dead-letters", get(dead_letters::page))
        .route("/dead-letters/act", get(dead_letters::ask))
        .route("/dead-letters/{id}", get(dead_letter::page))
        .route("/dead-letters/{id}/{act}", get(dead_letter::ask))
        .route("/scheduled", get(scheduled::page))
        .route("/processes", get(processes::page))
        .route("/processes/{id}", get(process::page))
        .route("/processes/{id}/{act}", get(process::ask))
        .route("/outbox", get(outbox::page))
        .route("/outbox/{id}", get(outbox::entry_page))
        .route("/outbox/{id}/requeue", get(outbox::ask))
        .route("/pipeline", get(pipeline::page))
        .route("/maintenance", get(maintenance::page))
        .route("/maintenance/doctor", get(maintenance::doctor))
        .route("/audit", get(audit::page))
        .route("/settings", get(settings::page))
        .route("/settings/new-token", get(settings::ask_new))
        .route("/settings/tokens/{id}/rotate", get(settings::ask_rotate))
        .route("/settings/tokens/{id}/revoke", get(settings::ask_revoke))
}

/// What is changed. Each takes a form with the CSRF token.
fn actions() -> Router<App> {
    Router::new()
        .route("/topics", post(topics::create))
        .route("/topics/{topic}/groups", post(group::subscribe::subscribe))
        .route("/topics/{topic}/publish", post(topic::publish::publish))
        .route("/topics/{topic}/settings", post(topic::settings::save))
        .route("/topics/{topic}/purge", post(topic::purge))
        .route("/topics/{topic}/delete", post(topic::delete))
        .route("/topics/{topic}/messages/{offset}/{act}", post(topic::message::act))
        .route("/topics/{topic}/scheduled/{id}/{act}", post(scheduled::act))
        .route("/topics/{topic}/groups/{group}/{act}", post(group::change::act))
        .route("/dead-letters/act", post(dead_letters::act))
        .route("/dead-letters/{id}/edit", post(dead_letter::edited))
        .route("/dead-letters/{id}/{act}", post(dead_letter::act))
        .route("/processes/{id}/{act}", post(process::act))
        .route("/outbox/{id}/requeue", post(outbox::requeue))
        .route("/maintenance/run", post(maintenance::run))
        .route("/settings/tokens", post(settings::create))
        .route("/settings/tokens/{id}/rotate", post(settings::rotate))
        .route("/settings/tokens/{id}/revoke", post(settings::revoke))
}

/// For a path that no route has: a page for browsers, a problem for programs.
pub(crate) async fn no_such_path(uri: Uri, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if uri.path().starts_with("/v1") || !accepts.contains("text/html") {
        return problem::no_such_path(uri).await.into_response();
    }
    protected(view::no_such_page().into_response()).await
}

async fn protected(mut response: Response) -> Response {
    view::protect(response.headers_mut());
    response
}
