//! The OpenAPI document: what it lists is served, what is served is listed, and its examples are what the server reads and writes.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{Place, Running};

crate::on_both_stores!(
    the_document_is_complete,
    every_operation_that_is_listed_is_served,
    every_route_of_the_source_is_listed,
    examples_of_requests_are_read,
    answers_have_the_fields_of_their_schemas,
);

/// The operations of the document: method, path, and what it says about it.
fn operations(document: &Value) -> Vec<(Method, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("a path item") {
            let method: Method = method.to_uppercase().parse().expect("a method");
            all.push((method, path.clone(), operation.clone()));
        }
    }
    all
}

async fn document(server: &Running) -> Value {
    server.get("/v1/openapi.json").await
}

async fn the_document_is_complete(place: &Place) {
    let server = place.serve().await;
    let document = document(&server).await;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert!(document["components"]["schemas"]["Problem"].is_object());
    let tags: BTreeSet<&str> = document["tags"]
        .as_array()
        .expect("tags")
        .iter()
        .map(|tag| tag["name"].as_str().expect("a name"))
        .collect();
    for (method, path, operation) in operations(&document) {
        let about = format!("{method} {path}");
        assert!(
            operation["summary"].as_str().is_some_and(|summary| summary.len() > 8),
            "{about} has no summary"
        );
        assert!(operation["operationId"].is_string(), "{about} has no id");
        let tag = operation["tags"][0].as_str().expect("a tag");
        assert!(tags.contains(tag), "{about}: the tag {tag} is not described");
        let responses = operation["responses"].as_object().expect("responses");
        let answers = responses.iter().filter(|(status, _)| status.starts_with('2') || *status == "101");
        assert!(answers.clone().count() > 0, "{about} has no answer");
        for (status, response) in answers {
            assert!(has_example(&document, response), "{about}: its answer {status} has no example");
        }
        if !["/healthz", "/readyz", "/v1/openapi.json"].contains(&path.as_str()) {
            assert!(
                responses.contains_key("4XX") && responses.contains_key("5XX"),
                "{about} says nothing about problems"
            );
        }
        if let Some(body) = operation.get("requestBody") {
            assert!(has_example(&document, body), "{about}: its body has no example");
        }
        for parameter in operation["parameters"].as_array().unwrap_or(&Vec::new()) {
            let has = parameter.get("example").is_some() || parameter["in"] == "query";
            assert!(has && parameter["description"].is_string(), "{about}: {parameter}");
        }
    }
    let ids: Vec<String> =
        operations(&document).iter().map(|(_, _, operation)| operation["operationId"].to_string()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "operation ids are unique: {ids:?}");
    server.end().await;
}

/// Whether the content of a body or an answer, or its schema, has an example. Answers without content need none.
fn has_example(document: &Value, described: &Value) -> bool {
    let Some(content) = described["content"].as_object() else { return true };
    content.values().all(|media| {
        let schema = resolved(document, &media["schema"]);
        let items = resolved(document, &resolved(document, &schema["properties"]["items"])["items"]);
        ["example", "examples"]
            .iter()
            .any(|name| media.get(name).is_some() || schema.get(name).is_some() || items.get(name).is_some())
            || schema["oneOf"].as_array().is_some_and(|choices| {
                choices.iter().any(|choice| resolved(document, choice).get("example").is_some())
            })
            || schema["allOf"].as_array().is_some_and(|parts| {
                parts.iter().any(|part| resolved(document, part).get("example").is_some())
            })
    })
}

/// A schema, or the one that it refers to.
fn resolved(document: &Value, schema: &Value) -> Value {
    match schema["$ref"].as_str() {
        Some(reference) => {
            document.pointer(reference.trim_start_matches('#')).cloned().expect("the schema exists")
        }
        None => schema.clone(),
    }
}

/// The path of an operation with the examples of its parameters.
fn filled(document: &Value, path: &str, operation: &Value) -> String {
    let mut path = path.to_owned();
    for parameter in operation["parameters"].as_array().unwrap_or(&Vec::new()) {
        if parameter["in"] == "path" {
            let name = parameter["name"].as_str().expect("a name");
            let example = parameter.get("example").or_else(|| parameter["schema"].get("example"));
            let example = example.unwrap_or_else(|| panic!("{path}: {name} has no example")).clone();
            let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
            path = path.replace(&format!("{{{name}}}"), &text);
        }
    }
    assert!(!path.contains('{'), "{path} has a parameter that is not described in {document:.0}");
    path
}

async fn every_operation_that_is_listed_is_served(place: &Place) {
    let server = place.serve().await;
    let document = document(&server).await;
    let operations = operations(&document);
    assert!(operations.len() > 60, "{} operations", operations.len());
    for (method, path, operation) in operations {
        let request = server.request(method.clone(), &filled(&document, &path, &operation));
        let response = request.send().await.expect("an answer");
        assert_ne!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        let text = response.text().await.expect("a text");
        assert!(!text.contains("no path "), "{method} {path}: {text}");
        assert!(
            !text.contains("GET /v1/openapi.json lists them\"") || path.contains("tokens"),
            "{method} {path}: {text}"
        );
    }
    server.end().await;
}

