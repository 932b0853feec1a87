//! What operators see and do beside topics, groups and dead letters: schedules, outbox, processes, maintenance, figures, audit, tokens.

use std::time::Duration;

use headwater::outbox::{Category, NewEntry};
use headwater::process::{ProcessEvent, ProcessInstance, ProcessStatus};
use headwater::tokens::Scope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{Place, Running, kind};
use crate::topics::{all_pages, are_refused};

crate::on_both_stores!(
    scheduled_messages_are_listed_moved_and_cancelled,
    cron_jobs_are_listed,
    the_outbox_is_listed_shown_and_requeued,
    relays_and_bridges_are_listed,
    processes_are_listed_shown_and_changed,
    events_of_a_process_are_listed_page_by_page,
    maintenance_is_run_and_shown,
    figures_and_findings_are_shown,
    the_audit_is_listed_page_by_page,
    tokens_are_created_rotated_and_revoked,
    metrics_count_requests_and_messages,
    long_lists_are_cheap,
);

const UNKNOWN_ID: &str = "00000000-0000-0000-0000-000000000000";

async fn scheduled_messages_are_listed_moved_and_cancelled(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    for (key, delay) in [("c", 3_000_000), ("a", 1_000_000), ("b", 2_000_000)] {
        server
            .post("/v1/topics/orders/messages", json!({ "payload": 1, "key": key, "delay_ms": delay }))
            .await;
    }
    let list = "/v1/topics/orders/scheduled";
    let all = all_pages(&server, list, 1).await;
    let keys: Vec<&str> = all.iter().map(|message| message["key"].as_str().expect("a key")).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!((&all[0]["payload_bytes"], &all[0]["content_type"]), (&json!(1), &json!("application/json")));
    let one = |at: usize| format!("{list}/{}", all[at]["message_id"].as_str().expect("an id"));
    let moved = server
        .answer(server.request(Method::PATCH, &one(0)).json(&json!({ "deliver_at": "2000-01-01T00:00:00Z" })))
        .await;
    assert_eq!(moved.0, StatusCode::OK, "{}", moved.1);
    assert_eq!(
        server.claim(json!({ "wait_ms": 20_000 })).await[0]["key"],
        "a",
        "a time in the past delivers at once"
    );
    let later = headwater::jiff::Timestamp::now() + Duration::from_secs(3_600);
    let cancelled = server.answer(server.request(Method::DELETE, &one(1))).await;
    assert_eq!((cancelled.0, &cancelled.1["cancelled"]), (StatusCode::OK, &json!(true)));
    are_refused(
        &server,
        &[
            (Method::DELETE, &one(1), Value::Null, 404, "not-found", Some("message_id")),
            (Method::PATCH, &one(0), json!({ "deliver_at": later }), 404, "not-found", Some("message_id")),
            (
                Method::PATCH,
                &one(2),
                json!({ "deliver_at": "9999-01-01T00:00:00Z" }),
                400,
                "invalid-input",
                Some("deliver_at"),
            ),
            (
                Method::PATCH,
                &one(2),
                json!({ "deliver_at": "soon" }),
                400,
                "invalid-input",
                Some("deliver_at"),
            ),
            (Method::PATCH, &one(2), json!({ "at": 1 }), 400, "invalid-input", Some("at")),
            (Method::DELETE, &format!("{list}/7"), Value::Null, 400, "invalid-input", Some("path")),
            (Method::GET, "/v1/topics/unknown/scheduled", Value::Null, 404, "no-such-topic", None),
        ],
    )
    .await;
    server.end().await;
}

async fn cron_jobs_are_listed(place: &Place) {
    place.headwater.topic("reports").create().await.expect("a topic");
    for name in ["nightly", "hourly"] {
        let job = place
            .headwater
            .cron(name, "0 2 * * *")
            .topic("reports")
            .message(&1)
            .start()
            .await
            .expect("started");
        job.stop().await;
    }
    let server = place.serve().await;
    let jobs = all_pages(&server, "/v1/cron", 1).await;
    assert_eq!(
        (jobs.len(), &jobs[0]["job"], &jobs[1]["topic"]),
        (2, &json!("hourly"), &json!("reports")),
        "{jobs:?}"
    );
    assert_eq!((&jobs[0]["expression"], &jobs[0]["time_zone"]), (&json!("0 2 * * *"), &json!("UTC")));
    assert!(jobs[0]["next_tick"].as_str().is_some_and(|tick| tick.ends_with("02:00:00Z")), "{jobs:?}");
    server.end().await;
}

