//! `headwater topic`: every setting, presets, changes of a topic in use, and a tracking change with its progress.

use serde_json::{Value, json};

use super::*;

const DAY_MS: u64 = 24 * 3_600 * 1_000;

fn settings(place: &Place) {
    place.out(&["topic", "create", "payments", "--preset", "critical", "--message-retention", "14d"]);
    let shown = place.one(&["topic", "show", "payments"]);
    let names =
        ["semantics", "message_retention_ms", "max_retention_ms", "block_writes_on_zero_subscriptions"];
    assert_eq!(json!(fields(&shown, names)), json!(["pub_sub", 14 * DAY_MS, 30 * DAY_MS, true]));
    assert_eq!(json!(fields(&shown, ["head", "first", "watermark", "retained"])), json!([0, 1, 0, 0]));
    assert_eq!(json!(fields(&shown, ["subscriptions", "scheduled", "gaps"])), json!([0, 0, 0]));
    assert_eq!(shown["tracking_change"], Value::Null);

    // With max_retention, forever is limited, and a note states it.
    let capped = place.run(&["topic", "alter", "payments", "--message-retention", "forever"]);
    assert!(refusal(&capped, 0).contains("until max_retention, 30d"), "{capped:?}");
    // Only the given settings change.
    place.out(&["topic", "alter", "payments", "--message-retention", "forever", "--max-retention", "none"]);
    place.out(&["topic", "alter", "payments", "--block-writes-on-zero-subscriptions=false", "--ack-log"]);
    let altered = place.one(&["topic", "show", "payments"]);
    assert_eq!(json!(fields(&altered, names)), json!(["pub_sub", null, null, false]));
    assert_eq!(altered["ack_log"], true);
    assert_eq!(fields(&altered, ["lease_ms", "lanes"]), fields(&shown, ["lease_ms", "lanes"]));
    let table = place.out(&["topic", "show", "payments"]);
    let line =
        |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
    assert!(line("message_retention ").ends_with("  forever") && line("max_retention ").ends_with("  none"));
    assert!(line("zero_subscription_retention ").ends_with("  7d") && line("lease ").ends_with("  5m"));

    // Equal after rounding to milliseconds, so creating it again succeeds.
    for _ in 0..2 {
        place.out(&["topic", "create", "brief", "--lease", "1500us"]);
    }

    // Publishing fails with the reason, and does nothing.
    place.out(&["topic", "create", "audited", "--preset", "audit"]);
    let blocked = refusal(&place.run(&["publish", "audited", "x"]), 1);
    assert!(blocked.contains("no subscriptions") && blocked.contains("audited"), "{blocked}");
    place.out(&["group", "subscribe", "audited", "reader"]);
    assert_eq!(place.out(&["publish", "audited", "x"]), "audited 1\n");
}

fn every_flag(place: &Place) {
    let flags = "--semantics pub_sub --tracking reference_counting --message-retention 2h --max-retention 3d \
                 --zero-subscription-retention 4h --block-writes-on-zero-subscriptions --zombie-subscription-ttl 5d \
                 --lease 6s --max-attempts 7 --backoff-initial 8ms --backoff-max 9s --ordering key --lanes 10 \
                 --storage dedicated --partition rows:1100 --payload-bytes-max 1200 --dedup-window 13s \
                 --heartbeat-interval 14s --heartbeat-timeout 150s --ack-log --gap-patience 16ms";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    place.out(&[&["topic", "create", "all"], &flags[..]].concat());
    let shown = place.one(&["topic", "show", "all"]);
    let expected = json!({
        "semantics": "pub_sub", "tracking": "reference_counting", "message_retention_ms": 7_200_000,
        "max_retention_ms": 3 * DAY_MS, "zero_subscription_retention_ms": 14_400_000,
        "block_writes_on_zero_subscriptions": true, "zombie_subscription_ttl_ms": 5 * DAY_MS, "lease_ms": 6_000,
        "max_attempts": 7, "backoff_initial_ms": 8, "backoff_max_ms": 9_000, "ordering": "key", "lanes": 10,
        "storage": "dedicated by rows:1100", "payload_bytes_max": 1200, "dedup_window_ms": 13_000,
        "heartbeat_interval_ms": 14_000, "heartbeat_timeout_ms": 150_000, "ack_log": true, "gap_patience_ms": 16,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}");
    }
    // Each can be changed; this topic has no messages, so storage too.
    place.out(&["topic", "alter", "all", "--storage", "shared", "--ordering", "none", "--lease", "0s"]);
    let shown = place.one(&["topic", "show", "all"]);
    assert_eq!(json!(fields(&shown, ["storage", "ordering", "lease_ms"])), json!(["shared", "none", 0]));
    assert_eq!(shown["tracking"], "reference_counting");
    let listed = place.json(&["topic", "list"]);
    assert_eq!(listed.iter().filter(|topic| topic["topic"] == "all").count(), 1);
    assert!(place.out(&["topic", "list", "--wide"]).contains("reference_counting"));
}

