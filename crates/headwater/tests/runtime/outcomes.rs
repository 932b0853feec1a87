//! Handlers' verdicts, and the outcomes of their messages. Time is moved by hand; nothing runs except by a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headwater::testing::{ManualClock, Stepper};
use headwater::{
    Bury, Context, Handling, Headwater, Json, Message, Messages, NewMessage, Retry, Skip, TopicName, Verdicts,
};
use jiff::Timestamp;

use crate::each::{Place, Seen, on_each};

on_each!(
    an_error_is_retried_by_policy_and_finally_buried,
    a_retry_waits_for_its_requested_delay,
    bury_and_skip_are_final,
    a_panic_is_an_attempt,
    a_payload_that_cannot_be_decoded_is_buried_with_the_reason,
    a_handler_that_takes_too_long_has_failed,
    a_batch_settles_as_a_whole_or_by_message,
    a_broken_filter_fails_only_its_message,
    a_broken_filter_holds_back_its_key_in_a_lane,
);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap())
}

/// A topic with three attempts and a back-off of exactly known bounds.
async fn topic(headwater: &Headwater) {
    let settings = headwater::TopicSettings {
        max_attempts: 3,
        backoff_initial: Duration::from_secs(10),
        backoff_max: Duration::from_secs(60),
        ..headwater::TopicSettings::default()
    };
    headwater.topic("orders").settings(settings).create().await.unwrap();
}

async fn dead_letters(headwater: &Headwater) -> Vec<(String, u32, String)> {
    let topic = TopicName::new("orders").unwrap();
    let status = headwater.store().subscriptions(&topic).await.unwrap().remove(0);
    let dead_letters = crate::each::dead_letters(headwater, status.subscription_id).await;
    dead_letters.into_iter().map(|one| (text(&one.payload), one.attempts, one.error)).collect()
}

fn text(payload: &Bytes) -> String {
    String::from_utf8(payload.to_vec()).unwrap()
}

async fn an_error_is_retried_by_policy_and_finally_buried(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    topic(&headwater).await;
    headwater.producer("orders").send(NewMessage::new("bad")).await.unwrap();
    headwater.producer("orders").send(NewMessage::new("good")).await.unwrap();
    let seen = Seen::default();
    let add = seen.clone();
    let mut stepper = headwater
        .consumer("orders", "email")
        .member("one", move |message: Message, context: Context| {
            let add = add.clone();
            async move {
                add.add((text(&message.payload), context.attempt()));
                if message.payload == "bad" { Err("no stock".into()) } else { Ok(()) }
            }
        })
        .concurrency(1)
        .stepwise()
        .await
        .unwrap();
    stepper.drain().await.unwrap();
    assert_eq!(seen.all(), [("bad".into(), 1), ("good".into(), 1)]);
    clock.advance(Duration::from_millis(4_900));
    assert_eq!(stepper.drain().await.unwrap(), 0, "not before half of the back-off");
    clock.advance(Duration::from_millis(5_100));
    stepper.drain().await.unwrap();
    clock.advance(Duration::from_secs(20));
    stepper.drain().await.unwrap();
    clock.advance(Duration::from_secs(120));
    assert_eq!(stepper.drain().await.unwrap(), 0);
    assert_eq!(seen.all()[2..], [("bad".into(), 2), ("bad".into(), 3)]);
    assert_eq!(dead_letters(&headwater).await, [("bad".into(), 3, "no stock".into())]);
    let totals = stepper.running().health().totals;
    assert_eq!((totals.acked, totals.retried, totals.buried), (1, 2, 1));
    place.leave(&headwater).await;
}

/// A consumer whose handler returns this result for every message.
async fn returning<F>(headwater: &Headwater, result: F) -> (Stepper, Seen<u32>)
where
    F: Fn(u32) -> headwater::HandlerResult + Send + Sync + Clone + 'static,
{
    let seen = Seen::default();
    let add = seen.clone();
    let stepper = headwater
        .consumer("orders", "email")
        .member("one", move |_: Message, context: Context| {
            add.add(context.attempt());
            let result = result.clone();
            async move { result(context.attempt()) }
        })
        .stepwise()
        .await
        .unwrap();
    (stepper, seen)
}

