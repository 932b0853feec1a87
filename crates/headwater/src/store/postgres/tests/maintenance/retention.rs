//! Retention: promised messages stay, whatever runs at the same moment.

use super::super::super::clean::VACUUMED;
use super::*;

const AT_ONCE: &str = "message_retention_ms = 0, zero_subscription_retention_ms = 0";

#[tokio::test]
async fn a_step_rolled_back_removes_nothing_and_two_at_once_remove_each_message_once() {
    let Some(stage) = Stage::set(AT_ONCE).await else { return };
    let a = stage.subscribe("a").await;
    stage.publish(1_000).await;
    stage.handle(&a, 900).await;
    let step = format!("BEGIN; SELECT {{schema}}.clean({}, 100, {}); ROLLBACK", stage.topic.0, stage.now());
    stage.run(&step).await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message").await, 1_000);
    let (one, two) = tokio::join!(stage.clean(), stage.clean());
    assert_eq!(one + two, 900);
    assert_eq!(stage.number("SELECT min(message_offset) FROM {schema}.message").await, 901);
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 901);
    assert_eq!(stage.number("SELECT removed FROM {schema}.topic_range").await, 900);
    assert_eq!(stage.handle(&a, 1_000).await.len(), 100);
    stage.strike().await;
}

/// The session that locks the topic range first is visible to the other.
#[tokio::test]
async fn a_subscribe_at_the_same_moment_gets_all_that_is_left() {
    let Some(stage) = Stage::set(AT_ONCE).await else { return };
    let a = stage.subscribe("a").await;
    stage.publish(10).await;
    stage.handle(&a, 6).await;
    // A cleanup that has removed messages and not committed.
    stage.run(&format!("BEGIN; SELECT {{schema}}.clean({}, 4, {})", stage.topic.0, stage.now())).await;
    let store = Arc::clone(&stage.store);
    let joining = tokio::spawn(async move {
        store.subscribe(&orders(), &GroupName::new("b").unwrap(), Start::Beginning).await
    });
    until_waiting(&stage).await;
    stage.run("COMMIT").await;
    let b = joining.await.unwrap().unwrap();
    assert_eq!(stage.clean().await, 0, "the new group still needs the rest");
    // The other way round: a subscribe that has not committed.
    stage.run("BEGIN; SELECT {schema}.subscribe('orders', 'c', 'beginning', NULL, NULL, 600000, NULL)").await;
    stage.handle(&a, 10).await;
    assert_eq!(stage.handle(&b, 10).await, [5, 6, 7, 8, 9, 10]);
    let (store, topic) = (Arc::clone(&stage.store), stage.topic);
    let cleaning = tokio::spawn(async move { store.clean(topic, 100).await });
    until_waiting(&stage).await;
    stage.run("COMMIT").await;
    assert_eq!(cleaning.await.unwrap().unwrap().removed, 0);
    let c = stage.subscribe("c").await;
    assert_eq!(stage.handle(&c, 10).await, [5, 6, 7, 8, 9, 10]);
    assert_eq!(stage.clean().await, 6);
    stage.strike().await;
}

#[tokio::test]
async fn a_noted_gap_is_kept_for_what_comes_late() {
    let Some(stage) = Stage::set(AT_ONCE).await else { return };
    let a = stage.subscribe("a").await;
    let open = stage.scene.client().await;
    stage.publish(2).await;
    open.batch_execute(&stage.scene.sql("BEGIN; SELECT {schema}.publish('orders', '3')")).await.unwrap();
    stage.publish(2).await;
    let mut offsets = Vec::new();
    until_true("the others come", async || {
        offsets.extend(stage.handle(&a, 10).await);
        offsets == [1, 2, 4, 5]
    })
    .await;
    // The late row is committed, but not handed out, when cleanup decides: it has seen the gap.
    stage.run(&format!("BEGIN; SELECT {{schema}}.clean({}, 100, {})", stage.topic.0, stage.now())).await;
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 3);
    open.batch_execute("COMMIT").await.unwrap();
    stage.run("COMMIT").await;
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.message").await, 1);
    until_true("the late message is delivered", async || stage.handle(&a, 10).await == [3]).await;
    assert_eq!(stage.clean().await, 1);
    assert_eq!(stage.number("SELECT first_offset FROM {schema}.topic_range").await, 6);
    stage.strike().await;
}

