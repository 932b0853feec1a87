//! The doctor finds every kind of damage that it checks for, and nothing in a sound store.

use super::*;
use crate::store::Tracking as _;

/// Damages a store with a statement, and returns the names of the checks that detect it.
async fn found_after(sql: &str) -> Vec<&'static str> {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(30)).await.unwrap();
    for _ in 0..2 {
        store.claim(&request(&subscription, 10)).await.unwrap();
    }
    assert_eq!(store.doctor().await.unwrap(), [], "sound before");
    let own = place.connect();
    own.execute_batch(sql).unwrap();
    let findings = store.doctor().await.unwrap();
    for finding in &findings {
        assert!(!finding.problem.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
    }
    let mut checks: Vec<&str> = findings.into_iter().map(|finding| finding.check).collect();
    checks.dedup();
    checks
}

#[tokio::test]
async fn every_check_finds_its_damage() {
    for (sql, check) in [
        ("UPDATE headwater_outstanding SET last_offset = 12 WHERE first_offset = 1", "overlap"),
        ("UPDATE headwater_outstanding SET last_offset = 0 WHERE first_offset = 1", "malformed"),
        ("UPDATE headwater_cursor SET next_offset = 15 WHERE subscription_id = 1", "outstanding_beyond_next"),
        ("UPDATE headwater_cursor SET next_offset = 99 WHERE subscription_id = 1", "next_beyond_head"),
        (
            "UPDATE headwater_cursor SET next_offset = 99 WHERE subscription_id = 1; UPDATE headwater_subscription SET start_offset = 99",
            "next_beyond_head",
        ),
        ("UPDATE headwater_outstanding SET subscription_id = 7 WHERE first_offset = 1", "orphan_range"),
        ("INSERT INTO headwater_cursor VALUES (7, 0, 1, 0)", "orphan_cursor"),
        ("INSERT INTO headwater_cursor VALUES (1, 1, 1, 0)", "missing_cursor"),
        (
            "INSERT INTO headwater_subscription (subscription_id, topic_id, group_name, lanes, start_offset, created_at_ms, state_at_ms) VALUES (7, 9, 'g', 0, 1, 0, 0); INSERT INTO headwater_cursor VALUES (7, 0, 1, 0)",
            "orphan_subscription",
        ),
        ("UPDATE headwater_topic SET last_offset = 25", "head_behind"),
        ("DELETE FROM headwater_message WHERE row_key = (1 << 43) + 7", "missing_message"),
        ("UPDATE headwater_outstanding SET due_at_ms = 99999999999999 WHERE first_offset = 1", "far_lease"),
        (
            "INSERT INTO headwater_outbox_entry (category, topic, type, payload, status, claimed_by, claimed_at_ms, created_at_ms, parked_at_ms)
             VALUES ('event', 't', 'T', x'', 'PARKED', 'a', 0, 0, 0)",
            "parked_entry",
        ),
        (
            "INSERT INTO headwater_process_insert (process_id, process_type) VALUES (randomblob(16), 'order'); UPDATE headwater_process SET version = 2",
            "process_log",
        ),
    ] {
        assert_eq!(found_after(sql).await, [check], "{sql}");
    }
}

/// Damages a store with reference counting, in the middle of work, and returns the names of the checks that detect
/// it.
async fn found_in_counted(sql: &str) -> Vec<&'static str> {
    let place = Place::new();
    let store = place.open().await;
    store.create_topic(&topic("orders"), &TopicSettings::pub_sub()).await.unwrap();
    place
        .connect()
        .execute_batch(
            "UPDATE headwater_topic SET settings = json_set(settings, '$.tracking', 'reference_counting')",
        )
        .unwrap();
    let group = |name: &str| GroupName::new(name).unwrap();
    let a = store.subscribe(&topic("orders"), &group("a"), Start::Beginning).await.unwrap();
    store.subscribe(&topic("orders"), &group("b"), Start::Beginning).await.unwrap();
    store.publish(&topic("orders"), &messages(30)).await.unwrap();
    store.track(a.topic.topic_id, 20).await.unwrap();
    let lease = store.claim(&request(&a, 10)).await.unwrap().leases.remove(0);
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    store.subscribe(&topic("orders"), &group("late"), Start::Beginning).await.unwrap();
    store.step_backfill(&Owner::new("w").unwrap(), 5).await.unwrap();
    store.track(a.topic.topic_id, 15).await.unwrap();
    assert_eq!(store.doctor().await.unwrap(), [], "sound in the middle of work");
    place.connect().execute_batch(sql).unwrap();
    let findings = store.doctor().await.unwrap();
    for finding in &findings {
        assert!(!finding.problem.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
    }
    let mut checks: Vec<&str> = findings.into_iter().map(|finding| finding.check).collect();
    checks.dedup();
    checks
}

