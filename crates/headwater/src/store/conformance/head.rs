//! How far a topic can be read without a group.

use std::sync::Arc;

use super::case::{Case, range, topic};
use crate::message::{NewMessage, Offset};
use crate::topic::{TopicId, TopicSettings};

/// The head is the last message as soon as its publish returned, although no group claims.
pub async fn the_head_follows_publishes_without_a_group(case: &Case) {
    let (here, elsewhere) = (case.open().await, case.open().await);
    let topic_id = here.create_topic(&topic("orders"), &TopicSettings::default()).await.unwrap().topic_id;
    let head = async || here.head(topic_id).await.unwrap().expect("the topic exists");
    assert_eq!((head().await.offset, head().await.pending), (Offset(0), false));
    for (n, store) in [&here, &elsewhere, &here].into_iter().enumerate() {
        let batch = vec![NewMessage::new("x"); n + 1];
        let published = store.publish(&topic("orders"), &batch).await.unwrap();
        let head = head().await;
        assert_eq!(Some(head.offset), published[n].offset);
        assert!(head.gaps.is_empty() && !head.pending, "{head:?}");
    }
}

/// While many publish, some of whom roll back, every offset up to a head that is in no gap has its message or never gets
/// one.
pub async fn what_the_head_covers_can_be_fetched(case: &Case) {
    let store = case.open_with(case.real_time_options()).await.unwrap();
    let name = topic("orders");
    let topic_id = store.create_topic(&name, &TopicSettings::default()).await.unwrap().topic_id;
    let publishers = (0..4).map(|_| {
        let (store, name) = (Arc::clone(&store), name.clone());
        tokio::spawn(async move {
            for _ in 0..25 {
                store.publish(&name, &[NewMessage::new("kept")]).await.unwrap();
            }
        })
    });
    let publishers: Vec<_> = publishers.collect();
    let mut seen = Vec::new();
    for n in 0..25 {
        let batch = [NewMessage::new("perhaps")];
        case.harness().publish_in_transaction(&name, &batch, n % 2 == 0).await.unwrap();
        let head = store.head(topic_id).await.unwrap().unwrap();
        let there = store.fetch(topic_id, range(1, head.offset.0)).await.unwrap();
        seen.push((head, there.iter().map(|message| message.offset).collect::<Vec<_>>()));
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let mut last = store.head(topic_id).await.unwrap().unwrap();
    while last.pending {
        // The offset of a rolled back transaction is passed a moment later.
        last = store.head(topic_id).await.unwrap().unwrap();
    }
    let all = store.fetch(topic_id, range(1, last.offset.0)).await.unwrap();
    assert_eq!(all.len(), 4 * 25 + 13);
    for (head, there) in seen {
        let late: Vec<_> = all
            .iter()
            .map(|message| message.offset)
            .filter(|offset| *offset <= head.offset && !there.contains(offset))
            .collect();
        let in_gap = |offset: &Offset| head.gaps.iter().any(|gap| gap.contains(*offset));
        assert!(late.iter().all(in_gap), "{late:?} came after {head:?}");
    }
}

/// A topic that does not exist has no head.
pub async fn an_unknown_topic_has_no_head(case: &Case) {
    let store = case.open().await;
    assert_eq!(store.head(TopicId(4_711)).await.unwrap(), None);
}
