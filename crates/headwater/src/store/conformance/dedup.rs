//! Idempotent publishing: a repeat within the window is answered with the first message.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::case::{Case, Scene, payloads_of};
use crate::message::{NewMessage, Published};
use crate::topic::TopicSettings;

fn keyed(text: &str, dedup_key: &str) -> NewMessage {
    NewMessage::new(text.to_owned()).dedup_key(dedup_key)
}

async fn publish_one(scene: &Scene, message: NewMessage) -> Published {
    scene.store.publish(&scene.topic, &[message]).await.expect("published").remove(0)
}

/// A repeat returns the first offset and the first id, and is marked as a duplicate.
pub async fn a_repeat_returns_the_first_offset(case: &Case) {
    let scene = case.queue().await;
    let first = publish_one(&scene, keyed("first", "k")).await;
    assert!(!first.duplicate);
    let other = publish_one(&scene, keyed("other", "k2")).await;
    assert!(!other.duplicate && other.offset > first.offset);
    for _ in 0..3 {
        let repeat = publish_one(&scene, keyed("repeat", "k")).await;
        assert_eq!(repeat, Published { duplicate: true, ..first.clone() });
    }
    assert_eq!(payloads_of(&scene.drain("a").await), ["first", "other"]);
}

/// Of two messages with the same key in a batch, the second is the duplicate.
pub async fn a_repeat_within_a_batch_is_a_duplicate(case: &Case) {
    let scene = case.queue().await;
    let batch = [keyed("a", "k"), NewMessage::new("b"), keyed("c", "k"), keyed("d", "j"), keyed("e", "k")];
    let published = scene.store.publish(&scene.topic, &batch).await.unwrap();
    let duplicates: Vec<_> = published.iter().map(|one| one.duplicate).collect();
    assert_eq!(duplicates, [false, false, true, false, true]);
    for repeat in [&published[2], &published[4]] {
        assert_eq!((repeat.offset, repeat.message_id), (published[0].offset, published[0].message_id));
    }
    assert!(published[0].offset < published[1].offset && published[1].offset < published[3].offset);
    assert_eq!(payloads_of(&scene.drain_until("w", 3).await), ["a", "b", "d"]);
}

/// Of a batch of old and new keys only the new ones are written.
pub async fn a_batch_may_mix_old_and_new(case: &Case) {
    let scene = case.queue().await;
    let first = scene.store.publish(&scene.topic, &[keyed("a", "1"), keyed("b", "2")]).await.unwrap();
    let batch = [keyed("x", "2"), keyed("c", "3"), keyed("y", "1"), NewMessage::new("d")];
    let published = scene.store.publish(&scene.topic, &batch).await.unwrap();
    let duplicates: Vec<_> = published.iter().map(|one| one.duplicate).collect();
    assert_eq!(duplicates, [true, false, true, false]);
    assert_eq!((published[0].offset, published[2].offset), (first[1].offset, first[0].offset));
    assert_eq!(payloads_of(&scene.drain_until("w", 4).await), ["a", "b", "c", "d"]);
}

/// The window counts from the first publish; repeats do not lengthen it.
pub async fn the_window_counts_from_the_first(case: &Case) {
    let scene =
        case.scene(TopicSettings { dedup_window: Duration::from_secs(60), ..TopicSettings::default() }).await;
    let first = publish_one(&scene, keyed("first", "k")).await;
    case.advance_ms(59_999);
    assert!(publish_one(&scene, keyed("repeat", "k")).await.duplicate);
    case.advance_ms(2);
    let second = publish_one(&scene, keyed("second", "k")).await;
    assert!(!second.duplicate && second.offset > first.offset);
    let repeat = publish_one(&scene, keyed("repeat", "k")).await;
    assert_eq!((repeat.duplicate, repeat.offset), (true, second.offset));
    assert_eq!(payloads_of(&scene.drain_until("a", 2).await), ["first", "second"]);
}

/// A shorter window applies to known keys too; it does not end them at once.
pub async fn a_shorter_dedup_window_keeps_known_keys(case: &Case) {
    let window =
        |seconds| TopicSettings { dedup_window: Duration::from_secs(seconds), ..TopicSettings::default() };
    let scene = case.scene(window(3600)).await;
    let first = publish_one(&scene, keyed("first", "k")).await;
    scene.store.alter_topic(&scene.topic, &window(60)).await.unwrap();
    let repeat = publish_one(&scene, keyed("repeat", "k")).await;
    assert_eq!(repeat, Published { duplicate: true, ..first });
    case.advance_ms(60_001);
    assert!(!publish_one(&scene, keyed("second", "k")).await.duplicate);
}

/// Maintenance removes keys whose window is over, and only those.
pub async fn maintenance_forgets_old_keys(case: &Case) {
    let scene =
        case.scene(TopicSettings { dedup_window: Duration::from_secs(60), ..TopicSettings::default() }).await;
    publish_one(&scene, keyed("a", "1")).await;
    publish_one(&scene, keyed("b", "2")).await;
    case.advance_ms(30_000);
    publish_one(&scene, keyed("c", "3")).await;
    assert_eq!(scene.store.advance_heads().await.unwrap().dedup_forgotten, 0);
    case.advance_ms(30_001);
    assert_eq!(scene.store.advance_heads().await.unwrap().dedup_forgotten, 2);
    assert!(publish_one(&scene, keyed("c again", "3")).await.duplicate);
    assert!(!publish_one(&scene, keyed("a again", "1")).await.duplicate);
}

