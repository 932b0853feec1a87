//! A sink that is down: its relay waits, loses no attempt, and slows no other.

use headwater_relay::{Delivery, RelayState, SinkError};

use super::*;

on_both!(
    a_sink_that_is_down_costs_no_attempt_and_slows_no_other_relay,
    a_shutdown_while_the_sink_is_down_counts_no_attempt,
    a_sink_that_fails_in_the_middle_of_a_load_repeats_it,
    an_outage_in_the_middle_of_a_call_costs_no_attempt_and_repeats_nothing_confirmed,
    a_sink_that_does_not_answer_is_unavailable,
    a_relay_that_is_dropped_counts_no_attempt,
);

fn away() -> SinkError {
    SinkError::Unavailable("connection refused".into())
}

/// One attempt only: an attempt that was counted would make a dead letter.
fn one_attempt() -> RelaySettings {
    RelaySettings { max_attempts: Some(1), ..quick() }
}

async fn a_sink_that_is_down_costs_no_attempt_and_slows_no_other_relay(place: Place) {
    let (down, well) = (TestSink::new(), TestSink::new());
    down.go_down(away());
    let waiting = place.orders(&down, one_attempt()).await;
    let other = place.relay(Source::Topic("payments".into()), well.clone(), quick()).await;
    let keyed: Vec<(usize, String)> = (0..300).map(|n| (n, format!("k{}", n % 20))).collect();
    let keyed: Vec<(usize, &str)> = keyed.iter().map(|(n, key)| (*n, key.as_str())).collect();
    place.publish("orders", &keyed).await;
    until("the breaker opens", async || waiting.health().state == RelayState::Waiting).await;
    let (error, _) = waiting.health().outage.unwrap();
    assert_eq!(error, away());

    place.publish("payments", &keyed).await;
    well.until_delivered(300).await;
    assert_eq!(other.health().state, RelayState::Running);
    assert_eq!((waiting.health().delivered, waiting.health().failed), (0, 0));
    assert!(place.lag("orders", "relay-test").await > 0);

    down.come_up();
    down.until_delivered(300).await;
    until("the breaker closes", async || waiting.health().state == RelayState::Running).await;
    until("all is done", async || place.lag("orders", "relay-test").await == 0).await;
    assert_eq!(place.dead_letters().await, [""; 0], "no attempt was counted");
    assert_eq!(waiting.health().failed, 0);
    for key in 0..20 {
        let expected: Vec<String> = (0..300).filter(|n| n % 20 == key).map(|n| n.to_string()).collect();
        assert_eq!(down.payloads_of(&format!("k{key}")), expected);
    }
    waiting.shutdown(GRACE).await.unwrap();
    other.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_shutdown_while_the_sink_is_down_counts_no_attempt(place: Place) {
    let sink = TestSink::new();
    sink.go_down(SinkError::Misconfigured("wrong password".into()));
    place.publish("orders", &[(1, "a"), (2, "a"), (3, "b")]).await;
    for _ in 0..3 {
        let waiting = place.orders(&sink, one_attempt()).await;
        until("the breaker opens", async || waiting.health().state == RelayState::Waiting).await;
        let started = Instant::now();
        waiting.shutdown(Duration::from_secs(60)).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "there is nothing to wait for");
    }
    sink.come_up();
    let running = place.orders(&sink, one_attempt()).await;
    sink.until_delivered(3).await;
    assert_eq!(
        (sink.payloads_of("a"), sink.payloads_of("b")),
        (vec!["1".into(), "2".into()], vec!["3".to_owned()])
    );
    assert_eq!(place.dead_letters().await, [""; 0]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_sink_that_fails_in_the_middle_of_a_load_repeats_it(place: Place) {
    let sink = TestSink::new();
    let running = place.orders(&sink, one_attempt()).await;
    let keys = ["a", "b", "c"];
    for round in 0..10 {
        let keyed: Vec<(usize, &str)> = (0..30).map(|n| (round * 30 + n, keys[n % 3])).collect();
        place.publish("orders", &keyed).await;
        sink.until_delivered(round * 30 + 5).await;
        sink.go_down(away());
        tokio::time::sleep(Duration::from_millis(5)).await;
        sink.come_up();
    }
    sink.until_delivered(300).await;
    for (at, key) in keys.iter().enumerate() {
        let expected: Vec<String> = (0..300).filter(|n| n % 3 == at).map(|n| n.to_string()).collect();
        assert_eq!(sink.payloads_of(key), expected);
    }
    assert_eq!(place.dead_letters().await, [""; 0]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn an_outage_in_the_middle_of_a_call_costs_no_attempt_and_repeats_nothing_confirmed(place: Place) {
    let sink = TestSink::keeping_order();
    for payload in ["3", "7", "8"] {
        sink.fail_as(payload, 1, Delivery::Unconfirmed { reason: "connection reset".into() });
    }
    let keyed: Vec<(usize, &str)> = (0..12).map(|n| (n, ["a", "b", "c"][n % 3])).collect();
    place.headwater.topic("orders").create_if_missing().await.unwrap();
    place.publish("orders", &keyed).await;
    let running = place.orders(&sink, one_attempt()).await;
    sink.until_delivered(12).await;
    until("all is done", async || place.lag("orders", "relay-test").await == 0).await;
    for (at, key) in ["a", "b", "c"].iter().enumerate() {
        let expected: Vec<String> = (0..12).filter(|n| n % 3 == at).map(|n| n.to_string()).collect();
        assert_eq!(sink.payloads_of(key), expected, "in order, and each once");
    }
    assert_eq!(place.dead_letters().await, [""; 0], "no attempt was counted");
    assert_eq!((running.health().delivered, running.health().failed), (12, 0));
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_sink_that_does_not_answer_is_unavailable(place: Place) {
    struct Silent;
    #[async_trait::async_trait]
    impl Sink for Silent {
        fn kind(&self) -> &'static str {
            "silent"
        }
        async fn deliver(
            &self,
            _: &[headwater_relay::Record],
        ) -> Result<Vec<headwater_relay::Delivery>, SinkError> {
            std::future::pending().await
        }
        async fn check(&self) -> Result<(), SinkError> {
            std::future::pending().await
        }
    }
    let settings = RelaySettings { timeout: Duration::from_millis(50), ..one_attempt() };
    let running = place.relay(Source::Topic("orders".into()), Arc::new(Silent), settings).await;
    place.publish("orders", &[(1, "a")]).await;
    until("the breaker opens", async || running.health().state == RelayState::Waiting).await;
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

async fn a_relay_that_is_dropped_counts_no_attempt(place: Place) {
    let sink = TestSink::new();
    sink.go_down(away());
    place.publish("orders", &[(1, "a"), (2, "b")]).await;
    let dropped = place.orders(&sink, one_attempt()).await;
    until("the breaker opens", async || dropped.health().state == RelayState::Waiting).await;
    drop(dropped);
    sink.come_up();
    let running = place.orders(&sink, one_attempt()).await;
    sink.until_delivered(2).await;
    assert_eq!(place.dead_letters().await, [""; 0]);
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}

/// A sink whose probe panics is unavailable, and its relay survives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_panics_ends_no_relay() {
    struct Broken(std::sync::atomic::AtomicUsize);
    #[async_trait::async_trait]
    impl Sink for Broken {
        fn kind(&self) -> &'static str {
            "broken"
        }
        async fn deliver(
            &self,
            records: &[headwater_relay::Record],
        ) -> Result<Vec<headwater_relay::Delivery>, SinkError> {
            match self.0.load(std::sync::atomic::Ordering::Relaxed) {
                0 => Err(away()),
                _ => Ok(vec![headwater_relay::Delivery::Delivered; records.len()]),
            }
        }
        async fn check(&self) -> Result<(), SinkError> {
            let before = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(before > 0, "as the test asked");
            Ok(())
        }
    }
    let place = Place::sqlite().await.unwrap();
    let sink = Arc::new(Broken(std::sync::atomic::AtomicUsize::new(0)));
    let running = place.relay(Source::Topic("orders".into()), sink, one_attempt()).await;
    place.publish("orders", &[(1, "a")]).await;
    until("it is delivered", async || running.health().delivered == 1).await;
    running.shutdown(GRACE).await.unwrap();
    place.end().await;
}
