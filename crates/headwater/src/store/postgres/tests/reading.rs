//! Consuming in plain SQL: `read`, `ack`, `retry`, `bury`, `release`, `extend`, `listen`, `create_group`.

use tokio_postgres::Row;

use super::*;

mod create;
mod ordered;

/// A namespace with a topic `orders` and its group `a`, and a session of plain SQL.
struct Reading {
    scene: Scene,
    store: PostgresStore,
    client: Client,
}

impl Reading {
    async fn with(settings: TopicSettings) -> Option<Self> {
        let scene = Scene::new()?;
        let store = scene.open().await;
        store.create_topic(&orders(), &settings).await.unwrap();
        let client = scene.client().await;
        let reading = Reading { scene, store, client };
        reading.run("SELECT {schema}.create_group('orders', 'a')").await;
        Some(reading)
    }

    async fn new() -> Option<Self> {
        Self::with(TopicSettings::pub_sub()).await
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(&self.scene.sql(sql)).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    /// The SQLSTATE and the text with which the server refuses a statement.
    async fn refused(&self, sql: &str) -> (String, String) {
        let error = self.client.batch_execute(&self.scene.sql(sql)).await.unwrap_err();
        let error = error.as_db_error().expect("refused by the server");
        (error.code().code().to_owned(), error.message().to_owned())
    }

    async fn rows(&self, sql: &str) -> Vec<Row> {
        self.client.query(&self.scene.sql(sql), &[]).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"))
    }

    async fn number(&self, sql: &str) -> i64 {
        self.rows(sql).await[0].get(0)
    }

    /// Publishes messages with payloads 1, 2, … in one transaction each.
    async fn publish(&self, count: i64) {
        for n in 1..=count {
            self.run(&format!("SELECT {{schema}}.publish('orders', '{n}')")).await;
        }
    }

    /// Token and offset of each message read.
    async fn read(&self, qty: i32) -> Vec<(i64, i64)> {
        let read = format!("SELECT token, message_offset FROM {{schema}}.read('orders', 'a', {qty}, 60)");
        self.rows(&read).await.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn outstanding(&self) -> i64 {
        self.number("SELECT count(*) FROM {schema}.outstanding").await
    }

    /// The deadlines of all leases pass.
    async fn expire(&self) {
        self.run("UPDATE {schema}.outstanding SET due_at = now() - interval '1 ms' WHERE owner IS NOT NULL")
            .await;
    }

    async fn drop(self) {
        self.scene.drop().await;
    }
}

#[tokio::test]
async fn a_read_message_has_all_its_fields_and_its_ack_ends_the_lease() {
    let Some(sql) = Reading::new().await else { return };
    sql.run(
        "SELECT {schema}.publish('orders', '{\"n\": 1}', key => 'k', type => 't', headers => '{\"h\": \"v\"}', correlation_id => 'c')",
    )
    .await;
    let rows = sql.rows("SELECT * FROM {schema}.read('orders', 'a')").await;
    let names: Vec<&str> = rows[0].columns().iter().map(tokio_postgres::Column::name).collect();
    let expected = [
        "token",
        "message_offset",
        "message_id",
        "key",
        "type",
        "headers",
        "payload",
        "attempt",
        "content_type",
        "correlation_id",
        "created_at",
    ];
    assert_eq!(names, expected);
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((row.get::<_, i64>(1), row.get::<_, &str>(3), row.get::<_, &str>(4)), (1, "k", "t"));
    assert_eq!(row.get::<_, serde_json::Value>("headers"), serde_json::json!({"h": "v"}));
    assert_eq!(row.get::<_, serde_json::Value>("payload"), serde_json::json!({"n": 1}));
    assert_eq!((row.get::<_, i32>("attempt"), row.get::<_, &str>("correlation_id")), (1, "c"));
    assert_eq!(sql.read(10).await, [], "leased");
    let token: i64 = row.get(0);
    assert_eq!(sql.number(&format!("SELECT {{schema}}.ack({token})")).await, 1);
    assert_eq!(sql.outstanding().await, 0);
    assert_eq!(sql.read(10).await, [], "done");
    sql.drop().await;
}

#[tokio::test]
async fn a_payload_that_is_no_json_is_null_in_read_and_bytes_in_read_bytes() {
    let Some(sql) = Reading::new().await else { return };
    for payload in ["\\x00ff", "\\x7b", "\\x225c753030303022"] {
        let publish = format!(
            "SELECT {{schema}}.publish_bytes('orders', '{payload}', content_type => 'application/json')"
        );
        sql.run(&publish).await;
    }
    sql.run("SELECT {schema}.publish_bytes('orders', '31')").await;
    let rows = sql.rows("SELECT payload FROM {schema}.read('orders', 'a', 10)").await;
    let payloads: Vec<Option<serde_json::Value>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads, [None, None, Some(serde_json::json!("\0")), Some(serde_json::json!(31))]);
    sql.run("SELECT {schema}.release(t) FROM (SELECT DISTINCT token AS t FROM {schema}.outstanding) o").await;
    let rows = sql.rows("SELECT payload FROM {schema}.read_bytes('orders', 'a', 10)").await;
    assert_eq!(rows[0].get::<_, &[u8]>(0), [0, 255]);
    sql.drop().await;
}

#[tokio::test]
async fn what_is_not_held_is_refused_and_changes_nothing() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(4).await;
    let (token, _) = sql.read(3).await[0];
    assert_eq!(sql.number(&format!("SELECT {{schema}}.ack({token}, ARRAY[2])")).await, 1);
    for (call, code) in [
        ("ack(77)".to_owned(), "HW020"),
        ("ack(77, ARRAY[1])".to_owned(), "HW020"),
        ("retry(77, 1)".to_owned(), "HW020"),
        ("bury(77, 1, 'x')".to_owned(), "HW020"),
        ("extend(77, 10)".to_owned(), "HW020"),
        ("release(77)".to_owned(), "HW020"),
        (format!("ack({token}, ARRAY[4])"), "HW021"),
        (format!("ack({token}, ARRAY[1, 2])"), "HW021"),
        (format!("retry({token}, 2)"), "HW021"),
        (format!("bury({token}, 2, 'x')"), "HW021"),
        (format!("ack({token}, '{{}}')"), "HW003"),
        (format!("ack({token}, ARRAY[NULL]::bigint[])"), "HW003"),
        (format!("retry({token}, 1, -1)"), "HW003"),
        (format!("bury({token}, 1, NULL)"), "HW003"),
        (format!("extend({token}, 0)"), "HW003"),
    ] {
        assert_eq!(sql.refused(&format!("SELECT {{schema}}.{call}")).await.0, code, "{call}");
    }
    assert_eq!(sql.number(&format!("SELECT {{schema}}.ack({token})")).await, 2, "1 and 3 are still held");
    let (code, text) = sql.refused(&format!("SELECT {{schema}}.ack({token})")).await;
    assert_eq!((code.as_str(), text.contains("settled")), ("HW020", true), "{text}");
    let (token, _) = sql.read(3).await[0];
    sql.expire().await;
    let (code, text) = sql.refused(&format!("SELECT {{schema}}.ack({token})")).await;
    assert_eq!((code.as_str(), text.contains("expired at")), ("HW020", true), "{text}");
    sql.drop().await;
}

