//! The transaction of handlers, and how it ends whatever a handler does to it.

use crate::lease::LeaseId;
use crate::limits::{INBOX_RETENTION, OUTBOX_RETENTION};
use crate::store::{EntryRetention, EntryStep};

use super::races::until_true;
use super::*;

async fn leased(store: &PostgresStore, subscription: &Subscription) -> (LeaseId, Uuid) {
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(lease) = store.claim(&request(subscription)).await.unwrap().leases.pop() {
            let messages = store.fetch(lease.topic_id, lease.range).await.unwrap();
            return (lease.id(), messages[0].message_id);
        }
        assert!(Instant::now() < until, "no message was delivered");
    }
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_is_found_out_before_anything_is_settled() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    for own in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"] {
        let (lease, message_id) = leased(&store, &subscription).await;
        let transaction = store.begin().await.unwrap();
        assert!(transaction.savepoint_and_enter("mailer", message_id).await.unwrap());
        transaction.batch_execute(own).await.unwrap();
        assert!(transaction.release_savepoint().await.is_err(), "its savepoint is gone");
        let error = transaction.settle(&Settlement::ack_all(&lease)).await.unwrap_err();
        if !own.ends_with("BEGIN") {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{own}: {error:?}");
            assert!(error.to_string().contains("ended the transaction"), "{error}");
        }
        drop(transaction);
        store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    }
    assert_eq!(store.transactions_state().active, 0);
    scene.drop().await;
}

#[tokio::test]
async fn a_failed_statement_is_undone_by_the_savepoint_and_never_committed_by_mistake() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let (lease, message_id) = leased(&store, &subscription).await;
    let transaction = store.begin().await.unwrap();
    assert!(transaction.savepoint_and_enter("mailer", message_id).await.unwrap());
    transaction.batch_execute("SELECT 1 / 0").await.unwrap_err();
    transaction.release_savepoint().await.unwrap_err();
    transaction.rollback_to_savepoint().await.unwrap();
    assert!(
        transaction.savepoint_and_enter("mailer", message_id).await.unwrap(),
        "the inbox entry was rolled back too"
    );
    transaction.release_savepoint().await.unwrap();
    assert!(transaction.settle(&Settlement::ack_all(&lease)).await.unwrap());
    // PostgreSQL answers COMMIT of a failed transaction with a rollback and no error.
    transaction.batch_execute("SELECT 1 / 0").await.unwrap_err();
    transaction.commit().await.unwrap_err();
    store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).expect("the lease is still held");
    scene.drop().await;
}

#[tokio::test]
async fn the_transaction_is_read_committed_and_durable() {
    let Some(scene) = Scene::new() else { return };
    let url = format!(
        "{}?options=-c%20synchronous_commit%3Doff%20-c%20default_transaction_read_only%3Don",
        scene.url
    );
    scene.open().await;
    let store = PostgresStore::open(&url, scene.namespace.clone(), OpenOptions::default()).await.unwrap();
    let transaction = store.begin().await.unwrap();
    let settings = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation'),
                    current_setting('transaction_read_only')";
    let row = transaction.query_one(settings, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("on", "read committed", "off"));
    transaction.rollback().await.unwrap();
    assert_eq!(
        (store.transactions_state().active, store.transactions_state().idle),
        (0, 1),
        "returned to the pool"
    );
    scene.drop().await;
}

#[tokio::test]
async fn a_connection_goes_back_to_the_pool_only_without_a_transaction() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let transaction = store.begin().await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!((store.transactions_state().active, store.transactions_state().idle), (0, 1));
    // A clone that is still held could run statements on the connection.
    let transaction = store.begin().await.unwrap();
    let kept = transaction.clone();
    transaction.commit().await.unwrap();
    kept.batch_execute("BEGIN").await.unwrap();
    drop(kept);
    assert_eq!((store.transactions_state().active, store.transactions_state().idle), (0, 0));
    drop(store.begin().await.unwrap());
    assert_eq!((store.transactions_state().active, store.transactions_state().idle), (0, 0));
    scene.drop().await;
}