#[tokio::test]
async fn what_max_retention_takes_is_counted_for_who_had_not_done_it() {
    let Some(stage) = Stage::set("max_retention_ms = 60000").await else { return };
    let (a, b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish(10).await;
    assert_eq!(stage.clean().await, 0);
    stage.handle(&a, 4).await;
    // b: 1 to 3 leased, 4 and 5 waiting.
    let lease = ClaimRequest { wants: vec![Want::new(b.subscription_id, 3)], ..request(&b) };
    let held = stage.store.claim(&lease).await.unwrap().leases.remove(0);
    let wait = ClaimRequest { wants: vec![Want::new(b.subscription_id, 2)], ..request(&b) };
    let given = stage.store.claim(&wait).await.unwrap().leases.remove(0);
    let back = Settlement::each(&given, vec![(given.range, crate::store::Outcome::Release)]);
    stage.store.settle(&[back]).await.unwrap().remove(0).unwrap();
    stage.clock.advance(Duration::from_secs(61));
    stage.publish(2).await;
    let step = stage.store.clean(stage.topic, 100).await.unwrap();
    let missed: Vec<(&str, u64)> =
        step.missed.iter().map(|(group, missed)| (group.as_str(), missed.count)).collect();
    assert_eq!((step.removed, missed), (10, vec![("a", 6), ("b", 10)]));
    let kept = "SELECT string_agg(format('%s %s %s..=%s', group_name, missed, missed_first, missed_last), ', ' ORDER BY group_name)
                FROM {schema}.subscription";
    assert_eq!(stage.text(kept).await, "a 6 5..=10, b 10 1..=10");
    assert_eq!(stage.number("SELECT min(next_offset) FROM {schema}.cursor").await, 11);
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.outstanding").await, 1, "the leased one");
    stage.store.settle(&[Settlement::ack_all(&held)]).await.unwrap().remove(0).unwrap();
    assert_eq!(stage.handle(&a, 10).await, [11, 12]);
    assert_eq!(stage.handle(&b, 10).await, [11, 12]);
    stage.strike().await;
}

#[tokio::test]
async fn retention_counts_from_when_all_were_done_and_the_history_stays_short() {
    let Some(stage) = Stage::set("message_retention_ms = 100000").await else { return };
    let a = stage.subscribe("a").await;
    stage.publish(3_000).await;
    stage.clock.advance(Duration::from_secs(3_600));
    assert_eq!(stage.clean().await, 0, "old, but not done");
    for _ in 0..300 {
        stage.handle(&a, 1).await;
        stage.store.clean(stage.topic, 100).await.unwrap();
        stage.clock.advance(Duration::from_millis(10));
    }
    assert!(
        stage.number("SELECT count(*) FROM {schema}.watermark_history").await <= 40,
        "a thousandth apart"
    );
    stage.clock.advance(Duration::from_millis(100_000 - 3_000 - 1));
    assert_eq!(stage.clean().await, 0);
    stage.clock.advance(Duration::from_secs(3));
    assert_eq!(stage.clean().await, 300);
    assert!(
        stage.number("SELECT count(*) FROM {schema}.watermark_history").await <= 2,
        "superseded watermarks are removed"
    );
    stage.strike().await;
}

#[tokio::test]
async fn messages_published_while_no_group_counted_have_their_own_retention() {
    let settings = "message_retention_ms = 0, zero_subscription_retention_ms = 60000";
    let Some(stage) = Stage::set(settings).await else { return };
    stage.publish(5).await;
    assert_eq!(stage.clean().await, 0);
    let a = stage.subscribe("a").await;
    stage.publish(5).await;
    stage.handle(&a, 10).await;
    assert_eq!(stage.clean().await, 5, "those published to a group are done");
    assert_eq!(stage.number("SELECT max(message_offset) FROM {schema}.message").await, 5);
    stage.clock.advance(Duration::from_secs(60));
    assert_eq!(stage.clean().await, 5);
    stage.strike().await;
}

/// Messages kept because they were published while no group counted do not block the removal of done messages behind them,
/// however small a step is.
#[tokio::test]
async fn cleanup_continues_behind_messages_published_while_no_group_counted() {
    let settings = "message_retention_ms = 0, zero_subscription_retention_ms = 864000000";
    let Some(stage) = Stage::set(settings).await else { return };
    for (unread, step) in [(30, 10), (5, 7)] {
        stage.publish(unread).await;
        let a = stage.subscribe("a").await;
        stage.publish(30).await;
        while !stage.handle(&a, 100).await.is_empty() {}
        let mut removed = 0;
        loop {
            let cleaned = stage.store.clean(stage.topic, step).await.unwrap();
            removed += cleaned.removed;
            if !cleaned.more {
                break;
            }
        }
        assert_eq!(removed, 30, "steps of {step}");
        let group = GroupName::new("a").unwrap();
        stage.store.cancel(&orders(), &group).await.unwrap();
    }
    stage.strike().await;
}

#[tokio::test]
async fn old_subscriptions_are_deleted_with_nothing_unread() {
    let Some(stage) = Stage::set("message_retention_ms = NULL, zombie_subscription_ttl_ms = 1000").await
    else {
        return;
    };
    let (a, _b) = (stage.subscribe("a").await, stage.subscribe("b").await);
    stage.publish(10).await;
    stage.handle(&a, 8).await;
    let dies = format!(
        "BEGIN; SELECT {{schema}}.lock_topic_range(1); UPDATE {{schema}}.subscription SET state = 'dead', state_at = {}
         WHERE group_name = 'b'; SELECT {{schema}}.stop_counting(2); COMMIT",
        stage.now()
    );
    stage.run(&dies).await;
    let month = Duration::from_secs(30 * 24 * 3600);
    let clean = async || stage.store.clean_subscriptions(month).await.unwrap();
    assert_eq!(clean().await, crate::store::SubscriptionStep::default());
    stage.clock.advance(month);
    assert_eq!(clean().await.deleted, vec![], "maintenance has not seen a month pass");
    stage.run("UPDATE {schema}.elapsed SET elapsed_ms = elapsed_ms + 2592000000").await;
    let step = clean().await;
    assert_eq!((step.zombies, step.deleted), (vec![], vec![]), "ten stored messages are not done");
    stage.run("UPDATE {schema}.cursor SET next_offset = 11 WHERE subscription_id = 2").await;
    assert_eq!(clean().await.deleted, vec![(orders(), GroupName::new("b").unwrap())]);
    assert_eq!(stage.number("SELECT count(*) FROM {schema}.cursor").await, 1);
    stage.strike().await;
}

/// A late message is handed out under the head's lock, and so is a subscription deleted: no outstanding range stays without its
/// subscription.
#[tokio::test]
async fn a_subscription_is_not_deleted_beside_a_row_that_comes_late() {
    // Not a zombie for a long time: zombies are moved first, which takes the same lock.
    let settings = "message_retention_ms = NULL, zombie_subscription_ttl_ms = 100000000000";
    let Some(stage) = Stage::set(settings).await else { return };
    stage.subscribe("a").await;
    stage.subscribe("b").await;
    let dead = "UPDATE {schema}.subscription SET state = 'dead', died_elapsed_ms = -3000000000 WHERE group_name = 'b';
                UPDATE {schema}.cursor SET next_offset = 11; UPDATE {schema}.head SET head = 10;
                SELECT setval(t.offsets, 10) FROM {schema}.topic t";
    stage.run(dead).await;
    // As advancing the head hands out a message that commits in a recorded gap.
    let late = stage.scene.client().await;
    let hands_out = "BEGIN; SELECT FROM {schema}.head FOR UPDATE;
        INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id) VALUES (1, 5, 5, '-infinity', 2)";
    late.batch_execute(&stage.scene.sql(hands_out)).await.unwrap();
    let store = Arc::clone(&stage.store);
    let month = Duration::from_secs(30 * 24 * 3600);
    let cleaning = tokio::spawn(async move { store.clean_subscriptions(month).await.unwrap() });
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE wait_event_type = 'Lock' AND query LIKE '%{name}%clean_subscription%'";
    until_true("it waits", async || cleaning.is_finished() || stage.number(waits).await == 1).await;
    late.batch_execute("COMMIT").await.unwrap();
    assert_eq!(cleaning.await.unwrap().deleted, vec![]);
    let orphans = "SELECT count(*) FROM {schema}.outstanding o LEFT JOIN {schema}.subscription s USING (subscription_id)
                   WHERE s.subscription_id IS NULL";
    assert_eq!(stage.number(orphans).await, 0);
    stage.strike().await;
}