/// The token alone does not settle a lease of the library.
#[tokio::test]
async fn a_lease_of_the_library_is_refused() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(1).await;
    let group = GroupName::new("a").unwrap();
    let subscription = sql.store.subscribe(&orders(), &group, Start::Beginning).await.unwrap();
    let lease = sql.store.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    let (code, text) = sql.refused(&format!("SELECT {{schema}}.ack({})", lease.token)).await;
    assert_eq!((code.as_str(), text.contains("tester")), ("HW020", true), "{text}");
    sql.store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
    sql.drop().await;
}

/// Offsets of rolled back publishers are in the claimed range, and belong to no message that a caller could ack.
#[tokio::test]
async fn acking_each_message_ends_the_lease_whatever_was_rolled_back() {
    let Some(sql) = Reading::new().await else { return };
    for end in ["COMMIT", "ROLLBACK", "COMMIT", "ROLLBACK", "COMMIT"] {
        sql.run(&format!("BEGIN; SELECT {{schema}}.publish('orders', '1'); {end}")).await;
    }
    // A missing offset may still come for a moment.
    let (mut read, until) = (sql.read(10).await, Instant::now() + Duration::from_secs(20));
    while read.len() < 3 {
        assert!(Instant::now() < until, "{read:?}");
        read.extend(sql.read(10).await);
    }
    assert_eq!(read.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(), [1, 3, 5]);
    for (token, offset) in read {
        sql.run(&format!("SELECT {{schema}}.ack({token}, ARRAY[{offset}])")).await;
    }
    assert_eq!(sql.outstanding().await, 0);
    sql.drop().await;
}

