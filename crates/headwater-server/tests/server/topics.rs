//! Topics over HTTP: create, list, show, change, purge, delete.

use headwater::tokens::Scope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{Place, Running, kind};

crate::on_both_stores!(
    a_topic_is_created_shown_changed_and_deleted,
    a_topic_with_other_settings_is_a_conflict,
    topics_are_listed_page_by_page,
    a_token_sees_its_own_topics,
    a_dry_run_removes_nothing,
    a_served_topic_is_removed_only_by_force,
    wrong_topics_are_refused_with_their_field,
    changes_of_topics_are_audited,
);

/// Requests that are refused: method, path, body, status, kind and field of the problem.
pub(crate) type Refused<'a> = (Method, &'a str, Value, u16, &'a str, Option<&'a str>);

/// Each of these requests is refused with the problem that is expected, which says what to do.
pub(crate) async fn are_refused(server: &Running, refused: &[Refused<'_>]) {
    for (method, path, body, status, expected, field) in refused {
        let request = server.request(method.clone(), path);
        let request = if body.is_null() { request } else { request.json(body) };
        let response = request.send().await.expect("an answer");
        let answered = response.status().as_u16();
        let content_type = response.headers().get("content-type").cloned();
        let problem: Value = response.json().await.expect("JSON");
        let about = format!("{method} {path} {body}: {problem}");
        assert_eq!((answered, kind(&problem)), (*status, *expected), "{about}");
        assert_eq!(content_type.expect("a content type"), "application/problem+json", "{about}");
        assert_eq!(problem["field"].as_str(), *field, "{about}");
        assert_eq!(problem["status"], json!(status), "{about}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 10), "{about}");
        assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{about}");
    }
}

/// All items of a list, read page by page, each of at most this many.
pub(crate) async fn all_pages(server: &Running, path: &str, limit: usize) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let separator = if path.contains('?') { '&' } else { '?' };
        let cursor_parameter = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = server.get(&format!("{path}{separator}limit={limit}{cursor_parameter}")).await;
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= limit, "{page}");
        all.extend(items.iter().cloned());
        assert!(all.len() < 100_000, "the list ends");
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return all,
        }
    }
}

fn names(topics: &[Value]) -> Vec<&str> {
    topics.iter().map(|topic| topic["name"].as_str().expect("a name")).collect()
}

