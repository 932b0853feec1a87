//! Consumers that are driven by hand: what they lease is handed out in time or released, and nothing is acked
//! unhandled.

use std::time::Duration;

use headwater::settle::Verdict;
use headwater::testing::ManualClock;
use headwater::topic::Ordering;
use headwater::{Batch, Consumer, Handling, Headwater, Messages, NewMessage, TopicSettings, Verdicts};

use crate::each::{DEADLINE, Place, Seen, dead_letters, eventually, on_each, publish_numbers, settled};

on_each!(
    slow_work_ends_no_lease_that_waits_in_the_list,
    what_waits_in_the_list_is_released_for_others,
    a_dropped_consumer_releases_what_it_did_not_hand_out,
    what_follows_a_burial_is_handled_and_never_acked_unseen,
);

/// Opens a consumer for which this many retries are due, each with a separate lease; one more attempt is allowed.
pub(crate) async fn with_retries_due(
    headwater: &Headwater,
    clock: &ManualClock,
    count: u64,
    lease: Duration,
) -> Consumer {
    let backoff = Duration::from_secs(1);
    let settings = TopicSettings {
        max_attempts: 2,
        backoff_initial: backoff,
        backoff_max: backoff,
        lease,
        ..TopicSettings::default()
    };
    headwater.topic("orders").settings(settings).create().await.unwrap();
    publish_numbers(headwater, "orders", count).await;
    let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
    let mut failed = 0;
    while failed < count {
        let batch = taken(&mut consumer).await;
        failed += batch.messages().len() as u64;
        let all = batch.messages().iter().map(|message| (message.offset, Verdict::Failed("no".into())));
        let all = all.collect();
        batch.settle_each(all).await.unwrap();
    }
    clock.advance(backoff);
    consumer
}

async fn taken(consumer: &mut Consumer) -> Batch {
    consumer.next(DEADLINE).await.unwrap().expect("a batch is available")
}

/// A batch that another consumer releases before its lease would have ended. The clock stands still meanwhile: on a
/// machine that stalls no lease ends, so what comes was released.
pub(crate) async fn released(consumer: &mut Consumer, lease: Duration) -> Batch {
    consumer.next(lease).await.unwrap().expect("it is released before its lease would have ended")
}

async fn slow_work_ends_no_lease_that_waits_in_the_list(place: Place) {
    let (headwater, clock) = place.open_still().await;
    let (lease, work) = (Duration::from_millis(900), Duration::from_millis(150));
    let mut consumer = with_retries_due(&headwater, &clock, 12, lease).await;
    let id = consumer.subscription().subscription_id;
    let mut handled = Vec::new();
    while handled.len() < 12 {
        let batch = taken(&mut consumer).await;
        assert_eq!(batch.attempt(), 2, "no lease has ended");
        handled.extend(batch.messages().iter().map(|message| message.offset.0));
        // All twelve together take twice as long as a lease lasts. Only this time passes for the leases: a machine that
        // stalls ends none.
        tokio::time::sleep(work).await;
        clock.advance(work);
        batch.ack().await.expect("its lease was handed out in time");
    }
    handled.sort_unstable();
    assert_eq!(handled, (1..=12).collect::<Vec<_>>(), "each once");
    assert_eq!(dead_letters(&headwater, id).await, [], "no handled message is a dead letter");
    consumer.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn what_waits_in_the_list_is_released_for_others(place: Place) {
    let (headwater, clock) = place.open_still().await;
    let lease = Duration::from_secs(12);
    let mut slow = with_retries_due(&headwater, &clock, 8, lease).await;
    let id = slow.subscription().subscription_id;
    let first = taken(&mut slow).await;
    let mut other = headwater.consumer("orders", "email").open().await.unwrap();
    for _ in 1..8 {
        let batch = released(&mut other, lease).await;
        assert_eq!(batch.attempt(), 2, "released, and no attempt is lost");
        batch.ack().await.unwrap();
    }
    first.ack().await.expect("before its lease ended");
    settled(&headwater, "orders", "email").await;
    assert_eq!(dead_letters(&headwater, id).await, []);
    slow.close().await.unwrap();
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

async fn a_dropped_consumer_releases_what_it_did_not_hand_out(place: Place) {
    let (headwater, clock) = place.open_still().await;
    let mut first = with_retries_due(&headwater, &clock, 4, Duration::from_secs(300)).await;
    taken(&mut first).await.ack().await.unwrap();
    drop(first);
    let mut other = headwater.consumer("orders", "email").open().await.unwrap();
    for _ in 1..4 {
        let batch = taken(&mut other).await;
        assert_eq!(batch.attempt(), 2);
        batch.ack().await.unwrap();
    }
    other.close().await.unwrap();
    place.leave(&headwater).await;
}

/// Three messages of one key, of which the first fails at its only attempt.
async fn three_of_a_key(headwater: &Headwater, topic: &str) {
    let settings =
        TopicSettings { ordering: Ordering::Key, lanes: 1, max_attempts: 1, ..TopicSettings::default() };
    headwater.topic(topic).settings(settings).create().await.unwrap();
    let messages: Vec<_> = (1..=3).map(|n| NewMessage::new(n.to_string()).key("k")).collect();
    headwater.producer(topic).send_batch(&messages).await.unwrap();
}

async fn what_follows_a_burial_is_handled_and_never_acked_unseen(place: Place) {
    let headwater = place.open().await;
    // Handled through the batch.
    three_of_a_key(&headwater, "handled").await;
    let mut consumer = headwater.consumer("handled", "email").open().await.unwrap();
    let seen = Seen::default();
    while seen.len() < 3 {
        let handler = |message: headwater::Message, _| {
            seen.add(message.offset.0);
            std::future::ready(if message.offset.0 == 1 {
                Verdict::Failed("no".into())
            } else {
                Verdict::Done
            })
        };
        taken(&mut consumer).await.handle(handler).await.unwrap();
    }
    assert_eq!(seen.all(), [1, 2, 3]);
    consumer.close().await.unwrap();
    // Settled by hand: messages after a failed key are not handled, and are redelivered.
    three_of_a_key(&headwater, "settled").await;
    let mut consumer = headwater.consumer("settled", "email").open().await.unwrap();
    let batch = taken(&mut consumer).await;
    let first = batch.messages()[0].offset;
    batch.settle_each(vec![(first, Verdict::Failed("no".into()))]).await.unwrap();
    let mut again = Vec::new();
    while again.len() < 2 {
        let batch = taken(&mut consumer).await;
        again.extend(batch.messages().iter().map(|message| message.offset.0));
        batch.ack().await.unwrap();
    }
    assert_eq!(again, [2, 3]);
    consumer.close().await.unwrap();
    // A member that takes batches, and stops at a failed key.
    three_of_a_key(&headwater, "batches").await;
    let seen: Seen<i64> = Seen::default();
    let add = seen.clone();
    let member = Handling::batch(move |messages: Messages, _| {
        let mut verdicts = Verdicts::new();
        if messages[0].offset.0 == 1 {
            add.add(1);
            verdicts.failed(messages[0].offset, "no");
        } else {
            messages.iter().for_each(|message| add.add(message.offset.0));
        }
        async move { Ok(verdicts) }
    });
    let running = headwater.consumer("batches", "email").handling("one", member).run().await.unwrap();
    eventually("all are seen", async || seen.len() >= 3).await;
    assert_eq!(seen.all(), [1, 2, 3]);
    running.shutdown(Duration::from_secs(5)).await.unwrap();
    place.leave(&headwater).await;
}
