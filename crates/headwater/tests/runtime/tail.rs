//! Reading a topic without a group: everything once, nothing skipped, and no trace left.

use std::collections::BTreeSet;
use std::time::Duration;

use headwater::tail::Tail;
use headwater::testing::ManualClock;
use headwater::{ErrorKind, Headwater, NewMessage, Offset, Start};

use crate::each::{DEADLINE, Place, on_each, publish_numbers};

on_each!(
    a_tail_starts_where_requested,
    a_tail_waits_for_what_is_published_elsewhere,
    concurrent_publishers_are_all_read_once,
    removed_messages_are_passed_over,
    a_tail_leaves_no_trace,
    a_missing_topic_is_an_error_and_is_not_created,
);

fn numbers(messages: &[headwater::Message]) -> Vec<u64> {
    messages.iter().map(|message| serde_json::from_slice(&message.payload).unwrap()).collect()
}

/// Everything that can be read now.
async fn all(tail: &mut Tail) -> Vec<u64> {
    let mut read = Vec::new();
    loop {
        let page = tail.next(Duration::ZERO).await.unwrap();
        if page.is_empty() {
            return read;
        }
        read.extend(numbers(&page));
    }
}

async fn from(headwater: &Headwater, start: Start) -> Vec<u64> {
    all(&mut headwater.tail("orders", start).await.unwrap().messages_max(3)).await
}

async fn a_tail_starts_where_requested(place: Place) {
    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    publish_numbers(&headwater, "orders", 5).await;
    clock.advance(Duration::from_secs(60));
    let later = clock.now();
    headwater.producer("orders").send(&5).await.unwrap();
    clock.advance(Duration::from_secs(60));
    headwater.producer("orders").send(&6).await.unwrap();

    assert_eq!(from(&headwater, Start::Beginning).await, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(from(&headwater, Start::Offset(Offset(4))).await, [3, 4, 5, 6]);
    assert_eq!(from(&headwater, Start::Offset(Offset(400))).await, [0; 0]);
    assert_eq!(from(&headwater, Start::Timestamp(later)).await, [5, 6]);
    assert_eq!(from(&headwater, Start::Timestamp(later + Duration::from_secs(1))).await, [6]);
    assert_eq!(from(&headwater, Start::Timestamp(later - Duration::from_secs(61))).await.len(), 7);
    assert_eq!(from(&headwater, Start::Timestamp(later + Duration::from_secs(61))).await, [0; 0]);
    assert_eq!(from(&headwater, Start::BeginningBounded(2)).await, [5, 6]);
    let mut now = headwater.tail("orders", Start::Now).await.unwrap();
    assert_eq!((all(&mut now).await, now.position()), (vec![], Offset(8)));
    headwater.producer("orders").send(&7).await.unwrap();
    assert_eq!(all(&mut now).await, [7]);
    place.leave(&headwater).await;
}

async fn a_tail_waits_for_what_is_published_elsewhere(place: Place) {
    let (here, elsewhere) = (place.open().await, place.open().await);
    here.topic("orders").create().await.unwrap();
    let mut tail = here.tail("orders", Start::Now).await.unwrap();
    assert_eq!(tail.next(Duration::from_millis(1)).await.unwrap(), []);
    for n in 0..3 {
        let (read, sent) =
            tokio::join!(tail.next(DEADLINE), async { elsewhere.producer("orders").send(&n).await });
        sent.unwrap();
        assert_eq!(numbers(&read.unwrap()), [n]);
    }
    elsewhere.close().await.unwrap();
    place.leave(&here).await;
}

async fn concurrent_publishers_are_all_read_once(place: Place) {
    const EACH: u64 = 200;
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    let mut tail = headwater.tail("orders", Start::Now).await.unwrap();
    let publishers: Vec<_> = (0..6)
        .map(|publisher| {
            let headwater = headwater.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    let message = NewMessage::json(&(publisher * EACH + n)).unwrap();
                    headwater.producer("orders").send_batch(&[message]).await.unwrap();
                }
            })
        })
        .collect();
    let mut read = Vec::new();
    while read.len() < 6 * EACH as usize {
        let page = tail.next(DEADLINE).await.unwrap();
        assert!(!page.is_empty(), "{} of {} were read", read.len(), 6 * EACH);
        read.extend(numbers(&page));
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    assert_eq!(tail.next(Duration::ZERO).await.unwrap(), []);
    assert!(read.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..6 * EACH), "each once");
    place.leave(&headwater).await;
}

