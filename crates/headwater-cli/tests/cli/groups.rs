//! `headwater group`: progress of groups, and their outstanding ranges.

use serde_json::json;

use super::*;

/// Of three messages one waits for a retry, one is leased, and one was never handed out.
fn groups(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub"]);
    place.with_input(&["publish", "events"], "1\n2\n3\n");
    place.program(async |headwater| {
        let mail = headwater.consumer("events", "mail").batch(1).owner(Owner::new("worker-1").unwrap());
        let mut mail = mail.open().await.unwrap();
        let failed = mail.next(Duration::ZERO).await.unwrap().unwrap();
        let retry = |_, _| async {
            Verdict::RetryAfter(Duration::from_secs(3600), "mail server down\nand more".into())
        };
        failed.handle(retry).await.unwrap();
        mail.next(Duration::ZERO).await.unwrap().unwrap();
        headwater.consumer("events", "audit").open().await.unwrap();
    });
    let listed = place.json(&["group", "list", "events"]);
    let names = ["group", "state", "next", "floor", "lag", "leased", "waiting", "in_flight", "retrying"];
    assert_eq!(listed.len(), 2);
    assert_eq!(
        json!(fields(&listed[0], names)),
        json!(["audit", "active", 1, 0, 3, 0, 0, 0, 0]),
        "{listed:?}"
    );
    assert_eq!(
        json!(fields(&listed[1], names)),
        json!(["mail", "active", 3, 0, 3, 1, 1, 1, 1]),
        "{listed:?}"
    );
    let rest = ["dead_letters", "reassigned", "missed", "missed_first", "missed_last", "health_issues"];
    assert_eq!(json!(fields(&listed[1], rest)), json!([0, 0, 0, null, null, []]));
    for measured in
        ["processed", "failed", "filtered", "rate", "handling_mean_ms", "handling_p95_ms", "behind_ms"]
    {
        assert!(listed[1][measured].is_number(), "{measured}: {}", listed[1]);
    }
    let table = place.out(&["group", "list", "events", "--wide"]);
    assert!(table.contains("healthy") && table.contains("retrying") && table.contains("p95"), "{table}");

    let shown = place.one(&["group", "show", "events", "mail"]);
    assert_eq!(json!(fields(&shown, ["group", "floor", "lag"])), json!(["mail", 0, 3]));
    let ranges = shown["outstanding"].as_array().unwrap();
    assert_eq!(ranges.len(), 2);
    let (held, waits) = (&ranges[0], &ranges[1]);
    let of_range = ["first", "last", "state", "owner", "attempts"];
    assert_eq!(json!(fields(held, of_range)), json!([2, 2, "leased", "worker-1", 1]));
    assert_eq!(json!(fields(waits, of_range)), json!([1, 1, "waiting", null, 1]));
    assert!(held["token"].is_i64() && waits["token"].is_null(), "{ranges:?}");
    assert_eq!(waits["last_error"], "mail server down\nand more");
    assert!(held["due_at"].as_str() < waits["due_at"].as_str(), "{ranges:?}");
    let outstanding = |args: &[&str]| place.one(args)["outstanding"].as_array().unwrap().len();
    assert_eq!(outstanding(&["group", "show", "events", "mail", "--max", "1"]), 1);
    assert_eq!(outstanding(&["group", "show", "events", "audit"]), 0);
    let table = place.out(&["group", "show", "events", "mail"]);
    assert!(table.contains("worker-1") && table.contains("mail server down"), "{table}");
    assert!(!table.contains("and more"), "one line each: {table}");
    let timeout = table.lines().find(|line| line.starts_with("heartbeat_timeout")).unwrap();
    assert!(timeout.ends_with("  5m"), "durations are for people: {table}");
    let labelled = |label: &str| table.lines().filter(|line| line.starts_with(label)).count();
    assert_eq!((labelled("lag "), labelled("behind ")), (1, 1), "{table}");

    let unknown = refusal(&place.run(&["group", "show", "events", "unknown"]), 1);
    assert!(unknown.contains("no such subscription") && unknown.contains("unknown"), "{unknown}");
    assert!(refusal(&place.run(&["group", "list", "nowhere"]), 1).contains("no such topic: nowhere"));
}

/// Groups of all topics, each with its topic.
fn of_all_topics(place: &Place) {
    place.out(&["topic", "create", "apart"]);
    place.out(&["group", "subscribe", "apart", "only"]);
    let all = place.json(&["group", "list"]);
    let all: Vec<_> = all.iter().map(|group| json!(fields(group, ["topic", "group"]))).collect();
    assert_eq!(json!(all), json!([["apart", "only"], ["events", "audit"], ["events", "mail"]]));
    let table = place.out(&["group", "list"]);
    assert!(table.contains("topic") && table.contains("apart"), "{table}");
    assert!(!place.out(&["group", "list", "apart"]).contains("topic"));
    let stuck = place.json(&["group", "stuck", "--older-than", "0s"]);
    let stuck: Vec<_> =
        stuck.iter().map(|group| json!(fields(group, ["topic", "group", "messages"]))).collect();
    assert_eq!(json!(stuck), json!([["events", "audit", 3], ["events", "mail", 3]]));

    // A cancelled group has no health.
    place.out(&["group", "cancel", "apart", "only", "--yes"]);
    let cancelled = place.one(&["group", "list", "apart"]);
    assert_eq!(json!(fields(&cancelled, ["state", "healthy"])), json!(["cancelled", null]));
}

#[test]
fn groups_on_sqlite() {
    let place = Place::sqlite();
    groups(&place);
    of_all_topics(&place);
}

#[test]
fn groups_on_postgres() {
    if let Some(place) = Place::postgres("groups") {
        groups(&place);
        of_all_topics(&place);
    }
}
