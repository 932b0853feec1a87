//! `headwater maintain`, `headwater backfill`.

use serde_json::{Value, json};

use super::*;

fn maintenance(place: &Place) {
    place.out(&["publish", "orders", "x"]);
    let runs = place.json(&["maintain"]);
    let jobs: Vec<&str> = headwater::maintenance::Job::ALL.iter().map(|job| job.as_str()).collect();
    assert_eq!(runs.iter().map(|run| run["job"].as_str().unwrap()).collect::<Vec<_>>(), jobs);
    assert!(runs.iter().all(|run| run["error"].is_null() && run["duration_ms"].is_number()), "{runs:?}");
    let some = place.json(&["maintain", "--only", "tracking,message_cleanup"]);
    assert_eq!(some.len(), 2);
    assert!(place.out(&["maintain", "--only", "heads"]).contains("backlog"));

    let status = place.json(&["maintain", "--status"]);
    let of =
        |job: &str| status.iter().find(|status| status["job"] == job).unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!(of("tracking")["runs"], 2);
    assert_eq!(json!(fields(of("heads"), ["runs", "failures", "last_error"])), json!([2, 0, null]));
    assert!(place.out(&["maintain", "--status"]).contains("last_run_at"));

    assert!(refusal(&place.run(&["maintain", "--only", "sweeping"]), 2).contains("message_cleanup"));
    assert!(
        refusal(&place.run(&["maintain", "--only", "heads", "--watch"]), 2).contains("cannot be used with")
    );
    assert!(refusal(&place.run(&["maintain", "--preset", "huge"]), 2).contains("high_throughput"));

    place.out(&[
        "maintain",
        "--messages-max",
        "100",
        "--subscription-retention",
        "90d",
        "--process-retention",
        "forever",
    ]);
    let refused = |arguments: &[&str]| refusal(&place.run(arguments), 2);
    assert!(refused(&["maintain", "--messages-max", "10001"]).contains("from 1 to 10000"));
    let watch = |every| refused(&["maintain", "--watch", "--every", every]);
    assert!(
        watch("message_cleanup=2h")
            .contains("invalid interval of message_cleanup: 2h must be from 100ms to 1h")
    );
    assert!(watch("sweeping=1m").contains("message_cleanup"));
    assert!(watch("heads").contains("message_cleanup=1m"));
}

/// What an operator of a new store sees first: nothing serves a group, and nothing runs maintenance.
fn attention(place: &Place) {
    place.out(&["topic", "create", "news", "--pub-sub"]);
    place.out(&["publish", "news", "x"]);
    place.out(&["maintain"]);
    let found = place.run(&["doctor", "--output", "json"]);
    assert_eq!(found.status.code(), Some(3), "{found:?}");
    let finding: Value = serde_json::from_slice(&found.stdout).expect("one line");
    assert_eq!(json!(fields(&finding, ["kind", "check"])), json!(["attention", "zero_subscriptions"]));
    let shown = place.one(&["topic", "show", "news"]);
    assert_eq!(json!(fields(&shown, ["counting", "health_issues"])), json!([0, ["zero subscriptions"]]));

    let heartbeats = ["--heartbeat-interval", "100ms", "--heartbeat-timeout", "200ms"];
    place.out(&[&["topic", "alter", "news"], &heartbeats[..]].concat());
    place.out(&["group", "subscribe", "news", "email"]);
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    let checks = || -> Vec<String> {
        let found = place.run(&["doctor", "--output", "json"]);
        let lines = String::from_utf8(found.stdout).expect("text");
        let check = |line| {
            serde_json::from_str::<Value>(line).expect("a line is JSON")["check"].as_str().map(str::to_owned)
        };
        lines.lines().filter_map(check).collect()
    };
    while checks() != ["group_unserved", "group_never_served"] {
        assert!(std::time::Instant::now() < deadline, "{:?}", checks());
    }
    let group = place.one(&["group", "show", "news", "email"]);
    assert_eq!(group["health_issues"], json!(["unserved", "never served"]));
    assert!(place.out(&["consume", "news", "--group", "email", "--wait", "0s"]).contains('x'));
    place.out(&["group", "remove", "news", "email", "--yes"]);
}