async fn the_outbox_is_listed_shown_and_requeued(place: &Place) {
    let outbox = place.headwater.outbox();
    let mut ids = Vec::new();
    for n in 0..3 {
        let entry = NewEntry::new(Category::Event, "broker", "Paid", format!("{{\"n\":{n}}}")).key("k");
        ids.push(outbox.insert_returning_id(&entry).await.expect("inserted"));
    }
    outbox.claim_if_new(ids[1], "relay").await.expect("claimed");
    outbox.mark_failed(ids[1], "relay", "broker away", Duration::from_secs(3_600)).await.expect("failed");
    let server = place.serve().await;
    let all = all_pages(&server, "/v1/outbox", 1).await;
    assert_eq!(all.iter().map(|entry| entry["id"].as_i64().expect("an id")).collect::<Vec<_>>(), ids);
    assert!(all.iter().all(|entry| entry.get("payload").is_none()));
    let failed = all_pages(&server, "/v1/outbox?status=FAILED&category=event&topic=broker&key=k", 10).await;
    assert_eq!((failed.len(), &failed[0]["last_error"]), (1, &json!("broker away")));
    let shown = server.get(&format!("/v1/outbox/{}", ids[1])).await;
    assert_eq!((&shown["payload"], &shown["attempts"]), (&json!({ "n": 1 }), &json!(1)));
    let requeued = server.post("/v1/outbox/requeue", json!({ "ids": [ids[1], ids[0], 999] })).await;
    assert_eq!(requeued["requeued"], json!([ids[1]]));
    are_refused(
        &server,
        &[
            (Method::GET, "/v1/outbox/999", Value::Null, 404, "not-found", Some("id")),
            (Method::GET, "/v1/outbox/x", Value::Null, 400, "invalid-input", Some("path")),
            (Method::GET, "/v1/outbox?status=new", Value::Null, 400, "invalid-input", Some("status")),
            (Method::GET, "/v1/outbox?topic=", Value::Null, 400, "invalid-input", Some("topic")),
            (Method::POST, "/v1/outbox/requeue", json!({ "ids": [] }), 400, "invalid-input", Some("ids")),
            (
                Method::POST,
                "/v1/outbox/requeue",
                json!({ "ids": ["a"] }),
                400,
                "invalid-input",
                Some("ids[0]"),
            ),
        ],
    )
    .await;
    server.end().await;
}