fn mistakes(place: &Place) {
    place.out(&["topic", "create", "orders"]);
    let usage = |args: &[&str], text: &str| {
        let stderr = refusal(&place.run(args), 2);
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    };
    usage(&["topic", "create", "x", "--preset", "important"], "critical");
    usage(&["topic", "create", "x", "--message-retention", "long"], "forever");
    usage(&["topic", "create", "x", "--lease=-5s"], "negative");
    for negative in [
        "topic create x --lease -5s",
        "topic alter orders --max-attempts -1",
        "consume orders --group x --wait -1s",
    ] {
        let args: Vec<&str> = negative.split(' ').collect();
        usage(&args, "must not be negative");
        usage(&args, args[args.len() - 2]);
    }
    usage(&["publish", "orders", "x", "--delay", "-3s"], "must not be negative");
    usage(&["topic", "create", "x", "--lanes", "70000"], "1..=256");
    usage(
        &["consume", "orders", "--group", "x", "--from", "time:noon"],
        "; write it like 2026-01-31T12:00:00Z",
    );
    usage(&["consume", "orders", "--group", "x", "--from", "offset:0"], "offsets begin at 1");
    usage(&["group", "seek", "orders", "x", "--to", "offset:-1", "--yes"], "offsets begin at 1");
    usage(&["backfill", "start", "orders", "x", "--rate-max", "0"], "--rate-max");
    usage(&["topic", "create", "x", "--storage", "shared", "--partition", "day"], "--storage dedicated");
    usage(&["topic", "create", "x", "--partition", "week"], "rows:N");
    usage(&["topic", "create", "x", "--pub-sub", "--semantics", "queue"], "cannot be used with");
    usage(&["topic", "alter", "orders"], "name a setting");
    usage(&["topic", "alter", "orders", "--tracking", "guessing"], "reference_counting");
    let refused = |args: &[&str], text: &str| {
        let stderr = refusal(&place.run(args), 1);
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    };
    usage(&["topic", "create", "x", "--block-writes-on-zero-subscriptions"], "a queue never blocks");
    usage(&["topic", "create", "x", "--heartbeat-timeout", "61s"], "twice heartbeat_interval");
    usage(&["topic", "alter", "orders", "--max-attempts", "0"], "max_attempts");
    usage(
        &["topic", "create", "x", "--pub-sub", "--message-retention", "31d"],
        "longer than max_retention, 30d",
    );
    usage(&["topic", "create", "x", "--backoff-initial", "10m"], "longer than backoff_max");
    refused(&["topic", "alter", "nowhere", "--lanes", "2"], "no such topic: nowhere");
    refused(&["topic", "show", "nowhere"], "no such topic: nowhere");
    // None of this changed anything.
    assert_eq!(place.json(&["topic", "list"]).len(), 1);
    assert_eq!(place.one(&["topic", "show", "orders"])["max_attempts"], 10);
}

/// To completion records and back, while a group is half way.
fn tracking(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub"]);
    place.out(&["group", "subscribe", "events", "mail"]);
    let many: String = (1..=40).map(|n| format!("{n}\n")).collect();
    text(place.with_input(&["publish", "events"], &many));
    place.out(&["consume", "events", "--group", "mail", "--max", "15"]);
    let none = place.run(&["group", "records", "events", "1..3", "--output", "json"]);
    assert!(none.stdout.is_empty() && refusal(&none, 0).contains("offset_watermark"));

    let waited = place.run(&["topic", "alter", "events", "--tracking", "reference_counting", "--wait"]);
    assert!(refusal(&waited, 0).contains("40 of 40, done"), "{waited:?}");
    let shown = place.one(&["topic", "show", "events"]);
    assert_eq!(json!(fields(&shown, ["tracking", "tracking_change"])), json!(["reference_counting", null]));
    let records = place.json(&["group", "records", "events", "15..16"]);
    let names = ["offset", "status", "required", "completed", "waiting_for"];
    assert_eq!(json!(fields(&records[0], names)), json!([15, "completed", ["mail"], ["mail"], []]));
    assert_eq!(json!(fields(&records[1], names)), json!([16, "pending", ["mail"], [], ["mail"]]));
    assert!(place.out(&["group", "records", "events", "16"]).contains("pending"));
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));

    place.out(&["topic", "alter", "events", "--tracking", "offset_watermark", "--wait"]);
    assert_eq!(place.json(&["group", "records", "events", "1..40"]).len(), 0);
    assert_eq!(place.one(&["topic", "show", "events"])["tracking_change"], Value::Null);
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
    // Waiting without a change under way succeeds.
    place.out(&["topic", "alter", "events", "--wait"]);
    assert!(refusal(&place.run(&["group", "records", "events", "9..3"]), 2).contains("upwards"));
}

