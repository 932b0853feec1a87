//! Partitions: created ahead, dropped behind, with short waits for locks.

use super::*;
use crate::topic::Storage;

async fn staged() -> Option<Stage> {
    let settings = "storage = 'dedicated by rows:1000', message_retention_ms = 0,
        zero_subscription_retention_ms = 0";
    let stage = Stage::set(settings).await?;
    stage.run("SELECT {schema}.make_storage(1)").await;
    Some(stage)
}

/// Takes offsets without messages, as rolled back transactions do.
async fn take(stage: &Stage, count: i64) {
    stage
        .run(&format!("SELECT count(nextval('{{schema}}.topic_1_offset')) FROM generate_series(1, {count})"))
        .await;
}

#[tokio::test]
async fn partitions_are_made_ahead_and_dropped_behind() {
    let Some(stage) = staged().await else { return };
    let a = stage.subscribe("a").await;
    let first = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((first.created, first.ahead, first.locked), (17, 20, false), "three were made with the topic");
    for _ in 0..3 {
        stage.publish(500).await;
    }
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.created, step.dropped, step.ahead), (2, 0, 20), "enough for the two largest batches");
    assert_eq!(stage.handle(&a, 1_200).await.len(), 1_200);
    assert_eq!(stage.clean().await, 0, "messages in a partition are removed with it");
    // A rolled back run has no effect.
    stage.run(&format!("BEGIN; SELECT {{schema}}.keep_partitions(1, 100, {}); ROLLBACK", stage.now())).await;
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.dropped, step.removed), (1, 1_000));
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 1_001);
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message").await, 500);
    assert_eq!(stage.handle(&a, 1_000).await.len(), 300);
    stage.strike().await;
}

#[tokio::test]
async fn a_burst_past_the_partitions_is_stored_delivered_and_cleaned() {
    let Some(stage) = staged().await else { return };
    let a = stage.subscribe("a").await;
    take(&stage, 3_000).await;
    stage.publish(5).await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message_t1_rest").await, 5);
    let found: Vec<&str> = stage.store.doctor().await.unwrap().iter().map(|finding| finding.check).collect();
    assert!(found.contains(&"rows_past_partitions") && found.contains(&"partitions_behind"), "{found:?}");
    let ahead = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert!(ahead.created >= 2 && ahead.ahead >= 2 && !ahead.locked, "{ahead:?}");
    let mut offsets = Vec::new();
    until_true("the burst is delivered", async || {
        offsets.extend(stage.handle(&a, 10_000).await);
        offsets.last() == Some(&3_005)
    })
    .await;
    assert_eq!(stage.clean().await, 5);
    until_true("the missing offsets are known to be unused", async || {
        stage.store.advance_heads().await.unwrap();
        stage.number("SELECT count(*) FROM {schema}.gap").await == 0
    })
    .await;
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    // The empty partitions, in the first step if it was already known that nothing will be written to them.
    assert_eq!((ahead.dropped + step.dropped, step.removed, step.locked), (3, 0, false));
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 3_006);
    stage.strike().await;
}

/// A transaction that published past the partitions and has not committed blocks new partitions, and is not waited for.
#[tokio::test]
async fn an_open_publisher_holds_up_creation_until_the_next_run() {
    let Some(stage) = staged().await else { return };
    stage.subscribe("a").await;
    take(&stage, 3_000).await;
    let open = stage.scene.client().await;
    open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    let begun = Instant::now();
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.created, step.ahead, step.locked), (0, 0, true));
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited for {:?}", begun.elapsed());
    stage.publish(1).await;
    open.batch_execute("COMMIT").await.unwrap();
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert!(step.ahead >= 2 && !step.locked, "{step:?}");
    stage.scene.drop().await;
}

/// A publish whose row was routed past the partitions while a partition for it was created has written nothing, and may be
/// repeated.
#[tokio::test]
async fn a_publish_that_meets_a_new_partition_is_retried() {
    let Some(stage) = staged().await else { return };
    stage.subscribe("a").await;
    take(&stage, 3_000).await;
    stage.run("BEGIN; SELECT {schema}.create_partition(1, 3001, 4000, clock_timestamp())").await;
    let store = Arc::clone(&stage.store);
    let publishing = tokio::spawn(async move { store.publish(&orders(), &[NewMessage::new("x")]).await });
    until_waiting(&stage).await;
    stage.run("COMMIT").await;
    let refused = publishing.await.unwrap().unwrap_err();
    assert_eq!((refused.kind(), refused.is_retryable()), (ErrorKind::Busy, true), "{refused}");
    stage.publish(1).await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message_t1_o3001").await, 1);
    stage.scene.drop().await;
}

/// A transaction with rows in a partition does not block partitions ahead, and delays a drop behind only as long as the
/// lock timeout.
#[tokio::test]
async fn a_drop_waits_for_an_open_publisher_no_longer_than_it_may() {
    let Some(stage) = staged().await else { return };
    let a = stage.subscribe("a").await;
    stage.publish(1_500).await;
    stage.handle(&a, 1_500).await;
    let open = stage.scene.client().await;
    open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.created, step.dropped, step.removed, step.locked), (19, 0, 0, true));
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 1);
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.partition").await, 22);
    open.batch_execute("COMMIT").await.unwrap();
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.dropped, step.removed, step.locked), (1, 1_000, false));
    stage.strike().await;
}

