//! Delayed messages, and the time that a claim returns: when to claim again.

use std::time::Duration;

use super::case::{Case, bury, offsets_of, payloads_of, range, retry};
use crate::limits::PROMOTE_MESSAGES_MAX;
use crate::message::NewMessage;
use crate::settle::Outcome;
use crate::subscription::Start;
use crate::topic::TopicSettings;

fn after_ms(case: &Case, text: &str, ms: u64) -> NewMessage {
    NewMessage::new(text.to_owned()).deliver_at(case.now() + Duration::from_millis(ms))
}

/// A delayed message is delivered not a millisecond early, and once.
pub async fn a_delayed_message_is_delivered_at_its_time_and_once(case: &Case) {
    let scene = case.pub_sub().await;
    let other = scene.subscribe("other", Start::Beginning).await;
    let message = after_ms(case, "later", 5_000).key("k").header("h", "v");
    let published = scene.store.publish(&scene.topic, &[message]).await.unwrap();
    assert_eq!((published[0].offset, published[0].duplicate), (None, false));
    assert_eq!(scene.topic_status().await.scheduled, 1);
    case.advance_ms(4_999);
    let early = scene.claimed("a", 10).await;
    assert_eq!((early.leases, early.recheck_after), (vec![], Some(Duration::from_millis(1))));
    case.advance_ms(1);
    let got = scene.drain("a").await;
    assert_eq!(payloads_of(&got), ["later"]);
    assert_eq!(got[0].message_id, published[0].message_id);
    assert_eq!((got[0].key.as_deref(), got[0].headers["h"].as_str()), (Some("k"), "v"));
    assert_eq!(got[0].created_at, case.now(), "it enters the log when it becomes due");
    assert_eq!(scene.topic_status().await.scheduled, 0);
    case.advance_ms(60_000);
    scene.claim_nothing("a", 10).await;
    assert_eq!(payloads_of(&other.drain("a").await), ["later"]);
}

/// Delayed messages are delivered by their time, and among equal times in the order published.
pub async fn delayed_messages_are_delivered_in_order(case: &Case) {
    let scene = case.queue().await;
    let first = [after_ms(case, "c", 3_000), after_ms(case, "a", 1_000), after_ms(case, "b1", 2_000)];
    let second = [after_ms(case, "b2", 2_000), NewMessage::new("now"), after_ms(case, "b3", 2_000)];
    scene.store.publish(&scene.topic, &first).await.unwrap();
    let published = scene.store.publish(&scene.topic, &second).await.unwrap();
    let offsets: Vec<_> = published.iter().map(|one| one.offset.map(|offset| offset.0)).collect();
    assert_eq!(offsets, [None, Some(1), None]);
    case.advance_ms(3_000);
    scene.publish_all(&[NewMessage::new("after")]).await;
    let mut got = payloads_of(&scene.drain("w").await);
    // Whether the promotion or the last publish is first is the engine's choice.
    got.retain(|payload| payload != "after");
    assert_eq!(got, ["now", "a", "b1", "b2", "b3", "c"]);
}

/// A time that has passed is no delay.
pub async fn a_time_in_the_past_is_no_delay(case: &Case) {
    let scene = case.queue().await;
    let past = NewMessage::new("past").deliver_at(case.now() - Duration::from_secs(60));
    let now = NewMessage::new("now").deliver_at(case.now());
    assert_eq!(scene.publish_all(&[past, now]).await, [1, 2]);
    assert_eq!(payloads_of(&scene.drain("a").await), ["past", "now"]);
}

/// More messages are due at once than one promotion step takes: none is lost.
pub async fn a_flood_of_due_messages_is_delivered(case: &Case) {
    let scene = case.queue().await;
    let count = usize::try_from(PROMOTE_MESSAGES_MAX).unwrap() * 2 + 5;
    let batch: Vec<_> = (0..count).map(|n| after_ms(case, &n.to_string(), 1_000)).collect();
    scene.store.publish(&scene.topic, &batch).await.unwrap();
    case.advance_ms(1_000);
    let got = scene.drain_until("a", count).await;
    let expected: Vec<_> = (0..count).map(|n| n.to_string()).collect();
    assert!(payloads_of(&got) == expected, "all messages, in order");
    assert_eq!(scene.topic_status().await.scheduled, 0);
}

