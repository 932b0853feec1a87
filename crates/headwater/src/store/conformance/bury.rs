//! Burying: a message that a group gave up on is kept whole as a dead letter.

use super::case::{Case, bury, failed, retry};
use crate::error::ErrorKind;
use crate::limits::ERROR_TEXT_BYTES_MAX;
use crate::message::NewMessage;
use crate::settle::Outcome;
use crate::subscription::Start;

/// A dead letter has the exact bytes and every field, with the error, the attempts and the time.
pub async fn a_buried_message_is_kept_whole(case: &Case) {
    let scene = case.queue().await;
    let payloads: Vec<Vec<u8>> = vec![
        b"plain".to_vec(),
        Vec::new(),
        b"nul\0inside\0".to_vec(),
        (0..=255).collect(),
        (0..12_345).map(|n| u8::try_from(n % 253).unwrap()).collect(),
    ];
    let messages: Vec<_> = payloads
        .iter()
        .map(|payload| {
            NewMessage::new(payload.clone())
                .key("k 'é'")
                .message_type("t")
                .content_type("application/octet-stream")
                .correlation_id("c-1")
                .header("h1", "v1\n\"x\"")
                .header("h2", "🌊")
        })
        .collect();
    let published = scene.store.publish(&scene.topic, &messages).await.unwrap();
    let lease = scene.claim_one("a", 10).await;
    let published_at = case.now();
    case.advance_ms(1_234);
    scene.settle_each(&lease, vec![((1, 5), bury("cannot parse: 'x'"))]).await.unwrap();

    let dead = scene.dead_letters().await;
    assert_eq!(dead.len(), 5);
    for (index, one) in dead.iter().enumerate() {
        assert_eq!(one.offset, published[index].offset.unwrap());
        assert_eq!(one.message_id, published[index].message_id);
        assert_eq!(one.subscription_id, scene.subscription.subscription_id);
        assert!(one.payload == payloads[index][..], "payload of {} bytes changed", payloads[index].len());
        assert_eq!(one.key, messages[index].key);
        assert_eq!(one.message_type, messages[index].message_type);
        assert_eq!(one.content_type, messages[index].content_type);
        assert_eq!(one.headers, messages[index].headers);
        assert_eq!(one.correlation_id, messages[index].correlation_id);
        assert_eq!((one.error.as_str(), one.attempts), ("cannot parse: 'x'", 1));
        assert_eq!((one.created_at, one.buried_at), (published_at, case.now()));
    }
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.leased, status.dead_letters), (5, 0, 5));
}

/// Attempts count every hand-out, the last one included.
pub async fn a_buried_message_shows_its_attempts(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    for _ in 0..3 {
        let lease = scene.claim_one("a", 1).await;
        scene.settle_each(&lease, vec![((1, 1), retry(0, "not yet"))]).await.unwrap();
    }
    let lease = scene.claim_one("a", 1).await;
    assert_eq!(lease.attempt, 4);
    scene.settle_each(&lease, vec![((1, 1), bury("never"))]).await.unwrap();
    let dead = scene.dead_letters().await;
    assert_eq!((dead.len(), dead[0].attempts, dead[0].error.as_str()), (1, 4, "never"));
}

/// An error longer than the limit is cut and ends in a mark; NUL becomes a character that a text column can hold.
pub async fn an_overlong_error_is_cut_with_a_mark(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 2).await;
    let long = "é".repeat(ERROR_TEXT_BYTES_MAX);
    scene.settle_each(&lease, vec![((1, 1), bury(&long)), ((2, 2), bury("nul \0 inside"))]).await.unwrap();
    let dead = scene.dead_letters().await;
    assert!(dead[0].error.len() <= ERROR_TEXT_BYTES_MAX, "{} bytes", dead[0].error.len());
    assert!(dead[0].error.len() > ERROR_TEXT_BYTES_MAX - 32, "{} bytes", dead[0].error.len());
    assert!(dead[0].error.starts_with("éééé") && dead[0].error.ends_with("(cut)"));
    assert_eq!(dead[1].error, "nul \u{FFFD} inside");
}

/// Dead letters belong to the subscription that gave up; other subscriptions still get the message.
pub async fn dead_letters_belong_to_one_subscription(case: &Case) {
    let gives_up = case.pub_sub().await;
    let other = gives_up.subscribe("other", Start::Beginning).await;
    gives_up.publish(3).await;
    let lease = gives_up.claim_one("a", 3).await;
    gives_up.settle_each(&lease, vec![((2, 2), bury("x")), ((1, 1), Outcome::Ack)]).await.unwrap();
    assert_eq!(other.drain("a").await.len(), 3);
    assert_eq!(other.dead_letters().await, []);
    assert_eq!(gives_up.dead_letters().await.len(), 1);
}

/// Dead letters are listed oldest first, and no more than the limit.
pub async fn dead_letters_are_listed_oldest_first(case: &Case) {
    let scene = case.queue().await;
    scene.publish(6).await;
    let lease = scene.claim_one("a", 6).await;
    for offset in [5, 2, 6, 1] {
        scene.settle_each(&lease, vec![((offset, offset), bury("x"))]).await.unwrap();
        case.advance_ms(10);
    }
    let listed = async |limit| {
        let found = scene.store.dead_letters(&scene.dead_letter_selection(), limit).await.unwrap();
        found.iter().map(|one| one.offset.0).collect::<Vec<_>>()
    };
    assert_eq!(listed(100).await, [5, 2, 6, 1]);
    assert_eq!(listed(2).await, [5, 2]);
    let ids: std::collections::HashSet<_> =
        scene.dead_letters().await.iter().map(|one| one.dead_letter_id).collect();
    assert_eq!(ids.len(), 4);
}

/// A refused burial stores nothing: a message is never both leased and buried.
pub async fn a_refused_burial_stores_nothing(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let answer = scene.settle_each(&lease, vec![((1, 2), bury("x")), ((4, 4), Outcome::Ack)]).await;
    failed(answer, ErrorKind::LeaseLost);
    assert_eq!(scene.dead_letters().await, []);
    scene.ack(&lease).await;
    assert_eq!(scene.status().await.dead_letters, 0);
}
