//! Publishing: order, atomicity, the caller's own transaction, and offsets that are never reused.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;

use super::case::{Case, Scene, failed, offsets_of, payloads_of, topic};
use crate::error::ErrorKind;
use crate::limits::{PAYLOAD_BYTES_DEFAULT, PUBLISH_MESSAGES_MAX};
use crate::message::{Message, NewMessage};
use crate::topic::TopicSettings;

/// The answers and the rows of a batch are in the order of the call.
pub async fn offsets_rise_in_the_order_published(case: &Case) {
    let scene = case.queue().await;
    assert_eq!(scene.publish(5).await, [1, 2, 3, 4, 5]);
    let more = [NewMessage::new("six"), NewMessage::new("seven"), NewMessage::new("eight")];
    let published = scene.store.publish(&scene.topic, &more).await.unwrap();
    let offsets: Vec<_> = published.iter().map(|one| one.offset.unwrap().0).collect();
    assert_eq!(offsets, [6, 7, 8]);

    let stored = scene.fetch_range(1, 8).await;
    assert_eq!(offsets_of(&stored), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(payloads_of(&stored), ["1", "2", "3", "4", "5", "six", "seven", "eight"]);
    for (message, answer) in stored[5..].iter().zip(&published) {
        assert_eq!(message.message_id, answer.message_id);
        assert!(!answer.duplicate);
    }
}

/// Every field is stored and returned unchanged.
pub async fn every_field_round_trips(case: &Case) {
    let scene = case.queue().await;
    let id = Uuid::now_v7();
    let mut full = NewMessage::new("päyload 🌊".as_bytes().to_vec())
        .message_id(id)
        .key("schlüssel '🔑'")
        .message_type("order.placed/v2")
        .content_type("application/x-größe; charset=utf-8")
        .correlation_id("конversation \"7\"");
    for n in 0..64 {
        full = full.header(format!("header-{n:02} ü"), format!("value {n} \u{1F30A}\n\t\"quoted\" \\ back"));
    }
    full = full.header("empty", "").header("long", "x".repeat(16 * 1024));
    let bare = NewMessage::new("");
    scene.publish_all(&[full.clone(), bare]).await;

    let stored = scene.fetch_range(1, 2).await;
    let expected = Message {
        offset: crate::Offset(1),
        message_id: id,
        key: full.key,
        message_type: full.message_type,
        payload: full.payload,
        content_type: full.content_type,
        headers: full.headers,
        correlation_id: full.correlation_id,
        created_at: case.now(),
    };
    assert_eq!(stored[0], expected);
    let bare = &stored[1];
    assert_eq!((&bare.key, &bare.message_type, &bare.content_type), (&None, &None, &None));
    assert_eq!((&bare.correlation_id, bare.headers.len(), bare.payload.len()), (&None, 0, 0));
}

/// A message without an id gets a UUIDv7, which the answer contains.
pub async fn an_id_is_made_where_none_is_given(case: &Case) {
    let scene = case.queue().await;
    let messages = [NewMessage::new("a"), NewMessage::new("b")];
    let published = scene.store.publish(&scene.topic, &messages).await.unwrap();
    let stored = scene.fetch_range(1, 2).await;
    for (message, answer) in stored.iter().zip(&published) {
        assert_eq!(message.message_id, answer.message_id);
        assert_eq!(message.message_id.get_version_num(), 7);
    }
    assert_ne!(stored[0].message_id, stored[1].message_id);
}

/// Payloads are bytes: NUL, every byte value, an empty payload, and one of exactly the limit.
pub async fn payloads_are_kept_byte_for_byte(case: &Case) {
    let scene = case.queue().await;
    let payloads: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0],
        b"a\0b\0".to_vec(),
        (0..=255).collect(),
        b"\xff\xfe not utf-8".to_vec(),
        (0..PAYLOAD_BYTES_DEFAULT).map(|n| u8::try_from(n % 251).unwrap()).collect(),
    ];
    let messages: Vec<_> = payloads.iter().cloned().map(NewMessage::new).collect();
    scene.publish_all(&messages).await;
    let stored = scene.fetch_range(1, 6).await;
    assert_eq!(stored.len(), payloads.len());
    for (message, payload) in stored.iter().zip(&payloads) {
        assert!(message.payload == payload[..], "payload of {} bytes changed", payload.len());
    }
}

