//! Costs that must not grow with the number of groups or of waiting messages.

use tokio_postgres::types::ToSql;

use super::super::log::rows_max;
use super::*;
use crate::lease::OffsetRange;
use crate::message::Offset;
use crate::store::FetchBound;

/// Rows of the table of cursors that subscribing one more group reads.
async fn cursors_read(scene: &Scene, client: &Client, group: &str) -> i64 {
    let subscribe =
        format!("BEGIN; SELECT {{schema}}.subscribe('orders', '{group}', 'now', NULL, NULL, 60000, NULL)");
    client.batch_execute(&scene.sql(&subscribe)).await.unwrap();
    let read = "SELECT s.seq_tup_read + coalesce(s.idx_tup_fetch, 0) FROM pg_stat_xact_user_tables s
                WHERE s.schemaname = '{name}' AND s.relname = 'cursor'";
    let read = client.query_one(&scene.sql(read), &[]).await.unwrap().get(0);
    client.batch_execute("COMMIT").await.unwrap();
    read
}

#[tokio::test]
async fn one_more_group_costs_the_same_beside_many() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let client = scene.client().await;
    let first = cursors_read(&scene, &client, "first").await;
    let many = "SELECT {schema}.subscribe('orders', 'g' || i, 'now', NULL, NULL, 60000, NULL) FROM generate_series(1, 500) i";
    client.batch_execute(&scene.sql(many)).await.unwrap();
    client.batch_execute(&scene.sql("ANALYZE {schema}.cursor, {schema}.subscription")).await.unwrap();
    // Another session: the first one keeps plans that it made for an empty table.
    let last = cursors_read(&scene, &scene.client().await, "last").await;
    assert!(last <= first + 10, "{first} cursors read for the first, {last} for the last");
    scene.drop().await;
}

/// Comparing neighbours is not enough: a short range lies inside a long one that began well before.
#[tokio::test]
async fn doctor_finds_ranges_that_are_outstanding_twice_among_many() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let rows = "INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id, attempts)
        SELECT i, 2 * i, 2 * i, now(), $1, 1 FROM generate_series(1, 100000) i";
    let client = scene.client().await;
    client.execute(&scene.sql(rows), &[&subscription.subscription_id.0]).await.unwrap();
    let ready = "UPDATE {schema}.cursor SET next_offset = 300001; UPDATE {schema}.head SET head = 300000;
        SELECT setval(t.offsets, 300000) FROM {schema}.topic t; ANALYZE {schema}.outstanding";
    client.batch_execute(&scene.sql(ready)).await.unwrap();
    // Comparing all pairs would exceed the statement timeout.
    assert_eq!(store.doctor().await.unwrap(), []);
    let long = "INSERT INTO {schema}.outstanding (token, first_offset, last_offset, due_at, subscription_id)
        VALUES (1000001, 200011, 200100, now(), $1), (1000002, 200020, 200021, now(), $1), (1000003, 200030, 200031, now(), $1)";
    client.execute(&scene.sql(long), &[&subscription.subscription_id.0]).await.unwrap();
    let problems: Vec<String> =
        store.doctor().await.unwrap().into_iter().map(|finding| finding.problem).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|problem| problem.contains("200020..=200021")), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.contains("200030..=200031")), "{problems:?}");
    scene.drop().await;
}

/// The first query of a fetch reads the rows of the whole range; only then is it known which messages fit.
#[tokio::test]
async fn large_headers_do_not_come_with_their_rows() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let topic = subscribed(&store).await.topic.topic_id;
    // Text that compresses well, and text that does not.
    let even = "x".repeat(16_000);
    let odd: String = (0..1_000).map(|_| format!("{:016x}", rand::random::<u64>())).collect();
    let message = |value: &str, count: usize| {
        (0..count).fold(NewMessage::new("x"), |message, n| message.header(format!("h{n}"), value))
    };
    let (small, trace) = (message("x", 2), message(&"00-4bf92f3577b34da6a3ce929d0e0e4736-".repeat(10), 2));
    let messages =
        [small, trace, message(&even, 1), message(&odd, 1), message(&even, 100), message(&odd, 100)];
    store.publish(&orders(), &messages).await.unwrap();
    let sql = &store.statements.log_fetch;
    let read = async |bound| {
        let params: [&(dyn ToSql + Sync); 5] = [&topic.0, &1_i64, &6_i64, &8_192_i32, &rows_max(bound)];
        scene.client().await.query(sql, &params).await.unwrap()
    };
    let rows = read(FetchBound::NONE).await;
    let come: Vec<usize> = rows.iter().map(|row| row.get::<_, Option<&str>>(6).map_or(0, str::len)).collect();
    assert!(come[0] > 0 && come[1] > 700 && come[1] < 8_192, "{come:?}");
    assert_eq!(come[2..], [0; 4], "they are too large to be read with their rows");
    assert_eq!(read(FetchBound::at_least_one(0)).await.len(), 2, "the second is the first that does not fit");
    let fetched = store.fetch(topic, OffsetRange::new(Offset(1), Offset(6))).await.unwrap();
    assert!(
        fetched.iter().map(|message| &message.headers).eq(messages.iter().map(|message| &message.headers))
    );
    scene.drop().await;
}

