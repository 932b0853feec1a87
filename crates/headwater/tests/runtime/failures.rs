//! Failures are visible: each is logged with the identity of its message, counted, and kept for `health()`, whatever kind
//! of handler the message has. Time is moved by hand; nothing runs except by a step.

use std::time::Duration;

use headwater::consumer::ConsumerBuilder;
use headwater::testing::{ManualClock, Stepper};
use headwater::trace::{self, TraceContext};
use headwater::{Bury, ErrorKind, Handling, Headwater, Message, Messages, NewMessage, Skip};

use crate::each::{Place, Seen, on_each};
use crate::logs::{capture, lines_of};

on_each!(
    a_retry_and_a_burial_are_logged_with_their_identity,
    a_panic_and_a_timeout_are_warnings_that_name_the_message,
    a_batch_is_reported_by_message,
    a_handler_in_a_transaction_is_reported_like_any_other,
    a_message_buried_for_lost_leases_is_reported_by_the_claim,
    refused_publishes_are_logged_now_and_then_by_kind,
);

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A store whose time stands still, and a topic of its own: the log is shared by all cases.
async fn stage(place: &Place, case: &str, max_attempts: u32) -> (Headwater, ManualClock, String) {
    capture();
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let topic = format!("{case}-{}", headwater.store().engine());
    headwater.topic(&topic).max_attempts(max_attempts).lease(Duration::from_secs(60)).create().await.unwrap();
    (headwater, clock, topic)
}

/// Steps until nothing is left, an hour at a time.
async fn finish(stepper: &mut Stepper, clock: &ManualClock, rounds: u32) {
    for _ in 0..rounds {
        stepper.drain().await.unwrap();
        clock.advance(Duration::from_secs(3_600));
    }
}