/// If one message of a batch is bad, nothing of the batch is written.
pub async fn a_batch_with_one_bad_message_writes_nothing(case: &Case) {
    let settings = TopicSettings { payload_bytes_max: 10, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let good = NewMessage::new("good");
    let bad = [
        (good.clone().key(""), ErrorKind::InvalidInput),
        (NewMessage::new("eleven byte"), ErrorKind::PayloadTooLarge),
    ];
    for (bad, kind) in bad {
        let batch = [good.clone(), bad, good.clone()];
        failed(scene.store.publish(&scene.topic, &batch).await, kind);
    }
    assert_eq!(scene.fetch_range(1, 10).await, []);
    assert_eq!(scene.drain("a").await, []);
    assert_eq!(scene.publish(1).await.len(), 1);
    assert_eq!(payloads_of(&scene.drain("a").await), ["1"]);
}

/// A refused batch does not create its topic either.
pub async fn a_refused_batch_creates_no_topic(case: &Case) {
    let store = case.open_with(case.options().auto_create(true)).await.unwrap();
    let name = topic("never made");
    let good = NewMessage::new("good");
    let bad = [
        (good.clone().key("a\0b"), ErrorKind::InvalidInput),
        (NewMessage::new(vec![0; PAYLOAD_BYTES_DEFAULT + 1]), ErrorKind::PayloadTooLarge),
    ];
    for (bad, kind) in bad {
        failed(store.publish(&name, &[good.clone(), bad]).await, kind);
        failed(store.topic(&name).await, ErrorKind::NoSuchTopic);
    }
    assert_eq!(store.topics().await.unwrap(), []);
}

/// Publishing an empty batch does nothing and is no error.
pub async fn an_empty_batch_publishes_nothing(case: &Case) {
    let scene = case.queue().await;
    assert_eq!(scene.store.publish(&scene.topic, &[]).await.unwrap(), []);
    assert_eq!(scene.topic_status().await.head.0, 0);
}

/// The largest batch is published whole; a batch with one more is refused whole.
pub async fn the_largest_batch_is_published_whole(case: &Case) {
    let scene = case.queue().await;
    let batch = vec![NewMessage::new("x"); PUBLISH_MESSAGES_MAX];
    let offsets = scene.publish_all(&batch).await;
    assert!(offsets.iter().copied().eq(1..=10_000), "offsets are 1 to 10000 in order");
    let over = vec![NewMessage::new("x"); PUBLISH_MESSAGES_MAX + 1];
    let error = failed(scene.store.publish(&scene.topic, &over).await, ErrorKind::InvalidInput);
    assert!(error.to_string().contains("10001"), "{error}");
    assert_eq!(scene.topic_status().await.head.0, 10_000);
}

/// With many publishers at once no offset is given twice, and the offsets of each publisher rise.
pub async fn concurrent_publishers_get_disjoint_rising_offsets(case: &Case) {
    let scene = case.queue().await;
    let tasks: Vec<_> = (0..8)
        .map(|publisher| {
            let scene = scene.clone();
            tokio::spawn(async move {
                let mut offsets = Vec::new();
                for n in 0..25 {
                    let batch: Vec<_> =
                        (0..4).map(|m| NewMessage::new(format!("{publisher}-{n}-{m}"))).collect();
                    offsets.extend(scene.publish_all(&batch).await);
                }
                offsets
            })
        })
        .collect();
    let mut all = HashSet::new();
    for task in tasks {
        let offsets = task.await.unwrap();
        assert!(offsets.is_sorted(), "one publisher's offsets rise: {offsets:?}");
        assert!(offsets.iter().all(|offset| all.insert(*offset)), "no offset is given twice");
    }
    assert_eq!(all.len(), 800);
    let got: Vec<_> = scene.drain_until("a", 800).await;
    assert_eq!(offsets_of(&got).into_iter().collect::<HashSet<_>>(), all);
    assert_eq!(got.len(), 800);
}

/// What the caller's transaction published is delivered when it commits.
pub async fn a_committed_transaction_of_the_caller_is_delivered(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let messages = [NewMessage::new("in").key("k"), NewMessage::new("transaction").header("h", "v")];
    let published = case.harness().publish_in_transaction(&scene.topic, &messages, true).await.unwrap();
    let offsets: Vec<_> = published.iter().map(|one| one.offset.unwrap().0).collect();
    assert_eq!(offsets, [2, 3]);
    let got = scene.drain("a").await;
    assert_eq!(payloads_of(&got), ["1", "in", "transaction"]);
    assert_eq!(got[1].message_id, published[0].message_id);
    assert_eq!(got[1].key.as_deref(), Some("k"));
    assert_eq!(got[2].headers.get("h").map(String::as_str), Some("v"));
}

/// What the caller's transaction published is never delivered when it rolls back.
pub async fn a_rolled_back_transaction_of_the_caller_is_never_seen(case: &Case) {
    let scene = case.queue().await;
    let gone = [NewMessage::new("gone"), NewMessage::new("gone too")];
    let later = case.now() + std::time::Duration::from_secs(3600);
    let delayed = [NewMessage::new("gone later").deliver_at(later)];
    case.harness().publish_in_transaction(&scene.topic, &gone, false).await.unwrap();
    case.harness().publish_in_transaction(&scene.topic, &delayed, false).await.unwrap();
    assert_eq!(scene.drain("a").await, []);
    scene.publish(2).await;
    assert_eq!(payloads_of(&scene.drain_until("a", 2).await), ["1", "2"]);
    let status = scene.topic_status().await;
    assert_eq!(status.scheduled, 0);
    let stored = scene.fetch_range(1, status.head.0).await;
    assert_eq!(payloads_of(&stored), ["1", "2"]);
}

/// Plain SQL publishes, from any language.
pub async fn committed_sql_is_delivered(case: &Case) {
    let scene = case.queue().await;
    case.harness().publish_by_sql(&scene.topic, r#"{"n":1}"#, Some("o-1"), true).await.unwrap();
    case.harness().publish_by_sql(&scene.topic, r#"{"n":2,"s":"it's"}"#, None, true).await.unwrap();
    let got = scene.drain("a").await;
    assert_eq!(offsets_of(&got), [1, 2]);
    assert_eq!((got[0].key.as_deref(), got[1].key.as_deref()), (Some("o-1"), None));
    let json = |message: &Message| serde_json::from_slice::<serde_json::Value>(&message.payload).unwrap();
    assert_eq!(json(&got[0]), serde_json::json!({"n": 1}));
    assert_eq!(json(&got[1]), serde_json::json!({"n": 2, "s": "it's"}));
    assert_ne!(got[0].message_id, got[1].message_id);
}

/// Plain SQL that rolls back publishes nothing.
pub async fn rolled_back_sql_is_never_seen(case: &Case) {
    let scene = case.queue().await;
    case.harness().publish_by_sql(&scene.topic, r#"{"n":1}"#, None, false).await.unwrap();
    assert_eq!(scene.drain("a").await, []);
    case.harness().publish_by_sql(&scene.topic, r#"{"n":2}"#, None, true).await.unwrap();
    let got = scene.drain_until("a", 1).await;
    assert_eq!(got.len(), 1);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&got[0].payload).unwrap()["n"], 2);
}

/// The rules also hold in the caller's transaction, and a refused message does not break that transaction.
pub async fn the_callers_transaction_keeps_the_rules(case: &Case) {
    let settings = TopicSettings { payload_bytes_max: 10, ..TopicSettings::default() };
    let scene = case.scene(settings).await;
    let bad = [NewMessage::new("ok"), NewMessage::new("eleven byte")];
    let refused = case.harness().publish_in_transaction(&scene.topic, &bad, true).await;
    failed(refused, ErrorKind::PayloadTooLarge);
    let bad = [NewMessage::new("ok").key("a\0b")];
    let refused = case.harness().publish_in_transaction(&scene.topic, &bad, true).await;
    failed(refused, ErrorKind::InvalidInput);
    assert_eq!(scene.drain("a").await, []);
    assert_eq!(scene.fetch_range(1, 10).await, []);
}

/// The offset of a rolled-back message is skipped or given to a later one: readers see every offset at most once.
pub async fn offsets_are_never_reused(case: &Case) {
    let scene = case.queue().await;
    assert_eq!(scene.publish(3).await, [1, 2, 3]);
    assert_eq!(scene.drain("a").await.len(), 3);
    let gone = [NewMessage::new("gone"), NewMessage::new("gone too")];
    case.harness().publish_in_transaction(&scene.topic, &gone, false).await.unwrap();
    let after_rollback = scene.publish(1).await[0];
    assert!(after_rollback > 3, "{after_rollback} was used");
    if !case.harness().rollbacks_skip_offsets() {
        assert_eq!(after_rollback, 4, "a rolled-back offset was never used");
    }
    assert_eq!(offsets_of(&scene.drain_until("a", 1).await), [after_rollback]);

    scene.store.close().await.unwrap();
    let reopened = case.open().await;
    let scene = scene.through(&reopened);
    let after_restart = scene.publish(1).await[0];
    assert!(after_restart > after_rollback, "{after_restart} was used");
    assert_eq!(offsets_of(&scene.drain_until("a", 1).await), [after_restart]);
}

/// Every topic has its own offsets.
pub async fn every_topic_has_offsets_of_its_own(case: &Case) {
    let store = case.open().await;
    let mut scenes = Vec::new();
    for name in ["a", "b", "c"] {
        scenes.push(Scene::new(Arc::clone(&store), name, TopicSettings::default()).await);
    }
    for round in 0..3 {
        for scene in &scenes {
            let text = format!("{} {round}", scene.topic);
            let offsets = scene.publish_all(&[NewMessage::new(text)]).await;
            assert_eq!(offsets, [round + 1]);
        }
    }
    for scene in &scenes {
        let name = &scene.topic;
        let expected: Vec<_> = (0..3).map(|round| format!("{name} {round}")).collect();
        assert_eq!(payloads_of(&scene.drain("w").await), expected);
    }
    assert_eq!(store.topic(&topic("b")).await.unwrap(), scenes[1].subscription.topic);
}
