//! The doctor finds every kind of damage it knows, and nothing in a sound store.

use super::*;

/// Breaks a store with a statement, and gives the names of the checks that notice.
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
        ("UPDATE headwater_range SET last_offset = 12 WHERE first_offset = 1", "overlap"),
        ("UPDATE headwater_range SET last_offset = 0 WHERE first_offset = 1", "malformed"),
        ("UPDATE headwater_cursor SET next_offset = 15 WHERE subscription_id = 1", "outstanding_beyond_next"),
        ("UPDATE headwater_cursor SET next_offset = 99 WHERE subscription_id = 1", "next_beyond_head"),
        ("UPDATE headwater_range SET subscription_id = 7 WHERE first_offset = 1", "orphan_range"),
        ("INSERT INTO headwater_cursor VALUES (7, 0, 1, 0)", "orphan_cursor"),
        ("INSERT INTO headwater_cursor VALUES (1, 1, 1, 0)", "missing_cursor"),
        (
            "INSERT INTO headwater_subscription (subscription_id, topic_id, group_name, lanes, start_offset, created_at_ms, status_at_ms) VALUES (7, 9, 'g', 0, 1, 0, 0); INSERT INTO headwater_cursor VALUES (7, 0, 1, 0)",
            "orphan_subscription",
        ),
        ("UPDATE headwater_topic SET last_offset = 25", "head_behind"),
        ("UPDATE headwater_cursor SET next_offset = 1 WHERE subscription_id = 0", "token_behind"),
        ("UPDATE headwater_range SET due_at_ms = 99999999999999 WHERE first_offset = 1", "far_lease"),
    ] {
        assert_eq!(found_after(sql).await, [check], "{sql}");
    }
}

#[tokio::test]
async fn a_group_that_starts_in_the_future_is_sound() {
    let place = Place::new();
    let store = place.open().await;
    store.create_topic(&topic("orders"), &TopicSettings::pub_sub()).await.unwrap();
    let start = Start::Offset(crate::Offset(1_000));
    let subscription =
        store.subscribe(&topic("orders"), &GroupName::new("late").unwrap(), start).await.unwrap();
    store.publish(&topic("orders"), &messages(10)).await.unwrap();
    assert_eq!(drain(&store, &subscription).await.len(), 0);
    assert_eq!(store.doctor().await.unwrap(), []);
}
