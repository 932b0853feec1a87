//! Groups over HTTP: subscribe, show, list, the life cycle, outstanding ranges, single messages.

use headwater::jiff::Timestamp;
use headwater::tokens::Scope;
use headwater::topic::Tracking;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{Place, Running};
use crate::topics::{all_pages, are_refused};

crate::on_both_stores!(
    a_group_is_subscribed_changed_and_removed,
    groups_of_all_topics_are_listed_page_by_page,
    a_group_is_paused_resumed_and_cancelled,
    a_group_is_moved,
    outstanding_ranges_are_shown_and_released,
    a_message_is_skipped_buried_and_retried,
    a_dead_group_is_resurrected,
    backfills_are_started_cancelled_and_resumed,
    wrong_groups_are_refused_with_their_field,
    changes_of_groups_are_audited,
);

const EMAIL: &str = "/v1/topics/orders/groups/email";

async fn put(server: &Running, path: &str, body: Value) -> (StatusCode, Value) {
    server.answer(server.request(Method::PUT, path).json(&body)).await
}

async fn a_group_is_subscribed_changed_and_removed(place: &Place) {
    place.headwater.topic("orders").pub_sub().create().await.expect("a topic");
    for n in 0..5 {
        place.headwater.producer("orders").send(&n).await.expect("sent");
    }
    place.headwater.topics().advance_heads().await.expect("advanced");
    let server = place.serve().await;
    let new =
        json!({ "start": "last:2", "ordered_by_key": true, "lanes": 4, "max_attempts": 3, "lease_ms": 5000 });
    let (status, created) = put(&server, EMAIL, new).await;
    assert_eq!(status, StatusCode::CREATED, "{created}");
    assert_eq!((&created["next"], &created["lag"], &created["lanes"]), (&json!(4), &json!(2), &json!(4)));
    assert_eq!(
        (&created["policy"]["max_attempts"], &created["policy"]["backoff_max_ms"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(created["effective_policy"]["lease_ms"], 5000);

    let (status, changed) = put(&server, EMAIL, json!({ "start": "start", "max_attempts": null })).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    assert_eq!(
        (&changed["next"], &changed["lanes"]),
        (&json!(4), &json!(4)),
        "it keeps its position and order"
    );
    assert_eq!(
        (&changed["policy"]["max_attempts"], &changed["policy"]["lease_ms"]),
        (&Value::Null, &json!(5000))
    );
    assert_eq!(server.get(EMAIL).await["policy"], changed["policy"]);
    let (status, audit) = put(&server, "/v1/topics/orders/groups/audit", Value::Null).await;
    assert_eq!((status, &audit["next"]), (StatusCode::BAD_REQUEST, &Value::Null), "null is no body: {audit}");
    let empty = server.answer(server.request(Method::PUT, "/v1/topics/orders/groups/audit")).await;
    assert_eq!((empty.0, &empty.1["next"]), (StatusCode::CREATED, &json!(1)));

    let would = server.answer(server.request(Method::DELETE, &format!("{EMAIL}?dry_run=true"))).await.1;
    assert_eq!(
        (&would["dry_run"], &would["lag"], &would["state"]),
        (&json!(true), &json!(2), &json!("active"))
    );
    let removed = server.answer(server.request(Method::DELETE, &format!("{EMAIL}?wait_ms=0"))).await.1;
    assert_eq!((&removed["dry_run"], &removed["in_flight"]), (&json!(false), &json!(0)));
    assert_eq!(server.try_get(EMAIL).await.0, StatusCode::NOT_FOUND);
    server.end().await;
}

async fn groups_of_all_topics_are_listed_page_by_page(place: &Place) {
    for (topic, groups) in [("b", ["email", "audit"]), ("a", ["Mailer", "audit"])] {
        place.headwater.topic(topic).pub_sub().create().await.expect("a topic");
        for group in groups {
            place
                .headwater
                .groups(topic)
                .subscribe(group, headwater::Start::Beginning)
                .await
                .expect("a group");
        }
    }
    place.headwater.groups("a").pause("audit").await.expect("paused");
    place.headwater.groups("b").cancel("audit").await.expect("cancelled");
    let server = place.serve().await;
    let list = async |path: &str, limit| {
        let groups = all_pages(&server, path, limit).await;
        let names = groups.iter().map(|group| {
            format!(
                "{}/{}",
                group["topic"].as_str().expect("a topic"),
                group["group"].as_str().expect("a group")
            )
        });
        names.collect::<Vec<_>>()
    };
    let all = ["a/Mailer", "a/audit", "b/audit", "b/email"];
    for limit in [1, 3, 4, 1000] {
        assert_eq!(list("/v1/groups", limit).await, all);
    }
    assert_eq!(list("/v1/groups?state=paused", 10).await, ["a/audit"]);
    assert_eq!(list("/v1/groups?state=cancelled", 10).await, ["b/audit"]);
    assert_eq!(list("/v1/groups?topic=b", 1).await, ["b/audit", "b/email"]);
    assert_eq!(list("/v1/groups?search=MAIL", 1).await, ["a/Mailer", "b/email"]);
    assert_eq!(list("/v1/groups?search=nothing", 1).await, [] as [&str; 0]);
    server.end().await;
}

async fn a_group_is_paused_resumed_and_cancelled(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let act = async |act: &str| {
        let answer = server.post(&format!("{EMAIL}/{act}"), json!({})).await;
        (answer["state"].as_str().expect("a state").to_owned(), answer["changed"].as_bool().expect("a word"))
    };
    let paused = server.post(&format!("{EMAIL}/pause"), json!({ "reason": "stock is counted" })).await;
    assert_eq!(paused["state"], "paused");
    let shown = server.get(EMAIL).await;
    assert_eq!((&shown["state_reason"], &shown["healthy"]), (&json!("stock is counted"), &json!(false)));
    assert_eq!(act("pause").await, ("paused".into(), false), "a repeat is fine");
    assert_eq!(act("resume").await, ("active".into(), true));
    assert_eq!(act("resume").await, ("active".into(), false));
    assert_eq!(act("cancel").await, ("cancelled".into(), true));
    assert_eq!(act("cancel").await, ("cancelled".into(), false));
    are_refused(
        &server,
        &[
            (Method::POST, &format!("{EMAIL}/pause"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &format!("{EMAIL}/resume"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &format!("{EMAIL}/resurrect"), json!({}), 409, "invalid-transition", None),
            (
                Method::POST,
                &format!("{EMAIL}/seek"),
                json!({ "to": "start" }),
                409,
                "invalid-transition",
                None,
            ),
        ],
    )
    .await;
    let shown = server.get(EMAIL).await;
    assert_eq!(
        (&shown["state"], &shown["policy"], &shown["healthy"]),
        (&json!("cancelled"), &Value::Null, &Value::Null)
    );
    server.end().await;
}

async fn a_group_is_moved(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((1..=5).map(Value::from)).await;
    let claimed = server.claim(json!({ "max": 5 })).await;
    server.settle(&claimed, "ack").await;
    let seek = format!("{EMAIL}/seek");
    let would = server.post(&seek, json!({ "to": "start", "dry_run": true })).await;
    assert_eq!((&would["replayed"], &would["to"], &would["dry_run"]), (&json!(5), &json!(1), &json!(true)));
    assert_eq!(server.get(EMAIL).await["next"], 6, "a dry run moves nothing");
    for (to, next) in [
        (json!(3), 3),
        (json!("4"), 4),
        (json!("offset:2"), 2),
        (json!("last:1"), 5),
        (json!("end"), 6),
        (json!("2000-01-01T00:00:00Z"), 1),
    ] {
        let moved = server.post(&seek, json!({ "to": to })).await;
        assert_eq!(moved["to"], next, "{to}: {moved}");
        assert_eq!(server.get(EMAIL).await["next"], next, "{to}");
    }
    are_refused(
        &server,
        &[
            (Method::POST, &seek, json!({}), 400, "invalid-input", Some("body")),
            (Method::POST, &seek, json!({ "to": 0 }), 400, "invalid-input", Some("to")),
            (Method::POST, &seek, json!({ "to": "yesterday" }), 400, "invalid-input", Some("to")),
            (Method::POST, &seek, json!({ "to": [] }), 400, "invalid-input", Some("to")),
            (Method::POST, &seek, json!({ "to": 1, "dry": true }), 400, "invalid-input", Some("dry")),
            (Method::POST, &seek, json!({ "to": 1000 }), 400, "invalid-input", Some("to")),
        ],
    )
    .await;
    server.end().await;
}

async fn outstanding_ranges_are_shown_and_released(place: &Place) {
    place.group("orders", "email").await;
    place.group("other", "email").await;
    let server = place.serve().await;
    server.publish((1..=3).map(Value::from)).await;
    let claimed = server.claim(json!({ "max": 2, "lease_ms": 60000 })).await;
    assert_eq!(claimed.len(), 2);
    let ranges = server.get(&format!("{EMAIL}/outstanding")).await;
    let range = &ranges["items"][0];
    assert_eq!(
        (&range["first"], &range["state"], &range["attempts"]),
        (&json!(1), &json!("leased"), &json!(1))
    );
    assert!(range["due_at"].as_str().is_some_and(|time| time.parse::<Timestamp>().is_ok()), "{range}");
    let token = range["token"].clone();
    are_refused(
        &server,
        &[
            // Of another group: the caller may have no right to that one.
            (
                Method::POST,
                "/v1/topics/other/groups/email/release-lease",
                json!({ "token": token }),
                400,
                "invalid-input",
                Some("token"),
            ),
            (
                Method::POST,
                &format!("{EMAIL}/release-lease"),
                json!({ "token": -1 }),
                400,
                "invalid-input",
                Some("token"),
            ),
            (Method::POST, &format!("{EMAIL}/release-lease"), json!({}), 400, "invalid-input", Some("body")),
            (
                Method::GET,
                &format!("{EMAIL}/outstanding?limit=0"),
                Value::Null,
                400,
                "invalid-input",
                Some("limit"),
            ),
        ],
    )
    .await;
    assert_eq!(
        server.post(&format!("{EMAIL}/release-lease"), json!({ "token": token })).await["released"],
        true
    );
    assert_eq!(server.settle(&claimed, "ack").await, ["lost", "lost"]);
    assert_eq!(server.claim(json!({ "max": 3 })).await.len(), 3, "they are handed out again");
    server.end().await;
}

async fn a_message_is_skipped_buried_and_retried(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish((1..=3).map(Value::from)).await;
    place.headwater.topics().advance_heads().await.expect("advanced");
    let message = |offset: i64, act: &str| format!("{EMAIL}/messages/{offset}/{act}");
    assert_eq!(server.post(&message(1, "skip"), json!({})).await["state"], "done");
    assert_eq!(server.post(&message(2, "bury"), json!({ "reason": "poison" })).await["state"], "buried");
    let claimed = server.claim(json!({ "max": 3 })).await;
    assert_eq!(claimed.len(), 1);
    are_refused(
        &server,
        &[
            (Method::POST, &message(1, "skip"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &message(3, "skip"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &message(3, "retry"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &message(9, "skip"), json!({}), 400, "invalid-input", Some("offset")),
            (Method::POST, &message(3, "bury"), json!({}), 400, "invalid-input", Some("body")),
            (
                Method::POST,
                &message(3, "bury"),
                json!({ "reason": "" }),
                400,
                "invalid-input",
                Some("reason"),
            ),
            (Method::POST, &message(3, "eat"), json!({}), 404, "not-found", None),
            (
                Method::POST,
                &format!("{EMAIL}/messages/x/skip"),
                json!({}),
                400,
                "invalid-input",
                Some("path"),
            ),
        ],
    )
    .await;
    assert_eq!(server.post(&message(3, "retry"), json!({ "force": true })).await["state"], "waiting");
    server.end().await;
}

async fn a_dead_group_is_resurrected(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let active = server.post(&format!("{EMAIL}/resurrect"), json!({ "behind_max": 5 })).await;
    assert_eq!((&active["resurrected"], &active["next"]), (&json!(false), &json!(1)), "it is active already");
    are_refused(
        &server,
        &[
            (
                Method::POST,
                &format!("{EMAIL}/resurrect"),
                json!({ "behind_max": -1 }),
                400,
                "invalid-input",
                Some("behind_max"),
            ),
            (Method::POST, "/v1/topics/orders/groups/other/resurrect", json!({}), 404, "no-such-group", None),
        ],
    )
    .await;
    server.end().await;
}

async fn backfills_are_started_cancelled_and_resumed(place: &Place) {
    let counted = place.headwater.topic("orders").pub_sub().tracking(Tracking::ReferenceCounting);
    counted.create().await.expect("a topic");
    let groups = place.headwater.groups("orders");
    groups.subscribe("early", headwater::Start::Beginning).await.expect("a group");
    place.headwater.producer("orders").send(&1).await.expect("sent");
    let jobs = [headwater::maintenance::Job::Heads, headwater::maintenance::Job::Tracking];
    place.headwater.maintenance().run_once(&jobs).await.expect("maintained");
    groups.subscribe("email", headwater::Start::Now).await.expect("a group");
    groups.seek("email", headwater::Start::Beginning, false).await.expect("moved");

    let server = place.serve().await;
    assert_eq!(server.get(&format!("{EMAIL}/backfills")).await["items"].as_array().map(Vec::len), Some(0));
    let started =
        server.post(&format!("{EMAIL}/backfill"), json!({ "messages_max": 10, "rate_max": 5 })).await;
    assert_eq!((&started["state"], &started["rate_max"]), (&json!("not_started"), &json!(5)));
    are_refused(
        &server,
        &[
            (Method::POST, &format!("{EMAIL}/backfill"), json!({}), 409, "conflict", None),
            (Method::POST, &format!("{EMAIL}/backfill/resume"), json!({}), 409, "invalid-transition", None),
            (
                Method::POST,
                &format!("{EMAIL}/backfill"),
                json!({ "rate_max": 0 }),
                400,
                "invalid-input",
                Some("rate_max"),
            ),
            (
                Method::POST,
                &format!("{EMAIL}/backfill"),
                json!({ "rate": 1 }),
                400,
                "invalid-input",
                Some("rate"),
            ),
            (Method::POST, "/v1/topics/orders/groups/other/backfill", json!({}), 404, "no-such-group", None),
            (
                Method::GET,
                "/v1/topics/orders/groups/other/backfills",
                Value::Null,
                404,
                "no-such-group",
                None,
            ),
        ],
    )
    .await;
    assert_eq!(server.post(&format!("{EMAIL}/backfill/cancel"), json!({})).await["state"], "cancelled");
    assert_eq!(server.post(&format!("{EMAIL}/backfill/resume"), json!({})).await["state"], "not_started");
    let all = all_pages(&server, "/v1/backfills", 1).await;
    assert_eq!((all.len(), &all[0]["group"]), (1, &json!("email")), "{all:?}");
    server.end().await;
}

async fn wrong_groups_are_refused_with_their_field(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    let long = format!("/v1/topics/orders/groups/{}", "x".repeat(256));
    are_refused(
        &server,
        &[
            (Method::PUT, &long, json!({}), 400, "invalid-input", Some("group")),
            (Method::PUT, EMAIL, json!({ "start": "sometime" }), 400, "invalid-input", Some("start")),
            (
                Method::PUT,
                EMAIL,
                json!({ "ordered_by_key": false, "lanes": 2 }),
                400,
                "invalid-input",
                Some("lanes"),
            ),
            (Method::PUT, EMAIL, json!({ "max_attempts": 0 }), 400, "invalid-input", Some("max_attempts")),
            (Method::PUT, EMAIL, json!({ "lease_ms": -1 }), 400, "invalid-input", Some("lease_ms")),
            (Method::PUT, EMAIL, json!({ "lease": 1 }), 400, "invalid-input", Some("lease")),
            (Method::PUT, "/v1/topics/unknown/groups/email", json!({}), 404, "no-such-topic", None),
            (Method::PUT, "/v1/topics/orders/groups/second", json!({}), 400, "invalid-input", Some("group")),
            (Method::GET, "/v1/topics/orders/groups/other", Value::Null, 404, "no-such-group", None),
            (Method::GET, "/v1/topics/unknown/groups/email", Value::Null, 404, "no-such-topic", None),
            (Method::DELETE, "/v1/topics/orders/groups/other", Value::Null, 404, "no-such-group", None),
            (
                Method::DELETE,
                &format!("{EMAIL}?wait_ms=60001"),
                Value::Null,
                400,
                "invalid-input",
                Some("wait_ms"),
            ),
            (
                Method::GET,
                "/v1/topics/orders/groups/other/outstanding",
                Value::Null,
                404,
                "no-such-group",
                None,
            ),
            (Method::POST, "/v1/topics/orders/groups/other/pause", json!({}), 404, "no-such-group", None),
            (
                Method::POST,
                &format!("{EMAIL}/pause"),
                json!({ "reason": "" }),
                400,
                "invalid-input",
                Some("reason"),
            ),
            (
                Method::POST,
                &format!("{EMAIL}/pause"),
                json!({ "because": "x" }),
                400,
                "invalid-input",
                Some("because"),
            ),
            (Method::GET, "/v1/groups?state=happy", Value::Null, 400, "invalid-input", Some("state")),
            (Method::GET, "/v1/groups?topic=unknown", Value::Null, 404, "no-such-topic", None),
            (Method::GET, "/v1/groups?cursor=bm8", Value::Null, 400, "invalid-input", Some("cursor")),
        ],
    )
    .await;
    server.end().await;
}

async fn changes_of_groups_are_audited(place: &Place) {
    place.headwater.topic("orders").create().await.expect("a topic");
    let token = place.token("ann", &[Scope::Admin], &["orders"]).await;
    let mut server = place.serve().await;
    server.with(&token);
    assert_eq!(put(&server, EMAIL, json!({})).await.0, StatusCode::CREATED);
    assert_eq!(put(&server, EMAIL, json!({ "max_attempts": 3 })).await.0, StatusCode::OK);
    for (act, body) in [
        ("pause", json!({ "reason": "why not" })),
        ("resume", json!({})),
        ("seek", json!({ "to": "start" })),
        ("cancel", json!({})),
    ] {
        server.post(&format!("{EMAIL}/{act}"), body).await;
    }
    assert_eq!(server.answer(server.request(Method::DELETE, EMAIL)).await.0, StatusCode::OK);
    let entries = place.audit().await;
    let acts: Vec<&str> =
        entries.iter().filter(|entry| entry.actor == "token ann").map(|entry| entry.act.as_str()).collect();
    assert_eq!(acts, ["remove", "cancel", "seek", "resume", "pause", "set_policy", "subscribe"]);
    assert!(entries.iter().all(|entry| entry.topic.as_deref().is_none_or(|topic| topic == "orders")));
    server.end().await;
}