#[tokio::test]
async fn a_consumer_may_handle_and_what_it_publishes_wakes_others() {
    let Some(scene) = Scene::new() else { return };
    let owner = scene.open().await;
    let subscription = subscribed(&owner).await;
    let (lease, message_id) = leased(&owner, &subscription).await;
    let consumer = scene.open_as(Some("consumer")).await.unwrap();
    let transaction = consumer.begin().await.unwrap();
    assert!(transaction.savepoint_and_enter("mailer", message_id).await.unwrap());
    let refused = transaction.publish("orders", &[NewMessage::new("y")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "it may consume, not publish: {refused}");
    transaction.rollback_to_savepoint().await.unwrap();
    assert!(transaction.savepoint_and_enter("mailer", message_id).await.unwrap());
    assert!(transaction.settle(&Settlement::ack_all(&lease)).await.unwrap());
    transaction.commit().await.unwrap();
    let retention = EntryRetention { inbox: INBOX_RETENTION, outbox: OUTBOX_RETENTION };
    assert_eq!(consumer.clean_entries(&retention).await.unwrap(), EntryStep::default());

    let wake = owner.arm(&[subscription.topic.topic_id]).await.unwrap();
    let transaction = owner.begin().await.unwrap();
    transaction.publish("orders", &[NewMessage::new("y")]).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(wake.wait(Duration::from_secs(20)).await, "the waiter was not woken");
    scene.drop().await;
}

#[tokio::test]
async fn a_time_that_cannot_be_read_is_refused_and_where_it_is_stored_no_panic() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let client = scene.client().await;
    let endless = scene.sql("UPDATE {schema}.message SET created_at = 'infinity'");
    let refused = client.batch_execute(&endless).await.unwrap_err();
    let constraint = refused.as_db_error().and_then(tokio_postgres::error::DbError::constraint);
    assert_eq!(constraint, Some("message_created_at_readable"), "{refused}");
    let unchecked = "ALTER TABLE {schema}.message DROP CONSTRAINT message_created_at_readable";
    client.batch_execute(&scene.sql(unchecked)).await.unwrap();
    client.batch_execute(&endless).await.unwrap();
    let lease = loop {
        if let Some(lease) = store.claim(&request(&subscription)).await.unwrap().leases.pop() {
            break lease;
        }
    };
    let error = store.fetch(lease.topic_id, lease.range).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Database);
    assert!(error.to_string().contains("cannot be read"), "{error}");
    scene.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_whose_connection_breaks_is_unknown_and_one_that_waits_too_long_has_not_happened() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    let (lease, _) = leased(&store, &subscription).await;
    let (blocker, client) = (scene.client().await, scene.client().await);
    let lock = scene.sql("BEGIN; SELECT FROM {schema}.outstanding FOR UPDATE");
    blocker.batch_execute(&lock).await.unwrap();
    // The server cancels a statement that exceeds its time-out as it does on request.
    for (end, expected) in
        [("pg_cancel_backend", ErrorKind::Busy), ("pg_terminate_backend", ErrorKind::CommitUnknown)]
    {
        let settling = tokio::spawn({
            let store = Arc::clone(&store);
            let settlement = Settlement::ack_all(&lease);
            async move { store.settle(&[settlement]).await }
        });
        let end = format!(
            "SELECT {end}(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'"
        );
        until_true("the settlement waits, and is ended", async || {
            !client.query(&end, &[&scene.namespace.as_str()]).await.unwrap().is_empty()
        })
        .await;
        assert_eq!(settling.await.unwrap().unwrap_err().kind(), expected);
    }
    blocker.batch_execute("ROLLBACK").await.unwrap();
    let another = scene.open().await;
    another.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).expect("neither has happened");
    scene.drop().await;
}

