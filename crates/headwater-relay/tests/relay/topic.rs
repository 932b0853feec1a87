//! A topic as the source.

use headwater::consumer::GroupOrder;
use headwater_relay::Delivery;

use super::*;

on_both!(
    every_message_is_delivered_although_some_fail,
    a_failed_message_holds_back_its_key_and_no_other,
    a_sink_that_keeps_order_gets_one_call_and_the_same_order,
    a_refused_message_becomes_a_dead_letter_at_once,
    a_message_that_always_fails_ends_and_its_key_continues,
    without_key_order_nothing_is_held_back,
    a_wait_that_the_sink_asks_for_is_kept,
    a_panic_of_the_sink_is_a_failed_attempt,
    a_group_without_order_is_refused,
    two_relays_of_one_group_share_the_messages_in_order,
    a_record_has_all_of_its_message,
);

async fn every_message_is_delivered_although_some_fail(place: Place) {
    let sink = TestSink::new();
    let keyed: Vec<(usize, String)> = (0..600).map(|n| (n, format!("k{}", n % 50))).collect();
    let keyed: Vec<(usize, &str)> = keyed.iter().map(|(n, key)| (*n, key.as_str())).collect();
    keyed.iter().filter(|(n, _)| n % 7 == 0).for_each(|(n, _)| sink.fail(&n.to_string(), 1 + *n as u32 % 3));
    let running = place.orders(&sink, quick()).await;
    for part in keyed.chunks(100) {
        place.publish("orders", part).await;
    }
    sink.until_delivered(600).await;
    until("all is done", async || place.lag("orders", "relay-test").await == 0).await;
    for key in 0..50 {
        let expected: Vec<String> = (0..600).filter(|n| n % 50 == key).map(|n| n.to_string()).collect();
        assert_eq!(sink.payloads_of(&format!("k{key}")), expected, "each once, in order");
    }
    let health = running.health();
    assert_eq!(
        (health.delivered, health.refused, health.state),
        (600, 0, headwater_relay::RelayState::Running)
    );
    assert!(health.failed >= 86, "{}", health.failed);
    assert!(health.last_error.is_some_and(|error| error.starts_with("no room for ")));
    assert_eq!(place.dead_letters().await, [""; 0]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn held_back(place: Place, sink: Arc<TestSink>) -> Vec<usize> {
    // All of them in one batch, before the relay starts.
    place.publish("orders", &[(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b"), (6, "a"), (7, "c")]).await;
    sink.fail("3", 3);
    let running = place.orders(&sink, quick()).await;
    sink.until_delivered(7).await;
    assert_eq!(sink.payloads_of("a"), ["1", "3", "4", "6"]);
    assert_eq!(sink.payloads_of("b"), ["2", "5"]);
    let all = sink.payloads();
    let at = |payload: &str| all.iter().position(|one| one == payload).unwrap();
    assert!(at("5") < at("3") && at("7") < at("3"), "other keys do not wait: {all:?}");
    assert_eq!(place.dead_letters().await, [""; 0]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
    sink.calls()
}

async fn a_failed_message_holds_back_its_key_and_no_other(place: Place) {
    let calls = held_back(place, TestSink::new()).await;
    assert!(calls.iter().all(|records| *records <= 3), "one record of each key per call: {calls:?}");
}

async fn a_sink_that_keeps_order_gets_one_call_and_the_same_order(place: Place) {
    let calls = held_back(place, TestSink::keeping_order()).await;
    assert!(calls.len() <= 10, "{calls:?}");
}

async fn a_refused_message_becomes_a_dead_letter_at_once(place: Place) {
    let sink = TestSink::new();
    sink.refuse("2");
    place.publish("orders", &[(1, "a"), (2, "a"), (3, "a")]).await;
    let running = place.orders(&sink, quick()).await;
    sink.until_delivered(2).await;
    assert_eq!(sink.payloads(), ["1", "3"]);
    until("it is a dead letter", async || !place.dead_letters().await.is_empty()).await;
    assert_eq!(place.dead_letters().await, ["2 is not accepted here"]);
    assert_eq!(running.health().refused, 1);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_message_that_always_fails_ends_and_its_key_continues(place: Place) {
    for sink in [TestSink::new(), TestSink::keeping_order()] {
        place.publish("orders", &[(1, "a"), (2, "a"), (3, "a"), (4, "b")]).await;
        sink.fail("1", u32::MAX);
        let running = place.orders(&sink, RelaySettings { max_attempts: Some(2), ..quick() }).await;
        sink.until_delivered(3).await;
        assert_eq!(
            sink.payloads_of("a"),
            ["2", "3"],
            "never sent before it is their turn, and not given up with it"
        );
        until("it is a dead letter", async || place.dead_letters().await.len() == 1).await;
        let purged =
            place.headwater.dead_letters().of("orders", "relay-test").purge(|all| all).await.unwrap();
        assert_eq!(purged, 1);
        running.shutdown(GRACE).await.unwrap();
    }
    place.end().await;
}

async fn without_key_order_nothing_is_held_back(place: Place) {
    let sink = TestSink::new();
    sink.fail("1", 3);
    place.publish("orders", &[(1, "a"), (2, "a"), (3, "a")]).await;
    let running = place.orders(&sink, RelaySettings { key_order: false, ..quick() }).await;
    sink.until_delivered(3).await;
    assert_eq!(sink.payloads(), ["2", "3", "1"]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_wait_that_the_sink_asks_for_is_kept(place: Place) {
    let sink = TestSink::new();
    let wait = Duration::from_millis(700);
    sink.fail_as("1", 1, Delivery::Failed { reason: "later".into(), retry_after: Some(wait) });
    let running = place.orders(&sink, quick()).await;
    let started = Instant::now();
    place.publish("orders", &[(1, "a")]).await;
    sink.until_delivered(1).await;
    assert!(started.elapsed() >= wait, "{:?}", started.elapsed());
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_panic_of_the_sink_is_a_failed_attempt(place: Place) {
    let sink = TestSink::new();
    sink.panic_once();
    let running = place.orders(&sink, quick()).await;
    place.publish("orders", &[(1, "a")]).await;
    sink.until_delivered(1).await;
    assert_eq!(running.health().failed, 1);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_group_without_order_is_refused(place: Place) {
    let consumer = place.headwater.consumer("orders", "relay-test").order(GroupOrder::Unordered);
    consumer.open().await.unwrap().close().await.unwrap();
    let relay = Relay::new(&place.headwater, Source::Topic("orders".into()), TestSink::new());
    let error = relay.run().await.unwrap_err();
    assert!(error.to_string().contains("is not ordered by key"), "{error}");
    place.end().await;
}

async fn two_relays_of_one_group_share_the_messages_in_order(place: Place) {
    let (sink, other) = (TestSink::new(), Headwater::open(&place.url).await.unwrap());
    let first = place.orders(&sink, quick()).await;
    let second = Relay::new(&other, Source::Topic("orders".into()), sink.clone())
        .settings(quick())
        .run()
        .await
        .unwrap();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for part in 0..20 {
        let keyed: Vec<(usize, &str)> = (0..40).map(|n| (part * 40 + n, keys[n % 8])).collect();
        keyed.iter().filter(|(n, _)| n % 11 == 0).for_each(|(n, _)| sink.fail(&n.to_string(), 1));
        place.publish("orders", &keyed).await;
    }
    sink.until_delivered(800).await;
    for (at, key) in keys.iter().enumerate() {
        let expected: Vec<String> = (0..800).filter(|n| n % 8 == at).map(|n| n.to_string()).collect();
        assert_eq!(sink.payloads_of(key), expected);
    }
    first.shutdown(GRACE).await.unwrap();
    second.shutdown(GRACE).await.unwrap();
    other.close().await.unwrap();
    place.end().await;
}

async fn a_record_has_all_of_its_message(place: Place) {
    let sink = TestSink::new();
    let running = place.orders(&sink, quick()).await;
    let id = uuid::Uuid::now_v7();
    let message = NewMessage::new(vec![0, 159, 146, 150])
        .key("größe")
        .message_type("OrderCreated")
        .content_type("application/x-bytes")
        .correlation_id("c-1")
        .header("a", "b");
    place.headwater.producer("orders").send_batch(&[message.message_id(id)]).await.unwrap();
    sink.until_delivered(1).await;
    let record = sink.delivered().remove(0);
    assert_eq!((record.message_id, record.destination.as_str()), (id.to_string(), "orders"));
    assert_eq!(
        (record.key.as_deref(), record.message_type.as_deref()),
        (Some("größe"), Some("OrderCreated"))
    );
    assert_eq!(record.content_type.as_deref(), Some("application/x-bytes"));
    assert_eq!(record.correlation_id.as_deref(), Some("c-1"));
    assert_eq!((record.headers["a"].as_str(), &record.payload[..]), ("b", &[0, 159, 146, 150][..]));
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}
