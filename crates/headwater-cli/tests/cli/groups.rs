//! `headwater group`: how far groups are, and what they hold or wait for.

use serde_json::{Value, json};

use super::*;

/// Of three messages one waits for a retry, one is held, and one was never handed out.
fn groups(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub"]);
    place.with_input(&["publish", "events"], "1\n2\n3\n");
    place.program(async |headwater| {
        let mail = headwater.consumer("events", "mail").batch(1).owner(Owner::new("worker-1").unwrap());
        let mut mail = mail.open().await.unwrap();
        let failed = mail.next(Duration::ZERO).await.unwrap().unwrap();
        let away = |_, _| async {
            Verdict::RetryAfter(Duration::from_secs(3600), "mail server away\nand more".into())
        };
        failed.handle(away).await.unwrap();
        mail.next(Duration::ZERO).await.unwrap().unwrap();
        headwater.consumer("events", "audit").open().await.unwrap();
    });
    let lines = |args: &[&str]| {
        let printed = place.out(&[args, &["--output", "json"]].concat());
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let nothing = json!({ "group": "audit", "next": 1, "floor": 0, "lag": 3, "leased": 0, "waiting": 0,
        "dead_letters": 0, "reassigned": 0 });
    let some = json!({ "group": "mail", "next": 3, "floor": 0, "lag": 3, "leased": 1, "waiting": 1,
        "dead_letters": 0, "reassigned": 0 });
    assert_eq!(lines(&["group", "list", "events"]), [nothing, some]);
    assert!(place.out(&["group", "list", "events"]).contains("reassigned"));

    let shown = lines(&["group", "show", "events", "mail"]);
    assert_eq!(shown.len(), 2);
    let (held, waits) = (&shown[0], &shown[1]);
    assert_eq!((&held["first"], &held["last"], &held["state"]), (&json!(2), &json!(2), &json!("leased")));
    assert_eq!((&held["owner"], &held["attempts"]), (&json!("worker-1"), &json!(1)));
    assert_eq!(
        (&waits["first"], &waits["state"], &waits["owner"]),
        (&json!(1), &json!("waiting"), &Value::Null)
    );
    assert_eq!(waits["last_error"], "mail server away\nand more");
    assert!(held["due_at"].as_str() < waits["due_at"].as_str(), "{shown:?}");
    assert_eq!(lines(&["group", "show", "events", "mail", "--max", "1"]).len(), 1);
    assert_eq!(lines(&["group", "show", "events", "audit"]).len(), 0);
    let table = place.out(&["group", "show", "events", "mail"]);
    assert!(table.contains("worker-1") && table.contains("mail server away"), "{table}");
    assert!(!table.contains("and more"), "one line each: {table}");

    let nobody = refusal(&place.run(&["group", "show", "events", "nobody"]), 1);
    assert!(nobody.contains("no such subscription") && nobody.contains("nobody"), "{nobody}");
    assert!(refusal(&place.run(&["group", "list", "nowhere"]), 1).contains("no such topic: nowhere"));
}

#[test]
fn groups_on_sqlite() {
    groups(&Place::sqlite());
}

#[test]
fn groups_on_postgres() {
    if let Some(place) = Place::postgres("groups") {
        groups(&place);
    }
}
