//! Topics and namespaces removed beside open transactions, and topics with tables of their own.

use tokio_postgres::error::SqlState;

use super::races::until_true;
use super::*;
use crate::topic::{Partition, Removal, Storage};

const PLAIN: &str = "SELECT {schema}.publish('orders', '1')";
const SCHEDULED: &str = "SELECT {schema}.publish('orders', '1', deliver_at => now() + interval '1 hour')";
const KEYED: &str = "SELECT {schema}.publish('orders', '1', dedup_key => 'k')";

async fn run(scene: &Scene, client: &Client, sql: &str) {
    client.batch_execute(&scene.sql(sql)).await.unwrap();
}

/// A transaction that has published, in any way, holds a deletion up: it is busy and changes nothing. Once the
/// transaction has ended, however it ended, the topic is deleted with what was committed.
#[tokio::test]
async fn an_open_publisher_makes_a_deletion_busy() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let client = scene.client().await;
    for (publish, end) in [(PLAIN, "COMMIT"), (SCHEDULED, "COMMIT"), (KEYED, "COMMIT"), (PLAIN, "ROLLBACK")] {
        subscribed(&store).await;
        run(&scene, &client, "BEGIN").await;
        run(&scene, &client, publish).await;
        let refused = store.delete_topic(&orders(), Removal::Forced).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{publish}: {refused}");
        assert_eq!(store.subscriptions(&orders()).await.unwrap().len(), 1, "{publish}: nothing was changed");
        run(&scene, &client, end).await;
        let contents = store.delete_topic(&orders(), Removal::Forced).await.unwrap();
        let committed = u64::from(end == "COMMIT");
        assert_eq!(contents.messages + contents.scheduled, committed, "{publish}");
    }
    scene.drop().await;
}

/// A transaction that found the topic before it was deleted, and publishes after: its publish fails, and it cannot commit.
#[tokio::test]
async fn a_publisher_that_knows_only_the_deleted_topic_fails() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let mut client = scene.client().await;
    for (new, deliver_at) in [(false, None), (true, None), (true, Some(Duration::from_secs(3600)))] {
        subscribed(&store).await;
        let transaction = client
            .build_transaction()
            .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
            .start()
            .await
            .unwrap();
        transaction.batch_execute(&scene.sql("SELECT FROM {schema}.topic")).await.unwrap();
        store.delete_topic(&orders(), Removal::Forced).await.unwrap();
        if new {
            subscribed(&store).await;
        }
        let mut message = NewMessage::new("x");
        if let Some(after) = deliver_at {
            message = message.deliver_at(jiff::Timestamp::now() + after);
        }
        let refused =
            super::super::publish(&transaction, &scene.namespace, "orders", &[message]).await.unwrap_err();
        let expected = [ErrorKind::NoSuchTopic, ErrorKind::Busy];
        assert!(expected.contains(&refused.kind()), "{refused:?}");
        drop(transaction.commit().await);
        if new {
            assert_eq!(store.delete_topic(&orders(), Removal::Forced).await.unwrap().messages, 0);
        }
    }
    scene.drop().await;
}

/// While a publisher waits for the deletion at the sequence, the deletion commits: the publisher gets NoSuchTopic.
#[tokio::test]
async fn a_publisher_that_waits_for_the_deletion_gets_no_such_topic() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    let client = scene.client().await;
    // The deletion itself, in a transaction that stays open for a while.
    run(&scene, &client, "BEGIN; SELECT {schema}.delete_topic('orders', true, 'test', NULL)").await;
    let publisher = Arc::clone(&store);
    let publishing = tokio::spawn(async move { publisher.publish(&orders(), &[NewMessage::new("x")]).await });
    let until = Instant::now() + Duration::from_secs(20);
    let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                   WHERE NOT l.granted AND c.relkind = 'S' AND c.relnamespace = '{schema}'::regnamespace";
    let observer = scene.client().await;
    while observer.query_one(&scene.sql(waiting), &[]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(Instant::now() < until, "the publisher does not wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    run(&scene, &client, "COMMIT").await;
    let refused = publishing.await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSuchTopic, "{refused}");
    assert!(refused.to_string().contains("deleted at this moment"), "{refused}");
    let left = "SELECT count(*) FROM {schema}.message";
    assert_eq!(observer.query_one(&scene.sql(left), &[]).await.unwrap().get::<_, i64>(0), 0);
    scene.drop().await;
}