#[tokio::test]
async fn a_retry_counts_and_the_last_attempt_becomes_a_dead_letter() {
    let settings = TopicSettings {
        max_attempts: 3,
        backoff_initial: Duration::from_secs(100),
        backoff_max: Duration::from_secs(150),
        ..TopicSettings::pub_sub()
    };
    let Some(sql) = Reading::with(settings).await else { return };
    sql.publish(2).await;
    let (token, _) = sql.read(2).await[0];
    let retry = |token: i64, delay: &str| {
        format!("SELECT outcome FROM {{schema}}.retry({token}, 2, {delay}, 'boom')")
    };
    assert_eq!(sql.rows(&retry(token, "NULL")).await[0].get::<_, &str>(0), "retried");
    let wait =
        "SELECT extract(epoch FROM due_at - now())::bigint FROM {schema}.outstanding WHERE owner IS NULL";
    let first = sql.number(wait).await;
    assert!((49..=100).contains(&first), "{first} s, from half of the back-off to all of it");
    assert_eq!(
        sql.number(&format!("SELECT {{schema}}.ack({token})")).await,
        1,
        "the other message is still held"
    );
    for attempt in [2, 3] {
        sql.run("UPDATE {schema}.outstanding SET due_at = now()").await;
        let rows =
            sql.rows("SELECT token, message_offset, attempt FROM {schema}.read('orders', 'a', 10, 60)").await;
        assert_eq!((rows[0].get::<_, i64>(1), rows[0].get::<_, i32>(2)), (2, attempt));
        let outcome = sql.rows(&retry(rows[0].get(0), "10")).await;
        assert_eq!(outcome[0].get::<_, &str>(0), if attempt == 3 { "buried" } else { "retried" });
    }
    let letters = sql.rows("SELECT message_offset, attempts, error FROM {schema}.dead_letter").await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].get::<_, i64>(0), letters[0].get::<_, i32>(1), letters[0].get::<_, &str>(2)),
        (2, 3, "boom")
    );
    assert_eq!(sql.outstanding().await, 0);
    sql.drop().await;
}

#[tokio::test]
async fn bury_release_and_extend_do_what_they_promise() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(3).await;
    let (token, _) = sql.read(3).await[0];
    sql.run(&format!("SELECT {{schema}}.bury({token}, 2, 'bad')")).await;
    assert_eq!(sql.number("SELECT count(*) FROM {schema}.dead_letter").await, 1);
    sql.run(&format!("SELECT {{schema}}.extend({token}, 3600)")).await;
    let left = "SELECT min(extract(epoch FROM due_at - now()))::bigint FROM {schema}.outstanding";
    assert!(sql.number(left).await > 3500);
    assert_eq!(sql.number(&format!("SELECT {{schema}}.release({token})")).await, 2);
    let rows =
        sql.rows("SELECT message_offset, attempt FROM {schema}.read('orders', 'a', 10) ORDER BY 1").await;
    let again: Vec<(i64, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(again, [(1, 1), (3, 1)], "not counted as an attempt");
    sql.drop().await;
}

#[tokio::test]
async fn an_expired_read_is_handed_out_again_and_counts() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(1).await;
    let (lost, _) = sql.read(1).await[0];
    sql.expire().await;
    let rows = sql.rows("SELECT token, attempt FROM {schema}.read('orders', 'a', 1, 60)").await;
    assert_eq!(rows[0].get::<_, i32>(1), 2);
    assert_eq!(sql.refused(&format!("SELECT {{schema}}.ack({lost})")).await.0, "HW020");
    assert_eq!(sql.number(&format!("SELECT {{schema}}.ack({})", rows[0].get::<_, i64>(0))).await, 1);
    sql.drop().await;
}

#[tokio::test]
async fn an_effect_and_its_ack_are_one_transaction() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(1).await;
    sql.run("CREATE TABLE {name}_effect (n bigint)").await;
    let (token, _) = sql.read(1).await[0];
    let work = format!("BEGIN; INSERT INTO {{name}}_effect VALUES (1); SELECT {{schema}}.ack({token})");
    sql.run(&format!("{work}; ROLLBACK")).await;
    assert_eq!(sql.outstanding().await, 1, "the lease is as before");
    sql.run(&format!("{work}; COMMIT")).await;
    assert_eq!(sql.outstanding().await, 0);
    sql.run("DROP TABLE {name}_effect").await;
    sql.drop().await;
}

