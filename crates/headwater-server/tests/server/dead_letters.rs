//! Dead letters over HTTP, of every source: inspect, redrive, edit and redrive, purge.

use headwater::Start;
use headwater::outbox::{Category, NewEntry};
use headwater::store::ParkedCommand;
use headwater::tokens::Scope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::place::{Place, Running, kind};
use crate::topics::{all_pages, are_refused};

crate::on_both_stores!(
    dead_letters_of_every_source_are_listed_and_shown,
    dead_letters_are_redriven_each_once,
    an_edited_copy_replaces_its_dead_letter,
    dead_letters_are_purged,
    a_token_changes_those_of_its_topics,
    wrong_requests_are_refused_with_their_field,
    changes_of_dead_letters_are_audited,
);

const LIST: &str = "/v1/dead-letters";
const REDRIVE: &str = "/v1/dead-letters/redrive";
const PURGE: &str = "/v1/dead-letters/purge";

/// Buries messages of a topic for its group.
async fn bury(place: &Place, server: &Running, topic: &str, group: &str, payloads: &[Value]) {
    place.group(topic, group).await;
    let messages: Vec<Value> =
        payloads.iter().map(|payload| json!({ "payload": payload, "key": "k" })).collect();
    server.post(&format!("/v1/topics/{topic}/batches"), json!({ "messages": messages })).await;
    let path = format!("/v1/topics/{topic}/groups/{group}");
    let claimed = server.post(&format!("{path}/claim"), json!({ "max": payloads.len() })).await;
    let bury =
        |message: &Value| json!({ "receipt": message["receipt"], "outcome": "bury", "reason": "No Luck" });
    let settlements: Vec<Value> =
        claimed["messages"].as_array().expect("messages").iter().map(bury).collect();
    server.post(&format!("{path}/settle"), json!({ "settlements": settlements })).await;
}

/// All dead letters; those of one moment by their offset.
async fn all_letters(server: &Running, limit: usize) -> Vec<Value> {
    let mut all = all_pages(server, LIST, limit).await;
    all.sort_by_key(|letter| letter["offset"].as_i64().unwrap_or(i64::MAX));
    all
}

