//! Handling in the store's own transaction: an effect is written once, and only together with its ack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::case::{Case, DEADLINE, pause};
use super::effects::{Effects, Say, assert_lost, done, give_up_half_way, handle};
use crate::limits::{INBOX_RETENTION, OUTBOX_RETENTION};
use crate::message::{NewMessage, Offset};
use crate::settle::Verdict;
use crate::store::{EntryRetention, EntryStep};

/// Effect and ack are both committed.
pub async fn effect_and_ack_commit_together(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let verdicts = handle(&scene, &lease, "mailer", done()).await.unwrap();
    assert_eq!(verdicts.len(), 3);
    assert_eq!(effects.seen().await, ["1", "2", "3"]);
    let status = scene.status().await;
    assert_eq!((status.floor.0, status.leased, status.waiting), (3, 0, 0));
    scene.claim_nothing("a", 3).await;
}

/// A handler that fails leaves no effect, not even an inbox entry; its retry is recorded and runs.
pub async fn a_failed_handler_leaves_no_effect_and_a_retry(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    let fails: Say = Arc::new(|_| Verdict::Failed("no such customer".into()));
    handle(&scene, &lease, "mailer", fails).await.unwrap();
    assert_eq!(effects.seen().await, [] as [&str; 0]);
    let status = scene.status().await;
    assert_eq!((status.leased, status.waiting), (0, 1));
    let lease = scene.claim_one("a", 1).await;
    assert_eq!(lease.attempt, 2);
    handle(&scene, &lease, "mailer", done()).await.unwrap();
    assert_eq!(effects.seen().await, ["1"]);
    assert_eq!(scene.status().await.floor.0, 1);
}

/// A message that a handler buried leaves no effect, and is a dead letter.
pub async fn a_buried_message_leaves_no_effect(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    handle(&scene, &lease, "mailer", Arc::new(|_| Verdict::Bury("hopeless".into()))).await.unwrap();
    assert_eq!(effects.seen().await, [] as [&str; 0]);
    assert_eq!(scene.dead_letters().await[0].error, "hopeless");
}

/// One of three messages fails: the other two keep their effects and are done.
pub async fn a_partial_batch_keeps_what_was_done(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(3).await;
    let lease = scene.claim_one("a", 3).await;
    let second_fails: Say = Arc::new(|message| match message.offset.0 {
        2 => Verdict::Failed("not this one".into()),
        _ => Verdict::Done,
    });
    handle(&scene, &lease, "mailer", second_fails).await.unwrap();
    assert_eq!(effects.seen().await, ["1", "3"]);
    let lease = scene.claim_one("a", 3).await;
    assert_eq!((lease.range.first.0, lease.range.last.0, lease.attempt), (2, 2, 2));
    handle(&scene, &lease, "mailer", done()).await.unwrap();
    assert_eq!(effects.seen().await, ["1", "2", "3"]);
    assert_eq!(scene.status().await.floor.0, 3);
}

/// The same message id again is acked without running its handler. Another handler has its own inbox.
pub async fn a_second_delivery_runs_no_effect(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    let again = NewMessage::new("paid").message_id(Uuid::now_v7());
    scene.publish_all(std::slice::from_ref(&again)).await;
    let lease = scene.claim_one("a", 1).await;
    handle(&scene, &lease, "mailer", done()).await.unwrap();

    scene.publish_all(&[again.clone(), NewMessage::new("new")]).await;
    let lease = scene.claim_one("a", 2).await;
    let ran = Arc::new(AtomicU32::new(0));
    let counts: Say = {
        let ran = Arc::clone(&ran);
        Arc::new(move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            Verdict::Done
        })
    };
    let verdicts = handle(&scene, &lease, "mailer", Arc::clone(&counts)).await.unwrap();
    assert_eq!(verdicts, [(Offset(2), Verdict::Done), (Offset(3), Verdict::Done)]);
    assert_eq!(ran.load(Ordering::SeqCst), 1, "only the new message was handled");
    assert_eq!(effects.seen().await, ["new", "paid"]);
    assert_eq!(scene.status().await.floor.0, 3);

    scene.publish_all(&[again]).await;
    let lease = scene.claim_one("a", 1).await;
    handle(&scene, &lease, "auditor", counts).await.unwrap();
    assert_eq!(effects.seen().await, ["new", "paid", "paid"]);
}

