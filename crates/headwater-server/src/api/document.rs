//! What the OpenAPI document says about the API as a whole, and about the paths beside `/v1`.

use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::problem::Problem;

/// The document without the operations of `/v1`.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Headwater",
        description = "Durable messaging in the database you already have: publish, claim and settle messages, and operate topics, groups and processes.\n\n\
                       Lists are pages: `limit` from 1 to 1000, and `cursor` takes the `next_cursor` of the page before. Failures are \
                       `application/problem+json`; programs match on `type`. Bodies with unknown fields are refused.",
    ),
    components(schemas(Problem)),
    paths(healthz, readyz, metrics, openapi),
    modifiers(&Tokens),
    security((), ("token" = [])),
    tags(
        (name = "topics", description = "Logs of messages, with settings."),
        (name = "publishing", description = "Messages into topics."),
        (name = "consuming", description = "Messages out of topics: claim, settle, extend, stream."),
        (name = "messages", description = "Reading without consuming."),
        (name = "groups", description = "The groups of topics and their life cycle."),
        (name = "dead letters", description = "What was given up on: inspect, edit, redrive, purge."),
        (name = "backfills", description = "Adding late groups to completion records."),
        (name = "scheduled", description = "Messages and cron jobs of a later time."),
        (name = "outbox", description = "Entries for external brokers, relays and bridges."),
        (name = "processes", description = "Processes (sagas) and what happened to them."),
        (name = "operations", description = "Maintenance, figures, the doctor and the audit."),
        (name = "tokens", description = "Who may use the server, and for what."),
        (name = "server", description = "The server itself."),
    ),
)]
pub(super) struct Document;

/// The document as it is served: each operation has an id of its own, and a body that may be missing is not null where it is there.
pub(super) fn finished(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).unwrap_or_default();
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            operation["operationId"] = Value::String(id_of(method, path));
            if let Some(body) = operation.get_mut("requestBody") {
                without_null(body);
            }
        }
    }
    unsigned(&mut document);
    document
}

/// Takes the signed format from numbers that are never negative: their largest value is higher than the format's.
fn unsigned(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            let is_unsigned = fields.get("minimum").and_then(Value::as_f64).is_some_and(|least| least >= 0.0);
            let is_signed =
                fields.get("format").is_some_and(|format| *format == "int32" || *format == "int64");
            if is_unsigned && is_signed {
                fields.remove("format");
            }
            fields.values_mut().for_each(unsigned);
        }
        Value::Array(parts) => parts.iter_mut().for_each(unsigned),
        _ => {}
    }
}

/// `get_topics_by_topic_groups` for GET of `/v1/topics/{topic}/groups`: the names of handlers repeat from resource to resource.
fn id_of(method: &str, path: &str) -> String {
    let mut id = method.to_owned();
    for part in path.trim_start_matches("/v1").split('/').filter(|part| !part.is_empty()) {
        let (by, name) = match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(parameter) => ("_by_", parameter),
            None => ("_", part),
        };
        id.push_str(by);
        id.extend(name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    }
    id
}

/// Takes the choice of null from the schema of a body, and says that it may be missing.
fn without_null(body: &mut Value) {
    for media in body["content"].as_object_mut().into_iter().flatten().map(|(_, media)| media) {
        let Some(choices) = media["schema"]["oneOf"].as_array() else { continue };
        let is_null = |choice: &&Value| choice["type"] == "null";
        if let (true, Some(schema)) =
            (choices.iter().any(|choice| is_null(&choice)), choices.iter().find(|choice| !is_null(choice)))
        {
            media["schema"] = schema.clone();
            body["required"] = Value::Bool(false);
            return;
        }
    }
}

/// The security scheme. Without any token in the store a server on a loopback address is open.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("hw_<id>_<secret>")
            .description(Some("A token with the scope of the operation: publish, consume, read or admin."))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// Says that the server runs.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "server",
    security(()),
    responses((status = 200, description = "It runs", body = serde_json::Value, example = json!({"status": "ok"}))),
)]
#[expect(dead_code, reason = "describes a route that is registered elsewhere")]
fn healthz() {}

/// Says whether the server can answer requests: its store is there, and it does not stop.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "server",
    security(()),
    responses(
        (status = 200, description = "It is ready", body = serde_json::Value, example = json!({"status": "ready"})),
        (status = 503, description = "It is not", body = Problem, content_type = "application/problem+json"),
    ),
)]
#[expect(dead_code, reason = "describes a route that is registered elsewhere")]
fn readyz() {}

/// Metrics of the library and the server, for Prometheus; scope `read`.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses(
        (status = 200, description = "Metrics", body = String, content_type = "text/plain; version=0.0.4; charset=utf-8",
            example = "headwater_http_connections 3"),
        crate::problem::Problems,
    ),
)]
#[expect(dead_code, reason = "describes a route that is registered elsewhere")]
fn metrics() {}

/// This document.
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    tag = "server",
    security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value, example = json!({"openapi": "3.1.0"}))),
)]
#[expect(dead_code, reason = "describes a route that is registered elsewhere")]
fn openapi() {}
