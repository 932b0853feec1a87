//! Wake-up across two stores on one file, and from connections of others.

use std::time::Instant;

use super::*;

/// Waits for a wake-up with a deadline far below the safety poll.
async fn woken_by(store: &SqliteStore, topic_id: TopicId, act: impl AsyncFnOnce()) -> bool {
    let wake = store.arm(&[topic_id]).await.unwrap();
    // Let the first look happen, which finds whatever happened before anybody waited.
    tokio::time::sleep(Duration::from_millis(20)).await;
    act().await;
    wake.wait(Duration::from_secs(2)).await
}

#[tokio::test]
async fn a_publish_of_another_process_wakes_without_polling() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = subscribed(&here, "orders").await;
    let topic_id = subscription.topic.topic_id;
    for round in 0..5 {
        let started = Instant::now();
        assert!(
            woken_by(&here, topic_id, async || drop(there.publish(&topic("orders"), &messages(1)).await))
                .await
        );
        assert!(started.elapsed() < Duration::from_millis(500), "round {round}: {:?}", started.elapsed());
        assert_eq!(drain(&here, &subscription).await.len(), 1);
    }
    let own = place.connect();
    let sql = "INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'x')";
    assert!(woken_by(&here, topic_id, async || drop(own.execute(sql, []))).await, "by plain SQL");
}

#[tokio::test]
async fn work_given_back_by_another_process_wakes() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = subscribed(&here, "orders").await;
    there.publish(&topic("orders"), &messages(1)).await.unwrap();
    let lease = there.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
    let back = Settlement::each(lease.token, vec![(lease.range, Outcome::Release)]);
    let woken =
        woken_by(&here, subscription.topic.topic_id, async || drop(there.settle(&[back]).await)).await;
    assert!(woken);
}

#[tokio::test]
async fn claims_and_acks_wake_nobody() {
    let place = Place::new();
    let (here, there) = (place.open().await, place.open().await);
    let subscription = subscribed(&here, "orders").await;
    there.publish(&topic("orders"), &messages(50)).await.unwrap();
    let topic_id = subscription.topic.topic_id;
    // The first look after arming finds the publishes above; the second waiter is the one that counts.
    woken_by(&here, topic_id, async || {}).await;
    let wake = here.arm(&[topic_id]).await.unwrap();
    for store in [&here, &there] {
        for _ in 0..10 {
            let lease = store.claim(&request(&subscription, 1)).await.unwrap().leases.remove(0);
            store.settle(&[Settlement::ack_all(lease.token)]).await.unwrap().remove(0).unwrap();
        }
    }
    assert!(!wake.wait(Duration::from_millis(100)).await);
}

#[tokio::test]
async fn a_local_publish_wakes_at_once() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let wake = store.arm(&[subscription.topic.topic_id]).await.unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert!(wake.wait(Duration::ZERO).await, "woken before the publisher was answered");
}