/// Keys belong to their topic.
pub async fn keys_belong_to_their_topic(case: &Case) {
    let store = case.open().await;
    let orders = Scene::new(Arc::clone(&store), "orders", TopicSettings::default()).await;
    let bills = Scene::new(store, "bills", TopicSettings::default()).await;
    assert!(!publish_one(&orders, keyed("order", "k")).await.duplicate);
    assert!(!publish_one(&bills, keyed("bill", "k")).await.duplicate);
    assert_eq!(payloads_of(&bills.drain("a").await), ["bill"]);
}

/// The caller's transactions and the store's own share the keys; one that rolled back leaves none.
pub async fn keys_hold_across_transactions(case: &Case) {
    let scene = case.queue().await;
    let rolled_back = case.harness().publish_in_transaction(&scene.topic, &[keyed("gone", "k")], false).await;
    assert!(!rolled_back.unwrap()[0].duplicate);
    let first = case.harness().publish_in_transaction(&scene.topic, &[keyed("first", "k")], true).await;
    let first = first.unwrap().remove(0);
    assert!(!first.duplicate);
    let by_store = publish_one(&scene, keyed("repeat", "k")).await;
    assert_eq!(by_store, Published { duplicate: true, ..first.clone() });
    let repeat = case.harness().publish_in_transaction(&scene.topic, &[keyed("repeat", "k")], true).await;
    assert_eq!(repeat.unwrap(), [by_store]);
    assert_eq!(payloads_of(&scene.drain_until("a", 1).await), ["first"]);
}

/// Keys survive a restart.
pub async fn keys_survive_a_restart(case: &Case) {
    let scene = case.queue().await;
    let first = publish_one(&scene, keyed("first", "k")).await;
    scene.store.close().await.unwrap();
    let scene = scene.through(&case.open().await);
    let repeat = publish_one(&scene, keyed("repeat", "k")).await;
    assert_eq!(repeat, Published { duplicate: true, ..first });
}

/// Many publishers race with one key, through two stores: there is one message, and all get the same offset.
pub async fn concurrent_repeats_make_one_message(case: &Case) {
    let first = case.queue().await;
    let second = first.through(&case.open().await);
    for round in 0..10 {
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let scene = if n % 2 == 0 { first.clone() } else { second.clone() };
                tokio::spawn(async move { publish_one(&scene, keyed("x", &format!("round-{round}"))).await })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        assert_eq!(answers.iter().filter(|one| !one.duplicate).count(), 1, "{answers:?}");
        let offsets: HashSet<_> = answers.iter().map(|one| one.offset).collect();
        let ids: HashSet<_> = answers.iter().map(|one| one.message_id).collect();
        assert_eq!((offsets.len(), ids.len()), (1, 1), "{answers:?}");
    }
    assert_eq!(first.drain_until("a", 10).await.len(), 10);
}

/// Batches with the same keys in opposite orders do not block each other.
pub async fn batches_in_opposite_orders_do_not_deadlock(case: &Case) {
    let scene = case.queue().await;
    let tasks: Vec<_> = (0..6)
        .map(|n| {
            let scene = scene.clone();
            tokio::spawn(async move {
                let mut new = 0;
                for round in 0..10 {
                    let mut batch: Vec<_> = (0..10).map(|m| keyed("x", &format!("{round}-{m}"))).collect();
                    if n % 2 == 0 {
                        batch.reverse();
                    }
                    let published = scene.store.publish(&scene.topic, &batch).await.unwrap();
                    new += published.iter().filter(|one| !one.duplicate).count();
                }
                new
            })
        })
        .collect();
    let mut new = 0;
    for task in tasks {
        new += task.await.unwrap();
    }
    assert_eq!(new, 100, "each key was new once");
    assert_eq!(scene.drain_until("a", 100).await.len(), 100);
}

/// A repeat of a message that is still scheduled returns its id, but no offset yet.
pub async fn a_repeat_of_a_delayed_message_is_a_duplicate(case: &Case) {
    let scene = case.queue().await;
    let later = case.now() + Duration::from_secs(60);
    let first = publish_one(&scene, keyed("first", "k").deliver_at(later)).await;
    let repeat = publish_one(&scene, keyed("repeat", "k")).await;
    assert_eq!(repeat, Published { offset: None, message_id: first.message_id, duplicate: true });
    case.advance_ms(60_000);
    let got = scene.drain("a").await;
    assert_eq!(payloads_of(&got), ["first"]);
    let after = publish_one(&scene, keyed("repeat", "k")).await;
    assert_eq!((after.duplicate, after.message_id), (true, first.message_id));
    assert!(after.offset.is_none_or(|offset| offset == got[0].offset), "{after:?}");
    assert_eq!(scene.drain("a").await, []);
}
