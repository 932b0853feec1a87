//! The anchor of a topic: which message it is, and what does not count as another history.

use super::*;
use crate::clock::ManualClock;

/// A scheduled message that the claim itself promoted is handed out by it, and so is part of what the claim saw.
#[tokio::test]
async fn a_promoted_message_anchors_the_claim_that_hands_it_out() {
    let place = Place::new();
    let clock = ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap());
    let options = OpenOptions::default().clock(Clock::Manual(clock.clone()));
    let store = open_at(&place.path(), options).await.unwrap();
    let subscription = subscribed(&store, "orders").await;
    let later = clock.now() + Duration::from_secs(60);
    store.publish(&topic("orders"), &[NewMessage::new("later").deliver_at(later)]).await.unwrap();
    clock.advance(Duration::from_secs(60));
    let first = store.claim(&request(&subscription, 10)).await.unwrap();
    assert_eq!(first.leases.len(), 1);
    // Like a restored copy in which another message was published first.
    place.connect().execute("UPDATE headwater_message SET message_id = randomblob(16)", []).unwrap();
    let second = store.claim(&request(&subscription, 10)).await.unwrap();
    assert_ne!(second.epoch, first.epoch);
    let third = store.claim(&request(&subscription, 10)).await.unwrap();
    assert_eq!(third.epoch, second.epoch);
}

#[tokio::test]
async fn a_topic_that_retention_emptied_keeps_its_history() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(3)).await.unwrap();
    let first = store.claim(&request(&subscription, 10)).await.unwrap();
    let connection = place.connect();
    connection
        .execute_batch(
            "DELETE FROM headwater_message;
             UPDATE headwater_topic SET removed = 3, first_offset = 4",
        )
        .unwrap();
    let second = store.claim(&request(&subscription, 10)).await.unwrap();
    assert_eq!(second.epoch, first.epoch, "removed, not replaced");
    // The anchor is still compared: in another history the topic ends before it.
    connection
        .execute("UPDATE headwater_topic SET removed = 0, first_offset = 1, last_offset = 1", [])
        .unwrap();
    let third = store.claim(&request(&subscription, 10)).await.unwrap();
    assert_ne!(third.epoch, first.epoch);
}