/// A table that is empty most of the time: a plan made while it has few pages scans it, or another of its indexes, and later all
/// its dead rows.
#[tokio::test]
async fn a_lease_is_found_by_its_token_beside_an_old_snapshot() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    let (client, reader) = (scene.client().await, scene.client().await);
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()").await.unwrap();
    let rows =
        "INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, owner)
        SELECT n, n, n, 'infinity', 1, 'o' FROM generate_series($first, $last) n";
    let rows = |first: u32, last: u32| {
        scene.sql(&rows.replace("$first", &first.to_string()).replace("$last", &last.to_string()))
    };
    let calls = [
        "settle_all('{$t}', '{1}', '{o}', false, NULL)",
        "settle_parts($t, 1, 'o', '{$t}', '{$t}', '{ack}', '{0}', '{NULL}', '{NULL}', false, NULL)",
        "extend_leases('{$t}', '{1}', '{o}', 1000, false, NULL)",
        "settle_inside(NULL, $t, 1, 'o', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    ];
    let delete = scene.sql("DELETE FROM {schema}.outstanding");
    let mut token = 900_000;
    let mut blocks = [0; 4];
    // Planned while the table has a few pages, as after each renewal of its statistics; used while it has many.
    for dead in [300, 20_000] {
        client.batch_execute(&format!("{}; {delete}", rows(1, dead))).await.unwrap();
        if dead == 300 {
            client.batch_execute(&scene.sql("ANALYZE {schema}.outstanding")).await.unwrap();
        }
        for (call, blocks) in calls.iter().zip(&mut blocks) {
            *blocks = u64::MAX;
            for _ in 0..6 {
                token += 1;
                client.batch_execute(&rows(token, token)).await.unwrap();
                let call = call.replace("$t", &token.to_string());
                let explained =
                    scene.sql(&format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT {{schema}}.{call}"));
                let plan: serde_json::Value = client.query_one(&explained, &[]).await.unwrap().get(0);
                // The least: a call reads the catalog too, if other sessions have just changed it.
                let read = plan[0]["Plan"]["Shared Hit Blocks"].as_u64().unwrap();
                *blocks = read.min(*blocks);
                client.batch_execute(&delete).await.unwrap();
            }
        }
    }
    assert!(blocks.iter().all(|blocks| *blocks < 40), "{blocks:?} blocks read for one lease");
    scene.drop().await;
}

/// An extension that waits for a settlement of a part of its lease extends the rows that the settlement inserted.
#[tokio::test]
async fn an_extension_beside_a_settlement_of_parts_extends_the_rest() {
    let Some(scene) = Scene::new() else { return };
    let store = Arc::new(scene.open().await);
    let subscription = subscribed(&store).await;
    store.publish(&orders(), &["1", "2", "3"].map(NewMessage::new)).await.unwrap();
    let lease = store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    let settling = scene.client().await;
    let part = format!(
        "BEGIN; SELECT {{schema}}.settle_parts({}, {}, 'tester', '{{2}}', '{{2}}', '{{ack}}', '{{0}}', '{{NULL}}', '{{NULL}}', false, NULL)",
        lease.token.0, lease.subscription_id.0
    );
    settling.batch_execute(&scene.sql(&part)).await.unwrap();
    let extending = tokio::spawn({
        let (store, id) = (Arc::clone(&store), lease.id());
        async move { store.extend(&[id], Duration::from_secs(900)).await }
    });
    super::lives::until_a_session_waits(&scene).await;
    settling.batch_execute("COMMIT").await.unwrap();
    extending.await.unwrap().unwrap().remove(0).expect("the lease is held");
    let extended = "SELECT first_offset FROM {schema}.outstanding WHERE due_at > now() + interval '10 minutes' ORDER BY 1";
    let extended = settling.query(&scene.sql(extended), &[]).await.unwrap();
    assert_eq!(extended.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [1, 3]);
    scene.drop().await;
}