async fn a_topic_is_created_shown_changed_and_deleted(place: &Place) {
    let server = place.serve().await;
    let new = json!({ "name": "shop/orders ä", "preset": "standard", "settings": { "max_attempts": 5 } });
    let (status, created) = server.try_post("/v1/topics", &new).await;
    assert_eq!(status, StatusCode::CREATED, "{created}");
    assert_eq!(
        (&created["name"], &created["settings"]["max_attempts"]),
        (&json!("shop/orders ä"), &json!(5))
    );
    assert_eq!(created["settings"]["semantics"], "pub_sub");
    let (status, again) = server.try_post("/v1/topics", &new).await;
    assert_eq!((status, &again["name"]), (StatusCode::OK, &created["name"]));

    let path = "/v1/topics/shop%2Forders%20%C3%A4";
    server.post(&format!("{path}/messages"), json!({ "payload": 1 })).await;
    place.headwater.topics().advance_heads().await.expect("advanced");
    let shown = server.get(path).await;
    assert_eq!(
        (&shown["head"], &shown["retained"], &shown["subscriptions"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(shown["health_issues"], json!(["zero subscriptions"]));

    let change = json!({ "max_retention_ms": null, "lease_ms": 1000, "ordering": "key" });
    let changed = server.answer(server.request(Method::PATCH, path).json(&change)).await.1;
    assert_eq!(changed["settings"]["max_retention_ms"], Value::Null);
    assert_eq!(changed["settings"]["lease_ms"], 1000);
    assert_eq!(changed["settings"]["max_attempts"], 5, "what is not given stays");

    let purged = server.post(&format!("{path}/purge"), json!({})).await;
    assert_eq!((&purged["messages"], &purged["dry_run"]), (&json!(1), &json!(false)));
    let deleted = server.answer(server.request(Method::DELETE, path)).await.1;
    assert_eq!((&deleted["topic"], &deleted["messages"]), (&json!("shop/orders ä"), &json!(0)));
    let (status, problem) = server.try_get(path).await;
    assert_eq!((status, kind(&problem)), (StatusCode::NOT_FOUND, "no-such-topic"));
    server.end().await;
}

async fn a_topic_with_other_settings_is_a_conflict(place: &Place) {
    let server = place.serve().await;
    server.post("/v1/topics", json!({ "name": "orders" })).await;
    let (status, problem) =
        server.try_post("/v1/topics", &json!({ "name": "orders", "settings": { "lanes": 3 } })).await;
    assert_eq!((status, kind(&problem)), (StatusCode::CONFLICT, "conflict"));
    assert_eq!(server.get("/v1/topics/orders").await["settings"]["lanes"], 16, "it is not changed");
    server.end().await;
}

async fn topics_are_listed_page_by_page(place: &Place) {
    for name in ["b", "a", "Order", "reorder", "c"] {
        place.headwater.topic(name).create().await.expect("a topic");
    }
    let server = place.serve().await;
    assert_eq!(names(&all_pages(&server, "/v1/topics", 2).await), ["Order", "a", "b", "c", "reorder"]);
    assert_eq!(names(&all_pages(&server, "/v1/topics", 5).await).len(), 5);
    assert_eq!(names(&all_pages(&server, "/v1/topics?search=ORDER", 1).await), ["Order", "reorder"]);
    assert_eq!(
        names(&all_pages(&server, "/v1/topics?search=", 1000).await).len(),
        5,
        "an empty search is none"
    );
    server.end().await;
}

async fn a_token_sees_its_own_topics(place: &Place) {
    for name in ["a", "b.1", "b.2", "b.3", "c"] {
        place.group(name, "g").await;
    }
    let mut server = place.serve().await;
    let token = place.token("b", &[Scope::Read, Scope::Admin], &["b.*"]).await;
    server.with(&token);
    for limit in [1, 2, 3, 10] {
        assert_eq!(names(&all_pages(&server, "/v1/topics", limit).await), ["b.1", "b.2", "b.3"]);
        let groups = all_pages(&server, "/v1/groups", limit).await;
        assert_eq!(groups.len(), 3, "{groups:?}");
    }
    are_refused(
        &server,
        &[
            (Method::GET, "/v1/topics/a", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/v1/topics/unknown", Value::Null, 403, "wrong-topic", None),
            (Method::POST, "/v1/topics", json!({ "name": "d" }), 403, "wrong-topic", None),
            (Method::DELETE, "/v1/topics/c", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/v1/groups?topic=a", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/v1/stats", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/v1/outbox", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/v1/audit", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/v1/tokens", Value::Null, 403, "wrong-topic", None),
            (Method::GET, "/metrics", Value::Null, 403, "wrong-topic", None),
        ],
    )
    .await;
    server.post("/v1/topics", json!({ "name": "b.4" })).await;
    server.end().await;
}

async fn a_dry_run_removes_nothing(place: &Place) {
    place.group("orders", "email").await;
    place.headwater.producer("orders").send(&1).await.expect("sent");
    let server = place.serve().await;
    let would = server.answer(server.request(Method::DELETE, "/v1/topics/orders?dry_run=true")).await.1;
    assert_eq!(
        (&would["dry_run"], &would["messages"], &would["groups"]),
        (&json!(true), &json!(1), &json!(1))
    );
    let would = server.post("/v1/topics/orders/purge", json!({ "dry_run": true })).await;
    assert_eq!((&would["dry_run"], &would["messages"]), (&json!(true), &json!(1)));
    assert_eq!(place.headwater.published("orders").await.expect("messages").len(), 1);
    server.end().await;
}

async fn a_served_topic_is_removed_only_by_force(place: &Place) {
    place.group("orders", "email").await;
    let running = place
        .headwater
        .consumer("orders", "email")
        .member("m", |_: headwater::Message, _: headwater::Context| async { Ok(()) })
        .run()
        .await
        .expect("it runs");
    let begun = std::time::Instant::now();
    while place.headwater.groups("orders").get("email").await.expect("the group").status.processes == 0 {
        assert!(begun.elapsed() < crate::place::DEADLINE, "no heartbeat came");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let server = place.serve().await;
    are_refused(
        &server,
        &[
            (Method::DELETE, "/v1/topics/orders", Value::Null, 409, "invalid-transition", None),
            (Method::POST, "/v1/topics/orders/purge", json!({}), 409, "invalid-transition", None),
        ],
    )
    .await;
    let deleted = server.answer(server.request(Method::DELETE, "/v1/topics/orders?force=true")).await.1;
    assert_eq!((&deleted["served"], &deleted["served_groups"][0]["group"]), (&json!(1), &json!("email")));
    running.shutdown(crate::place::DEADLINE).await.expect("stopped");
    server.end().await;
}

async fn wrong_topics_are_refused_with_their_field(place: &Place) {
    place.group("orders", "email").await;
    place.headwater.producer("orders").send(&1).await.expect("sent");
    let server = place.serve().await;
    let long = "x".repeat(256);
    let patch = |body: Value, field: &'static str| {
        (Method::PATCH, "/v1/topics/orders", body, 400, "invalid-input", Some(field))
    };
    let create = |body: Value, field: &'static str| {
        (Method::POST, "/v1/topics", body, 400, "invalid-input", Some(field))
    };
    are_refused(
        &server,
        &[
            create(json!({}), "body"),
            create(json!({ "name": "" }), "name"),
            create(json!({ "name": long }), "name"),
            create(json!({ "name": "a\nb" }), "name"),
            create(json!({ "name": 7 }), "name"),
            create(json!({ "name": "x", "colour": "red" }), "colour"),
            create(json!({ "name": "x", "preset": "huge" }), "preset"),
            create(json!({ "name": "x", "settings": { "lanes": 0 } }), "settings.lanes"),
            create(
                json!({ "name": "x", "settings": { "gap_patience_ms": 1e15 as u64 } }),
                "settings.gap_patience_ms",
            ),
            create(json!({ "name": "x", "settings": [] }), "settings"),
            create(json!(["x"]), "body"),
            create(json!({ "name": "x", "settings": { "lanes": "many" } }), "settings.lanes"),
            create(json!({ "name": "x", "settings": { "lane": 1 } }), "settings.lane"),
            patch(json!({ "max_attempts": 0 }), "max_attempts"),
            patch(json!({ "max_attempts": -1 }), "max_attempts"),
            patch(json!({ "lease_ms": null }), "lease_ms"),
            patch(json!({ "storage": "cloud" }), "storage"),
            patch(json!({ "storage": "dedicated" }), "storage"),
            patch(json!({ "heartbeat_interval_ms": 1 }), "heartbeat_interval_ms"),
            patch(json!([]), "body"),
            (Method::PATCH, "/v1/topics/unknown", json!({}), 404, "no-such-topic", None),
            (Method::GET, "/v1/topics/unknown", Value::Null, 404, "no-such-topic", None),
            (Method::DELETE, "/v1/topics/unknown", Value::Null, 404, "no-such-topic", None),
            (Method::POST, "/v1/topics/unknown/purge", json!({}), 404, "no-such-topic", None),
            (
                Method::DELETE,
                "/v1/topics/orders?dry_run=maybe",
                Value::Null,
                400,
                "invalid-input",
                Some("dry_run"),
            ),
            (
                Method::DELETE,
                "/v1/topics/orders?dryrun=true",
                Value::Null,
                400,
                "invalid-input",
                Some("dryrun"),
            ),
            (Method::GET, "/v1/topics?limit=0", Value::Null, 400, "invalid-input", Some("limit")),
            (Method::GET, "/v1/topics?limit=1001", Value::Null, 400, "invalid-input", Some("limit")),
            (Method::GET, "/v1/topics?limit=ten", Value::Null, 400, "invalid-input", Some("limit")),
            (Method::GET, "/v1/topics?cursor=x", Value::Null, 400, "invalid-input", Some("cursor")),
            (Method::GET, "/v1/topics?page=2", Value::Null, 400, "invalid-input", Some("page")),
            (Method::GET, "/v1/topics/%FF", Value::Null, 400, "invalid-input", Some("path")),
            (Method::PUT, "/v1/topics/orders", json!({}), 405, "method-not-allowed", None),
        ],
    )
    .await;
    server.end().await;
}

async fn changes_of_topics_are_audited(place: &Place) {
    let token = place.token("ann", &[Scope::Admin], &[]).await;
    let mut server = place.serve().await;
    server.with(&token);
    server.post("/v1/topics", json!({ "name": "orders" })).await;
    let patch = server.request(Method::PATCH, "/v1/topics/orders").json(&json!({ "lanes": 3 }));
    assert_eq!(server.answer(patch).await.0, StatusCode::OK);
    server.post("/v1/topics/orders/purge", json!({})).await;
    assert_eq!(server.answer(server.request(Method::DELETE, "/v1/topics/orders")).await.0, StatusCode::OK);
    let acts: Vec<(String, String)> =
        place.audit().await.into_iter().map(|entry| (entry.actor, entry.act)).collect();
    let of_ann: Vec<&str> =
        acts.iter().filter(|(actor, _)| actor == "token ann").map(|(_, act)| act.as_str()).collect();
    assert_eq!(of_ann, ["delete_topic", "purge_topic", "alter_topic", "create_topic"]);
    server.end().await;
}
