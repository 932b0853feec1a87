//! The routes of `/v1`, and the OpenAPI document that is derived from them.

use axum::{Json, Router};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use self::document::Document;
use crate::app::App;

mod audit;
mod backfills;
pub(crate) mod body;
mod browse;
mod claim;
mod cron;
mod dead_letters;
mod doctor;
mod document;
mod extend;
mod groups;
mod maintenance;
mod message;
mod outbox;
mod page;
mod position;
mod processes;
mod publish;
mod relays;
mod scheduled;
mod settle;
mod socket;
mod stats;
mod stream;
mod tail;
mod tokens;
mod topics;

/// All routes of `/v1`, with `/v1/openapi.json`.
pub(crate) fn routes() -> Router<App> {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .merge(publish::routes())
        .merge(claim::routes())
        .merge(settle::routes())
        .merge(extend::routes())
        .merge(stream::routes())
        .merge(socket::routes())
        .merge(browse::routes())
        .merge(tail::routes())
        .merge(topics::routes())
        .merge(groups::routes())
        .merge(dead_letters::routes())
        .merge(backfills::routes())
        .merge(scheduled::routes())
        .merge(cron::routes())
        .merge(outbox::routes())
        .merge(relays::routes())
        .merge(processes::routes())
        .merge(maintenance::routes())
        .merge(stats::routes())
        .merge(doctor::routes())
        .merge(audit::routes())
        .merge(tokens::routes())
        .split_for_parts();
    let document = document::finished(&document);
    router.route("/v1/openapi.json", axum::routing::get(async move || Json(document)))
}
