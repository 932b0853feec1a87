//! Dedicated tables of a topic: created and changed beside transactions that hold locks of the log, and locked only for their topic.

use super::super::statements::sql;
use super::lives::until_a_session_waits;
use super::races::{in_time, until_true};
use super::*;
use crate::topic::{Partition, Storage};

fn dedicated() -> TopicSettings {
    TopicSettings { storage: Storage::Dedicated(Partition::None), ..TopicSettings::pub_sub() }
}

/// A change that cannot succeed is refused at once, without a lock that others would wait behind.
#[tokio::test]
async fn a_change_of_storage_that_is_refused_takes_no_lock() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let publisher = scene.client().await;
    publisher.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
    let refused = store.alter_topic(&orders(), &dedicated()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    publisher.batch_execute("ROLLBACK").await.unwrap();
    scene.drop().await;
}

/// Publishing and claiming continue while a topic waits for its tables, and it gets them once the open transaction has ended.
#[tokio::test]
async fn others_continue_while_storage_waits_for_an_open_transaction() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    let empty = TopicName::new("empty").unwrap();
    store.create_topic(&empty, &TopicSettings::pub_sub()).await.unwrap();
    let (open, watcher) = (scene.client().await, scene.client().await);
    let waiting = scene.sql(
        "SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
         WHERE NOT l.granted AND l.mode = 'AccessExclusiveLock' AND c.relnamespace = '{schema}'::regnamespace",
    );
    for (is_new, name) in [(true, "new"), (false, "empty")] {
        open.batch_execute(&scene.sql("BEGIN; SELECT {schema}.publish('orders', '1')")).await.unwrap();
        let making = tokio::spawn({
            let (store, name) = (Arc::clone(&store), TopicName::new(name).unwrap());
            async move {
                loop {
                    let began = Instant::now();
                    let made = match is_new {
                        true => store.create_topic(&name, &dedicated()).await,
                        false => store.alter_topic(&name, &dedicated()).await,
                    };
                    // It gives up after seconds of attempts, and on a slow machine before this test has seen enough of them.
                    match made {
                        Err(error) if error.kind() == ErrorKind::Busy => {
                            assert!(began.elapsed() >= Duration::from_secs(3), "it hardly waited: {error}");
                        }
                        made => return made,
                    }
                }
            }
        });
        // Each begins behind a lock that waits for the open transaction, and waits no longer than that one does.
        let mut shortest = Duration::MAX;
        for _ in 0..3 {
            until_true("the log's lock is waited for", async || {
                !watcher.query(&waiting, &[]).await.unwrap().is_empty()
            })
            .await;
            let began = Instant::now();
            in_time("a publish and a claim", async {
                store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
                store.claim(&request(&subscription)).await.unwrap();
            })
            .await;
            shortest = shortest.min(began.elapsed());
        }
        // A tenth of a second; the rest is margin, and the machine does not stall in all of them.
        assert!(shortest < Duration::from_secs(1), "{name}: a publish and a claim took {shortest:?}");
        assert!(!making.is_finished(), "{name}: it waits for the open transaction");
        open.batch_execute("COMMIT").await.unwrap();
        let topic = in_time("the tables", making).await.unwrap().unwrap();
        assert_eq!(topic.settings.storage, Storage::Dedicated(Partition::None));
    }
    scene.drop().await;
}

/// Each head is advanced in a transaction of its own: one that waits for its topic's table holds and delays no other.
#[tokio::test]
async fn a_head_that_waits_for_its_table_holds_no_other_head() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    subscribed(&store).await;
    let waiting = TopicName::new("waiting").unwrap();
    store.create_topic(&waiting, &dedicated()).await.unwrap();
    for topic in [&orders(), &waiting] {
        store.publish(topic, &[NewMessage::new("x")]).await.unwrap();
    }
    let client = scene.client().await;
    let table =
        scene.number(&client, "SELECT topic_id::bigint FROM {schema}.topic WHERE name = 'waiting'").await;
    scene.run(&client, &format!("BEGIN; LOCK TABLE {{schema}}.message_t{table}")).await;
    let round = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.advance_heads().await }
    });
    until_a_session_waits(&scene).await;
    let head =
        "SELECT head FROM {schema}.head WHERE topic_id = {schema}.topic_id_of('orders') FOR UPDATE NOWAIT";
    assert_eq!(scene.number(&client, head).await, 1, "committed, and not locked");
    scene.run(&client, "COMMIT").await;
    in_time("the round", round).await.unwrap().unwrap();
    let head = "SELECT head FROM {schema}.head WHERE topic_id = {schema}.topic_id_of('waiting')";
    assert_eq!(scene.number(&client, head).await, 1);
    scene.drop().await;
}

/// A setting of the caller's transaction is the same after the call.
#[tokio::test]
async fn the_callers_lock_timeout_is_left_alone() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let by_rows = TopicSettings { storage: Storage::Dedicated(Partition::Rows(1000)), ..dedicated() };
    let topic = store.create_topic(&orders(), &by_rows).await.unwrap().topic_id;
    let client = scene.client().await;
    let settings = "'{\"storage\": \"dedicated\"}'";
    for call in [
        format!("SELECT {{schema}}.keep_partitions({topic}, 100, NULL)"),
        format!("SELECT {{schema}}.alter_topic('orders', {settings}, 'tester', NULL)"),
    ] {
        client
            .batch_execute(&scene.sql(&format!("BEGIN; SET LOCAL lock_timeout = '7s'; {call}")))
            .await
            .unwrap();
        let left: String = client.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0);
        assert_eq!(left, "7s", "{call}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    scene.drop().await;
}

