//! Databases and files that are no store, cannot be reached, or are locked, full or read-only: the error states what
//! is wrong, and nothing is damaged.

use std::time::{Duration, Instant};

use super::case::{Case, DEADLINE, Scene, failed, offsets_of, pause, payloads_of, range, topic};
use crate::error::{Error, ErrorKind};
use crate::limits::SAFETY_POLL;
use crate::message::NewMessage;
use crate::topic::TopicSettings;

/// A corrupt or foreign database is refused with an error that names it, and is not touched.
pub async fn a_foreign_database_is_refused_and_not_touched(case: &Case) {
    let places = case.harness().foreign_databases().await;
    assert!(!places.is_empty(), "the harness has at least one foreign database");
    for place in places {
        let before = case.harness().fingerprint(&place).await;
        let answer = case.open_at(&place.url, case.options()).await;
        let error = match answer {
            Ok(_) => panic!("{} was opened as a store", place.what),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::NotAStore, "{}: {error:?}", place.what);
        assert!(!error.is_retryable());
        let after = case.harness().fingerprint(&place).await;
        assert!(before == after, "{} was touched", place.what);
    }
}

/// A database that cannot be reached may be reachable later: the error is retryable.
pub async fn an_unreachable_database_is_unavailable(case: &Case) {
    let url = case.harness().unreachable_url();
    let started = Instant::now();
    let error = failed(case.open_at(&url, case.options()).await, ErrorKind::Unavailable);
    assert!(error.is_retryable());
    assert!(started.elapsed() < DEADLINE, "it took {:?}", started.elapsed());
}

/// A store that can only be read reports so, acknowledges nothing, and continues when it can be written again.
pub async fn a_read_only_store_acknowledges_nothing(case: &Case) {
    let scene = case.queue().await;
    scene.publish(2).await;
    scene.store.close().await.unwrap();
    let Some(url) = case.harness().make_read_only().await else {
        println!("skipped: this harness cannot make its store read-only");
        return;
    };
    match case.open_at(&url, case.options()).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error:?}"),
        Ok(store) => {
            let scene = scene.through(&store);
            let message = [NewMessage::new("refused")];
            failed(store.publish(&scene.topic, &message).await, ErrorKind::ReadOnly);
            assert_eq!(payloads_of(&scene.fetch_range(1, 10).await), ["1", "2"]);
            store.close().await.unwrap();
        }
    }
    case.harness().make_writable().await;
    let scene = scene.through(&case.open().await);
    scene.publish_all(&[NewMessage::new("3")]).await;
    assert_eq!(payloads_of(&scene.drain_until("a", 3).await), ["1", "2", "3"]);
}