/// A topic made by a typo is deleted, a full one is emptied; each is shown first and needs a confirmation.
fn removal(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    place.out(&["group", "subscribe", "orders", "email"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n"));
    place.out(&["publish", "orders", "x", "--delay", "1h"]);
    let names = ["dry_run", "messages", "scheduled", "groups", "served", "leases", "dead_letters"];
    for act in ["purge", "delete"] {
        let refused = refusal(&place.run(&["topic", act, "orders"]), 2);
        assert!(refused.contains("nothing was changed") && refused.contains(act), "{refused}");
        let would = place.one(&["topic", act, "orders", "--dry-run"]);
        assert_eq!(json!(fields(&would, names)), json!([true, 3, 1, 1, 0, 0, 0]), "{act}");
    }
    let purged = place.one(&["topic", "purge", "orders", "--yes"]);
    assert_eq!(json!(fields(&purged, names)), json!([false, 3, 1, 1, 0, 0, 0]));
    assert_eq!(place.out(&["consume", "orders", "--group", "email", "--wait", "0s"]), "");
    assert_eq!(place.one(&["group", "list", "orders"])["missed"], 0);
    assert_eq!(place.out(&["publish", "orders", "4"]), "orders 4\n", "offsets continue");

    place.program(async |headwater| {
        let running = headwater
            .consumer("orders", "email")
            .member("idle", |_: headwater::Message, _| async { Ok(()) })
            .run()
            .await
            .unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while place.one(&["topic", "delete", "orders", "--dry-run"])["served"] == 0 {
            assert!(std::time::Instant::now() < deadline, "the group is never served");
        }
        let served = refusal(&place.run(&["topic", "delete", "orders", "--yes"]), 1);
        assert!(served.contains("group email by 1 process") && served.contains("--force"), "{served}");
        let deleted = place.one(&["topic", "delete", "orders", "--force", "--yes"]);
        assert_eq!(json!(fields(&deleted, ["dry_run", "served"])), json!([false, 1]));
        running.shutdown(Duration::from_secs(5)).await.unwrap();
    });
    assert_eq!(place.json(&["topic", "list"]).len(), 0);
    let gone = refusal(&place.run(&["topic", "delete", "orders", "--yes"]), 1);
    assert!(gone.contains("no such topic: orders"), "{gone}");
    let acts: Vec<_> = place.json(&["audit"]).iter().map(|entry| entry["act"].clone()).collect();
    assert_eq!(json!(acts), json!(["delete_topic", "purge_topic"]));
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
}

#[test]
fn topics_are_removed_on_sqlite() {
    removal(&Place::sqlite());
}

#[test]
fn topics_are_removed_on_postgres() {
    if let Some(place) = Place::postgres("topic_removal") {
        removal(&place);
    }
}

#[test]
fn topics_on_sqlite() {
    settings(&Place::sqlite());
    every_flag(&Place::sqlite());
    mistakes(&Place::sqlite());
}

#[test]
fn topics_on_postgres() {
    for (name, case) in [("settings", settings as fn(&Place)), ("flags", every_flag), ("mistakes", mistakes)]
    {
        if let Some(place) = Place::postgres(name) {
            case(&place);
        }
    }
}

#[test]
fn tracking_on_sqlite() {
    tracking(&Place::sqlite());
}

#[test]
fn tracking_on_postgres() {
    if let Some(place) = Place::postgres("tracking") {
        tracking(&place);
    }
}

/// An option of one call applies to that call: for plain SQL and other programs the store's setting decides whether topics
/// are created.
#[test]
fn only_its_own_command_changes_whether_topics_are_created() {
    let place = Place::sqlite();
    let sql = |topic: &str| {
        let connection = rusqlite::Connection::open(place.folder.path().join("headwater.db")).unwrap();
        connection.execute("INSERT INTO headwater_publish (topic, payload) VALUES (?1, 'x')", [topic]).is_ok()
    };
    place.out(&["publish", "orders", "x", "--dedup-key", "made here"]);
    let refused = refusal(&place.run(&["publish", "nowhere", "x", "--no-create"]), 1);
    assert!(refused.contains("no such topic: nowhere"), "{refused}");
    assert!(sql("by-sql"), "plain SQL still creates topics");
    assert_eq!(place.out(&["publish", "by-hand", "x"]), "by-hand 1\n");

    place.out(&["topic", "auto-create", "off"]);
    assert!(!sql("tpyo"));
    let refused = refusal(&place.run(&["publish", "tpyo", "x"]), 1);
    assert!(refused.contains("no such topic: tpyo"), "{refused}");
    assert_eq!(place.out(&["publish", "orders", "x"]), "orders 2\n");
    assert!(!sql("tpyo"), "publishing did not switch it on");
    assert_eq!(place.one(&["audit"])["act"], "set_auto_create");
    place.out(&["topic", "auto-create", "on"]);
    assert!(sql("again"));
    assert!(refusal(&place.run(&["topic", "auto-create", "maybe"]), 2).contains("maybe"));
}

#[test]
fn postgres_keeps_no_such_setting_and_says_so() {
    let Some(place) = Place::postgres("auto_create") else { return };
    assert_eq!(place.out(&["publish", "orders", "x"]), "orders 1\n");
    let refused = refusal(&place.run(&["publish", "nowhere", "x", "--no-create"]), 1);
    assert!(refused.contains("no such topic: nowhere"), "{refused}");
    assert_eq!(place.out(&["publish", "nowhere", "x"]), "nowhere 1\n");
    let refused = refusal(&place.run(&["topic", "auto-create", "off"]), 2);
    assert!(refused.contains("set it when opening the store"), "{refused}");
}
