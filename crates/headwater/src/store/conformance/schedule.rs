//! Scheduled messages: listed, cancelled and moved before they are due, and never both cancelled and delivered.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::case::{Case, Scene, failed, payloads_of, topic};
use crate::error::ErrorKind;
use crate::message::NewMessage;
use crate::store::Reschedule;

fn after(case: &Case, text: &str, seconds: u64) -> NewMessage {
    NewMessage::new(text.to_owned()).deliver_at(case.now() + Duration::from_secs(seconds))
}

async fn schedule(scene: &Scene, message: NewMessage) -> Uuid {
    let published = scene.store.publish(&scene.topic, &[message]).await.unwrap();
    assert_eq!(published[0].offset, None, "it is scheduled");
    published[0].message_id
}

async fn cancel(scene: &Scene, message_id: Uuid) -> bool {
    scene.store.cancel_scheduled(&scene.topic, message_id).await.unwrap()
}

/// The list has what is scheduled, by time and then in the order published, without changing it.
pub async fn scheduled_messages_are_listed_by_their_time(case: &Case) {
    let scene = case.queue().await;
    assert_eq!(scene.store.scheduled(&scene.topic, 10).await.unwrap(), []);
    let last = after(case, "four", 30).key("k").message_type("t").content_type("c/d").header("h", "v");
    let last = last.correlation_id("conversation").dedup_key("d");
    let mut ids = vec![schedule(&scene, last).await];
    for (text, seconds) in [("b", 20), ("a", 10), ("b2", 20)] {
        ids.push(schedule(&scene, after(case, text, seconds)).await);
    }
    scene.publish(1).await;
    let listed = scene.store.scheduled(&scene.topic, 10).await.unwrap();
    let found: Vec<_> = listed.iter().map(|one| one.message_id).collect();
    assert_eq!(found, [ids[2], ids[1], ids[3], ids[0]]);
    let full = &listed[3];
    assert_eq!(full.deliver_at, case.now() + Duration::from_secs(30));
    assert_eq!((full.key.as_deref(), full.message_type.as_deref()), (Some("k"), Some("t")));
    assert_eq!((full.content_type.as_deref(), full.headers["h"].as_str()), (Some("c/d"), "v"));
    assert_eq!(
        (full.correlation_id.as_deref(), full.dedup_key.as_deref()),
        (Some("conversation"), Some("d"))
    );
    assert_eq!(full.payload_bytes, 4);
    assert_eq!(scene.store.scheduled(&scene.topic, 2).await.unwrap(), listed[..2]);
    failed(scene.store.scheduled(&topic("nowhere"), 2).await, ErrorKind::NoSuchTopic);
}

/// A cancelled message is gone; the others are delivered.
pub async fn a_cancelled_message_is_never_delivered(case: &Case) {
    let scene = case.queue().await;
    let cancelled = schedule(&scene, after(case, "cancelled", 10)).await;
    schedule(&scene, after(case, "kept", 10)).await;
    assert!(cancel(&scene, cancelled).await);
    assert!(!cancel(&scene, cancelled).await, "there is none any more");
    assert!(!cancel(&scene, Uuid::now_v7()).await, "there never was one");
    assert_eq!(scene.topic_status().await.scheduled, 1);
    case.advance_ms(10_000);
    assert_eq!(payloads_of(&scene.drain("a").await), ["kept"]);
}

/// A message may be moved to a later time, an earlier one, and the past; waiters learn of it.
pub async fn a_moved_message_is_delivered_at_its_new_time(case: &Case) {
    let scene = case.queue().await;
    let id = schedule(&scene, after(case, "moved", 10)).await;
    let to = async |to| scene.store.reschedule(&scene.topic, id, to).await;
    assert!(to(Reschedule::At(case.now() + Duration::from_secs(60))).await.unwrap());
    case.advance_ms(59_999);
    let early = scene.claimed("a", 10).await;
    assert_eq!((early.leases, early.recheck_after), (vec![], Some(Duration::from_millis(1))));
    assert!(to(Reschedule::After(Duration::from_secs(3_600))).await.unwrap());
    case.advance_ms(3_599_999);
    scene.claim_nothing("a", 10).await;

    let year = Duration::from_secs(367 * 24 * 3_600);
    failed(to(Reschedule::At(case.now() + year)).await, ErrorKind::InvalidInput);
    failed(to(Reschedule::After(year)).await, ErrorKind::InvalidInput);
    let wake = super::wake::arm(&scene).await;
    assert!(to(Reschedule::At(case.now() - Duration::from_secs(1))).await.unwrap());
    super::wake::woken(&scene, wake, "moved").await;
    case.advance_ms(3_600_000);
    scene.claim_nothing("a", 10).await;
}

/// What has been delivered is not scheduled any more.
pub async fn a_delivered_message_is_neither_cancelled_nor_moved(case: &Case) {
    let scene = case.queue().await;
    let id = schedule(&scene, after(case, "delivered", 10)).await;
    case.advance_ms(10_000);
    assert_eq!(payloads_of(&scene.drain("a").await), ["delivered"]);
    assert!(!cancel(&scene, id).await);
    assert!(!scene.store.reschedule(&scene.topic, id, Reschedule::At(case.now())).await.unwrap());
    scene.claim_nothing("a", 10).await;
}