/// It runs until a signal, does its work, and shuts down gracefully.
fn watching(place: &Place, signal: &str) {
    place.out(&["publish", "orders", "x"]);
    let maintain = &mut place.command(&["maintain", "--watch", "--preset", "critical"]);
    let mut child = maintain.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("maintenance started"), "{line}");
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while place.json(&["maintain", "--status"]).is_empty() {
        assert!(std::time::Instant::now() < deadline, "no job was run");
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    line.clear();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("stopping"), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn backfills(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub", "--tracking", "reference_counting"]);
    place.out(&["group", "subscribe", "orders", "first"]);
    let many: String = (1..=20).map(|n| format!("{n}\n")).collect();
    text(place.with_input(&["publish", "orders"], &many));
    place.out(&["maintain"]);
    // Small: subscribing runs it at once.
    place.out(&["group", "subscribe", "orders", "late", "--from", "offset:11"]);
    let listed = place.one(&["backfill", "list"]);
    let names = ["topic", "group", "state", "processed", "total"];
    assert_eq!(json!(fields(&listed, names)), json!(["orders", "late", "completed", 10, 10]));
    let record = &place.json(&["group", "records", "orders", "10..11"]);
    assert_eq!(json!([record[0]["required"], record[1]["required"]]), json!([["first"], ["first", "late"]]));

    let on = |verb: &str, rest: &[&str]| place.run(&[&["backfill", verb, "orders", "late"], rest].concat());
    let state = |output: Output| {
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        printed["state"].as_str().unwrap().to_owned()
    };
    assert!(refusal(&on("cancel", &[]), 1).contains("late"), "no backfill to cancel");
    let started = on("start", &["--messages-max", "5", "--rate-max", "1000", "--output", "json"]);
    let started: Value = serde_json::from_str(&text(started)).unwrap();
    let names = ["state", "total", "rate_max", "left_out"];
    assert_eq!(json!(fields(&started, names)), json!(["not_started", 5, 1_000, 5]));
    assert!(refusal(&on("start", &[]), 1).contains("under way"), "one at a time");
    // An active group is left unchanged, its backfill included.
    for rest in [&[][..], &["--backfill"]] {
        let back = place.one(&[&["group", "resurrect", "orders", "late"], rest].concat());
        assert_eq!(back["resurrected"], false);
        assert_eq!(place.json(&["backfill", "list"])[0]["state"], "not_started");
    }
    assert_eq!(state(on("cancel", &["--output", "json"])), "cancelled");
    let watched = on("watch", &["--output", "json"]);
    assert_eq!((watched.status.code(), state(watched)), (Some(1), "cancelled".to_owned()));
    let resumed = state(on("resume", &["--output", "json"]));
    assert!(["not_started", "in_progress"].contains(&resumed.as_str()), "{resumed}");
    assert!(refusal(&on("watch", &["--pace", "aggressive"]), 2).contains("--run"), "--pace needs --run");
    assert!(refusal(&on("watch", &["--run", "--pace", "wild"]), 2).contains("conservative"));
    let watched = on("watch", &["--run", "--pace", "conservative", "--output", "json"]);
    assert!(refusal(&watched, 0).contains("5 of 5, completed"), "{watched:?}");
    assert_eq!(state(watched), "completed");

    let listed = place.run(&["backfill", "list", "--topic", "orders"]);
    assert!(
        refusal(&listed, 0).contains("reached its limit: it covers 5 messages, 5 older ones are left out")
    );
    assert!(text(listed).contains("completed"));
    assert!(refusal(&place.run(&["backfill", "list", "--topic", "nowhere"]), 1).contains("no such topic"));
    assert!(refusal(&place.run(&["backfill", "watch", "orders", "first"]), 1).contains("no backfill"));
    assert!(refusal(&place.run(&["backfill", "start", "orders", "x"]), 1).contains("no such subscription"));
    place.assert_sound();
}

/// In offset_watermark there is no work, so `watch --run` does not wait.
fn no_backfill_to_run(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n"));
    place.out(&["maintain", "--only", "heads"]);
    place.out(&["group", "subscribe", "orders", "late", "--from", "beginning"]);
    let watch = ["backfill", "watch", "orders", "late", "--run", "--output", "json"];
    let watched = place.run(&watch);
    assert!(refusal(&watched, 0).contains("nothing to do"), "{watched:?}");
    assert!(text(watched).contains("\"group\":\"late\""));
    assert_eq!(place.out(&["consume", "orders", "--group", "late", "--wait", "0s"]), "1\n2\n3\n");
    assert_eq!(place.one(&watch[..4])["state"], "completed");
}

#[test]
fn maintenance_on_sqlite() {
    maintenance(&Place::sqlite());
    attention(&Place::sqlite());
    watching(&Place::sqlite(), "-INT");
}

#[test]
fn maintenance_on_postgres() {
    if let Some(place) = Place::postgres("maintenance") {
        place.out(&["topic", "create", "orders"]);
        maintenance(&place);
    }
    if let Some(place) = Place::postgres("attention") {
        attention(&place);
    }
    if let Some(place) = Place::postgres("watching") {
        place.out(&["topic", "create", "orders"]);
        watching(&place, "-TERM");
    }
}

/// A damaged store: the finding has the problem and the remedy.
#[test]
fn doctor_reports_problems_and_their_remedies() {
    let place = Place::sqlite();
    place.out(&["publish", "orders", "x"]);
    place.out(&["consume", "orders", "--group", "default", "--create", "--wait", "0s"]);
    assert!(refusal(&place.run(&["doctor"]), 0).contains("no problems found"));
    let connection = rusqlite::Connection::open(place.folder.path().join("headwater.db")).unwrap();
    connection.execute("UPDATE headwater_cursor SET next_offset = 100", []).unwrap();
    let found = place.run(&["doctor", "--output", "json"]);
    assert_eq!(found.status.code(), Some(1));
    let finding: Value = serde_json::from_slice(&found.stdout).expect("one line");
    assert_eq!(finding["check"], "next_beyond_head");
    assert!(finding["problem"].as_str().unwrap().contains("100"), "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("next_offset"), "{finding}");
    assert!(String::from_utf8_lossy(&place.run(&["doctor"]).stdout).contains("remedy"));
}

#[test]
fn backfills_on_sqlite() {
    backfills(&Place::sqlite());
    no_backfill_to_run(&Place::sqlite());
}

#[test]
fn backfills_on_postgres() {
    if let Some(place) = Place::postgres("backfills") {
        backfills(&place);
    }
    if let Some(place) = Place::postgres("unneeded") {
        no_backfill_to_run(&place);
    }
}