/// A parked entry of the outbox.
async fn park_entry(place: &Place) -> i64 {
    let outbox = place.headwater.outbox().max_attempts(1);
    let entry = NewEntry::new(Category::Event, "broker.orders", "Paid", r#"{"n":1}"#);
    let id = outbox.insert_returning_id(&entry).await.expect("inserted");
    outbox.sweep_batch(10, "relay").await.expect("swept");
    outbox.mark_failed(id, "relay", "broker away", std::time::Duration::ZERO).await.expect("failed");
    id
}

async fn park_command(place: &Place, topic: Option<&str>) {
    let command =
        ParkedCommand::new("7f3c", "ChargeCard", vec![0_u8, 255], "worker").error_message("declined");
    let command = topic.map_or(command.clone(), |topic| command.topic(topic));
    place.headwater.dead_letters().park(&command).await.expect("parked");
}

fn ids(letters: &[Value]) -> Vec<Value> {
    letters.iter().map(|letter| letter["id"].clone()).collect()
}

async fn dead_letters_of_every_source_are_listed_and_shown(place: &Place) {
    let server = place.serve().await;
    bury(place, &server, "orders", "email", &[json!({ "id": 7 }), json!(2)]).await;
    let entry = park_entry(place).await;
    park_command(place, None).await;
    for limit in [1, 2, 10] {
        let all = all_letters(&server, limit).await;
        let sources: Vec<&str> =
            all.iter().map(|letter| letter["source"].as_str().expect("a source")).collect();
        assert_eq!(sources, ["subscription", "subscription", "outbox", "command"]);
        assert!(
            all.iter()
                .all(|letter| letter.get("payload").is_none() && letter.get("payload_base64").is_none())
        );
    }
    let all = all_letters(&server, 10).await;
    assert_eq!(
        (&all[0]["topic"], &all[0]["group"], &all[0]["offset"]),
        (&json!("orders"), &json!("email"), &json!(1))
    );
    assert_eq!(
        (&all[0]["error"], &all[0]["key"], &all[0]["payload_bytes"]),
        (&json!("No Luck"), &json!("k"), &json!(8))
    );
    assert_eq!((&all[2]["outbox_id"], &all[2]["topic"]), (&json!(entry), &json!("broker.orders")));
    assert_eq!((&all[3]["message_id"], &all[3]["type"]), (&json!("7f3c"), &json!("ChargeCard")));
    for (query, count) in [
        ("?source=subscription", 2),
        ("?source=outbox", 1),
        ("?source=command", 1),
        ("?topic=orders", 2),
        ("?group=email", 2),
        ("?search=no%20luck", 2),
        ("?search=chargec", 1),
        ("?search=nothing", 0),
        ("?source=outbox&topic=orders", 0),
    ] {
        assert_eq!(all_pages(&server, &format!("{LIST}{query}"), 1).await.len(), count, "{query}");
    }
    let show =
        async |at: usize| server.get(&format!("{LIST}/{}", all[at]["id"].as_str().expect("an id"))).await;
    assert_eq!(show(0).await["payload"], json!({ "id": 7 }));
    assert_eq!(show(2).await["payload"], json!({ "n": 1 }));
    assert_eq!(show(3).await["payload_base64"], "AP8=");
    server.end().await;
}

async fn dead_letters_are_redriven_each_once(place: &Place) {
    let server = place.serve().await;
    bury(place, &server, "orders", "email", &[json!(1), json!(2), json!(3)]).await;
    park_entry(place).await;
    let all = ids(&all_letters(&server, 10).await);
    let would = server.post(REDRIVE, json!({ "ids": all, "dry_run": true })).await;
    assert_eq!((&would["redriven"], &would["dry_run"]), (&json!(4), &json!(true)));
    assert_eq!(all_letters(&server, 10).await.len(), 4, "a dry run changes nothing");

    let first = server.post(REDRIVE, json!({ "ids": [all[0]] })).await;
    assert_eq!((&first["redriven"], &first["gone"]), (&json!(1), &json!(0)));
    assert_eq!(server.post(REDRIVE, json!({ "ids": [all[0]] })).await["redriven"], 0, "once");
    let rest =
        server.post(REDRIVE, json!({ "selection": { "topic": "orders", "error_contains": "Luck" } })).await;
    assert_eq!(rest["redriven"], 2);
    assert_eq!(server.claim(json!({ "max": 10 })).await.len(), 3, "they are handed out again");
    assert_eq!(server.post(REDRIVE, json!({ "selection": { "source": "outbox" } })).await["redriven"], 1);
    let entries = server.get("/v1/outbox?status=NEW").await;
    assert_eq!(entries["items"][0]["attempts"], 0, "{entries}");
    assert_eq!(all_letters(&server, 10).await, [] as [Value; 0]);
    server.end().await;
}

async fn an_edited_copy_replaces_its_dead_letter(place: &Place) {
    let server = place.serve().await;
    bury(place, &server, "orders", "email", &[json!({ "id": "seven" }), json!(2)]).await;
    let all = ids(&all_letters(&server, 10).await);
    let edit = json!({ "ids": [all[0]], "edit": { "payload": { "id": 7 } } });
    let would =
        server.post(REDRIVE, json!({ "ids": [all[0]], "edit": { "payload": null }, "dry_run": true })).await;
    assert_eq!((&would["redriven"], &would["published"]), (&json!(1), &Value::Null));
    let done = server.post(REDRIVE, edit.clone()).await;
    assert_eq!((&done["redriven"], &done["published"]["topic"]), (&json!(1), &json!("orders")), "{done}");
    let claimed = server.claim(json!({})).await;
    assert_eq!((&claimed[0]["payload"], &claimed[0]["key"]), (&json!({ "id": 7 }), &json!("k")));
    assert_eq!(claimed[0]["headers"]["headwater-edited-from"], "1");
    let (status, problem) = server.try_post(REDRIVE, &edit).await;
    assert_eq!((status, kind(&problem)), (StatusCode::NOT_FOUND, "not-found"), "it is gone: {problem}");

    // A copy is a new message: other groups get it too, if that is meant.
    let change = server.request(Method::PATCH, "/v1/topics/orders").json(&json!({ "semantics": "pub_sub" }));
    assert_eq!(server.answer(change).await.0, StatusCode::OK);
    place.headwater.groups("orders").subscribe("audit", Start::Now).await.expect("a group");
    let refused = [(
        Method::POST,
        REDRIVE,
        json!({ "ids": [all[1]], "edit": { "payload": 3 } }),
        400,
        "invalid-input",
        Some("copy"),
    )];
    are_refused(&server, &refused).await;
    server
        .post(REDRIVE, json!({ "ids": [all[1]], "edit": { "payload_base64": "AP8=", "all_groups": true } }))
        .await;
    let claimed = server.post("/v1/topics/orders/groups/audit/claim", json!({})).await;
    assert_eq!(claimed["messages"][0]["payload_base64"], "AP8=", "{claimed}");
    server.end().await;
}

async fn dead_letters_are_purged(place: &Place) {
    let server = place.serve().await;
    bury(place, &server, "orders", "email", &[json!(1), json!(2)]).await;
    park_command(place, None).await;
    let all = ids(&all_letters(&server, 10).await);
    let would = server.post(PURGE, json!({ "ids": all, "dry_run": true })).await;
    assert_eq!((&would["purged"], &would["dry_run"]), (&json!(3), &json!(true)));
    assert_eq!(server.post(PURGE, json!({ "ids": [all[0], all[0]] })).await["purged"], 1);
    assert_eq!(server.post(PURGE, json!({ "selection": { "source": "command" } })).await["purged"], 1);
    assert_eq!(server.post(PURGE, json!({ "selection": { "key": "k" } })).await["purged"], 1);
    assert_eq!(server.post(PURGE, json!({ "ids": all })).await["purged"], 0);
    server.end().await;
}

async fn a_token_changes_those_of_its_topics(place: &Place) {
    let mut server = place.serve().await;
    bury(place, &server, "orders", "email", &[json!(1)]).await;
    bury(place, &server, "bills", "email", &[json!(2)]).await;
    park_command(place, None).await;
    let all = ids(&all_letters(&server, 10).await);
    let token = place.token("orders", &[Scope::Read, Scope::Admin], &["orders"]).await;
    server.with(&token);
    assert_eq!(ids(&all_letters(&server, 1).await), all[..1]);
    let show = |at: usize| format!("{LIST}/{}", all[at].as_str().expect("an id"));
    are_refused(
        &server,
        &[
            (Method::GET, &show(1), Value::Null, 403, "wrong-topic", None),
            (Method::GET, &show(2), Value::Null, 403, "wrong-topic", None),
            (Method::POST, PURGE, json!({ "ids": all }), 403, "wrong-topic", None),
            (Method::POST, REDRIVE, json!({ "ids": [all[1]] }), 403, "wrong-topic", None),
            (
                Method::POST,
                REDRIVE,
                json!({ "ids": [all[1]], "edit": { "payload": 1 } }),
                403,
                "wrong-topic",
                None,
            ),
        ],
    )
    .await;
    let purged = server.post(PURGE, json!({ "selection": { "group": "email" } })).await;
    assert_eq!(purged["purged"], 1, "a selection means those that the token may change");
    assert_eq!(place.headwater.dead_letters().list(10, |all| all).await.expect("dead letters").len(), 2);
    server.end().await;
}

async fn wrong_requests_are_refused_with_their_field(place: &Place) {
    let server = place.serve().await;
    park_command(place, None).await;
    let id = all_letters(&server, 10).await[0]["id"].clone();
    let unknown_id = "00000000-0000-0000-0000-000000000000";
    let many: Vec<String> = (0..1001_u128).map(|n| uuid::Uuid::from_u128(n).to_string()).collect();
    let post = |path: &'static str, body: Value, field: &'static str| {
        (Method::POST, path, body, 400, "invalid-input", Some(field))
    };
    are_refused(
        &server,
        &[
            (Method::GET, &format!("{LIST}/{unknown_id}"), Value::Null, 404, "not-found", Some("id")),
            (Method::GET, "/v1/dead-letters/seven", Value::Null, 400, "invalid-input", Some("path")),
            (
                Method::GET,
                "/v1/dead-letters?source=heaven",
                Value::Null,
                400,
                "invalid-input",
                Some("source"),
            ),
            (Method::GET, "/v1/dead-letters?limit=-1", Value::Null, 400, "invalid-input", Some("limit")),
            (Method::GET, "/v1/dead-letters?search=%00", Value::Null, 400, "invalid-input", Some("search")),
            post(REDRIVE, json!({}), "ids"),
            post(REDRIVE, json!({ "ids": [], "selection": {} }), "selection"),
            post(REDRIVE, json!({ "selection": {} }), "selection"),
            post(REDRIVE, json!({ "selection": { "colour": 1 } }), "selection.colour"),
            post(REDRIVE, json!({ "ids": ["x"] }), "ids[0]"),
            post(REDRIVE, json!({ "ids": many }), "ids"),
            post(REDRIVE, json!({ "edit": { "payload": 1 } }), "edit"),
            post(REDRIVE, json!({ "ids": [id, unknown_id], "edit": { "payload": 1 } }), "edit"),
            post(REDRIVE, json!({ "ids": [id], "edit": { "payload": 1 } }), "edit"),
            // A command without a topic cannot be published.
            post(REDRIVE, json!({ "ids": [id] }), "dead_letter"),
            post(PURGE, json!({}), "ids"),
            post(PURGE, json!({ "ids": "all" }), "ids"),
            post(PURGE, json!({ "selection": {}, "dry_run": true }), "selection"),
        ],
    )
    .await;
    assert_eq!(server.post(REDRIVE, json!({ "ids": [unknown_id] })).await["redriven"], 0);
    server.end().await;
}

async fn changes_of_dead_letters_are_audited(place: &Place) {
    let mut server = place.serve().await;
    bury(place, &server, "orders", "email", &[json!(1), json!(2), json!(3)]).await;
    let all = ids(&all_letters(&server, 10).await);
    let token = place.token("ann", &[Scope::Admin, Scope::Read], &[]).await;
    server.with(&token);
    server.post(REDRIVE, json!({ "ids": [all[0]] })).await;
    server.post(REDRIVE, json!({ "ids": [all[1]], "edit": { "payload": 1 } })).await;
    server.post(PURGE, json!({ "ids": [all[2]] })).await;
    let entries = place.audit().await;
    let acts: Vec<&str> =
        entries.iter().filter(|entry| entry.actor == "token ann").map(|entry| entry.act.as_str()).collect();
    assert_eq!(acts, ["delete_dead_letters", "replace_dead_letter", "redrive"]);
    server.end().await;
}