/// A large table is vacuumed beside maintenance, which continues meanwhile.
#[tokio::test]
async fn tables_that_cleanup_vacuums_exist() {
    let Some(scene) = Scene::new() else { return };
    scene.open().await;
    for table in VACUUMED {
        let exists = scene.sql(&format!("SELECT to_regclass('{{schema}}.{table}') IS NOT NULL"));
        assert!(scene.client().await.query_one(&exists, &[]).await.unwrap().get::<_, bool>(0), "{table}");
    }
    scene.drop().await;
}

#[tokio::test]
async fn tables_that_need_it_are_vacuumed_beside_maintenance() {
    use crate::store::postgres::vacuum::vacuum_aside;
    let Some(stage) = Stage::set(AT_ONCE).await else { return };
    // It would remove the dead rows first, and there would be nothing to vacuum.
    stage.run("ALTER TABLE {schema}.message_shared SET (autovacuum_enabled = off)").await;
    let vacuums =
        "SELECT vacuum_count FROM pg_stat_user_tables WHERE relid = '{schema}.message_shared'::regclass";
    stage.publish(100).await;
    stage.run("DELETE FROM {schema}.message").await;
    stage.run("SELECT pg_stat_force_next_flush()").await;
    until_true("it was vacuumed", async || {
        vacuum_aside(&stage.store, &["message_shared"], 10).await;
        stage.number(vacuums).await >= 1
    })
    .await;
    stage.store.close().await.unwrap();
    stage.scene.drop().await;
}
