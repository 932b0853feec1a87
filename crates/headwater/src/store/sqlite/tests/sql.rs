//! Publishing in plain SQL and in the caller's transaction.

use super::*;
use crate::store::Tracking as _;

fn insert(connection: &Connection, columns: &str, values: &str) -> rusqlite::Result<usize> {
    connection.execute(&format!("INSERT INTO headwater_publish ({columns}) VALUES ({values})"), [])
}

#[tokio::test]
async fn the_trigger_keeps_the_rules_of_the_library() {
    let place = Place::new();
    let store = place.open().await;
    let own = place.connect();
    let long = "'".to_owned() + &"x".repeat(256) + "'";
    let wide = format!("json_object('a', '{}')", "x".repeat(16_385));
    let many: Vec<String> = (0..129).map(|n| format!("'h{n}', ''")).collect();
    let many = format!("json_object({})", many.join(", "));
    for (columns, values, expected) in [
        ("topic, payload", "NULL, 'x'", "invalid topic"),
        ("topic, payload", "'', 'x'", "invalid topic"),
        ("topic, payload", &format!("{long}, 'x'"), "invalid topic"),
        ("topic, payload", "'a' || char(10), 'x'", "invalid topic"),
        ("topic, payload", "'a' || char(0) || 'b', 'x'", "invalid topic"),
        ("topic, payload", "'a' || char(133), 'x'", "invalid topic"),
        ("topic, payload", "x'41', 'x'", "invalid topic"),
        ("topic, payload", "CAST(x'ff41' AS TEXT), 'x'", "invalid topic: must be UTF-8"),
        ("topic, payload, key", "'t', 'x', CAST(x'c3' AS TEXT)", "invalid key: must be UTF-8"),
        ("topic, payload, key", "'t', 'x', CAST(x'c3a9e083a9' AS TEXT)", "invalid key: must be UTF-8"),
        ("topic, payload, type", "'t', 'x', CAST(x'eda080' AS TEXT)", "invalid type: must be UTF-8"),
        (
            "topic, payload, dedup_key",
            "'t', 'x', CAST(x'f4908080' AS TEXT)",
            "invalid dedup_key: must be UTF-8",
        ),
        ("topic, payload", "'t', NULL", "invalid payload"),
        ("topic, payload, key", "'t', 'x', ''", "invalid key"),
        ("topic, payload, type", "'t', 'x', ''", "invalid type"),
        ("topic, payload, content_type", "'t', 'x', char(1)", "invalid content_type"),
        ("topic, payload, correlation_id", "'t', 'x', char(127)", "invalid correlation_id"),
        ("topic, payload, dedup_key", &format!("'t', 'x', {long}"), "invalid dedup_key"),
        ("topic, payload, message_id", "'t', 'x', 'no-uuid'", "invalid message_id"),
        ("topic, payload, message_id", "'t', 'x', x'00'", "invalid message_id"),
        ("topic, payload, headers", "'t', 'x', 'nonsense'", "invalid headers"),
        ("topic, payload, headers", "'t', 'x', '[1]'", "invalid headers"),
        ("topic, payload, headers", "'t', 'x', '{\"a\":1}'", "invalid header value"),
        ("topic, payload, headers", "'t', 'x', '{\"\":\"x\"}'", "invalid header name"),
        ("topic, payload, headers", "'t', 'x', '{\"a\":\"\\u0000\"}'", "invalid header"),
        ("topic, payload, headers", &format!("'t', 'x', {wide}"), "invalid header value"),
        ("topic, payload, headers", &format!("'t', 'x', {many}"), "at most 128"),
        ("topic, payload, deliver_at", "'t', 'x', 'soon'", "invalid deliver_at"),
        ("topic, payload, deliver_at", "'t', 'x', 1.5", "invalid deliver_at"),
        ("topic, payload, deliver_at", "'t', 'x', '2999-01-01'", "366 days"),
        ("topic, payload", "'t', zeroblob(1048577)", "payload too large"),
    ] {
        let error = insert(&own, columns, values).unwrap_err().to_string();
        assert!(error.contains(expected), "{columns}: {error}");
    }
    assert_eq!(store.topics().await.unwrap(), [], "nothing was written, not even a topic");
}