fn with(lines: &[String], parts: &[&str]) -> usize {
    lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

async fn a_retry_and_a_burial_are_logged_with_their_identity(place: Place) {
    let (headwater, clock, topic) = stage(&place, "reported", 4).await;
    let published = headwater.producer(&topic).send(NewMessage::new("bad")).await.unwrap();
    let failing = |_: Message, _| async { Err("no stock".into()) };
    let mut stepper = headwater.consumer(&topic, "email").member("mailer", failing).stepwise().await.unwrap();
    finish(&mut stepper, &clock, 4).await;
    let lines = lines_of(&topic);
    let id = format!("message_id={}", published.message_id);
    let identity = ["group=\"email\"", "member=\"mailer\"", "offset=1", &id, "error=\"no stock\""];
    for (level, attempt, text) in [
        ("DEBUG", 1, "will be retried"),
        ("DEBUG", 2, "will be retried"),
        ("INFO", 3, "one attempt is left"),
        ("WARN", 4, "message buried"),
    ] {
        let attempt = format!("attempt={attempt} ");
        assert_eq!(with(&lines, &[level, &attempt, text]), 1, "{level} {attempt}: {lines:#?}");
        assert_eq!(with(&lines, &[&[level, &attempt, text], &identity[..]].concat()), 1, "{lines:#?}");
    }
    let errors = stepper.running().health().last_errors;
    let codes: Vec<&str> = errors.iter().map(|error| &*error.code).collect();
    assert_eq!(codes, ["buried", "retried", "retried", "retried"]);
    assert_eq!(errors[0].message, "no stock");
    let context = format!(
        "topic {topic}, group email, member mailer, offset 1, message {}, attempt 4",
        published.message_id
    );
    assert_eq!(errors[0].context, context);
    place.leave(&headwater).await;
}

async fn a_panic_and_a_timeout_are_warnings_that_name_the_message(place: Place) {
    let (headwater, _, topic) = stage(&place, "broken", 1).await;
    for payload in ["panics", "hangs"] {
        headwater.producer(&topic).send(NewMessage::new(payload)).await.unwrap();
    }
    let mut stepper = headwater
        .consumer(&topic, "email")
        .member("mailer", |message: Message, _| async move {
            assert!(message.payload != "panics", "on purpose");
            std::future::pending().await
        })
        .timeout(Duration::from_millis(20))
        .stepwise()
        .await
        .unwrap();
    stepper.drain().await.unwrap();
    let lines = lines_of(&topic);
    for (offset, text) in
        [("offset=1 ", "handler panicked topic="), ("offset=2 ", "handler timed out topic=")]
    {
        let line = ["WARN", text, offset, "member=\"mailer\"", "message_id=", "attempt=1 "];
        assert_eq!(with(&lines, &line), 1, "{lines:#?}");
        assert_eq!(with(&lines, &["WARN", "message buried", offset]), 1, "{lines:#?}");
    }
    let health = stepper.running().health();
    assert_eq!((health.totals.panicked, health.totals.timed_out, health.totals.buried), (1, 1, 2));
    assert_eq!(health.last_errors.len(), 2, "each failed message once: {:?}", health.last_errors);
    place.leave(&headwater).await;
}

async fn a_batch_is_reported_by_message(place: Place) {
    let (headwater, clock, topic) = stage(&place, "batched", 2).await;
    let messages: Vec<_> = (0..3).map(|n| NewMessage::json(&n).unwrap()).collect();
    headwater.producer(&topic).send_batch(&messages).await.unwrap();
    let handle = Handling::batch(|messages: Messages, context: headwater::Context| async move {
        assert!(context.attempt() == 1 || messages.len() > 3, "on purpose");
        let mut verdicts = headwater::Verdicts::new();
        verdicts.failed(messages[0].offset, "again");
        verdicts.failed(messages[1].offset, Bury("never"));
        verdicts.failed(messages[2].offset, Skip);
        Ok(verdicts)
    });
    let mut stepper = headwater.consumer(&topic, "email").handling("all", handle).stepwise().await.unwrap();
    finish(&mut stepper, &clock, 2).await;
    let lines = lines_of(&topic);
    assert_eq!(with(&lines, &["INFO", "one attempt is left", "offset=1 ", "member=\"all\"", "again"]), 1);
    assert_eq!(
        with(&lines, &["WARN", "message buried", "offset=2 ", "attempt=1 ", "never"]),
        1,
        "{lines:#?}"
    );
    assert_eq!(
        with(&lines, &["WARN", "handler panicked topic=", "offset=1 ", "attempt=2 "]),
        1,
        "{lines:#?}"
    );
    assert_eq!(with(&lines, &["WARN", "message buried", "offset=1 ", "on purpose"]), 1, "{lines:#?}");
    assert_eq!(with(&lines, &["offset=3 "]), 0, "nothing failed: {lines:#?}");
    let totals = stepper.running().health().totals;
    assert_eq!((totals.acked, totals.skipped, totals.retried, totals.buried), (1, 1, 1, 2));
    place.leave(&headwater).await;
}

/// A member in a transaction of the store's database: it fails for `bad`, and records the trace it runs in.
fn in_transaction(consumer: ConsumerBuilder, engine: &str, seen: &Seen<Option<String>>) -> ConsumerBuilder {
    let seen = seen.clone();
    let handle = move |message: &Message| {
        seen.add(trace::current().map(|context| context.trace_id()));
        if message.payload == "bad" { Err("no stock".into()) } else { Ok(()) }
    };
    let handling = if engine == "sqlite" {
        Handling::in_sqlite(move |_, message: Message, _| handle(&message))
    } else {
        Handling::in_postgres(move |_, message: Message, _| {
            let handle = handle.clone();
            async move { handle(&message) }
        })
    };
    consumer.handling("ledger", handling)
}

async fn a_handler_in_a_transaction_is_reported_like_any_other(place: Place) {
    let (headwater, clock, topic) = stage(&place, "exact", 2).await;
    let parent: TraceContext = PARENT.parse().unwrap();
    trace::within(parent.clone(), async {
        for payload in ["bad", "good"] {
            headwater.producer(&topic).send(NewMessage::new(payload)).await.unwrap();
        }
    })
    .await;
    let (seen, engine) = (Seen::default(), headwater.store().engine());
    let consumer = in_transaction(headwater.consumer(&topic, "email"), engine, &seen);
    let mut stepper = consumer.stepwise().await.unwrap();
    finish(&mut stepper, &clock, 2).await;
    let lines = lines_of(&topic);
    let identity = ["offset=1 ", "member=\"ledger\"", "message_id=", "error=\"no stock\""];
    let retried = [&["INFO", "one attempt is left", "attempt=1 "], &identity[..]].concat();
    assert_eq!(with(&lines, &retried), 1, "{lines:#?}");
    let buried = [&["WARN", "message buried", "attempt=2 "], &identity[..]].concat();
    assert_eq!(with(&lines, &buried), 1, "{lines:#?}");
    let health = stepper.running().health();
    let totals = health.totals;
    assert_eq!((totals.acked, totals.retried, totals.buried), (1, 1, 1));
    assert_eq!(health.times.handle.unwrap().count, 3, "each call is timed");
    let codes: Vec<&str> = health.last_errors.iter().map(|error| &*error.code).collect();
    assert_eq!(codes, ["buried", "retried"]);
    assert_eq!(seen.all(), vec![Some(parent.trace_id()); 3], "each call is in its message's trace");
    place.leave(&headwater).await;
}

async fn a_message_buried_for_lost_leases_is_reported_by_the_claim(place: Place) {
    use headwater::store::{ClaimRequest, Owner, Want};

    let (headwater, clock, topic) = stage(&place, "crashing", 1).await;
    headwater.producer(&topic).send(NewMessage::new("crashes its process")).await.unwrap();
    let noop = |_: Message, _| async { Ok(()) };
    let mut stepper = headwater.consumer(&topic, "email").member("mailer", noop).stepwise().await.unwrap();
    let want = Want::new(stepper.running().subscription().subscription_id, 1);
    let owner = Owner::new("crashed").unwrap();
    let lost = headwater.store().claim(&ClaimRequest { owner, wants: vec![want] }).await.unwrap();
    assert_eq!(lost.leases.len(), 1);
    clock.advance(Duration::from_secs(61));
    stepper.drain().await.unwrap();
    let lines = lines_of(&topic);
    let buried = ["WARN", "message buried, every attempt ended with a lost lease", "offset=1 ", "attempt=1 "];
    assert_eq!(with(&lines, &buried), 1, "{lines:#?}");
    let health = stepper.running().health();
    assert_eq!((health.totals.buried, health.totals.acked), (1, 0));
    assert_eq!(&*health.last_errors[0].code, "buried");
    assert!(health.last_errors[0].message.contains("lease expired 1 times"), "{:?}", health.last_errors);
    place.leave(&headwater).await;
}

async fn refused_publishes_are_logged_now_and_then_by_kind(place: Place) {
    capture();
    let headwater = place.open().await;
    let topic = format!("refusing-{}", headwater.store().engine());
    let builder = headwater.topic(&topic).pub_sub().block_writes_on_zero_subscriptions(true);
    builder.payload_bytes_max(10).create().await.unwrap();
    let producer = headwater.producer(&topic);
    for _ in 0..50 {
        let refused = producer.send(NewMessage::new("unread")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSubscriptions);
    }
    headwater.groups(&topic).subscribe("email", headwater::Start::Now).await.unwrap();
    let large = [NewMessage::new("larger than ten bytes")];
    assert_eq!(producer.send_batch(&large).await.unwrap_err().kind(), ErrorKind::PayloadTooLarge);
    let key = NewMessage::new("x").key("k".repeat(10_000));
    assert_eq!(producer.send(key).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let lines = lines_of(&topic);
    for kind in ["NoSubscriptions", "PayloadTooLarge", "InvalidInput"] {
        let kind = format!("kind={kind}");
        assert_eq!(with(&lines, &["WARN", "publish refused", &kind, "suppressed=0"]), 1, "{lines:#?}");
        assert_eq!(with(&lines, &[&kind]), 1, "{lines:#?}");
    }
    assert_eq!(producer.health().unwrap().totals.publish_errors, 52);
    place.leave(&headwater).await;
}