/// Retention removes large messages between the query for rows and the one for sizes, here all of them: they are missing,
/// and rows that the limit cut off are left to the next fetch.
#[tokio::test]
async fn large_messages_that_are_removed_meanwhile_are_holes() {
    let Some(scene) = Scene::new() else { return };
    let mut store = scene.open().await;
    let topic = subscribed(&store).await.topic.topic_id;
    store.publish(&orders(), &vec![NewMessage::new(vec![b'x'; 16_000]); 3]).await.unwrap();
    Arc::get_mut(&mut store.statements).unwrap().log_sizes =
        "SELECT 1::bigint, 1, 1::bigint WHERE $1::integer IS NULL AND $2::bigint[] IS NULL".to_owned();
    let range = OffsetRange::new(Offset(1), Offset(3));
    let fetched = store.fetch_within(topic, range, FetchBound::at_least_one(0)).await.unwrap();
    assert_eq!(fetched.messages, []);
    assert_eq!(fetched.left, Some(OffsetRange::new(Offset(2), Offset(3))));
    let fetched = store.fetch_within(topic, range, FetchBound::NONE).await.unwrap();
    assert_eq!((fetched.messages, fetched.left), (vec![], None));
    scene.drop().await;
}

/// A time outside of Rust's range is an error of the call, not a panic.
#[tokio::test]
async fn a_stored_time_that_cannot_be_read_is_an_error() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let client = scene.client().await;
    let bad = "INSERT INTO {schema}.job (job, runs, last_run_at) VALUES ('heads', 1, 'infinity');
        INSERT INTO {schema}.dead_letter (subscription_id, topic_id, message_offset, message_id, payload, created_at, error, attempts, buried_at)
        SELECT s.subscription_id, s.topic_id, 1, gen_random_uuid(), '', now(), 'x', 1, '-infinity' FROM {schema}.subscription s";
    client.batch_execute(&scene.sql(bad)).await.unwrap();
    let unreadable = |error: crate::Error| {
        assert_eq!(error.kind(), ErrorKind::Database, "{error}");
        assert!(error.to_string().contains("headwater doctor"), "{error}");
    };
    unreadable(store.jobs().await.unwrap_err());
    let selection = crate::store::DeadLetterSelection::all(subscription.subscription_id);
    unreadable(store.purge(&selection).await.unwrap_err());
    let infinite = "ALTER TABLE {schema}.clock DROP CONSTRAINT clock_latest_at_readable; UPDATE {schema}.clock SET latest_at = 'infinity'";
    client.batch_execute(&scene.sql(infinite)).await.unwrap();
    unreadable(scene.open().await.claim(&request(&subscription)).await.unwrap_err());
    client.batch_execute(&scene.sql("UPDATE {schema}.clock SET latest_at = NULL")).await.unwrap();
    scene.drop().await;
}

/// Behind a pooler in transaction mode another program may use the session next: a setting that is already right is not set
/// again.
#[tokio::test]
async fn a_session_that_has_the_settings_is_left_alone() {
    let Some(scene) = Scene::new() else { return };
    scene.open().await;
    let timeout_ms = OpenOptions::default().statement_timeout.as_millis();
    let options = format!(
        "-c%20statement_timeout%3D{timeout_ms}%20-c%20jit%3Doff%20-c%20default_transaction_isolation%3Dread%5C%20committed"
    );
    let url = format!("{}?options={options}", scene.url);
    let sources = async |url: &str| {
        let connections = Connections::new(url, &scene.namespace, &OpenOptions::default()).unwrap();
        let sql = "SELECT DISTINCT source FROM pg_settings
                   WHERE name IN ('statement_timeout', 'jit', 'default_transaction_isolation')";
        let rows = connections.query("asking", sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
    };
    assert_eq!(sources(&url).await, ["client"]);
    // Otherwise they are set in the session.
    assert!(sources(&scene.url).await.contains(&"session".to_owned()));
    scene.drop().await;
}

/// Claims and operators read messages through functions, which PostgreSQL must inline so that it can plan the table.
#[tokio::test]
async fn reading_the_log_through_its_functions_reads_its_index() {
    let Some(scene) = Scene::new() else { return };
    scene.open().await;
    let client = scene.client().await;
    client.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off").await.unwrap();
    for function in ["messages", "shared_messages"] {
        let sql = format!("EXPLAIN SELECT count(*) FROM {{schema}}.{function}(1, 2, 3)");
        let plan = client.query(&scene.sql(&sql), &[]).await.unwrap();
        let plan: Vec<&str> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        assert!(plan.contains("message_shared_pkey") && !plan.contains("Function Scan"), "{plan}");
    }
    scene.drop().await;
}