#[tokio::test]
async fn sql_that_is_committed_arrives_with_every_field() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let own = place.connect();
    let columns = "topic, key, payload, type, content_type, headers, correlation_id, message_id";
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let values =
        format!("'orders', 'o-1', x'00ff41', 'placed', 'text/plain', '{{\"a\": \"ü\"}}', 'c-1', '{id}'");
    insert(&own, columns, &values).unwrap();
    insert(&own, "topic, payload", "'orders', '{\"n\":1}'").unwrap();
    let lease = store.claim(&request(&subscription, 10)).await.unwrap().leases.remove(0);
    let fetched = store.fetch(lease.topic_id, lease.range).await.unwrap();
    let first = &fetched[0];
    assert_eq!(first.message_id.to_string(), id);
    assert_eq!(first.payload.as_ref(), [0, 255, 0x41]);
    assert_eq!((first.key.as_deref(), first.message_type.as_deref()), (Some("o-1"), Some("placed")));
    assert_eq!(
        (first.content_type.as_deref(), first.correlation_id.as_deref()),
        (Some("text/plain"), Some("c-1"))
    );
    assert_eq!(first.headers["a"], "ü");
    assert_eq!(fetched[1].message_id.get_version_num(), 7);
    let age = Timestamp::now().as_millisecond() - fetched[1].created_at.as_millisecond();
    assert!((0..60_000).contains(&age), "{age} ms old");
}

#[tokio::test]
async fn sql_knows_dedup_keys_and_delays() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let own = place.connect();
    insert(&own, "topic, payload, dedup_key", "'orders', 'first', 'd'").unwrap();
    insert(&own, "topic, payload, dedup_key", "'orders', 'again', 'd'").unwrap();
    let again = store.publish(&topic("orders"), &[NewMessage::new("again").dedup_key("d")]).await.unwrap();
    assert_eq!(
        (again[0].duplicate, again[0].offset.unwrap().0),
        (true, 1),
        "one window for SQL and the library"
    );
    let soon = Timestamp::from_second(Timestamp::now().as_second() + 3600).unwrap();
    insert(&own, "topic, payload, deliver_at, dedup_key", &format!("'orders', 'later', '{soon}', 'l'"))
        .unwrap();
    insert(&own, "topic, payload, deliver_at", &format!("'orders', 'later too', {}", soon.as_millisecond()))
        .unwrap();
    insert(&own, "topic, payload, deliver_at", "'orders', 'past', '2001-01-01T00:00:00Z'").unwrap();
    assert_eq!(drain(&store, &subscription).await, ["first", "past"]);
    assert_eq!(store.topics().await.unwrap()[0].scheduled, 2);
    own.execute("UPDATE headwater_schedule SET deliver_at_ms = deliver_at_ms - 7200000", []).unwrap();
    assert_eq!(drain(&store, &subscription).await, ["later", "later too"]);
    let again = store.publish(&topic("orders"), &[NewMessage::new("again").dedup_key("l")]).await.unwrap();
    assert_eq!(
        (again[0].duplicate, again[0].offset.unwrap().0),
        (true, 3),
        "promotion gave the key its offset"
    );
    assert_eq!(store.doctor().await.unwrap(), []);
}