async fn a_retry_waits_for_its_requested_delay(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    topic(&headwater).await;
    headwater.producer("orders").send(NewMessage::new("later")).await.unwrap();
    let result = |attempt| match attempt {
        1 => Err(Retry::after(Duration::from_secs(7)).because("busy").into()),
        _ => Ok(()),
    };
    let (mut stepper, seen) = returning(&headwater, result).await;
    stepper.drain().await.unwrap();
    clock.advance(Duration::from_millis(6_999));
    assert_eq!(stepper.drain().await.unwrap(), 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(stepper.drain().await.unwrap(), 1);
    assert_eq!(seen.all(), [1, 2]);
    place.leave(&headwater).await;
}

async fn bury_and_skip_are_final(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    topic(&headwater).await;
    for payload in ["bury", "skip"] {
        headwater.producer("orders").send(NewMessage::new(payload)).await.unwrap();
    }
    let mut stepper = headwater
        .consumer("orders", "email")
        .member("one", |message: Message, _| async move {
            if message.payload == "bury" { Err(Bury("no such customer").into()) } else { Err(Skip.into()) }
        })
        .stepwise()
        .await
        .unwrap();
    stepper.drain().await.unwrap();
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(stepper.drain().await.unwrap(), 0);
    assert_eq!(dead_letters(&headwater).await, [("bury".into(), 1, "no such customer".into())]);
    let totals = stepper.running().health().totals;
    assert_eq!((totals.skipped, totals.buried, totals.retried), (1, 1, 0));
    place.leave(&headwater).await;
}

async fn a_panic_is_an_attempt(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    topic(&headwater).await;
    headwater.producer("orders").send(NewMessage::new("boom")).await.unwrap();
    let (mut stepper, seen) = returning(&headwater, |attempt| panic!("boom on {attempt}")).await;
    for _ in 0..3 {
        stepper.drain().await.unwrap();
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(seen.all(), [1, 2, 3]);
    let buried = dead_letters(&headwater).await;
    assert_eq!(buried, [("boom".into(), 3, "the handler panicked: boom on 3".into())]);
    assert_eq!(stepper.running().health().totals.panicked, 3);
    place.leave(&headwater).await;
}

async fn a_payload_that_cannot_be_decoded_is_buried_with_the_reason(place: Place) {
    let headwater = place.open_at(&clock()).await;
    topic(&headwater).await;
    headwater.producer("orders").send(NewMessage::new("{broken")).await.unwrap();
    headwater.producer("orders").send(&7u64).await.unwrap();
    let seen = Seen::default();
    let add = seen.clone();
    let mut stepper = headwater
        .consumer("orders", "email")
        .member("one", move |Json(n): Json<u64>, _| {
            add.add(n);
            async { Ok(()) }
        })
        .stepwise()
        .await
        .unwrap();
    stepper.drain().await.unwrap();
    assert_eq!(seen.all(), [7]);
    let buried = dead_letters(&headwater).await;
    let [(payload, 1, error)] = &buried[..] else { panic!("{buried:?}") };
    assert_eq!(payload, "{broken");
    assert!(error.contains("line 1 column") && error.to_lowercase().contains("json"), "{error}");
    assert_eq!(stepper.running().health().totals.decode_failed, 1);
    place.leave(&headwater).await;
}

async fn a_handler_that_takes_too_long_has_failed(place: Place) {
    let headwater = place.open_at(&clock()).await;
    let settings = headwater::TopicSettings { max_attempts: 1, ..headwater::TopicSettings::default() };
    headwater.topic("orders").settings(settings).create().await.unwrap();
    headwater.producer("orders").send(NewMessage::new("slow")).await.unwrap();
    let mut stepper = headwater
        .consumer("orders", "email")
        .member("one", |_: Message, _| async {
            std::future::pending::<()>().await;
            Ok(())
        })
        .timeout(Duration::from_millis(30))
        .stepwise()
        .await
        .unwrap();
    stepper.drain().await.unwrap();
    let buried = dead_letters(&headwater).await;
    assert!(buried[0].2.contains("longer than its timeout of 30ms"), "{buried:?}");
    place.leave(&headwater).await;
}

async fn a_batch_settles_as_a_whole_or_by_message(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    topic(&headwater).await;
    for n in 0..6 {
        headwater.producer("orders").send(NewMessage::new(format!("{n}"))).await.unwrap();
    }
    let seen = Seen::default();
    let add = seen.clone();
    let mut stepper = headwater
        .consumer("orders", "email")
        .handling(
            "all",
            Handling::batch(move |messages: Messages, context| {
                let add = add.clone();
                async move {
                    add.add((
                        context.attempt(),
                        messages.iter().map(|message| text(&message.payload)).collect::<Vec<_>>(),
                    ));
                    let mut verdicts = Verdicts::new();
                    match context.attempt() {
                        1 => {
                            verdicts.failed(messages[1].offset, "again");
                            verdicts.failed(messages[4].offset, Bury("never"));
                            Ok(verdicts)
                        }
                        2 => Err("the whole batch".into()),
                        _ => Ok(verdicts),
                    }
                }
            }),
        )
        .stepwise()
        .await
        .unwrap();
    for _ in 0..4 {
        stepper.drain().await.unwrap();
        clock.advance(Duration::from_secs(60));
    }
    let payloads = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        seen.all(),
        [(1, payloads(&["0", "1", "2", "3", "4", "5"])), (2, payloads(&["1"])), (3, payloads(&["1"]))]
    );
    assert_eq!(dead_letters(&headwater).await, [("4".into(), 1, "never".into())]);
    place.leave(&headwater).await;
}

async fn a_broken_filter_fails_only_its_message(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    topic(&headwater).await;
    for payload in ["fine", "breaks"] {
        headwater.producer("orders").send(NewMessage::new(payload)).await.unwrap();
    }
    let seen = Seen::default();
    let add = seen.clone();
    let mut stepper = headwater
        .consumer("orders", "email")
        .member("one", move |message: Message, _| {
            add.add(text(&message.payload));
            async { Ok(()) }
        })
        .filter(|message| {
            assert!(message.payload != "breaks", "the filter is broken");
            true
        })
        .stepwise()
        .await
        .unwrap();
    for _ in 0..3 {
        stepper.drain().await.unwrap();
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(seen.all(), ["fine"]);
    let buried = dead_letters(&headwater).await;
    assert!(buried[0].2.contains("the group's filter panicked: the filter is broken"), "{buried:?}");
    place.leave(&headwater).await;
}

async fn a_broken_filter_holds_back_its_key_in_a_lane(place: Place) {
    let clock = clock();
    let headwater = place.open_at(&clock).await;
    headwater.topic("orders").ordered_by_key().lanes(1).create().await.unwrap();
    for (key, payload) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")] {
        let message = NewMessage { key: Some(key.into()), ..NewMessage::new(payload) };
        headwater.producer("orders").send(message).await.unwrap();
    }
    let seen = Seen::default();
    let add = seen.clone();
    let broken = Arc::new(AtomicBool::new(true));
    let breaks = Arc::clone(&broken);
    let mut stepper = headwater
        .consumer("orders", "email")
        .member("one", move |message: Message, _| {
            add.add(text(&message.payload));
            async { Ok(()) }
        })
        .filter(move |message| {
            assert!(message.payload != "a2" || !breaks.load(Ordering::SeqCst), "the filter is broken");
            true
        })
        .stepwise()
        .await
        .unwrap();
    stepper.drain().await.unwrap();
    assert_eq!(seen.all(), ["a1", "b1"], "a3 waits for a2");
    broken.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(600));
    stepper.drain().await.unwrap();
    assert_eq!(seen.all(), ["a1", "b1", "a2", "a3"]);
    place.leave(&headwater).await;
}