/// Messages are cancelled while another process delivers them: each is either cancelled or delivered.
pub async fn a_message_is_cancelled_or_delivered_and_never_both(case: &Case) {
    const MESSAGES: usize = 60;
    let scene = case.queue().await;
    let batch: Vec<_> = (0..MESSAGES).map(|n| after(case, &n.to_string(), 10)).collect();
    let ids: Vec<Uuid> = scene
        .store
        .publish(&scene.topic, &batch)
        .await
        .unwrap()
        .into_iter()
        .map(|published| published.message_id)
        .collect();
    case.advance_ms(10_000);
    let canceller = scene.through(&case.open().await);
    let order = ids.clone();
    let cancelling = tokio::spawn(async move {
        let mut cancelled = Vec::new();
        // From the end: promotion takes them from the beginning.
        for id in order.into_iter().rev() {
            if cancel(&canceller, id).await {
                cancelled.push(id);
            }
        }
        cancelled
    });
    let promoter = Arc::clone(&case.open().await);
    let promoting = tokio::spawn(async move { promoter.advance_heads().await.unwrap().promoted });
    let (cancelled, promoted) = (cancelling.await.unwrap(), promoting.await.unwrap());
    let mut ends: Vec<Uuid> = scene.drain("a").await.iter().map(|message| message.message_id).collect();
    assert!(ends.len() as u64 >= promoted, "{promoted} were promoted, {} delivered", ends.len());
    ends.extend(cancelled);
    ends.sort_unstable();
    let mut all = ids;
    all.sort_unstable();
    assert!(ends == all, "each message has one end: {} of {}", ends.len(), all.len());
    assert_eq!(scene.topic_status().await.scheduled, 0);
}

/// A message that is sent again after it was cancelled is no duplicate; one that another message holds stays one.
pub async fn a_cancelled_message_frees_its_dedup_key(case: &Case) {
    let scene = case.queue().await;
    let id = schedule(&scene, after(case, "first", 10).dedup_key("d")).await;
    assert!(cancel(&scene, id).await);
    let again = [NewMessage::new("second").dedup_key("d")];
    assert!(!scene.store.publish(&scene.topic, &again).await.unwrap()[0].duplicate);
    assert!(scene.store.publish(&scene.topic, &again).await.unwrap()[0].duplicate);
    assert_eq!(payloads_of(&scene.drain("a").await), ["second"]);
}

/// A delay counts from the publish on, in the engine's own publish and beside a time of delivery in one batch.
pub async fn a_delay_counts_by_the_databases_clock(case: &Case) {
    let scene = case.queue().await;
    let delayed = |text: &str, ms| NewMessage::new(text.to_owned()).delay(Duration::from_millis(ms));
    let batch = [delayed("b", 2_000), NewMessage::new("now"), after(case, "a", 1), delayed("none", 0)];
    let published = scene.store.publish(&scene.topic, &batch).await.unwrap();
    let at_once: Vec<_> = published.iter().map(|one| one.offset.is_some()).collect();
    assert_eq!(at_once, [false, true, false, true]);
    let listed = scene.store.scheduled(&scene.topic, 10).await.unwrap();
    assert_eq!(listed[1].deliver_at, case.now() + Duration::from_secs(2));
    assert_eq!(payloads_of(&scene.drain("a").await), ["now", "none"]);
    case.advance_ms(1_999);
    assert_eq!(payloads_of(&scene.drain("a").await), ["a"]);
    case.advance_ms(1);
    assert_eq!(payloads_of(&scene.drain("a").await), ["b"]);

    let both = NewMessage { deliver_at: Some(case.now()), ..delayed("x", 1) };
    for bad in [both, delayed("x", 367 * 24 * 3_600_000)] {
        failed(scene.store.publish(&scene.topic, &[bad]).await, ErrorKind::InvalidInput);
    }
}

/// Each change has an audit entry, with the same particulars on both engines; what changes nothing has none.
pub async fn changes_of_scheduled_messages_are_audited(case: &Case) {
    let scene = case.queue().await;
    let id = schedule(&scene, after(case, "x", 10)).await;
    let at = |seconds: u64| (case.now() + Duration::from_secs(seconds)).as_millisecond();
    let moved = Reschedule::At(case.now() + Duration::from_secs(20));
    assert!(scene.store.reschedule(&scene.topic, id, moved).await.unwrap());
    assert!(cancel(&scene, id).await);
    assert!(!cancel(&scene, id).await);
    let entries = scene.store.audit(10).await.unwrap();
    let found: Vec<(&str, serde_json::Value)> = entries
        .iter()
        .map(|entry| (entry.act.as_str(), serde_json::from_str(&entry.detail).unwrap()))
        .collect();
    let expected = [
        ("cancel_scheduled", serde_json::json!({ "message_id": id, "deliver_at_ms": at(20) })),
        ("reschedule", serde_json::json!({ "message_id": id, "from_ms": at(10), "to_ms": at(20) })),
    ];
    assert_eq!(found, expected);
    assert!(entries.iter().all(|entry| entry.topic.as_deref() == Some("orders")));
}