/// Runs what redrives and purges of dead letters, and purges of a topic, run on the log. After five runs their plans are cached.
async fn select_and_purge(scene: &Scene, client: &Client, topic: &str) {
    let group = format!(
        "SELECT min(subscription_id)::bigint FROM {{schema}}.subscription WHERE topic_id = {{schema}}.topic_id_of('{topic}')"
    );
    let group = scene.number(client, &group).await;
    let any = "NULL, NULL, NULL, NULL, NULL, NULL";
    let text = format!(
        "EXECUTE matching ({group}, {any}, NULL); EXECUTE page ({group}, {any}, NULL, NULL, NULL, NULL, 10);
         SELECT {{schema}}.delete_stored(t, 1, 1), {{schema}}.lowest_stored(t, '{{[1,9)}}', 1, 2), {{schema}}.count_stored(t),
                {{schema}}.first_stored(t), {{schema}}.remove_purged(t, '{{[1,99)}}', 1, 1)
         FROM {{schema}}.topic_id_of('{topic}') t"
    );
    client.simple_query(&scene.sql(&text)).await.unwrap();
}

/// A cached plan locks all partitions before pruning any: with hundreds of tables that fills the server's lock table.
#[tokio::test]
async fn heads_starts_burials_and_removals_lock_no_table_of_another_topic() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let dedicated = |partition| TopicSettings {
        storage: Storage::Dedicated(partition),
        gap_patience: Duration::ZERO,
        ..TopicSettings::pub_sub()
    };
    let shared = TopicSettings { gap_patience: Duration::ZERO, ..TopicSettings::pub_sub() };
    let (whole, cut) = (dedicated(Partition::None), dedicated(Partition::Rows(1_000)));
    let kinds = [("shared", &shared), ("whole", &whole), ("cut", &cut), ("foreign", &whole), ("far", &cut)];
    for (name, settings) in kinds {
        store.create_topic(&TopicName::new(name).unwrap(), settings).await.unwrap();
    }
    let (open, client) = (scene.client().await, scene.client().await);
    for (name, statement) in [("matching", sql!(dead_letter.count)), ("page", sql!(dead_letter.page))] {
        scene.run(&client, &format!("PREPARE {name} AS {statement}")).await;
    }
    for (name, _) in &kinds[..3] {
        // With a gap, so that the gap is searched too.
        scene.run(&open, &format!("BEGIN; SELECT {{schema}}.publish('{name}', '1')")).await;
        for round in 0..8 {
            scene.run(&client, &format!("SELECT {{schema}}.publish('{name}', '1')")).await;
            let text = format!(
                "BEGIN; SELECT {{schema}}.advance(ARRAY[topic_id], 100, 100) FROM {{schema}}.topic WHERE name = '{name}';
                SELECT {{schema}}.subscribe('{name}', 'now{round}', 'now', NULL, NULL, 60000, NULL);
                SELECT {{schema}}.subscribe('{name}', 'at{round}', 'timestamp', NULL, now(), 60000, NULL)"
            );
            scene.run(&client, &text).await;
            let bury = format!(
                "SELECT {{schema}}.bury_range(s.subscription_id, s.topic_id, 1, 1000, 1, 'e', NULL, now())
                 FROM {{schema}}.subscription s WHERE s.group_name = 'now{round}' AND s.topic_id = {{schema}}.topic_id_of('{name}')"
            );
            scene.run(&client, &bury).await;
            let redrive = format!(
                "SELECT r.redriven FROM (SELECT x.subscription_id, array_agg(x.dead_letter_id) AS ids, array_agg(NULL::integer) AS lanes
                     FROM {{schema}}.dead_letter x WHERE x.topic_id = {{schema}}.topic_id_of('{name}') GROUP BY x.subscription_id) d
                 CROSS JOIN LATERAL {{schema}}.redrive(d.subscription_id, d.ids, d.lanes, 0, 0, false, 'tester', NULL) r"
            );
            assert!(scene.number(&client, &redrive).await > 0);
            select_and_purge(&scene, &client, name).await;
            let held = "SELECT DISTINCT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                WHERE l.pid = pg_backend_pid() AND c.relnamespace = '{schema}'::regnamespace
                  AND c.relname ~ '^message_' AND c.relkind = 'r' ORDER BY 1";
            let rows = client.query(&scene.sql(held), &[]).await.unwrap();
            let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            scene.run(&client, "COMMIT").await;
            let own = match *name {
                "shared" => "message_shared".to_owned(),
                name => {
                    let id = format!("SELECT topic_id::bigint FROM {{schema}}.topic WHERE name = '{name}'");
                    format!("message_t{}", scene.number(&client, &id).await)
                }
            };
            assert!(
                !tables.is_empty() && tables.iter().all(|table| table.starts_with(&own)),
                "{name}: {tables:?}"
            );
        }
        scene.run(&open, "COMMIT").await;
    }
    scene.drop().await;
}
