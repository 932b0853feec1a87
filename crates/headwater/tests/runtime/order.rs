//! Order per key, with retries, and with members and processes that join and leave.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headwater::{Handling, Message, Messages, NewMessage, TopicSettings, Verdicts};

use crate::each::{Place, Seen, eventually, on_each};

on_each!(
    keys_stay_in_order_with_retries_while_consumers_join_and_leave,
    a_batch_handler_keeps_the_order_of_a_failed_key,
    order_holds_across_members_that_share_a_key,
);

fn ordered() -> TopicSettings {
    TopicSettings {
        ordering: headwater::topic::Ordering::Key,
        lanes: 8,
        max_attempts: 100,
        backoff_initial: Duration::from_millis(2),
        backoff_max: Duration::from_millis(10),
        ..TopicSettings::default()
    }
}

/// Checks what was handled successfully: per key, in order, complete and once.
fn check(done: &[(String, u64)], keys: usize, each: u64) {
    let mut by_key: HashMap<&str, Vec<u64>> = HashMap::new();
    for (key, n) in done {
        by_key.entry(key).or_default().push(*n);
    }
    assert_eq!(by_key.len(), keys);
    for (key, handled) in by_key {
        assert_eq!(
            handled,
            (0..each).collect::<Vec<_>>(),
            "{key} is out of order, handled twice or incomplete"
        );
    }
}

async fn keys_stay_in_order_with_retries_while_consumers_join_and_leave(place: Place) {
    const KEYS: u64 = 40;
    const EACH: u64 = 50;
    let headwater = place.open().await;
    headwater.topic("orders").settings(ordered()).create().await.unwrap();
    let messages: Vec<_> = (0..KEYS * EACH)
        .map(|n| NewMessage::new(format!("{}", n / KEYS)).key(format!("key-{}", n % KEYS)))
        .collect();
    headwater.producer("orders").send_batch(&messages).await.unwrap();
    let (done, calls) = (Seen::default(), Arc::new(AtomicU64::new(0)));
    let member = || {
        let (done, calls) = (done.clone(), Arc::clone(&calls));
        Handling::one(move |message: Message, _| {
            let (done, calls) = (done.clone(), Arc::clone(&calls));
            async move {
                // One call in nine fails, whichever message it is for.
                if calls.fetch_add(1, Ordering::Relaxed) % 9 == 4 {
                    return Err("now and then".into());
                }
                let n: u64 = std::str::from_utf8(&message.payload)?.parse()?;
                done.add((message.key.unwrap(), n));
                Ok(())
            }
        })
    };
    let other = place.open().await;
    let steady =
        headwater.consumer("orders", "email").handling("steady", member()).batch(20).run().await.unwrap();
    let mut rounds = 0u64;
    while done.len() < usize::try_from(KEYS * EACH).unwrap() {
        // Another process joins for a while and shuts down cleanly.
        let guest =
            other.consumer("orders", "email").handling("guest", member()).batch(20).run().await.unwrap();
        let before = done.len();
        eventually("messages are handled", async || {
            done.len() > before + 100 || done.len() == usize::try_from(KEYS * EACH).unwrap()
        })
        .await;
        guest.shutdown(Duration::from_secs(5)).await.unwrap();
        rounds += 1;
        assert!(rounds < 1_000);
    }
    check(&done.all(), usize::try_from(KEYS).unwrap(), EACH);
    steady.shutdown(Duration::from_secs(5)).await.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn a_batch_handler_keeps_the_order_of_a_failed_key(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").settings(ordered()).create().await.unwrap();
    let messages: Vec<_> =
        (0..200u64).map(|n| NewMessage::new(format!("{}", n / 10)).key(format!("key-{}", n % 10))).collect();
    headwater.producer("orders").send_batch(&messages).await.unwrap();
    let done = Seen::default();
    let add = done.clone();
    let member = Handling::batch(move |messages: Messages, context| {
        let add = add.clone();
        async move {
            let mut verdicts = Verdicts::new();
            let mut failed: Vec<String> = Vec::new();
            for message in &messages {
                let key = message.key.clone().unwrap();
                let n: u64 = std::str::from_utf8(&message.payload)?.parse()?;
                // A batch handler must not handle messages after a failure of the same key.
                if failed.contains(&key) {
                    continue;
                }
                if n % 4 == 1 && context.attempt() == 1 {
                    verdicts.failed(message.offset, "not yet");
                    failed.push(key);
                    continue;
                }
                add.add((key, n));
            }
            Ok(verdicts)
        }
    });
    let running =
        headwater.consumer("orders", "email").handling("all", member).batch(30).run().await.unwrap();
    done.reach(200).await;
    check(&done.all(), 10, 20);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}

/// Two members with filters get messages of the same key: order is per key, across members.
async fn order_holds_across_members_that_share_a_key(place: Place) {
    let headwater = place.open().await;
    headwater.topic("orders").settings(ordered()).create().await.unwrap();
    let messages: Vec<_> = (0..300u64)
        .map(|n| {
            NewMessage::new(format!("{}", n / 10))
                .key(format!("key-{}", n % 10))
                .header("n", format!("{}", n / 10 % 2))
        })
        .collect();
    headwater.producer("orders").send_batch(&messages).await.unwrap();
    let (done, calls) = (Seen::default(), Arc::new(AtomicU64::new(0)));
    let member = |parity: &'static str| {
        let (done, calls) = (done.clone(), Arc::clone(&calls));
        Handling::one(move |message: Message, _| {
            let (done, calls) = (done.clone(), Arc::clone(&calls));
            async move {
                if calls.fetch_add(1, Ordering::Relaxed) % 7 == 3 {
                    return Err("now and then".into());
                }
                tokio::task::yield_now().await;
                done.add((message.key.unwrap(), std::str::from_utf8(&message.payload)?.parse()?));
                Ok(())
            }
        })
        .when(move |message| message.headers["n"] == parity)
    };
    let consumer =
        headwater.consumer("orders", "email").handling("even", member("0")).handling("odd", member("1"));
    let running = consumer.batch(30).run().await.unwrap();
    done.reach(300).await;
    check(&done.all(), 10, 30);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}
