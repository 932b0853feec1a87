//! The outbox as the source.

use headwater::outbox::{NewEntry, OutboxStatus};
use headwater_relay::{RelayState, SinkError};

use super::*;

on_both!(
    entries_are_sent_and_marked,
    a_failed_entry_is_retried_and_holds_back_its_key,
    a_refused_entry_is_parked_at_once_with_its_reason,
    an_entry_without_an_attempt_left_is_parked,
    a_sink_that_is_down_costs_no_entry_an_attempt,
    a_new_entry_is_sent_at_once,
    two_relays_share_the_entries,
);

async fn insert(place: &Place, entries: &[(usize, &str)]) -> Vec<i64> {
    let mut ids = Vec::new();
    for (n, key) in entries {
        let entry =
            NewEntry::kafka_event("orders", *key, "OrderCreated", n.to_string()).header("correlationId", "c");
        ids.push(place.headwater.outbox().insert_returning_id(&entry).await.unwrap());
    }
    ids
}

async fn statuses(place: &Place, ids: &[i64]) -> Vec<OutboxStatus> {
    let mut statuses = Vec::new();
    for id in ids {
        statuses.push(place.headwater.outbox().show(*id).await.unwrap().unwrap().status);
    }
    statuses
}

async fn until_published(place: &Place, ids: &[i64]) {
    let all = async || statuses(place, ids).await.iter().all(|status| *status == OutboxStatus::Published);
    until("all are published", all).await;
}

async fn entries_are_sent_and_marked(place: Place) {
    let sink = TestSink::new();
    let keyed: Vec<(usize, String)> = (0..120).map(|n| (n, format!("k{}", n % 6))).collect();
    let keyed: Vec<(usize, &str)> = keyed.iter().map(|(n, key)| (*n, key.as_str())).collect();
    let ids = insert(&place, &keyed).await;
    let running = place.relay(Source::Outbox, sink.clone(), quick()).await;
    until_published(&place, &ids).await;
    for key in 0..6 {
        let expected: Vec<String> = (0..120).filter(|n| n % 6 == key).map(|n| n.to_string()).collect();
        assert_eq!(sink.payloads_of(&format!("k{key}")), expected);
    }
    let record = &sink.delivered()[0];
    assert_eq!(
        (record.message_id.as_str(), record.destination.as_str()),
        (&*format!("outbox-{}", ids[0]), "orders")
    );
    assert_eq!(
        (record.message_type.as_deref(), record.correlation_id.as_deref()),
        (Some("OrderCreated"), Some("c"))
    );
    assert_eq!(running.health().delivered, 120);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_failed_entry_is_retried_and_holds_back_its_key(place: Place) {
    let sink = TestSink::new();
    sink.fail("1", 3);
    let ids = insert(&place, &[(1, "a"), (2, "a"), (3, "b")]).await;
    let running = place.relay(Source::Outbox, sink.clone(), quick()).await;
    until_published(&place, &ids).await;
    assert_eq!(sink.payloads(), ["3", "1", "2"]);
    let entry = place.headwater.outbox().show(ids[0]).await.unwrap().unwrap();
    assert_eq!((entry.attempts, entry.last_error.as_deref()), (3, Some("no room for 1")));
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_refused_entry_is_parked_at_once_with_its_reason(place: Place) {
    let sink = TestSink::new();
    sink.refuse("1");
    let ids = insert(&place, &[(1, "a"), (2, "a")]).await;
    let running = place.relay(Source::Outbox, sink.clone(), quick()).await;
    until_published(&place, &ids[1..]).await;
    assert_eq!(statuses(&place, &ids).await, [OutboxStatus::Parked, OutboxStatus::Published]);
    let parked = place
        .headwater
        .dead_letters()
        .list(10, headwater::store::AnyDeadLetterSelection::of_outbox)
        .await
        .unwrap();
    assert_eq!(parked.len(), 1);
    let entry = place.headwater.outbox().show(ids[0]).await.unwrap().unwrap();
    assert_eq!((entry.attempts, entry.last_error.as_deref()), (1, Some("1 is not accepted here")));
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn an_entry_without_an_attempt_left_is_parked(place: Place) {
    let sink = TestSink::new();
    sink.fail("1", u32::MAX);
    let ids = insert(&place, &[(1, "a"), (2, "a")]).await;
    let settings = RelaySettings { max_attempts: Some(3), ..quick() };
    let running = place.relay(Source::Outbox, sink.clone(), settings).await;
    until_published(&place, &ids[1..]).await;
    assert_eq!(statuses(&place, &ids).await[0], OutboxStatus::Parked);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_sink_that_is_down_costs_no_entry_an_attempt(place: Place) {
    let sink = TestSink::new();
    sink.go_down(SinkError::Unavailable("connection refused".into()));
    let ids = insert(&place, &[(1, "a"), (2, "a"), (3, "b")]).await;
    let settings = RelaySettings { max_attempts: Some(1), ..quick() };
    let running = place.relay(Source::Outbox, sink.clone(), settings).await;
    until("the breaker opens", async || running.health().state == RelayState::Waiting).await;
    let entry = place.headwater.outbox().show(ids[0]).await.unwrap().unwrap();
    assert_eq!((entry.attempts, entry.last_error.as_deref()), (0, Some("connection refused")));
    sink.come_up();
    until_published(&place, &ids).await;
    assert_eq!(sink.payloads_of("a"), ["1", "2"]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_new_entry_is_sent_at_once(place: Place) {
    let sink = TestSink::new();
    let running = place.relay(Source::Outbox, sink.clone(), quick()).await;
    let mut times: Vec<Duration> = Vec::new();
    // Three times before the next sweep, which comes within a second; a machine under load gets more tries.
    while times.iter().filter(|time| **time < Duration::from_millis(500)).count() < 3 {
        assert!(times.len() < 20, "only with the next sweep: {times:?}");
        // Idle by now: it waits for a wake-up.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (n, started) = (times.len(), Instant::now());
        insert(&place, &[(n, "a")]).await;
        sink.until_delivered(n + 1).await;
        times.push(started.elapsed());
    }
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn two_relays_share_the_entries(place: Place) {
    let (sink, other) = (TestSink::new(), Headwater::open(&place.url).await.unwrap());
    let keyed: Vec<(usize, String)> = (0..100).map(|n| (n, format!("k{}", n % 4))).collect();
    let keyed: Vec<(usize, &str)> = keyed.iter().map(|(n, key)| (*n, key.as_str())).collect();
    let first = place.relay(Source::Outbox, sink.clone(), quick()).await;
    let second = Relay::new(&other, Source::Outbox, sink.clone()).settings(quick()).run().await.unwrap();
    let ids = insert(&place, &keyed).await;
    until_published(&place, &ids).await;
    for key in 0..4 {
        let expected: Vec<String> = (0..100).filter(|n| n % 4 == key).map(|n| n.to_string()).collect();
        assert_eq!(sink.payloads_of(&format!("k{key}")), expected, "each once, in order");
    }
    first.shutdown(GRACE).await.unwrap();
    second.shutdown(GRACE).await.unwrap();
    other.close().await.unwrap();
    place.end().await;
}