/// A lease that expires while its messages are handled rolls back their effects; the next owner writes them.
pub async fn a_lease_lost_while_handling_leaves_no_effect(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 2).await;
    let clock = case.clock();
    let slow: Say = Arc::new(move |_| {
        clock.advance(Duration::from_secs(400));
        Verdict::Done
    });
    assert_lost(handle(&scene, &lease, "mailer", slow).await);
    assert_eq!(effects.seen().await, [] as [&str; 0]);
    assert_lost(handle(&scene, &lease, "mailer", done()).await);
    for _ in 0..2 {
        // Suspect, so one by one.
        let lease = scene.claim_one("b", 2).await;
        handle(&scene, &lease, "mailer", done()).await.unwrap();
    }
    assert_eq!(effects.seen().await, ["1", "2"]);
    assert_eq!(scene.status().await.floor.0, 2);
}

/// Two leases with the same message are handled at the same time: only one of them has the effect.
pub async fn two_deliveries_at_once_have_one_effect(case: &Case) {
    let scene = case.pub_sub().await;
    let effects = Effects::new(case, &scene.store).await;
    let twice = NewMessage::new("paid").message_id(Uuid::now_v7());
    for _ in 0..10 {
        scene.publish_all(std::slice::from_ref(&twice)).await;
    }
    let mut tasks = Vec::new();
    for n in 0..10 {
        let lease = scene.claim_one(&format!("owner {n}"), 1).await;
        let scene = scene.clone();
        tasks.push(tokio::spawn(async move { handle(&scene, &lease, "mailer", done()).await }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(effects.seen().await, ["paid"]);
    assert_eq!(scene.status().await.floor.0, 10);
}

/// A caller that is cancelled half way leaves no transaction open, and the effect is written once.
pub async fn a_cancelled_caller_leaves_no_transaction_open(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(1).await;
    let lease = scene.claim_one("a", 1).await;
    give_up_half_way(&scene, &lease, "mailer").await;
    // Nothing blocks other programs.
    let other = scene.through(&case.open().await);
    other.publish(1).await;
    let lease = other.claim_one("b", 1).await;
    handle(&other, &lease, "mailer", done()).await.unwrap();
    case.advance(Duration::from_secs(400));
    let until = Instant::now() + DEADLINE;
    while scene.status().await.floor.0 < 2 {
        assert!(Instant::now() < until, "the message never became free: {:?}", scene.status().await);
        for lease in scene.claim("c", 2).await {
            handle(&scene, &lease, "mailer", done()).await.unwrap();
        }
        pause().await;
    }
    assert_eq!(effects.seen().await, ["1", "1"], "one effect for each of the two messages");
}

/// An inbox entry lasts for the inbox retention, and no longer.
pub async fn maintenance_forgets_old_inbox_entries(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    let again = NewMessage::new("paid").message_id(Uuid::now_v7());
    scene.publish_all(std::slice::from_ref(&again)).await;
    let lease = scene.claim_one("a", 1).await;
    handle(&scene, &lease, "mailer", done()).await.unwrap();
    let retention = EntryRetention { inbox: INBOX_RETENTION, outbox: OUTBOX_RETENTION };
    let clean = async || scene.store.clean_entries(&retention).await.unwrap();
    case.advance(INBOX_RETENTION - Duration::from_millis(1));
    assert_eq!(clean().await.inbox, 0);
    case.advance_ms(1);
    assert_eq!(clean().await, EntryStep { inbox: 1, outbox: 0, more: false });
    scene.publish_all(&[again]).await;
    let lease = scene.claim_one("a", 1).await;
    handle(&scene, &lease, "mailer", done()).await.unwrap();
    assert_eq!(effects.seen().await, ["paid", "paid"]);
}

/// A handler's name is data like any other name.
pub async fn strange_handler_names_are_harmless(case: &Case) {
    let scene = case.queue().await;
    let effects = Effects::new(case, &scene.store).await;
    scene.publish(2).await;
    let lease = scene.claim_one("a", 1).await;
    handle(&scene, &lease, "Robert'); DROP TABLE inbox;--", done()).await.unwrap();
    let lease = scene.claim_one("a", 1).await;
    for bad in ["", "a\0b", &"x".repeat(256)] {
        super::case::failed(handle(&scene, &lease, bad, done()).await, crate::ErrorKind::InvalidInput);
    }
    scene.ack(&lease).await;
    assert_eq!(effects.seen().await, ["1"]);
}
