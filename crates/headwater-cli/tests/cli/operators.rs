//! What operators do with groups: subscribe, pause, move, remove, and what is refused.

use serde_json::{Value, json};

use super::*;

fn publish(place: &Place, topic: &str, count: usize) {
    let lines: String = (1..=count).map(|n| format!("{n}\n")).collect();
    text(place.with_input(&["publish", topic], &lines));
}

fn states(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    publish(place, "orders", 5);
    let subscribed = place.one(&["group", "subscribe", "orders", "mail", "--from", "bounded:3"]);
    assert_eq!(json!(fields(&subscribed, ["state", "created", "next"])), json!(["active", true, 3]));
    let again = place.one(&["group", "subscribe", "orders", "mail", "--from", "now"]);
    assert_eq!(json!(fields(&again, ["created", "next"])), json!([false, 3]), "it keeps its cursor");

    let consume = ["consume", "orders", "--group", "mail", "--wait", "0s"];
    assert_eq!(place.one(&["group", "pause", "orders", "mail"])["state"], "paused");
    assert_eq!(place.out(&consume), "", "a pause stops hand-outs");
    assert_eq!(place.one(&["group", "list", "orders"])["state"], "paused");
    assert_eq!(place.one(&["group", "resume", "orders", "mail"])["state"], "active");
    assert_eq!(place.out(&consume), "3\n4\n5\n");

    place.out(&["group", "pause", "orders", "mail", "--reason", "mail server is down"]);
    let reason = || place.one(&["group", "show", "orders", "mail"])["state_reason"].clone();
    assert_eq!(reason(), "mail server is down");
    place.out(&["group", "resume", "orders", "mail"]);
    assert_eq!(reason(), json!(null));

    publish(place, "orders", 2);
    let cancel = |rest: &[&'static str]| [&["group", "cancel", "orders", "mail"], rest].concat();
    // There is no terminal to confirm on, so nothing happens; a dry run shows what would be lost.
    assert!(refusal(&place.run(&cancel(&[])), 2).contains("nothing was changed"));
    let would = place.one(&cancel(&["--dry-run"]));
    let names = ["dry_run", "state", "lag", "leases", "in_flight", "dead_letters"];
    assert_eq!(json!(fields(&would, names)), json!([true, "active", 2, 0, 0, 0]));
    assert_eq!(place.out(&consume), "1\n2\n", "nothing was changed");
    assert_eq!(place.one(&cancel(&["--yes"]))["state"], "cancelled");
    assert!(refusal(&place.run(&["group", "resume", "orders", "mail"]), 1).contains("is cancelled"));
    let refused = refusal(&place.run(&["group", "pause", "orders", "unknown"]), 1);
    assert!(refused.contains("no such subscription") && refused.contains("unknown"), "{refused}");
    let unknown = refusal(&place.run(&["group", "subscribe", "nowhere", "mail"]), 1);
    assert!(unknown.contains("no such topic: nowhere"), "{unknown}");
    assert!(
        refusal(&place.run(&["group", "subscribe", "orders", "x", "--from", "noon"]), 2)
            .contains("bounded:N")
    );
}

fn groups_of_their_own(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub", "--tracking", "reference_counting"]);
    place.out(&["group", "subscribe", "orders", "first"]);
    publish(place, "orders", 5);
    place.out(&["maintain", "--only", "heads,tracking"]);
    let subscribe = |rest: &[&str]| place.one(&[&["group", "subscribe", "orders"], rest].concat());
    let own = ["shipping", "--ordered", "--lanes", "32", "--max-attempts", "4", "--heartbeat-timeout", "10m"];
    let created = subscribe(&[&own[..], &["--backfill", "bounded:2", "--backfill-rate-max", "9"]].concat());
    assert_eq!(json!(fields(&created, ["created", "lanes"])), json!([true, 32]));
    let again = subscribe(&["shipping", "--unordered", "--max-attempts", "7"]);
    assert_eq!(json!(fields(&again, ["created", "lanes"])), json!([false, 32]), "it keeps its order");
    let policy = place.one(&["group", "policy", "orders", "shipping"]);
    let names = ["lease_ms", "max_attempts", "heartbeat_interval_ms", "heartbeat_timeout_ms"];
    assert_eq!(json!(fields(&policy, names)), json!([null, 4, null, 600_000]), "and its policy");
    let shown = place.one(&["group", "show", "orders", "shipping"]);
    assert_eq!(json!(fields(&shown, ["lanes", "heartbeat_timeout_ms"])), json!([32, 600_000]));
    let backfill = place.one(&["backfill", "list"]);
    assert_eq!(json!(fields(&backfill, ["total", "rate_max"])), json!([2, 9]));
    subscribe(&["silent", "--backfill", "none"]);
    assert_eq!(place.json(&["backfill", "list"]).len(), 1, "no backfill of the third group");
    for wrong in
        [&["x", "--lanes", "3"][..], &["x", "--ordered", "--unordered"], &["x", "--backfill", "some"]]
    {
        refusal(&place.run(&[&["group", "subscribe", "orders"], wrong].concat()), 2);
    }
    let refused = refusal(&place.run(&["group", "subscribe", "orders", "x", "--max-attempts", "0"]), 2);
    assert!(refused.contains("max_attempts: must be from 1 to 1000"), "{refused}");
}

fn removal(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub", "--tracking", "reference_counting"]);
    for group in ["idle", "busy"] {
        place.out(&["group", "subscribe", "orders", group]);
    }
    publish(place, "orders", 5);
    place.out(&["maintain"]);
    place.program(async |headwater| {
        let mut busy = headwater.consumer("orders", "busy").batch(2).open().await.unwrap();
        busy.next(Duration::ZERO).await.unwrap().unwrap();
    });
    assert!(refusal(&place.run(&["group", "remove", "orders", "busy"]), 2).contains("group remove"));
    let would = place.one(&["group", "remove", "orders", "busy", "--dry-run"]);
    let names = ["dry_run", "state", "lag", "leases", "in_flight", "dead_letters"];
    assert_eq!(json!(fields(&would, names)), json!([true, "active", 5, 1, 2, 0]));
    assert_eq!(place.one(&["group", "show", "orders", "busy"])["state"], "active");
    let removed = place.one(&["group", "remove", "orders", "idle", "--yes"]);
    assert_eq!(json!(fields(&removed, ["state", "in_flight_lost"])), json!(["removed", 0]));
    let removed = place.one(&["group", "remove", "orders", "busy", "--wait", "0s", "--yes"]);
    assert_eq!(removed["in_flight_lost"], 2, "its messages in flight did not finish");
    assert_eq!(place.json(&["group", "list", "orders"]).len(), 0);
    let gone = refusal(&place.run(&["group", "remove", "orders", "busy", "--yes"]), 1);
    assert!(gone.contains("no such subscription"), "{gone}");
    place.assert_sound();
}

fn seeking(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    publish(place, "orders", 10);
    let consume = ["consume", "orders", "--group", "mail", "--create", "--wait", "0s"];
    assert_eq!(place.out(&consume).lines().count(), 10);
    let seek = |rest: &[&'static str]| [&["group", "seek", "orders", "mail", "--to"], rest].concat();

    let would = place.one(&seek(&["beginning", "--dry-run"]));
    let names = ["dry_run", "from", "to", "replayed", "skipped", "leases_lost"];
    assert_eq!(json!(fields(&would, names)), json!([true, 11, 1, 10, 0, 0]));
    // There is no terminal to confirm on, so nothing happens.
    let refused = refusal(&place.run(&seek(&["beginning"])), 2);
    assert!(
        refused.contains("--yes") && refused.contains("--dry-run") && refused.contains("nothing was changed")
    );
    assert_eq!(place.out(&consume), "");

    let moved = place.one(&seek(&["offset:8", "--yes"]));
    assert_eq!(json!(fields(&moved, names)), json!([false, 11, 8, 3, 0, 0]));
    assert_eq!(place.out(&consume), "8\n9\n10\n");
    place.out(&seek(&["bounded:2", "--yes"]));
    assert_eq!(place.one(&seek(&["now", "--yes"]))["skipped"], 2);
    assert_eq!(place.out(&consume), "");
    place.out(&seek(&["time:2020-01-01T00:00:00Z", "--yes"]));
    assert_eq!(place.out(&consume).lines().count(), 10);
    assert!(refusal(&place.run(&seek(&["now", "--yes", "--dry-run"])), 2).contains("cannot be used with"));
    assert!(refusal(&place.run(&seek(&["sometime", "--yes"])), 2).contains("offset:N"));
    let unknown = ["group", "seek", "orders", "unknown", "--to", "now", "--yes"];
    assert!(refusal(&place.run(&unknown), 1).contains("no such subscription"));

    let acts = place.json(&["audit"]);
    let seeks: Vec<&Value> = acts.iter().filter(|entry| entry["act"] == "seek").collect();
    assert_eq!(seeks.len(), 4, "a dry run leaves no entry: {acts:?}");
    assert_eq!(json!(fields(seeks[0], ["topic", "group"])), json!(["orders", "mail"]));
    assert!(seeks[0]["actor"].as_str().unwrap().starts_with("cli "), "{:?}", seeks[0]);
    assert!(seeks[0]["detail"].is_object() && seeks[0]["at"].is_string());
    assert!(place.out(&["audit", "--max", "1"]).contains("seek"));
    assert_eq!(place.json(&["audit", "--max", "2"]).len(), 2);
}

fn policies_and_leases(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub", "--lease", "1h"]);
    place.out(&["group", "subscribe", "orders", "mail"]);
    let policy = |rest: &[&str]| place.one(&[&["group", "policy", "orders", "mail"], rest].concat());
    let names = ["lease_ms", "max_attempts", "backoff_initial_ms", "backoff_max_ms"];
    assert_eq!(json!(fields(&policy(&[]), names)), json!([null, null, null, null]));
    let own = policy(&["--lease", "2h", "--max-attempts", "3"]);
    assert_eq!(json!(fields(&own, names)), json!([7_200_000, 3, null, null]));
    let back = policy(&["--lease", "topic", "--backoff-max", "1m"]);
    assert_eq!(json!(fields(&back, names)), json!([null, 3, null, 60_000]));
    let names = ["lease_ms", "max_attempts", "backoff_initial_ms", "backoff_max_ms"];
    assert_eq!(json!(fields(&back["effective"], names)), json!([3_600_000, 3, 1_000, 60_000]));
    let table = place.out(&["group", "policy", "orders", "mail"]);
    assert!(table.contains("1h (the topic's)"), "{table}");
    let many = ["group", "policy", "orders", "mail", "--max-attempts", "many"];
    assert!(refusal(&place.run(&many), 2).contains("is not a number; or topic"));
    assert!(refusal(&place.run(&["group", "policy", "orders", "x"]), 1).contains("no such subscription"));

    publish(place, "orders", 1);
    place.program(async |headwater| {
        let mut mail = headwater.consumer("orders", "mail").open().await.unwrap();
        mail.next(Duration::ZERO).await.unwrap().unwrap();
    });
    let shown = place.one(&["group", "show", "orders", "mail"]);
    let token = shown["outstanding"][0]["token"].to_string();
    assert_eq!(
        place.out(&["consume", "orders", "--group", "mail", "--wait", "0s"]),
        "",
        "another owner holds the lease"
    );
    let released = place.one(&["group", "release-lease", &token]);
    assert_eq!(json!([released["token"].to_string(), released["released"]]), json!([token, true]));
    assert_eq!(place.out(&["consume", "orders", "--group", "mail", "--wait", "0s"]), "1\n");
    assert!(refusal(&place.run(&["group", "release-lease", &token]), 1).contains("lease lost"));
    assert!(refusal(&place.run(&["group", "release-lease", "x"]), 2).contains("invalid value"));
}

fn questions(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub", "--ack-log"]);
    publish(place, "orders", 4);
    place.out(&["consume", "orders", "--group", "mail", "--create", "--batch", "3", "--max", "3"]);
    let acks = place.json(&["group", "acks", "orders", "2"]);
    assert_eq!(json!(fields(&acks[0], ["group", "first", "last"])), json!(["mail", 1, 3]));
    assert!(acks.len() == 1 && acks[0]["owner"].is_string() && acks[0]["at"].is_string(), "{acks:?}");
    assert_eq!(place.json(&["group", "acks", "orders", "4"]).len(), 0);
    assert!(refusal(&place.run(&["group", "acks", "orders", "0"]), 2).contains("invalid value"));
    place.out(&["topic", "create", "silent"]);
    assert!(refusal(&place.run(&["group", "acks", "silent", "1"]), 0).contains("--ack-log"));

    let stuck = place.one(&["group", "stuck", "orders", "--older-than", "0s"]);
    assert_eq!(json!(fields(&stuck, ["group", "messages"])), json!(["mail", 1]));
    assert!(stuck["oldest"].is_string());
    assert_eq!(place.json(&["group", "stuck", "orders"]).len(), 0, "none is an hour old");
    assert!(refusal(&place.run(&["group", "stuck", "nowhere"]), 1).contains("no such topic"));
}

type Case = (&'static str, fn(&Place));

const CASES: [Case; 6] = [
    ("states", states),
    ("groups_of_their_own", groups_of_their_own),
    ("removal", removal),
    ("seeking", seeking),
    ("policies", policies_and_leases),
    ("questions", questions),
];

#[test]
fn operators_on_sqlite() {
    for (_, case) in CASES {
        case(&Place::sqlite());
    }
}

#[test]
fn operators_on_postgres() {
    for (name, case) in CASES {
        if let Some(place) = Place::postgres(name) {
            case(&place);
        }
    }
}
