//! Files that earlier versions made.

use super::*;
use crate::message::Offset;
use crate::subscription::SubscriptionState;

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn number(place: &Place, sql: &str) -> i64 {
    place.connect().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A file as an earlier version made it.
fn at_version(place: &Place, newest: usize) -> Connection {
    let old = place.connect();
    for (version, sql) in &migrate::MIGRATIONS[..newest] {
        old.execute_batch(sql).unwrap();
        old.execute(
            "INSERT OR REPLACE INTO headwater_meta (key, value) VALUES ('schema_version', ?1)",
            [version.to_string()],
        )
        .unwrap();
    }
    old
}

#[tokio::test]
async fn a_file_of_version_5_does_not_know_which_bits_its_records_have_and_looks() {
    let place = Place::new();
    let old = at_version(&place, 5);
    old.execute_batch(
        "INSERT INTO headwater_topic (name, semantics, created_at_ms, tracking, last_offset, tracked_until, zero_until)
         VALUES ('orders', 'pub_sub', 1, 'reference_counting', 1, 1, 0);
         INSERT INTO headwater_message (row_key, message_id, payload, headers, created_at_ms)
         VALUES ((1 << 43) | 1, zeroblob(16), x'78', '{}', 1);
         INSERT INTO headwater_record VALUES ((1 << 43) | 1, 3, 3, 1);
         INSERT INTO headwater_subscription (topic_id, group_name, lanes, start_offset, created_at_ms, status_at_ms, bit)
         VALUES (1, 'a', 0, 1, 1, 1, 0);
         INSERT INTO headwater_cursor (subscription_id, lane, next_offset) VALUES (1, 0, 2);",
    )
    .unwrap();
    drop(old);
    let store = place.open().await;
    store.subscribe(&topic("orders"), &group("new"), Start::Now).await.unwrap();
    let bit = number(&place, "SELECT bit FROM headwater_subscription WHERE group_name = 'new'");
    assert_eq!(bit, 2, "a message still names the group that had bit 1");
    assert_eq!(number(&place, "SELECT bits_used FROM headwater_topic"), 0b111);
}

#[tokio::test]
async fn a_file_of_version_4_keeps_its_subscriptions_and_their_places() {
    let place = Place::new();
    let old = at_version(&place, 4);
    old.execute_batch(
        "INSERT INTO headwater_topic (name, semantics, created_at_ms) VALUES ('orders', 'pub_sub', 1), ('idle', 'queue', 1);
         INSERT INTO headwater_subscription (topic_id, group_name, lanes, start_offset, reassigned, created_at_ms)
         VALUES (1, 'workers', 0, 1, 4, 1), (1, 'gone', 0, 1, 0, 1);
         DELETE FROM headwater_subscription WHERE group_name = 'gone';
         INSERT INTO headwater_cursor (subscription_id, lane, next_offset) VALUES (1, 0, 3);
         UPDATE headwater_cursor SET next_offset = 9 WHERE subscription_id = 0;
         INSERT INTO headwater_range VALUES (9, 2, 2, 1, NULL, NULL, 0, 1, 0, 0, NULL, 'failed');",
    )
    .unwrap();
    for payload in ["one", "two", "three"] {
        old.execute("INSERT INTO headwater_publish (topic, payload) VALUES ('orders', ?1)", [payload])
            .unwrap();
    }
    drop(old);
    let store = place.open().await;
    let status = store.subscriptions(&topic("orders")).await.unwrap().remove(0);
    assert_eq!((status.state, status.next, status.floor), (SubscriptionState::Active, Offset(3), Offset(1)));
    assert_eq!((status.lag, status.retrying, status.reassigned), (2, 1, 4));
    assert_eq!(store.topic(&topic("orders")).await.unwrap().settings, TopicSettings::pub_sub());
    let subscription = store.subscribe(&topic("orders"), &group("workers"), Start::Now).await.unwrap();
    assert_eq!(subscription.subscription_id, status.subscription_id);
    assert_eq!(drain(&store, &subscription).await, ["two", "three"]);
    let new = store.subscribe(&topic("orders"), &group("new"), Start::Beginning).await.unwrap();
    assert_eq!(new.subscription_id.0, 3, "the number of one that is gone is not used again");
    assert_eq!(number(&place, "SELECT zero_until FROM headwater_topic WHERE name = 'orders'"), 0);
    assert_eq!(
        number(&place, "SELECT zero_until IS NULL FROM headwater_topic WHERE name = 'idle'"),
        1,
        "nobody counts there"
    );
    assert_eq!(store.doctor().await.unwrap(), []);
}