/// While an ack waits for its commit, other consumers of the group read on, and no lock of theirs is held up.
#[tokio::test]
async fn an_open_ack_holds_up_no_other_reader() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(4).await;
    let (token, _) = sql.read(2).await[0];
    sql.run(&format!("BEGIN; SELECT {{schema}}.ack({token}, ARRAY[1])")).await;
    let other = sql.scene.client().await;
    let read = sql.scene.sql("SET statement_timeout = '5s'; SELECT * FROM {schema}.read('orders', 'a', 10)");
    other.batch_execute(&read).await.expect("it does not wait");
    sql.run("COMMIT").await;
    assert_eq!(sql.number(&format!("SELECT {{schema}}.ack({token})")).await, 1);
    sql.drop().await;
}

#[tokio::test]
async fn a_read_begins_its_transaction_and_an_idle_one_ends_with_its_lease() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(2).await;
    for before in [
        "SELECT {schema}.publish('orders', '1')",
        "SELECT * FROM {schema}.read('orders', 'a', 1, 60)",
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    ] {
        let (code, text) =
            sql.refused(&format!("BEGIN; {before}; SELECT * FROM {{schema}}.read('orders', 'a')")).await;
        assert_eq!(
            (code.as_str(), text.contains("invalid transaction")),
            ("HW003", true),
            "{before}: {text}"
        );
        sql.run("ROLLBACK").await;
    }
    sql.run("BEGIN; SELECT * FROM {schema}.read('orders', 'a', 1, 7)").await;
    let limit = sql.rows("SHOW idle_in_transaction_session_timeout").await;
    assert_eq!(limit[0].get::<_, &str>(0), "7s");
    sql.run("ROLLBACK").await;
    sql.run("SET idle_in_transaction_session_timeout = '1h'; BEGIN; SELECT * FROM {schema}.read('orders', 'a', 1, 7)").await;
    let limit = sql.rows("SHOW idle_in_transaction_session_timeout").await;
    assert_eq!(limit[0].get::<_, &str>(0), "1h", "the caller's own");
    sql.run("ROLLBACK").await;
    sql.drop().await;
}

/// An asynchronous commit of a claim must not make the caller's own writes asynchronous.
#[tokio::test]
async fn neither_read_nor_ack_weakens_the_callers_commit() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(1).await;
    sql.run("BEGIN; SELECT {schema}.ack(token) FROM {schema}.read('orders', 'a') LIMIT 1").await;
    let shown = sql.rows("SHOW synchronous_commit").await;
    assert_eq!(shown[0].get::<_, &str>(0), "on");
    sql.run("COMMIT").await;
    assert_eq!(sql.outstanding().await, 0, "read and ack in one transaction");
    sql.drop().await;
}

#[tokio::test]
async fn reading_is_the_heartbeat_of_the_group_and_resurrects_it() {
    let Some(sql) = Reading::new().await else { return };
    let served = "SELECT count(*) FROM {schema}.activity WHERE owner LIKE 'sql %' AND served_at > now() - interval '1 minute'";
    sql.read(1).await;
    assert_eq!(sql.number(served).await, 1);
    let status = &sql.store.subscriptions(&orders()).await.unwrap()[0];
    assert_eq!(status.processes, 1);
    // Silent for longer than the timeout.
    sql.run("UPDATE {schema}.activity SET served_at = now() - interval '1 hour'").await;
    sql.run("INSERT INTO {schema}.job (job, last_run_at) VALUES ('dead_detection', now()); SELECT {schema}.detect_dead(NULL)").await;
    let state = "SELECT count(*) FROM {schema}.subscription WHERE state = 'dead'";
    assert_eq!(sql.number(state).await, 1);
    sql.publish(1).await;
    assert_eq!(sql.read(1).await.len(), 1);
    assert_eq!(sql.number(state).await, 0);
    assert_eq!(sql.number(served).await, 1);
    sql.run("SELECT {schema}.set_state('orders', 'a', 'pause', '{active}', 'paused', 'tester', NULL, NULL)")
        .await;
    sql.publish(1).await;
    assert_eq!(sql.read(1).await, [], "paused");
    sql.drop().await;
}