#[tokio::test]
async fn every_check_of_completion_records_finds_its_damage() {
    let record = "(1 << 43) + 7";
    for (sql, checks) in [
        (
            "INSERT INTO headwater_outstanding VALUES (1, 1, 2, 3, NULL, 'me', 0, 0, 0, 0, NULL, NULL);
             UPDATE headwater_cursor SET next_offset = 3 WHERE subscription_id = 3;
             UPDATE headwater_subscription SET state = 'cancelled', released_until = 0 WHERE subscription_id = 3;
             DELETE FROM headwater_backfill"
                .to_owned(),
            vec!["cancelled_range"],
        ),
        ("UPDATE headwater_topic SET zero_until = NULL".into(), vec!["zero_until"]),
        ("UPDATE headwater_topic SET zero_until = 31".into(), vec!["zero_until"]),
        ("UPDATE headwater_topic SET first_offset = 2".into(), vec!["first_offset"]),
        ("INSERT INTO headwater_watermark_history VALUES (1, 5, 31)".into(), vec!["tracked_until"]),
        ("UPDATE headwater_subscription SET bit = 0 WHERE subscription_id = 3".into(), vec!["shared_bit", "stray_bit", "applied_differs"]),
        ("UPDATE headwater_subscription SET bit = NULL WHERE subscription_id = 3".into(), vec!["missing_bit", "stray_bit"]),
        ("UPDATE headwater_topic SET settings = json_set(settings, '$.tracking', 'offset_watermark')".into(), vec!["idle_bit"]),
        ("UPDATE headwater_subscription SET released_until = 0 WHERE subscription_id = 2".into(), vec!["unreleased"]),
        (format!("UPDATE headwater_completion_record SET required = required | (1 << 63) WHERE row_key = {record}"), vec!["stray_bit"]),
        (format!("UPDATE headwater_completion_record SET completed_at_ms = 1 WHERE row_key = {record}"), vec!["malformed_record"]),
        (format!("DELETE FROM headwater_message WHERE row_key = {record}"), vec!["missing_message", "orphan_record"]),
        (format!("DELETE FROM headwater_completion_record WHERE row_key = {record}"), vec!["missing_record"]),
        (format!("UPDATE headwater_completion_record SET completed = completed | 1 WHERE row_key = {record}"), vec!["applied_differs"]),
        ("UPDATE headwater_subscription SET waiting = waiting + 1 WHERE subscription_id = 3".into(), vec!["kept_waiting"]),
        ("UPDATE headwater_topic SET scheduled = scheduled + 1".into(), vec!["kept_scheduled"]),
        ("INSERT INTO headwater_applied VALUES (7, 1, 2)".into(), vec!["malformed_applied"]),
        ("UPDATE headwater_backfill SET checkpoint = 99".into(), vec!["backfill"]),
    ] {
        assert_eq!(found_in_counted(&sql).await, checks, "{sql}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_lock_that_is_held_for_long_is_shown_with_its_holder() {
    let place = Place::new();
    let store = place.open().await;
    let own = place.connect();
    own.execute_batch("BEGIN IMMEDIATE").unwrap();
    let findings = store.doctor().await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].check, "write_lock");
    assert!(findings[0].problem.contains("another connection of this process"), "{findings:?}");
    own.execute_batch("COMMIT").unwrap();
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn a_log_that_cannot_be_cut_is_shown() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert_eq!(store.doctor().await.unwrap(), []);
    // Sparse, and behind the last frame: SQLite reads none of it.
    let log = std::fs::OpenOptions::new().append(true).open(place.path().with_extension("db-wal")).unwrap();
    log.set_len(checkpoint::LARGE_BYTES).unwrap();
    let findings = store.doctor().await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].check, "large_log");
}