/// On a full disk acknowledged messages are stored, refused ones are not, and service resumes when there is space.
pub async fn a_full_store_acknowledges_nothing_more(case: &Case) {
    let Some(url) = case.harness().cramped_url().await else {
        println!("skipped: this harness cannot make a full store");
        return;
    };
    let store = case.open_at(&url, case.options()).await.unwrap();
    let scene = Scene::new(store, "orders", TopicSettings::default()).await;
    let batch = vec![NewMessage::new(vec![7; 20_000]); 3];
    let mut acknowledged = Vec::new();
    let error: Error = loop {
        assert!(acknowledged.len() < 3_000, "the store is never full");
        match scene.store.publish(&scene.topic, &batch).await {
            Ok(published) => acknowledged.extend(published.iter().map(|one| one.offset.unwrap().0)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error:?}");
    let there = offsets_of(&scene.fetch_range(1, 100_000).await);
    assert_eq!(there, acknowledged, "exactly what was acknowledged is stored");

    case.harness().make_room().await;
    let more = scene.publish_all(&batch).await;
    assert!(more[0] > *acknowledged.last().unwrap());
    let got = scene.drain_until("a", acknowledged.len() + 3).await;
    acknowledged.extend(more);
    assert_eq!(offsets_of(&got), acknowledged);
    assert_eq!(scene.store.doctor().await.unwrap(), []);
    scene.store.close().await.unwrap();
}

/// A lock of another program makes the store busy, which is retryable; then it continues.
pub async fn a_locked_store_is_busy_and_then_resumes(case: &Case) {
    let scene = case.queue().await;
    let until = Instant::now() + DEADLINE;
    let hasty = loop {
        match case.open_with(case.options().statement_timeout(Duration::from_millis(500))).await {
            Ok(hasty) => break hasty,
            Err(error) => assert!(error.is_retryable() && Instant::now() < until, "{error:?}"),
        }
    };
    let Some(lock) = case.harness().lock().await else {
        println!("skipped: this harness cannot lock its store");
        return;
    };
    let until = Instant::now() + DEADLINE;
    let refused = loop {
        match hasty.publish(&scene.topic, &[NewMessage::new("no")]).await {
            // A slow machine answers later than the store waits; nothing is committed while the lock is held.
            Err(error) if error.kind() == ErrorKind::CommitUnknown && Instant::now() < until => pause().await,
            refused => break refused,
        }
    };
    assert!(failed(refused, ErrorKind::Busy).is_retryable());
    drop(lock);
    let until = Instant::now() + DEADLINE;
    // Also a slow machine exceeds the short time-out, and maybe while it commits.
    let yes = NewMessage::new("yes").dedup_key("yes");
    while let Err(error) = hasty.publish(&scene.topic, std::slice::from_ref(&yes)).await {
        let recovers = error.is_retryable() || error.kind() == ErrorKind::CommitUnknown;
        assert!(recovers && Instant::now() < until, "it never resumed: {error:?}");
        pause().await;
    }
    assert_eq!(payloads_of(&scene.drain_until("a", 1).await), ["yes"]);
}

/// Cut connections are replaced: calls continue, and a waiter is still woken.
pub async fn service_resumes_after_connections_were_cut(case: &Case) {
    let scene = case.queue().await;
    scene.publish(1).await;
    let wake = scene.store.arm(&[scene.subscription.topic.topic_id]).await.unwrap();
    if !case.harness().cut_connections().await {
        println!("skipped: this harness has no connections to cut");
        return;
    }
    drop(wake);
    let until = Instant::now() + DEADLINE;
    let mut tries = 0;
    let second = NewMessage::new("2").dedup_key("second");
    while let Err(error) = scene.store.publish(&scene.topic, std::slice::from_ref(&second)).await {
        let recovers = error.is_retryable() || error.kind() == ErrorKind::CommitUnknown;
        assert!(recovers && Instant::now() < until, "it never resumed: {error:?}");
        tries += 1;
        assert!(tries < 100, "a hundred calls failed after one cut: {error:?}");
        pause().await;
    }
    assert_eq!(payloads_of(&scene.drain_until("a", 2).await), ["1", "2"]);

    let other = scene.through(&case.open().await);
    // The listening connection reconnects by itself; a waiter armed after that is woken at once.
    let mut woken = false;
    while !woken && Instant::now() < until {
        let wake = scene.store.arm(&[scene.subscription.topic.topic_id]).await.unwrap();
        scene.drain("a").await;
        other.publish_all(&[NewMessage::new("wake up")]).await;
        woken = wake.wait(SAFETY_POLL / 5).await;
    }
    assert!(woken, "no waiter was woken after the cut");
}

/// A namespace that breaks the rule for its name is refused before anything is contacted.
pub async fn a_bad_namespace_is_refused(case: &Case) {
    for bad in ["", "7up", "_x", "pg_toast", &"x".repeat(49)] {
        let answer = case.open_at(&case.harness().url(), case.options().namespace(bad)).await;
        let error = failed(answer, ErrorKind::InvalidInput);
        assert!(error.to_string().contains("namespace"), "{error}");
    }
}

/// The doctor reports no findings in a store that was used in every way.
pub async fn the_doctor_finds_nothing_in_a_used_store(case: &Case) {
    let scene = case.queue().await;
    scene.publish(20).await;
    let first = scene.claim_one("a", 5).await;
    let parts = vec![
        ((1, 1), crate::store::Outcome::Ack),
        ((2, 2), super::case::retry(1_000, "x")),
        ((3, 3), super::case::bury("x")),
        ((4, 4), crate::store::Outcome::Release),
    ];
    scene.settle_each(&first, parts).await.unwrap();
    let later = case.now() + Duration::from_secs(60);
    let delayed = NewMessage::new("later").deliver_at(later).dedup_key("k");
    scene.store.publish(&topic("other"), &[delayed]).await.unwrap();
    assert_eq!(scene.store.doctor().await.unwrap(), []);
    case.advance_ms(400_000);
    scene.claim("b", 3).await;
    scene.store.advance_heads().await.unwrap();
    assert_eq!(scene.store.doctor().await.unwrap(), []);
    assert_eq!(scene.fetch(&first).await.len() as u64, range(1, 5).span());
}

/// A doctor without findings is worth something only if it finds damage.
pub async fn the_doctor_finds_damage(case: &Case) {
    let scene = case.queue().await;
    scene.publish(3).await;
    assert_eq!(scene.drain("a").await.len(), 3);
    assert_eq!(scene.store.doctor().await.unwrap(), []);
    case.harness().damage().await;
    let findings = scene.store.doctor().await.unwrap();
    assert!(!findings.is_empty(), "the damage was not found");
    for finding in findings {
        assert!(!finding.check.is_empty() && !finding.problem.is_empty() && !finding.remedy.is_empty());
    }
    scene.store.drop_namespace().await.unwrap();
}
