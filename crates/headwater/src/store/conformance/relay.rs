//! Registered relays.

use super::case::Case;
use crate::error::ErrorKind;
use crate::relays::Relays;

/// A relay is added once per name, listed as it was added, and removed; each change has its audit entry.
pub async fn relays_are_added_listed_and_removed(case: &Case) {
    let store = case.open().await;
    let relays = Relays::new(&store);
    for name in ["b", "a"] {
        relays.add(name, "orders", "kafka://h:9092/${TOPIC}", r#"{"key_order":true}"#).await.expect("added");
    }
    let entry = &store.audit(1).await.expect("read")[0];
    assert_eq!(entry.act, "add_relay");
    assert!(entry.detail.contains("kafka://h:9092/${TOPIC}"), "{}", entry.detail);
    let again = relays.add("a", "other", "nats://h/s", "{}").await.expect_err("it exists");
    assert_eq!(again.kind(), ErrorKind::Conflict);

    let listed = Relays::new(&case.open().await).list().await.expect("read by another process");
    let names: Vec<&str> = listed.iter().map(|relay| relay.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let relay = &listed[0];
    assert_eq!((relay.source.as_str(), relay.target.as_str()), ("orders", "kafka://h:9092/${TOPIC}"));
    assert_eq!((relay.settings.as_str(), relay.created_at), (r#"{"key_order":true}"#, case.now()));

    assert!(relays.remove("a").await.expect("removed"));
    assert!(!relays.remove("a").await.expect("answered"), "there is none");
    assert_eq!(store.audit(1).await.expect("read")[0].act, "remove_relay");
    assert_eq!(relays.list().await.expect("read").len(), 1);
}

/// What is no name, no JSON object or too long is refused, and nothing is written.
pub async fn relays_outside_their_rules_are_refused(case: &Case) {
    let relays = Relays::new(&case.open().await);
    let long = format!("kafka://{}", "h".repeat(2_048));
    let cases = [
        ("", "orders", "nats://h/s", "{}"),
        ("a", "", "nats://h/s", "{}"),
        ("a", "orders", "", "{}"),
        ("a", "orders", long.as_str(), "{}"),
        ("a", "orders", "nats://h\0/s", "{}"),
        ("a", "orders", "nats://h/s", "[]"),
        ("a", "orders", "nats://h/s", "{"),
    ];
    for (name, source, target, settings) in cases {
        let error = relays.add(name, source, target, settings).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name} {source} {target} {settings}");
    }
    assert_eq!(relays.list().await.expect("read"), []);
}