#[tokio::test]
async fn sessions_that_ended_leave_no_rows() {
    let Some(sql) = Reading::new().await else { return };
    let session = sql.scene.client().await;
    session.batch_execute(&sql.scene.sql("SELECT * FROM {schema}.read('orders', 'a')")).await.unwrap();
    drop(session);
    sql.read(1).await;
    let rows = "SELECT count(*) FROM {schema}.activity WHERE owner <> ''";
    assert_eq!(sql.number(rows).await, 2);
    sql.run("UPDATE {schema}.activity SET served_at = served_at - interval '11 minutes'").await;
    let until = Instant::now() + Duration::from_secs(20);
    while sql.number(rows).await > 1 {
        assert!(Instant::now() < until, "the ended session's row stays");
        sql.run("SELECT {schema}.forget_old(100, NULL)").await;
    }
    let heard = "SELECT count(*) FROM {schema}.heard WHERE heard_at IS NOT NULL";
    assert_eq!(sql.number(heard).await, 1, "its heartbeat still counts");
    sql.drop().await;
}

#[tokio::test]
async fn a_topic_with_tables_of_its_own_is_read_alike() {
    let storage = crate::topic::Storage::Dedicated(crate::topic::Partition::Rows(1_000));
    let Some(sql) = Reading::with(TopicSettings { storage, ..TopicSettings::pub_sub() }).await else {
        return;
    };
    sql.publish(3).await;
    let read = sql.read(10).await;
    assert_eq!(read.len(), 3);
    assert_eq!(sql.number(&format!("SELECT {{schema}}.ack({})", read[0].0)).await, 3);
    sql.drop().await;
}

#[tokio::test]
async fn a_listening_session_is_notified_and_knows_how_long_to_wait() {
    let Some(sql) = Reading::new().await else { return };
    let (listener, mut connection) = tokio_postgres::connect(&sql.scene.url, NoTls).await.unwrap();
    let (send, mut notified) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let Ok(tokio_postgres::AsyncMessage::Notification(notification)) = message {
                let _ = send.send(notification.channel().to_owned());
            }
        }
    });
    let listen = sql.scene.sql("SELECT channel, wait_s FROM {schema}.listen('orders', 'a')");
    let prepared: String = sql.rows("SHOW max_prepared_transactions").await[0].get(0);
    let row = listener.query_one(&listen, &[]).await.unwrap();
    let channel: String = row.get(0);
    assert_eq!(channel, sql.scene.sql("headwater:{name}"));
    assert_eq!(row.get::<_, f64>(1), if prepared == "0" { 30.0 } else { 0.2 });
    // A retry sends no notification when it becomes due: the wait ends then.
    sql.publish(1).await;
    let (token, _) = sql.read(1).await[0];
    sql.run(&format!("SELECT {{schema}}.retry({token}, 1, 0.1)")).await;
    let waits: f64 = listener.query_one(&listen, &[]).await.unwrap().get(1);
    assert!(waits <= 0.2, "{waits}");
    if prepared == "0" {
        sql.run("SELECT {schema}.publish('orders', '2')").await;
        let served = tokio::time::timeout(Duration::from_secs(20), notified.recv()).await;
        assert_eq!(served.expect("notified"), Some(channel));
    }
    sql.drop().await;
}

/// The limits that `read_bytes` passes to a claim are those of the library.
#[test]
fn limits_of_reads_are_those_of_the_library() {
    use crate::limits::{
        ADVANCE_ROWS_MAX, ERROR_TEXT_BYTES_MAX, FLAPPING_WINDOW, GAPS_NOTED_MAX, PARKED_PER_LANE_MAX,
        PROMOTE_MESSAGES_MAX,
    };
    let read = include_str!("../schema/functions/read.sql");
    assert!(read.contains(&format!("p_lease_ms, {ADVANCE_ROWS_MAX}, v_clock")));
    let claim = format!(
        "true, {PROMOTE_MESSAGES_MAX}, {ADVANCE_ROWS_MAX}, {GAPS_NOTED_MAX}, {PARKED_PER_LANE_MAX}, NULL)"
    );
    assert!(read.contains(&claim), "{claim}");
    assert!(read.contains(&format!("v_at, {}, NULL)", FLAPPING_WINDOW.as_millis())));
    let settle = include_str!("../schema/functions/settle_read.sql");
    assert!(settle.contains(&format!("octet_length(p_error) <= {ERROR_TEXT_BYTES_MAX}")));
}
