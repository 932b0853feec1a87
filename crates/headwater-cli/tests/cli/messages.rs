//! `headwater message`: one message, shown and acted on.

use serde_json::{Value, json};

use super::*;

/// How long a test waits for something that has to happen.
const DEADLINE: Duration = Duration::from_secs(60);

fn one_message(place: &Place) {
    for n in 1..=4 {
        place.out(&["publish", "orders", &format!("{{\"n\":{n}}}"), "--key", "k", "--header", "h=v"]);
    }
    place.program(async |headwater| {
        let mut consumer = headwater.consumer("orders", "email").batch(2).open().await.unwrap();
        let batch = consumer.next(DEADLINE).await.unwrap().unwrap();
        let later = Duration::from_secs(3_600);
        batch.handle(|_, _| async move { Verdict::RetryAfter(later, "not now".into()) }).await.unwrap();
        consumer.next(DEADLINE).await.unwrap().expect("two more are leased");
    });
    let states =
        |offset: &str| place.one(&["message", "show", "orders", offset])["groups"][0]["state"].clone();
    let shown = place.one(&["message", "show", "orders", "1"]);
    assert_eq!(json!(fields(&shown, ["offset", "key", "headers"])), json!([1, "k", {"h": "v"}]));
    assert_eq!(shown["payload"]["n"], 1);
    let group = &shown["groups"][0];
    assert_eq!(
        json!(fields(group, ["group", "state", "attempts", "last_error"])),
        json!(["email", "waiting", 1, "not now"])
    );
    let table = place.out(&["message", "show", "orders", "1", "--group", "email"]);
    assert!(table.contains("payload") && table.contains("waiting"), "{table}");

    let act = |act: &str, offset: &str, rest: &[&str]| {
        place.run(
            &[&["message", act, "orders", offset, "--group", "email", "--output", "json"], rest].concat(),
        )
    };
    let done = |output: Output| -> Value { serde_json::from_str(&text(output)).unwrap() };
    assert_eq!(done(act("skip", "1", &[]))["state"], "done");
    assert_eq!(done(act("retry", "2", &[]))["state"], "waiting");
    assert_eq!(states("2"), "waiting");
    let leased = refusal(&act("bury", "3", &["--reason", "unknown"]), 1);
    assert!(leased.contains("is leased") && leased.contains("nothing was changed"), "{leased}");
    assert_eq!(done(act("bury", "3", &["--reason", "unknown", "--force"]))["state"], "buried");
    assert_eq!(place.one(&["dead-letter", "list"])["error"], "unknown");
    let again = refusal(&act("skip", "1", &[]), 1);
    assert!(again.contains("is done"), "{again}");
    let missing = refusal(&act("skip", "9", &[]), 2);
    assert!(missing.contains("no message is stored at offset 9 of topic orders"), "{missing}");
    assert!(refusal(&place.run(&["message", "show", "orders", "0"]), 2).contains('0'));
    let rest = place.out(&["consume", "orders", "--group", "email", "--wait", "0s"]);
    assert_eq!(rest.lines().count(), 2, "2, which is retried now, and 4: {rest}");
    let acts: Vec<_> = place.json(&["audit"]).iter().map(|entry| entry["act"].clone()).collect();
    assert_eq!(json!(acts), json!(["bury_message", "retry_message", "skip_message"]));
    assert_eq!(place.run(&["doctor"]).status.code(), Some(0));
}

#[test]
fn one_message_on_sqlite() {
    one_message(&Place::sqlite());
}

#[test]
fn one_message_on_postgres() {
    if let Some(place) = Place::postgres("one_message") {
        one_message(&place);
    }
}
