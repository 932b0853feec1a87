//! Who may redrive, purge and fire, and what a redrive meets on its way.

use crate::DeadLetterSelection;
use crate::lease::Outcome;

use super::*;

/// Publishes messages and gives up on all of them.
async fn buried(store: &PostgresStore, subscription: &Subscription, count: usize) {
    let messages: Vec<_> = (0..count).map(|n| NewMessage::new(n.to_string())).collect();
    store.publish(&orders(), &messages).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let mut left = count as u64;
    while left > 0 {
        assert!(Instant::now() < until, "{left} never came");
        for lease in store.claim(&request(subscription)).await.unwrap().leases {
            let bury = Outcome::Bury { error: "x".into() };
            let all = Settlement::each(&lease, vec![(lease.range, bury)]);
            store.settle(&[all]).await.unwrap().remove(0).unwrap();
            left -= lease.range.span();
        }
    }
}

#[tokio::test]
async fn consumers_redrive_and_purge_and_producers_fire() {
    let Some(scene) = Scene::new() else { return };
    let owner = scene.open().await;
    let subscription = subscribed(&owner).await;
    buried(&owner, &subscription, 2).await;
    let letters = DeadLetterSelection::all(subscription.subscription_id);
    let one = letters.clone().ids([owner.dead_letters(&letters, 1).await.unwrap()[0].dead_letter_id]);
    let (producer, consumer, reader) = (
        scene.open_as(Some("producer")).await.unwrap(),
        scene.open_as(Some("consumer")).await.unwrap(),
        scene.open_as(Some("reader")).await.unwrap(),
    );
    assert_eq!(reader.dead_letters(&letters, 10).await.unwrap().len(), 2);
    for role in [&producer, &reader] {
        assert_eq!(role.redrive(&letters).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(role.purge(&letters).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(consumer.redrive(&one).await.unwrap().redriven, 1);
    assert_eq!(consumer.purge(&letters).await.unwrap(), 1);

    let now = jiff::Timestamp::now();
    let message = NewMessage::new("tick");
    producer.cron_last("job", jiff::Timestamp::UNIX_EPOCH).await.unwrap();
    assert!(producer.cron_fire("job", now, &orders(), &message).await.unwrap().is_some());
    for role in [&consumer, &reader] {
        let refused = role.cron_fire("job", now, &orders(), &message).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    }
    scene.drop().await;
}