/// Maintenance promotes too, and returns how many.
pub async fn maintenance_promotes_what_is_due(case: &Case) {
    let scene = case.queue().await;
    let batch = [after_ms(case, "a", 1_000), after_ms(case, "b", 1_000), after_ms(case, "c", 9_000)];
    scene.store.publish(&scene.topic, &batch).await.unwrap();
    assert_eq!(scene.store.advance_heads().await.unwrap().promoted, 0);
    case.advance_ms(1_000);
    assert_eq!(scene.store.advance_heads().await.unwrap().promoted, 2);
    assert_eq!(scene.store.advance_heads().await.unwrap().promoted, 0);
    assert_eq!(scene.topic_status().await.scheduled, 1);
    assert_eq!(payloads_of(&scene.drain("w").await), ["a", "b"]);
}

/// A delay survives a restart.
pub async fn a_delayed_message_survives_a_restart(case: &Case) {
    let scene = case.queue().await;
    scene.store.publish(&scene.topic, &[after_ms(case, "later", 5_000)]).await.unwrap();
    scene.store.close().await.unwrap();
    let reopened = scene.through(&case.open().await);
    reopened.claim_nothing("a", 1).await;
    case.advance_ms(5_000);
    assert_eq!(payloads_of(&reopened.drain("a").await), ["later"]);
}

/// A delay also works for a message published in the caller's transaction.
pub async fn a_delay_works_in_the_callers_transaction(case: &Case) {
    let scene = case.queue().await;
    let batch = [NewMessage::new("now"), after_ms(case, "later", 3_600_000)];
    let published = case.harness().publish_in_transaction(&scene.topic, &batch, true).await.unwrap();
    assert_eq!((published[0].offset.is_some(), published[1].offset), (true, None));
    assert_eq!(payloads_of(&scene.drain("a").await), ["now"]);
    case.advance_ms(3_600_000);
    assert_eq!(payloads_of(&scene.drain("a").await), ["later"]);
}

/// The nearest of a retry, a deadline and a delivery time is returned; none when only a publish can bring a message.
pub async fn recheck_after_is_the_nearest_time(case: &Case) {
    let scene =
        case.scene(TopicSettings { lease: Duration::from_secs(20), ..TopicSettings::default() }).await;
    let recheck_ms = async || scene.claimed("a", 10).await.recheck_after.map(|time| time.as_millis());
    assert_eq!(recheck_ms().await, None);
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    assert_eq!(recheck_ms().await, Some(20_000), "the lease's deadline");
    scene.store.publish(&scene.topic, &[after_ms(case, "later", 15_000)]).await.unwrap();
    assert_eq!(recheck_ms().await, Some(15_000), "the delivery time");
    scene.settle_each(&lease, vec![((2, 2), retry(7_000, "busy"))]).await.unwrap();
    assert_eq!(recheck_ms().await, Some(7_000), "the retry");
    case.advance_ms(6_000);
    assert_eq!(recheck_ms().await, Some(1_000), "the retry, nearer");
    case.advance_ms(1_000);
    let again = scene.claimed("a", 10).await;
    assert_eq!(again.leases[0].range, range(2, 2));
    scene.ack(&again.leases[0]).await;
    assert_eq!(recheck_ms().await, Some(8_000), "the delivery time again");
    scene.settle_each(&lease, vec![((1, 1), Outcome::Ack), ((3, 3), bury("x"))]).await.unwrap();
    case.advance_ms(8_000);
    let delayed = scene.drain("a").await;
    assert_eq!(offsets_of(&delayed), [4]);
    assert_eq!(recheck_ms().await, None);
}