/// The tables of a dedicated topic are dropped with it, and other topics are published to all the time.
#[tokio::test]
async fn tables_of_a_deleted_topic_are_dropped() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let client = scene.client().await;
    let other = TopicName::new("other").unwrap();
    store.create_topic(&other, &TopicSettings::pub_sub()).await.unwrap();
    for partition in [Partition::None, Partition::Rows(1_000)] {
        let settings = TopicSettings { storage: Storage::Dedicated(partition), ..TopicSettings::pub_sub() };
        store.create_topic(&orders(), &settings).await.unwrap();
        for _ in 0..3 {
            let messages: Vec<_> = (0..1_000).map(|n| NewMessage::new(n.to_string())).collect();
            store.publish(&orders(), &messages).await.unwrap();
        }
        store.publish(&other, &[NewMessage::new("stays")]).await.unwrap();
        let contents = store.purge_topic(&orders(), Removal::Unserved).await.unwrap();
        assert_eq!(contents.messages, 3_000, "{partition:?}");
        store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
        assert_eq!(store.delete_topic(&orders(), Removal::Unserved).await.unwrap().messages, 1);
        let tables = "SELECT count(*) FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace
                      AND c.relname ~ '^message_t[0-9]'";
        assert_eq!(client.query_one(&scene.sql(tables), &[]).await.unwrap().get::<_, i64>(0), 0);
    }
    assert_eq!(store.purge_topic(&other, Removal::DryRun).await.unwrap().messages, 2);
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// A message whose transaction commits after a purge is delivered, although its offset is below those removed.
#[tokio::test]
async fn a_message_committed_after_a_purge_is_delivered() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let client = scene.client().await;
    run(&scene, &client, "BEGIN").await;
    run(&scene, &client, PLAIN).await;
    store.publish(&orders(), &[NewMessage::new("purged")]).await.unwrap();
    store.purge_topic(&orders(), Removal::Forced).await.unwrap();
    run(&scene, &client, "COMMIT").await;
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(lease) = store.claim(&request(&subscription)).await.unwrap().leases.first() {
            assert_eq!((lease.range.first.0, lease.range.last.0), (1, 1));
            assert_eq!(store.fetch(lease.topic_id, lease.range).await.unwrap().len(), 1);
            break;
        }
        assert!(Instant::now() < until, "it is never delivered");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    scene.drop().await;
}

/// Only the owner deletes and purges; what a deletion left is removed by any role that runs maintenance.
#[tokio::test]
async fn only_the_owner_removes_topics() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    for role in ["producer", "consumer", "reader"] {
        let other = scene.open_as(Some(role)).await.unwrap();
        for removal in [Removal::Unserved, Removal::Forced] {
            let refused = other.delete_topic(&orders(), removal).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{role}: {refused}");
            let refused = other.purge_topic(&orders(), removal).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{role}: {refused}");
        }
    }
    let client = scene.client().await;
    run(&scene, &client, "SELECT {schema}.delete_topic('orders', true, 'test', NULL)").await;
    let consumer = scene.open_as(Some("consumer")).await.unwrap();
    consumer.clean_subscriptions(crate::limits::SUBSCRIPTION_RETENTION).await.unwrap();
    let left = "SELECT count(*) FROM {schema}.deleted_topic";
    assert_eq!(client.query_one(&scene.sql(left), &[]).await.unwrap().get::<_, i64>(0), 0);
    scene.drop().await;
}

/// A transaction that reads one table and then another, while the drop of the namespace holds one of them and waits for the
/// other: PostgreSQL ends the drop, and the next attempt removes the namespace.
#[tokio::test]
async fn a_namespace_is_dropped_beside_transactions_that_use_it() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let client = scene.client().await;
    // The drop checks for a deadlock a second after it waits, this session later: PostgreSQL ends the drop, unless the machine is so
    // slow that the circle is closed after that second.
    run(&scene, &client, "SET deadlock_timeout = '3s'; BEGIN; SELECT FROM {schema}.outbox_entry").await;
    let watching = scene.client().await;
    let waits = "SELECT FROM pg_locks WHERE relation = '{schema}.outbox_entry'::regclass AND NOT granted";
    let waits = scene.sql(waits);
    let reading = async {
        until_true("the drop waits", async || !watching.query(&waits, &[]).await.unwrap().is_empty()).await;
        let read = client.batch_execute(&scene.sql("SELECT FROM {schema}.topic")).await;
        run(&scene, &client, "ROLLBACK").await;
        assert!(read.err().is_none_or(|error| error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED)));
    };
    let (dropped, ()) = tokio::join!(store.drop_namespace(), reading);
    dropped.unwrap();
    let left = "SELECT FROM pg_namespace WHERE nspname = $1::text";
    assert!(watching.query(left, &[&scene.namespace.as_str()]).await.unwrap().is_empty());
}