/// Every `path = "…"` of a handler in the source is in the document, and with its method.
async fn every_route_of_the_source_is_listed(place: &Place) {
    fn visit(folder: &std::path::Path, found: &mut BTreeSet<(String, String)>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                visit(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a file");
            for described in text.split("#[utoipa::path(").skip(1) {
                let method = described.trim_start().split(',').next().expect("a method").to_owned();
                let path = described.split("path = \"").nth(1).and_then(|rest| rest.split('"').next());
                found.insert((method.to_uppercase(), path.expect("a path").to_owned()));
            }
        }
    }
    let mut described = BTreeSet::new();
    visit(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/api")), &mut described);
    let server = place.serve().await;
    let listed: BTreeSet<(String, String)> = operations(&document(&server).await)
        .into_iter()
        .map(|(method, path, _)| (method.to_string(), path))
        .collect();
    assert_eq!(listed, described);
    server.end().await;
}

/// The example of a request's body, from its content or its schema.
fn example_of(document: &Value, body: &Value) -> Option<Value> {
    let media = &body["content"]["application/json"];
    let schema = resolved(document, &media["schema"]);
    let choices = schema["oneOf"].as_array().cloned().unwrap_or_default();
    let of_choice = choices.iter().find_map(|choice| resolved(document, choice).get("example").cloned());
    media.get("example").or_else(|| schema.get("example")).cloned().or(of_choice)
}

async fn examples_of_requests_are_read(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let document = document(&server).await;
    let mut sent = 0;
    for (method, path, operation) in operations(&document) {
        let Some(body) = operation.get("requestBody") else { continue };
        // It would close the server.
        if path == "/v1/tokens" {
            continue;
        }
        let example = example_of(&document, body).unwrap_or_else(|| panic!("{method} {path} has no example"));
        let request = server.request(method.clone(), &filled(&document, &path, &operation)).json(&example);
        let (status, answer) = server.answer(request).await;
        // What it is about may not exist; what it says must be understood.
        let field = answer["field"].as_str().unwrap_or_default();
        let is_about_state = ["receipt", "ids", "token", "offset", "copy", "storage"]
            .iter()
            .any(|known| field.contains(known));
        assert!(status != StatusCode::BAD_REQUEST || is_about_state, "{method} {path} {example}: {answer}");
        assert!(
            !status.is_server_error() && status != StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{method} {path}: {answer}"
        );
        sent += 1;
    }
    assert!(sent > 20, "{sent} examples");
    server.end().await;
}

/// Real answers have exactly the fields that their schemas describe: all that are required, and none that is not described.
async fn answers_have_the_fields_of_their_schemas(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!({ "id": 7 }), json!(2)]).await;
    let claimed = server.claim(json!({ "max": 1 })).await;
    server.settle(&claimed, "bury").await;
    assert_eq!(server.claim(json!({ "max": 1 })).await.len(), 1);
    server.post("/v1/topics/orders/messages", json!({ "payload": 1, "delay_ms": 1_000_000 })).await;
    server.post("/v1/maintenance/run", json!({ "jobs": ["heads"] })).await;
    place.headwater.processes().start("order").business_key("o-17").await.expect("started");
    let document = document(&server).await;
    for path in [
        "/v1/topics",
        "/v1/topics/orders",
        "/v1/groups",
        "/v1/topics/orders/groups/email",
        "/v1/topics/orders/groups/email/outstanding",
        "/v1/topics/orders/scheduled",
        "/v1/dead-letters",
        "/v1/processes",
        "/v1/maintenance",
        "/v1/stats",
        "/v1/doctor",
        "/v1/audit",
        "/v1/topics/orders/messages",
    ] {
        let described =
            path.replace("/topics/orders", "/topics/{topic}").replace("/groups/email", "/groups/{group}");
        let media = &document["paths"][&described]["get"]["responses"]["200"]["content"]["application/json"];
        let schema = resolved(&document, &media["schema"]);
        let answer = server.get(path).await;
        fits(&document, &schema, &answer, path);
    }
    server.end().await;
}

/// Compares the fields of an object with its schema, and those of its parts.
fn fits(document: &Value, schema: &Value, value: &Value, place: &str) {
    let schema = resolved(document, schema);
    if let Some(parts) = schema["allOf"].as_array() {
        let mut whole = json!({ "properties": {}, "required": [] });
        for part in parts {
            let part = resolved(document, part);
            for (name, property) in part["properties"].as_object().into_iter().flatten() {
                whole["properties"][name] = property.clone();
            }
            let required = part["required"].as_array().cloned().unwrap_or_default();
            whole["required"].as_array_mut().expect("a list").extend(required);
        }
        return fits(document, &whole, value, place);
    }
    if let (Some(properties), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, part) in fields {
            let described =
                properties.get(name).unwrap_or_else(|| panic!("{place}: {name} is not described"));
            fits(document, described, part, &format!("{place}.{name}"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().expect("a name");
            assert!(fields.contains_key(name), "{place}: {name} is missing in {value}");
        }
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        assert!(!place.ends_with("items") || !values.is_empty(), "{place} is empty: nothing is compared");
        values.iter().for_each(|value| fits(document, items, value, place));
    }
}