#[tokio::test]
async fn sql_creates_no_topic_when_the_store_must_not() {
    let place = Place::new();
    let store = place.open().await;
    store.set_auto_create(false).await.unwrap();
    store.close().await.unwrap();
    let store = place.open().await;
    let mut own = place.connect();
    let error = insert(&own, "topic, payload", "'t', 'x'").unwrap_err();
    assert!(error.to_string().contains("no such topic"), "{error}");
    let transaction = own.transaction().unwrap();
    let error = publish(&transaction, "t", &messages(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
    let error = store.publish(&topic("t"), &messages(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
    drop(transaction);
    store.set_auto_create(true).await.unwrap();
    insert(&own, "topic, payload", "'t', 'x'").unwrap();
    let acts: Vec<String> = store.audit(10).await.unwrap().into_iter().map(|entry| entry.act).collect();
    assert_eq!(acts, ["set_auto_create", "set_auto_create"]);
}

/// An option of one handle applies to that handle only: neither the file nor other handles change.
#[tokio::test]
async fn what_one_handle_may_create_changes_nothing_for_others() {
    let place = Place::new();
    let with = async |auto_create| {
        open_at(&place.path(), OpenOptions::default().auto_create(auto_create)).await.unwrap()
    };
    let never = with(false).await;
    let error = never.publish(&topic("a"), &messages(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
    insert(&place.connect(), "topic, payload", "'b', 'x'").unwrap();
    place.open().await.publish(&topic("c"), &messages(1)).await.unwrap();

    never.set_auto_create(false).await.unwrap();
    let always = with(true).await;
    always.publish(&topic("d"), &messages(1)).await.unwrap();
    let error = insert(&place.connect(), "topic, payload", "'e', 'x'").unwrap_err();
    assert!(error.to_string().contains("no such topic"), "{error}");
    let error = place.open().await.publish(&topic("f"), &messages(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchTopic);
}

/// A conflict clause of the caller overrides those inside a trigger.
#[tokio::test]
async fn insert_or_replace_keeps_a_known_dedup_key() {
    let place = Place::new();
    let store = place.open().await;
    let own = place.connect();
    insert(&own, "topic, payload, dedup_key", "'orders', 'first', 'd'").unwrap();
    let soon = Timestamp::now().as_millisecond() + 3_600_000;
    insert(&own, "topic, payload, deliver_at", &format!("'other', 'later', {soon}")).unwrap();
    let known = |connection: &Connection| -> (Vec<u8>, i64) {
        let sql = "SELECT message_id, message_offset FROM headwater_dedup WHERE dedup_key = 'd'";
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let before = known(&own);
    for conflict in ["REPLACE", "IGNORE", "ROLLBACK", "FAIL"] {
        let sql = format!(
            "INSERT OR {conflict} INTO headwater_publish (topic, payload, dedup_key) VALUES ('orders', 'again', 'd')"
        );
        own.execute(&sql, []).unwrap();
        assert_eq!(known(&own), before, "{conflict}");
    }
    assert_eq!(
        store
            .topics()
            .await
            .unwrap()
            .iter()
            .find(|status| status.topic.name == topic("orders"))
            .unwrap()
            .head
            .0,
        1
    );
    let sql =
        "INSERT OR REPLACE INTO headwater_publish (topic, payload, dedup_key) VALUES ('orders', 'new', 'e')";
    own.execute(sql, []).unwrap();
    assert_eq!(store.doctor().await.unwrap(), []);
}

/// SQLite recommends this setting for files that others may have written to.
#[tokio::test]
async fn sql_publishes_where_the_schema_is_not_trusted() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let own = place.connect();
    own.execute_batch("PRAGMA trusted_schema = 0").unwrap();
    insert(&own, "topic, payload, key, headers", "'orders', 'x', 'ü', '{\"a\": \"b\"}'").unwrap();
    own.query_row("SELECT count(*) FROM headwater_subscriptions", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(drain(&store, &subscription).await, ["x"]);
}

#[tokio::test]
async fn one_damaged_header_costs_no_other() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let own = place.connect();
    insert(&own, "topic, payload, headers", r#"'orders', 'x', '{"a":"\ud800!","b":"\ud83d\ude00","c":"d"}'"#)
        .unwrap();
    insert(&own, "topic, payload", "'orders', 'x'").unwrap();
    let torn = "CAST(CAST('{\"a\":\"' AS BLOB) || x'ff' || CAST('\",\"c\":\"d\"}' AS BLOB) AS TEXT)";
    own.execute(&format!("UPDATE headwater_message SET headers = {torn} WHERE row_key & 3 = 2"), []).unwrap();
    let lease = store.claim(&request(&subscription, 10)).await.unwrap().leases.remove(0);
    let fetched = store.fetch(lease.topic_id, lease.range).await.unwrap();
    let header = |at: usize, name: &str| fetched[at].headers[name].clone();
    assert_eq!([header(0, "a"), header(0, "b"), header(0, "c")], ["\u{fffd}!", "😀", "d"]);
    assert_eq!([header(1, "a"), header(1, "c")], ["?", "d"]);
}

/// A store from before the trigger refused such names: nothing else stops because of it, and it can be repaired.
#[tokio::test]
async fn a_topic_whose_name_is_not_utf8_stops_nothing() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let own = place.connect();
    let sql = "INSERT INTO headwater_topic (name, created_at_ms, settings)
               SELECT CAST(x'ff41' AS TEXT), 0, settings FROM headwater_topic";
    own.execute(sql, []).unwrap();
    let odd = crate::topic::TopicId(i32::try_from(own.last_insert_rowid()).unwrap());
    let sql = "INSERT INTO headwater_subscription (topic_id, group_name, lanes, start_offset, created_at_ms, state_at_ms, heartbeat_at_ms)
               VALUES (?1, 'g', 0, 1, 0, 0, 1)";
    own.execute(sql, [odd.0]).unwrap();
    own.execute("INSERT INTO headwater_cursor (subscription_id, lane, next_offset) SELECT max(subscription_id), 0, 1 FROM headwater_subscription", []).unwrap();
    store.publish(&topic("orders"), &messages(2)).await.unwrap();
    let names: Vec<String> =
        store.topics().await.unwrap().iter().map(|status| status.topic.name.to_string()).collect();
    assert_eq!(names, ["orders", "?A"], "by their bytes");
    for topic in [odd, subscription.topic.topic_id] {
        store.track(topic, 100).await.unwrap();
        store.clean(topic, 100).await.unwrap();
    }
    store.detect_dead().await.unwrap();
    store.clean_subscriptions(std::time::Duration::ZERO).await.unwrap();
    let found = store.doctor().await.unwrap();
    let found = found.iter().find(|finding| finding.check == "topic_name").expect("doctor finds it");
    assert!(found.problem.contains(&format!("topic {odd}")) && found.problem.contains("?A"), "{found:?}");
    let repair = found.remedy.split_once('"').unwrap().1.trim_end_matches('"').replace("NEW-NAME", "found");
    own.execute(&repair, []).unwrap();
    assert!(store.topic(&topic("found")).await.is_ok());
    assert!(store.doctor().await.unwrap().iter().all(|finding| finding.check != "topic_name"));
}

/// A key from before the trigger refused it: its message can be retried, and its neighbours are done.
#[tokio::test]
async fn a_key_that_is_not_utf8_costs_its_neighbours_nothing() {
    let place = Place::new();
    let store = place.open().await;
    let settings =
        crate::TopicSettings { ordering: crate::topic::Ordering::Key, lanes: 1, ..Default::default() };
    store.create_topic(&topic("orders"), &settings).await.unwrap();
    let subscription = store
        .subscribe(&topic("orders"), &GroupName::new("workers").unwrap(), Start::Beginning)
        .await
        .unwrap();
    let batch: Vec<_> = (0..4).map(|n| NewMessage::new("x").key(n.to_string())).collect();
    store.publish(&topic("orders"), &batch).await.unwrap();
    let bytes = "ff".repeat(100);
    let sql = format!("UPDATE headwater_message SET key = CAST(x'{bytes}' AS TEXT) WHERE row_key & 7 = 2");
    assert_eq!(place.connect().execute(&sql, []).unwrap(), 1);
    let lease = store.claim(&request(&subscription, 10)).await.unwrap().leases.remove(0);
    let key = store.fetch(lease.topic_id, lease.range).await.unwrap().remove(1).key.unwrap();
    assert_eq!(key, "?".repeat(100));
    let retry = Outcome::Retry { after: std::time::Duration::ZERO, error: "no".into(), key: Some(key) };
    let one = |offset| OffsetRange::one(crate::Offset(offset));
    let rest = OffsetRange::new(crate::Offset(3), crate::Offset(4));
    let parts = vec![(one(1), Outcome::Ack), (one(2), retry), (rest, Outcome::Ack)];
    store.settle(&[Settlement::each(&lease, parts)]).await.unwrap().remove(0).unwrap();
    let again = store.claim(&request(&subscription, 10)).await.unwrap().leases.remove(0);
    assert_eq!(again.range, one(2), "its neighbours are done");
}

#[tokio::test]
async fn a_refused_publish_leaves_the_callers_transaction_usable() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let mut own = place.connect();
    own.execute_batch("CREATE TABLE account (n INTEGER)").unwrap();
    let transaction = own.transaction().unwrap();
    transaction.execute("INSERT INTO account VALUES (1)", []).unwrap();
    let mut batch = messages(2);
    batch.push(NewMessage::new(vec![0; 1024 * 1024 + 1]));
    let error = publish(&transaction, "orders", &batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadTooLarge);
    publish(&transaction, "orders", &messages(1)).unwrap();
    transaction.commit().unwrap();
    assert_eq!(drain(&store, &subscription).await, ["message 0"]);
    let elsewhere = Connection::open_in_memory().unwrap();
    let error = publish(&elsewhere.unchecked_transaction().unwrap(), "t", &messages(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAStore, "{error}");
}

#[tokio::test]
async fn what_a_publish_did_can_be_read_in_its_transaction() {
    let place = Place::new();
    let store = place.open().await;
    subscribed(&store, "orders").await;
    let mut own = place.connect();
    let published = |transaction: &rusqlite::Transaction<'_>, values: &str| -> (Option<i64>, String, bool) {
        let insert = format!(
            "INSERT INTO headwater_publish (topic, payload, dedup_key, message_id, deliver_at) VALUES ('orders', {values})"
        );
        transaction.execute(&insert, []).unwrap();
        let sql = "SELECT message_offset, message_id, duplicate FROM headwater_published";
        transaction.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
    };
    let transaction = own.transaction().unwrap();
    let (first, id, duplicate) = published(&transaction, "'{\"n\":1}', 'd', NULL, NULL");
    assert_eq!((first, duplicate, uuid::Uuid::parse_str(&id).is_ok()), (Some(1), false, true));
    assert_eq!(
        published(&transaction, "'2', 'd', NULL, NULL"),
        (Some(1), id.clone(), true),
        "nothing is stored"
    );
    assert_eq!(
        published(&transaction, &format!("'2', 'd', '{id}', NULL")),
        (Some(1), id, true),
        "also with its id"
    );
    assert_eq!(published(&transaction, "'3', NULL, NULL, NULL").0, Some(2));
    let (offset, _, duplicate) = published(&transaction, "'4', 's', NULL, datetime('now', '+1 hour')");
    assert_eq!((offset, duplicate), (None, false), "scheduled");
    let (offset, _, duplicate) = published(&transaction, "'5', 's', NULL, NULL");
    assert_eq!((offset, duplicate), (None, true), "the first is still scheduled");
    transaction.commit().unwrap();
}

#[tokio::test]
async fn text_that_is_json_has_its_content_type() {
    let place = Place::new();
    let store = place.open().await;
    subscribed(&store, "orders").await;
    let own = place.connect();
    for (payload, content_type, expected) in [
        ("'{\"n\":1}'", "NULL", Some("application/json")),
        ("'plain text'", "NULL", None),
        ("x'7b7d'", "NULL", None),
        ("'{\"n\":1}'", "'text/plain'", Some("text/plain")),
    ] {
        let insert = format!(
            "INSERT INTO headwater_publish (topic, payload, content_type) VALUES ('orders', {payload}, {content_type})"
        );
        own.execute(&insert, []).unwrap();
        let sql = "SELECT content_type FROM headwater_messages ORDER BY message_offset DESC LIMIT 1";
        let stored: Option<String> = own.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(stored.as_deref(), expected, "{payload}");
    }
}

#[tokio::test]
async fn the_old_command_line_tool_publishes_in_its_own_transaction() {
    let Ok(found) = std::process::Command::new("sqlite3").arg("--version").output() else {
        eprintln!("skipped: no sqlite3 here, the statement itself is tested above");
        return;
    };
    assert!(found.status.success());
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let run = |sql: &str| {
        let output = std::process::Command::new("sqlite3").arg(place.path()).arg(sql).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let publish = |payload: &str| {
        format!("INSERT INTO headwater_publish (topic, payload) VALUES ('orders', '{payload}');")
    };
    assert_eq!(run(&format!("BEGIN; {} COMMIT;", publish("kept"))), (true, String::new()));
    assert_eq!(run(&format!("BEGIN; {} ROLLBACK;", publish("gone"))), (true, String::new()));
    let (ok, output) = run("INSERT INTO headwater_publish (topic, payload) VALUES ('', 'x');");
    assert!(!ok && output.contains("invalid topic"), "{output}");
    assert_eq!(run("SELECT payload FROM headwater_messages;"), (true, "kept\n".into()));
    assert_eq!(drain(&store, &subscription).await, ["kept"]);
}

/// Plain SQL creates the same queue as the library, with every setting and every column copied from one.
#[tokio::test]
async fn sql_creates_a_topic_with_the_settings_of_the_library() {
    let place = Place::new();
    let store = place.open().await;
    let own = place.connect();
    insert(&own, "topic, payload", "'by-sql', 'x'").unwrap();
    store.create_topic(&topic("by-library"), &TopicSettings::default()).await.unwrap();
    let row = |name: &str| -> Vec<rusqlite::types::Value> {
        let sql = "SELECT semantics, tracking, lease_ms, max_attempts, payload_bytes_max, dedup_window_ms, message_retention_ms,
                          max_retention_ms, zero_subscription_retention_ms, block_writes, zombie_subscription_ttl_ms,
                          heartbeat_interval_ms, heartbeat_timeout_ms, ack_log,
                          (SELECT group_concat(key || ' ' || coalesce(value, 'null')) FROM (
                               SELECT * FROM json_each(settings) ORDER BY key))
                   FROM headwater_topic WHERE name = ?1";
        own.query_row(sql, [name], |row| (0..15).map(|at| row.get(at)).collect()).unwrap()
    };
    assert_eq!(row("by-sql"), row("by-library"));
    assert_eq!(store.topic(&topic("by-sql")).await.unwrap().settings, TopicSettings::default());
}

/// Settings that a later version stored are ignored, and kept when this version alters the topic; settings that an
/// earlier version did not store have their defaults.
#[tokio::test]
async fn settings_of_another_version_are_kept() {
    let place = Place::new();
    let store = place.open().await;
    let name = topic("orders");
    store.create_topic(&name, &TopicSettings { lanes: 3, ..TopicSettings::default() }).await.unwrap();
    let own = place.connect();
    own.execute(
        "UPDATE headwater_topic SET settings = json_remove(json_set(settings, '$.later', json('[1]')), '$.lanes')",
        [],
    )
    .unwrap();
    assert_eq!(store.topic(&name).await.unwrap().settings, TopicSettings::default());
    let settings = TopicSettings { message_retention: None, ..TopicSettings::default() };
    assert_eq!(store.alter_topic(&name, &settings).await.unwrap().settings, settings);
    let kept = "SELECT format('%s %s %s', settings -> 'later', settings -> 'lanes', settings -> 'message_retention_ms')
                FROM headwater_topic";
    assert_eq!(own.query_row(kept, [], |row| row.get::<_, String>(0)).unwrap(), "[1] 16 null");
    // Columns that SQL reads always exist, whatever is stored.
    let missing = "UPDATE headwater_topic SET settings = json_remove(settings, '$.lease_ms')";
    assert!(own.execute(missing, []).unwrap_err().to_string().contains("NOT NULL"));
}