#[tokio::test]
async fn what_goes_with_a_partition_unread_is_counted() {
    let Some(stage) = staged().await else { return };
    stage.alter("max_retention_ms = 60000").await;
    let a = stage.subscribe("a").await;
    stage.subscribe("b").await;
    stage.publish(1_500).await;
    stage.handle(&a, 300).await;
    assert_eq!(stage.store.keep_partitions(stage.topic).await.unwrap().dropped, 0);
    stage.clock.advance(Duration::from_secs(61));
    stage.publish(1).await;
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.dropped, step.removed), (1, 1_000));
    let kept = "SELECT string_agg(format('%s %s', group_name, missed), ', ' ORDER BY group_name) FROM {schema}.subscription";
    assert_eq!(stage.text(kept).await, "a 700, b 1000");
    assert_eq!(stage.number("SELECT min(next_offset) FROM {schema}.cursor").await, 1_001);
    stage.strike().await;
}

/// Statistics may be as old as the table: messages that a group missed are counted, not estimated.
#[tokio::test]
async fn stale_statistics_hide_nothing_that_goes_unread() {
    let Some(stage) = staged().await else { return };
    stage.alter("storage = 'dedicated by rows:200000', max_retention_ms = 60000").await;
    stage.run("SELECT {schema}.make_storage(1)").await;
    stage.subscribe("a").await;
    stage.run("ANALYZE {schema}.message_t1_o1; ANALYZE {schema}.message_t1_o200001").await;
    stage.publish(10).await;
    take(&stage, 200_000).await;
    stage.publish(1).await;
    let counted = "SELECT format('%s %s', missed, (SELECT removed FROM {schema}.topic_range)) FROM {schema}.subscription";
    until_true("the head is past the first partition", async || {
        stage.store.advance_heads().await.unwrap();
        stage.number("SELECT head FROM {schema}.head").await == 200_011
            && stage.number("SELECT count(*) FROM {schema}.gap").await == 0
    })
    .await;
    assert_eq!(stage.store.keep_partitions(stage.topic).await.unwrap().dropped, 0);
    stage.clock.advance(Duration::from_secs(61));
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert_eq!((step.dropped, step.removed), (1, 10));
    assert_eq!(stage.text(counted).await, "10 10");
    // Also for a dead group.
    stage.run("UPDATE {schema}.subscription SET state = 'dead'").await;
    take(&stage, 200_000).await;
    stage.publish(1).await;
    until_true("the head is past the second partition", async || {
        stage.store.advance_heads().await.unwrap();
        stage.number("SELECT head FROM {schema}.head").await == 400_012
            && stage.number("SELECT count(*) FROM {schema}.gap").await == 0
    })
    .await;
    stage.clock.advance(Duration::from_secs(61));
    assert_eq!(stage.store.keep_partitions(stage.topic).await.unwrap().dropped, 1);
    assert_eq!(stage.text(counted).await, "11 11");
    stage.scene.drop().await;
}

#[tokio::test]
async fn partitions_by_time_are_as_large_as_the_rate_asks_for() {
    let Some(stage) = Stage::set("storage = 'dedicated by hour'").await else { return };
    stage.run("SELECT {schema}.make_storage(1)").await;
    stage.store.keep_partitions(stage.topic).await.unwrap();
    take(&stage, 300_000).await;
    stage.clock.advance(Duration::from_secs(60));
    let step = stage.store.keep_partitions(stage.topic).await.unwrap();
    assert!(step.ahead >= 2, "{step:?}");
    let size =
        "SELECT last_offset - first_offset + 1 FROM {schema}.partition ORDER BY first_offset DESC LIMIT 1";
    assert_eq!(stage.number(size).await, 5_000 * 3_600);
    stage.scene.drop().await;
}

/// Completion records are removed one step after their partition.
#[tokio::test]
async fn records_of_a_dropped_partition_are_forgotten() {
    let Some(stage) = staged().await else { return };
    stage.alter("tracking = 'reference_counting'").await;
    let a = stage.subscribe("a").await;
    stage.publish(1_500).await;
    stage.handle(&a, 1_500).await;
    while stage.store.track(stage.topic, 1_000).await.unwrap().more {}
    assert_eq!(stage.store.keep_partitions(stage.topic).await.unwrap().dropped, 1);
    assert_eq!(stage.store.doctor().await.unwrap(), []);
    stage.clean().await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.completion_record").await, 500);
    stage.strike().await;
}

/// Creating a topic with dedicated tables does not read the shared table, and the topic can still be changed to use it.
#[tokio::test]
async fn a_new_dedicated_topic_never_searches_the_shared_table() {
    let Some(stage) = Stage::set("message_retention_ms = NULL").await else { return };
    stage.publish(500).await;
    let created = "SELECT {schema}.store_topic('own', t.settings || '{\"storage\": \"dedicated by day\"}', now())::bigint
                   FROM {schema}.topic t WHERE name = 'orders'";
    stage.run("SET enable_seqscan = off; SET enable_bitmapscan = off").await;
    stage.run("BEGIN").await;
    let topic = stage.number(created).await;
    let visited = "SELECT pg_stat_get_xact_tuples_returned('{schema}.message_shared'::regclass)";
    assert_eq!(stage.number(visited).await, 0);
    stage.run("COMMIT").await;
    let own = TopicName::new("own").unwrap();
    stage.store.publish(&own, &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(stage.number(&format!("SELECT count(*) FROM {{schema}}.message_t{topic}")).await, 1);
    stage.run(&format!("DELETE FROM {{schema}}.message WHERE topic_id = {topic}")).await;
    let shared =
        TopicSettings { storage: Storage::Shared, ..stage.store.topic(&own).await.unwrap().settings };
    stage.store.alter_topic(&own, &shared).await.unwrap();
    stage.store.publish(&own, &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message_shared").await, 501);
    // For another topic after that, the shared table has to be searched.
    stage.run(&created.replace("'own'", "'another'")).await;
    stage.store.publish(&TopicName::new("another").unwrap(), &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message_shared").await, 501);
    stage.scene.drop().await;
}