async fn relays_and_bridges_are_listed(place: &Place) {
    for name in ["b", "a"] {
        place
            .headwater
            .relays()
            .add(name, "orders", "kafka://h:9092/t", r#"{"key_order":true}"#)
            .await
            .expect("added");
        place.headwater.bridge_positions().advance(name, "orders/0", None, 5).await.expect("advanced");
    }
    let server = place.serve().await;
    let relays = all_pages(&server, "/v1/relays", 1).await;
    assert_eq!(
        (relays.len(), &relays[0]["relay"], &relays[0]["settings"]["key_order"]),
        (2, &json!("a"), &json!(true))
    );
    let bridges = all_pages(&server, "/v1/bridges", 1).await;
    assert_eq!((bridges.len(), &bridges[1]["bridge"], &bridges[1]["position"]), (2, &json!("b"), &json!(5)));
    server.end().await;
}

async fn processes_are_listed_shown_and_changed(place: &Place) {
    let processes = place.headwater.processes();
    for (process_type, key) in [("order", "o-1"), ("order", "o-2"), ("payment", "p-1")] {
        processes
            .start(process_type)
            .business_key(key)
            .data(&json!({ "total": 250 }))
            .await
            .expect("started");
    }
    let token = place.token("ann", &[Scope::Read, Scope::Admin], &[]).await;
    let mut server = place.serve().await;
    server.with(&token);
    for limit in [1, 2, 10] {
        let all = all_pages(&server, "/v1/processes", limit).await;
        assert_eq!(
            (all.len(), &all[0]["key"], &all[0]["data"]),
            (3, &json!("p-1"), &Value::Null),
            "newest first"
        );
    }
    assert_eq!(all_pages(&server, "/v1/processes?type=order&status=NEW", 1).await.len(), 2);
    assert_eq!(all_pages(&server, "/v1/processes?status=RUNNING", 1).await.len(), 0);
    let found = all_pages(&server, "/v1/processes?search=O-2", 1).await;
    let path = format!("/v1/processes/{}", found[0]["id"].as_str().expect("an id"));
    assert_eq!(server.get(&path).await["data"], json!({ "total": 250 }));

    let act = |act: &str| format!("{path}/{act}");
    let paused = server.post(&act("pause"), json!({ "reason": "stock is counted" })).await;
    assert_eq!((&paused["status"], &paused["paused_in"]), (&json!("PAUSED"), &json!("NEW")));
    assert_eq!(server.post(&act("resume"), json!({})).await["status"], "RUNNING");
    are_refused(&server, &[(Method::POST, &act("retry"), Value::Null, 409, "invalid-transition", None)])
        .await;
    let would = server.post(&act("cancel"), json!({ "dry_run": true })).await;
    assert_eq!(would["status"], "RUNNING");
    assert_eq!(server.post(&act("cancel"), json!({ "reason": "withdrawn" })).await["status"], "FAILED");
    let events = server.get(&act("events")).await;
    assert_eq!(
        (&events["items"][0]["event"], &events["items"][0]["status"]),
        (&json!("ProcessFailed"), &json!("FAILED"))
    );
    assert!(
        events["items"][0]["fields"]["reason"].as_str().is_some_and(|reason| reason.contains("token ann")),
        "{events}"
    );

    wrong_acts_on_processes_are_refused(&server, &path).await;
    let entries = place.audit().await;
    let acts: Vec<&str> =
        entries.iter().filter(|entry| entry.actor == "token ann").map(|entry| entry.act.as_str()).collect();
    assert_eq!(acts, ["fail_process", "resume_process", "pause_process"]);
    server.end().await;
}

/// `path` leads to a process that has ended.
async fn wrong_acts_on_processes_are_refused(server: &Running, path: &str) {
    let act = |act: &str| format!("{path}/{act}");
    let unknown = |act: &str| format!("/v1/processes/{UNKNOWN_ID}{act}");
    are_refused(
        server,
        &[
            (Method::POST, &act("pause"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &act("cancel"), json!({}), 409, "invalid-transition", None),
            (Method::POST, &act("cancel"), json!({ "why": 1 }), 400, "invalid-input", Some("why")),
            (
                Method::POST,
                &act("pause"),
                json!({ "reason": "x".repeat(2_049) }),
                400,
                "invalid-input",
                Some("reason"),
            ),
            (Method::GET, &unknown(""), Value::Null, 404, "no-such-process", None),
            (Method::GET, &unknown("/events"), Value::Null, 404, "no-such-process", None),
            (Method::POST, &unknown("/pause"), json!({}), 404, "no-such-process", None),
            (Method::POST, &unknown("/retry"), Value::Null, 404, "no-such-process", None),
            (Method::GET, "/v1/processes/7", Value::Null, 400, "invalid-input", Some("path")),
            (Method::GET, "/v1/processes?status=DONE", Value::Null, 400, "invalid-input", Some("status")),
        ],
    )
    .await;
}

async fn events_of_a_process_are_listed_page_by_page(place: &Place) {
    let processes = place.headwater.processes();
    let new = ProcessInstance::create("order", None, None);
    let mut process = processes.insert(&new, &new.started()).await.expect("inserted");
    process = process.with_status(ProcessStatus::Running);
    for n in 0..6 {
        let event = ProcessEvent::StepStarted { step: format!("s{n}"), command_id: "c".into() };
        process =
            processes.update(&process.with_current_step(&*format!("s{n}")), &event).await.expect("updated");
    }
    let server = place.serve().await;
    for limit in [1, 3, 7, 100] {
        let events = all_pages(&server, &format!("/v1/processes/{}/events", process.id()), limit).await;
        let numbers: Vec<u64> =
            events.iter().map(|event| event["sequence"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, [7, 6, 5, 4, 3, 2, 1], "limit {limit}");
        assert_eq!((&events[0]["step"], &events[6]["event"]), (&json!("s5"), &json!("ProcessStarted")));
    }
    server.end().await;
}

async fn maintenance_is_run_and_shown(place: &Place) {
    let server = place.serve().await;
    let ran = server.post("/v1/maintenance/run", json!({ "jobs": ["survey", "heads", "heads"] })).await;
    let jobs: Vec<&str> =
        ran["runs"].as_array().expect("runs").iter().map(|run| run["job"].as_str().expect("a job")).collect();
    assert_eq!(jobs, ["heads", "survey"], "each once, in the order of a round");
    let all = server.answer(server.request(Method::POST, "/v1/maintenance/run")).await.1;
    assert_eq!(all["runs"].as_array().map(Vec::len), Some(9), "{all}");
    assert!(all["runs"].as_array().expect("runs").iter().all(|run| run["error"].is_null()), "{all}");
    let status = server.get("/v1/maintenance").await;
    assert!(status["items"].as_array().expect("jobs").iter().any(|job| job["job"] == "heads"), "{status}");
    are_refused(
        &server,
        &[
            (
                Method::POST,
                "/v1/maintenance/run",
                json!({ "jobs": ["dusting"] }),
                400,
                "invalid-input",
                Some("jobs[0]"),
            ),
            (Method::POST, "/v1/maintenance/run", json!({ "jobs": [] }), 400, "invalid-input", Some("jobs")),
            (
                Method::POST,
                "/v1/maintenance/run",
                json!({ "job": "heads" }),
                400,
                "invalid-input",
                Some("job"),
            ),
        ],
    )
    .await;
    assert_eq!(place.audit().await[0].act, "run_maintenance");
    server.end().await;
}

async fn figures_and_findings_are_shown(place: &Place) {
    place.group("orders", "email").await;
    place.headwater.topic("news").pub_sub().create().await.expect("a topic");
    place.headwater.producer("news").send(&1).await.expect("sent");
    let server = place
        .serve_with(|options| {
            options.label.name = "test store".into();
            options.label.production = true;
        })
        .await;
    server.publish([json!(1), json!(2)]).await;
    place.headwater.topics().advance_heads().await.expect("advanced");
    // Figures are a few seconds old at most.
    let begun = std::time::Instant::now();
    let stats = loop {
        let stats = server.get("/v1/stats").await;
        if stats["lag"] == 2 {
            break stats;
        }
        assert!(begun.elapsed() < crate::place::DEADLINE, "{stats}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&stats["topics"], &stats["groups"]["active"]), (&json!(2), &json!(1)), "{stats}");
    assert_eq!((&stats["store"], &stats["production"]), (&json!("test store"), &json!(true)));
    let diagnosis = server.get("/v1/doctor").await;
    assert_eq!((&diagnosis["sound"], &diagnosis["errors"]), (&json!(true), &json!([])));
    let checks: Vec<&str> = diagnosis["attention"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|finding| finding["check"].as_str().expect("a check"))
        .collect();
    assert!(checks.contains(&"zero_subscriptions"), "{diagnosis}");
    server.end().await;
}

async fn the_audit_is_listed_page_by_page(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    for act in ["pause", "resume", "pause"] {
        server.post(&format!("/v1/topics/orders/groups/email/{act}"), json!({})).await;
    }
    for limit in [1, 2, 10] {
        let entries = all_pages(&server, "/v1/audit", limit).await;
        let acts: Vec<&str> = entries.iter().map(|entry| entry["act"].as_str().expect("an act")).collect();
        assert_eq!(acts, ["pause", "resume", "pause"], "limit {limit}");
        assert_eq!(
            (&entries[0]["actor"], &entries[0]["detail"]["to"]),
            (&json!("anonymous"), &json!("paused"))
        );
    }
    server.end().await;
}

async fn tokens_are_created_rotated_and_revoked(place: &Place) {
    let mut server = place.serve().await;
    let (status, admin) =
        server.try_post("/v1/tokens", &json!({ "name": "root", "scopes": ["admin", "read"] })).await;
    assert_eq!(status, StatusCode::CREATED, "{admin}");
    let secret = admin["secret"].as_str().expect("a secret").to_owned();
    assert_eq!(
        server.try_get("/v1/tokens").await.0,
        StatusCode::UNAUTHORIZED,
        "the first token closes the server"
    );
    server.with(&secret);
    let new =
        json!({ "name": "shop", "scopes": ["publish"], "topics": ["orders*"], "expires_in_ms": 3_600_000 });
    let shop = server.post("/v1/tokens", new.clone()).await;
    assert_eq!((&shop["topics"], &shop["scopes"]), (&json!(["orders*"]), &json!(["publish"])));
    assert!(shop["expires_at"].is_string(), "{shop}");
    let list = all_pages(&server, "/v1/tokens", 1).await;
    assert_eq!((list.len(), &list[0]["name"], &list[1]["name"]), (2, &json!("root"), &json!("shop")));
    assert!(list.iter().all(|token| token.get("secret").is_none()), "no secret is listed: {list:?}");

    let id = shop["id"].as_str().expect("an id");
    let rotated = server.post(&format!("/v1/tokens/{id}/rotate"), json!({ "grace_ms": 60_000 })).await;
    assert_ne!(rotated["secret"], shop["secret"]);
    assert!(rotated["old_until"].is_string(), "{rotated}");
    are_refused(
        &server,
        &[
            (Method::POST, "/v1/tokens", new, 409, "conflict", None),
            (Method::POST, "/v1/tokens/nothing/rotate", json!({}), 404, "not-found", Some("id")),
            (Method::DELETE, "/v1/tokens/nothing", Value::Null, 404, "not-found", Some("id")),
        ],
    )
    .await;
    wrong_tokens_are_refused(&server).await;
    let revoked = server.answer(server.request(Method::DELETE, &format!("/v1/tokens/{id}"))).await;
    assert_eq!((revoked.0, &revoked.1["revoked"]), (StatusCode::OK, &json!(true)));
    assert_eq!(all_pages(&server, "/v1/tokens", 10).await.len(), 1);
    let entries = place.audit().await;
    let of_root = entries.iter().filter(|entry| entry.actor == "token root").count();
    assert!(of_root >= 3, "{entries:?}");
    assert!(entries.iter().all(|entry| !entry.detail.contains(&secret)), "no secret is in the audit");
    server.with("hw_0000000000000000_00");
    let (status, problem) = server.try_get("/v1/tokens").await;
    assert_eq!((status, kind(&problem)), (StatusCode::UNAUTHORIZED, "unauthorized"));
    server.end().await;
}

async fn wrong_tokens_are_refused(server: &Running) {
    let wrong = [
        (json!({ "name": "x", "scopes": [] }), "scopes"),
        (json!({ "name": "x", "scopes": ["all"] }), "scopes[0]"),
        (json!({ "name": "", "scopes": ["read"] }), "name"),
        (json!({ "name": "x", "scopes": ["read"], "secret": "s" }), "secret"),
        (json!({ "name": "x", "scopes": ["read"], "expires_in_ms": 0 }), "expires_in_ms"),
    ];
    for (body, field) in wrong {
        are_refused(server, &[(Method::POST, "/v1/tokens", body, 400, "invalid-input", Some(field))]).await;
    }
}

async fn metrics_count_requests_and_messages(place: &Place) {
    place.group("orders", "email").await;
    let server = place.serve().await;
    server.publish([json!(1)]).await;
    server.try_get("/v1/topics/unknown").await;
    server.try_get("/nothing").await;
    let response = server.request(Method::GET, "/metrics").send().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.expect("a text");
    for line in [
        r#"headwater_http_requests_total{method="POST",route="/v1/topics/{topic}/batches",status="201"}"#,
        r#"headwater_http_requests_total{method="GET",route="/v1/topics/{topic}",status="404"}"#,
        r#"headwater_http_requests_total{method="GET",route="none",status="404"}"#,
        r#"headwater_http_request_seconds_bucket{method="POST",route="/v1/topics/{topic}/batches",le="0.0005"}"#,
        "headwater_http_connections ",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is missing in\n{text}");
    }
    server.end().await;
}

/// A page of a long list takes a fraction of a second, whatever the number of topics and groups.
async fn long_lists_are_cheap(place: &Place) {
    for n in 0..60 {
        let topic = format!("topic-{n:03}");
        place.headwater.topic(&topic).pub_sub().create().await.expect("a topic");
        for group in 0..5 {
            let groups = place.headwater.groups(&topic);
            groups.subscribe(&format!("group-{group}"), headwater::Start::Beginning).await.expect("a group");
        }
    }
    let server = place.serve().await;
    assert_eq!(all_pages(&server, "/v1/topics", 7).await.len(), 60);
    let groups = all_pages(&server, "/v1/groups", 11).await;
    assert_eq!(groups.len(), 300);
    let names: Vec<_> =
        groups.iter().map(|group| (group["topic"].as_str(), group["group"].as_str())).collect();
    assert!(names.is_sorted(), "in the order of topics and groups");
    assert_eq!(all_pages(&server, "/v1/groups?search=TOPIC-01", 4).await.len(), 50);
    server.end().await;
}