async fn removed_messages_are_passed_over(place: Place) {
    use headwater::maintenance::Job;

    let clock = ManualClock::at("2026-03-02T09:00:00Z".parse().unwrap());
    let headwater = place.open_at(&clock).await;
    let kept = Duration::from_secs(60);
    let topic = headwater.topic("orders").pub_sub().zero_subscription_retention(kept);
    topic.message_retention(kept).max_retention(Some(kept)).create().await.unwrap();
    publish_numbers(&headwater, "orders", 50).await;
    // Messages age while maintenance runs, not by a single reading of the clock.
    for _ in 0..12 {
        clock.advance(kept / 4);
        headwater.maintenance().run_once(&[Job::Heads, Job::MessageCleanup]).await.unwrap();
    }
    headwater.producer("orders").send(&50).await.unwrap();
    assert_eq!(from(&headwater, Start::Beginning).await, [50]);
    assert_eq!(from(&headwater, Start::Offset(Offset(7))).await, [50]);
    place.leave(&headwater).await;
}

async fn a_tail_leaves_no_trace(place: Place) {
    let headwater = place.open().await;
    publish_numbers(&headwater, "orders", 3).await;
    assert_eq!(from(&headwater, Start::Beginning).await, [0, 1, 2]);
    assert_eq!(headwater.groups("orders").list().await.unwrap().len(), 0);
    let mut consumer = headwater.consumer("orders", "email").open().await.unwrap();
    let batch = consumer.next(DEADLINE).await.unwrap().unwrap();
    assert_eq!(numbers(batch.messages()), [0, 1, 2]);
    batch.ack().await.unwrap();
    place.leave(&headwater).await;
}

async fn a_missing_topic_is_an_error_and_is_not_created(place: Place) {
    let headwater = place.open().await;
    let missing = headwater.tail("orders", Start::Beginning).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NoSuchTopic);
    assert_eq!(headwater.topics().list().await.unwrap().len(), 0);
    place.leave(&headwater).await;
}

/// A transaction that stays open past the patience of the head: its message comes late, once, after higher ones.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_message_is_read_once() {
    let Some(place) = Place::postgres() else { return };
    let headwater = place.open().await;
    headwater.topic("orders").create().await.unwrap();
    let (mut client, connection) =
        tokio_postgres::connect(place.server(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let publish = |n: i32| format!("SELECT {}.publish('orders', '{n}')", place.namespace());
    let mut from_now = headwater.tail("orders", Start::Now).await.unwrap();

    let open = client.transaction().await.unwrap();
    open.batch_execute(&publish(0)).await.unwrap();
    headwater.producer("orders").send(&1).await.unwrap();
    assert_eq!(numbers(&from_now.next(DEADLINE).await.unwrap()), [1], "not held up for ever");
    let mut from_gap = headwater.tail("orders", Start::Now).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(numbers(&from_now.next(DEADLINE).await.unwrap()), [0]);
    assert_eq!(
        numbers(&from_gap.next(DEADLINE).await.unwrap()),
        [0],
        "it commits after that tail was opened"
    );

    let open = client.transaction().await.unwrap();
    open.batch_execute(&publish(2)).await.unwrap();
    headwater.producer("orders").send(&3).await.unwrap();
    assert_eq!(numbers(&from_now.next(DEADLINE).await.unwrap()), [3]);
    open.rollback().await.unwrap();
    headwater.producer("orders").send(&4).await.unwrap();
    assert_eq!(numbers(&from_now.next(DEADLINE).await.unwrap()), [4]);
    assert_eq!(from_now.next(Duration::from_millis(1)).await.unwrap(), []);
    assert_eq!(from(&headwater, Start::Beginning).await, [0, 1, 3, 4]);
    place.leave(&headwater).await;
}
