//! Rights of roles: each promise is tested as the role it is about.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::limits::{INBOX_RETENTION, OUTBOX_RETENTION, SUBSCRIPTION_RETENTION};

/// Runs a statement as a role of the namespace, and returns the SQLSTATE of its refusal.
async fn refusal(scene: &Scene, client: &Client, role: &str, sql: &str) -> Option<(String, String)> {
    client.batch_execute(&scene.sql(&format!("SET ROLE {{name}}_{role}"))).await.unwrap();
    let answer = client.batch_execute(&scene.sql(sql)).await;
    client.batch_execute("RESET ROLE").await.unwrap();
    let error = answer.err()?;
    let database = error.as_db_error().expect("refused by the server");
    Some((database.code().code().to_owned(), database.constraint().unwrap_or_default().to_owned()))
}

async fn numbers(scene: &Scene, client: &Client, sql: &str) -> Vec<i64> {
    let row = client.query_one(&scene.sql(sql), &[]).await.unwrap();
    (0..row.len()).map(|at| row.get(at)).collect()
}

async fn run(scene: &Scene, client: &Client, sql: &str) {
    client.batch_execute(&scene.sql(sql)).await.unwrap();
}

async fn migrated(scene: &Scene) -> crate::Result<super::super::Migration> {
    migrate(&scene.url, &scene.namespace, &OpenOptions::default()).await
}

#[tokio::test]
async fn a_role_that_may_only_connect_has_nothing_and_stops_nothing() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, "CREATE ROLE {name}_stranger").await;
    // Any role can guess the advisory lock by which migrations used to wait for each other.
    let key = xxhash_rust::xxh3::xxh3_64(format!("headwater migrate {}", scene.namespace).as_bytes());
    run(
        &scene,
        &client,
        &format!("SET ROLE {{name}}_stranger; SELECT pg_advisory_lock({})", key.cast_signed()),
    )
    .await;
    let opened = tokio::time::timeout(Duration::from_secs(20), scene.open()).await;
    let store = opened.expect("a stranger's lock stops no migration");
    run(&scene, &client, "RESET ROLE; SELECT pg_advisory_unlock_all()").await;
    subscribed(&store).await;
    let held = "SELECT
        (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace
         AND has_function_privilege('{name}_stranger', p.oid, 'EXECUTE')),
        (SELECT count(*) FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v')
         AND has_table_privilege('{name}_stranger', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')),
        (SELECT count(*) FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace
         AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege('{name}_stranger', c.oid, 'USAGE, SELECT, UPDATE') END),
        has_schema_privilege('{name}_stranger', '{name}', 'USAGE, CREATE')::integer::bigint";
    assert_eq!(numbers(&scene, &client, held).await, [0, 0, 0, 0]);
    for sql in ["SELECT {schema}.publish('orders', '1')", "TABLE {schema}.message", "TABLE {schema}.topic"] {
        let refused = refusal(&scene, &client, "stranger", sql).await;
        assert_eq!(refused.map(|(code, _)| code).as_deref(), Some("42501"), "{sql}");
    }
    assert_eq!(store.doctor().await.unwrap(), []);
    run(&scene, &client, "DROP ROLE {name}_stranger").await;
    scene.drop().await;
}

/// Every function that a role may call is called with a time of the caller's: the time is refused before the function begins.
#[tokio::test]
async fn only_the_owner_sets_the_time() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    let client = scene.client().await;
    let calls = "SELECT p.proname::text, k.kind, format('SELECT {schema}.%I(%s)', p.proname,
               (SELECT string_agg(CASE WHEN a.type = '{schema}.injected_time'::regtype THEN '''2001-01-01''::timestamptz'
                                       ELSE 'NULL::' || format_type(a.type, NULL) END, ', ' ORDER BY a.at)
                FROM unnest(p.proargtypes) WITH ORDINALITY a (type, at)))
        FROM pg_proc p, unnest(ARRAY['producer', 'consumer', 'reader', 'operator']) k (kind)
        WHERE p.pronamespace = '{schema}'::regnamespace AND '{schema}.injected_time'::regtype = ANY (p.proargtypes)
          AND has_function_privilege('{name}_' || k.kind, p.oid, 'EXECUTE')";
    let calls = client.query(&scene.sql(calls), &[]).await.unwrap();
    assert!(calls.len() >= 30, "{} calls", calls.len());
    for call in calls {
        let (name, kind, sql): (&str, &str, &str) = (call.get(0), call.get(1), call.get(2));
        let refused = refusal(&scene, &client, kind, sql).await;
        let expected = ("23514".to_owned(), "only_the_owner_sets_the_time".to_owned());
        assert_eq!(refused, Some(expected), "{name} as {kind}: {sql}");
    }
    // No other parameter of a granted function is a time, except these, which do not mean the current time.
    let times = "SELECT DISTINCT p.proname || '.' || p.proargnames[a.at]
        FROM pg_proc p, unnest(p.proargtypes) WITH ORDINALITY a (type, at), unnest(ARRAY['producer', 'consumer', 'reader', 'operator']) k (kind)
        WHERE p.pronamespace = '{schema}'::regnamespace AND format_type(a.type, NULL) ~ '^(timestamp|date|time)'
          AND has_function_privilege('{name}_' || k.kind, p.oid, 'EXECUTE') ORDER BY 1";
    let times = client.query(&scene.sql(times), &[]).await.unwrap();
    let times: Vec<&str> = times.iter().map(|row| row.get(0)).collect();
    let meant = [
        "claim.p_expected",
        "cron_fire.p_deliver_at",
        "cron_fire.p_tick",
        "cron_last.p_first",
        "empty_cancelled.buried_at",
        "end_silent.p_seen_at",
        "extend_leases.p_expected",
        "mark_failed.next_at",
        "move_clock.p_read",
        "move_scheduled.p_at",
        "publish.deliver_at",
        "publish_batch.p_deliver_ats",
        "publish_batch.p_expected",
        "publish_bytes.deliver_at",
        "seek.p_at",
        "settle_parts.p_expected",
        "subscribe.p_at",
        "take_over.p_seen_at",
    ];
    assert_eq!(times, meant);
    // Nor do lengths of time move what others have stored: each is listed with what it can change at most.
    let lengths = "SELECT DISTINCT p.proname || '.' || p.proargnames[a.at]
        FROM pg_proc p, unnest(p.proargtypes) WITH ORDINALITY a (type, at), unnest(ARRAY['producer', 'consumer', 'reader', 'operator']) k (kind)
        WHERE p.pronamespace = '{schema}'::regnamespace AND p.proargnames[a.at] ~ '_(ms|s)$'
          AND has_function_privilege('{name}_' || k.kind, p.oid, 'EXECUTE') ORDER BY 1";
    let lengths = client.query(&scene.sql(lengths), &[]).await.unwrap();
    let lengths: Vec<&str> = lengths.iter().map(|row| row.get(0)).collect();
    assert_eq!(lengths, LENGTHS.map(|(name, _)| name));
    scene.drop().await;
}

/// The lengths of time that granted functions take, each with why a caller may choose it.
const LENGTHS: [(&str, &str); 36] = [
    ("claim.p_lease_ms", "the deadline of what the caller claims; the doctor shows a lease of over a year"),
    ("claim.p_moved_ms", "compared with the stored value only"),
    ("clean_subscription.p_older_than_ms", "a domain: at least the documented retention"),
    (
        "create_token.p_expires_in_ms",
        "the expiry of the caller's new token; creating tokens is an operator's right",
    ),
    ("elect.p_term_ms", "the caller's own term: one that ends later than another's would is not waited for"),
    ("end_silent.p_silent_ms", "ends leases, which any consumer may release; they are handed out again"),
    ("extend.lease_s", "the deadline of a lease the caller holds, at most 366 days from now"),
    (
        "extend_leases.p_lease_ms",
        "the deadline of leases the caller holds; the doctor shows one of over a year",
    ),
    ("force_complete.p_older_than_ms", "selects messages; giving them up is an operator's right"),
    ("forget_inbox.p_retention_ms", "a domain: at least the documented retention"),
    ("forget_published.p_retention_ms", "a domain: at least the documented retention"),
    ("heartbeat.p_silent_ms", "selects silent owners to report; of the caller it stores that it takes part"),
    ("keep_partitions.p_lock_ms", "how long a lock is waited for, bounded to 1 s"),
    ("last_older.p_age_ms", "selects messages; nothing is stored"),
    ("mark_failed.delay_s", "the back-off of entries the caller has claimed"),
    ("move_clock.p_moved_ms", "compared with the stored value only"),
    ("move_clock.p_step_ms", "refused unless the stored times explain it"),
    (
        "move_scheduled.p_delay_ms",
        "the delivery of a scheduled message, at most 366 days from now; the role may also cancel it",
    ),
    ("process_forget.p_retention_ms", "a domain: at least the documented retention"),
    ("publish_batch.p_delays_ms", "the delivery of the caller's own messages, at most 366 days from now"),
    ("raise_flag.p_for_ms", "how long the caller's own waiter is notified"),
    ("read.lease_s", "the deadline of what the caller claims, at most 366 days from now"),
    ("read_bytes.lease_s", "the deadline of what the caller claims, at most 366 days from now"),
    ("recover_stuck.older_than_ms", "selects claimed entries of the outbox, which are swept again"),
    ("reschedule.backoff_ms", "the back-off of entries the caller has claimed"),
    ("retry.delay_s", "the retry of a message the caller holds, at most 366 days from now"),
    ("rotate_token.p_grace_ms", "how long the old secret is valid; rotating tokens is an operator's right"),
    ("settle_inside.p_delays_ms", "the retry of messages the caller holds"),
    ("settle_parts.p_delays_ms", "the retry of messages the caller holds"),
    ("start_backfill.p_target_latency_ms", "the pace of a backfill; it sets no time"),
    ("start_session.p_lasts_ms", "the expiry of a session, bounded by that of its token"),
    (
        "step_backfill.p_lease_ms",
        "the caller's own turn: one that ends later than another's would is not waited for",
    ),
    ("subscribe.p_window_ms", "counts restarts of the group in the window; it sets no time"),
    ("sweep_batch.claim_timeout_s", "selects entries whose claim is over; they are swept again"),
    ("sweep_outbox.p_claim_timeout_ms", "selects entries whose claim is over; they are swept again"),
    (
        "take_backfill.p_lease_ms",
        "the caller's own turn: one that ends later than another's would is not waited for",
    ),
];

#[tokio::test]
async fn producers_and_consumers_set_no_stored_time() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    let subscription = subscribed(&store).await;
    let client = scene.client().await;
    // A time that differs from the clock is not stored.
    let far = "SELECT {schema}.move_clock(0, 0, now() + interval '1 hour', true, NULL)";
    run(&scene, &client, &format!("SET ROLE {{name}}_consumer; {far}; RESET ROLE")).await;
    let stored = "SELECT count(*) FROM {schema}.clock c WHERE c.latest_at > now() + interval '1 minute'";
    assert_eq!(numbers(&scene, &client, stored).await, [0]);
    // Nor is a step that the stored times do not explain: nothing is moved.
    let rows = "SELECT (extract(epoch FROM c.latest_at) * 1000000)::bigint, (extract(epoch FROM c.steady_at) * 1000000)::bigint,
        c.moved_ms FROM {schema}.clock c";
    let move_by = async |step_ms: &str| {
        let sql = format!(
            "SELECT {{schema}}.move_clock(c.moved_ms, {step_ms}, clock_timestamp(), true, NULL) FROM {{schema}}.read_clock(NULL) c"
        );
        client.batch_execute(&scene.sql("SET ROLE {name}_consumer")).await.unwrap();
        let moved: bool = client.query_one(&scene.sql(&sql), &[]).await.unwrap().get(0);
        client.batch_execute("RESET ROLE").await.unwrap();
        moved
    };
    assert!(move_by("0").await, "the time itself is stored");
    let before = numbers(&scene, &client, rows).await;
    for step_ms in ["252460800000000", "-252460800000000", "3600000", "-3700000", "2000", "-2000", "NULL"] {
        assert!(!move_by(step_ms).await, "{step_ms}");
        assert_eq!(numbers(&scene, &client, rows).await, before, "{step_ms}");
    }
    let sooner = "SELECT {schema}.move_clock(0, 0, clock_timestamp() + interval '3 seconds', true, NULL)";
    run(&scene, &client, &format!("SET ROLE {{name}}_consumer; {sooner}; RESET ROLE")).await;
    assert_eq!(numbers(&scene, &client, rows).await, before, "a time that the clock has not shown");
    // Whatever writes the row, every process can read it.
    for column in ["latest_at", "steady_at"] {
        let sql = scene.sql(&format!("UPDATE {{schema}}.clock SET {column} = '20000-01-01'"));
        let refused = client.batch_execute(&sql).await.unwrap_err();
        let check = refused.as_db_error().unwrap().constraint();
        assert_eq!(check, Some(&*format!("clock_{column}_readable")), "{refused}");
    }
    for tick in ["infinity", "-infinity", "20000-01-01"] {
        let sql = format!("SELECT {{schema}}.cron_last('tick {tick}', '{tick}')");
        let refused = refusal(&scene, &client, "producer", &sql).await;
        assert_eq!(refused.map(|(_, check)| check).as_deref(), Some("cron_last_tick_readable"), "{tick}");
    }
    let producer = scene.open_as(Some("producer")).await.unwrap();
    producer.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    let consumer = scene.open_as(Some("consumer")).await.unwrap();
    let lease = consumer.claim(&request(&subscription)).await.unwrap().leases.remove(0);
    assert_eq!(consumer.fetch(lease.topic_id, lease.range).await.unwrap().len(), 1);
    scene.drop().await;
}

/// Consumers run maintenance jobs with the retention ages in operations.md, and none below.
#[tokio::test]
async fn consumers_remove_nothing_before_its_time() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    let client = scene.client().await;
    let (inbox, dead) = (INBOX_RETENTION.as_millis(), SUBSCRIPTION_RETENTION.as_millis());
    let outbox = OUTBOX_RETENTION.as_millis();
    for (sql, check) in [
        (format!("forget_inbox({}, 10, NULL)", inbox - 1), Some("only_the_owner_forgets_sooner")),
        (format!("forget_inbox({inbox}, 10, NULL)"), None),
        (
            format!("forget_published({}, 10, NULL)", outbox - 1),
            Some("only_the_owner_removes_published_sooner"),
        ),
        (format!("forget_published({outbox}, 10, NULL)"), None),
        (format!("clean_subscription(0, {}, NULL)", dead - 1), Some("only_the_owner_removes_sooner")),
        (format!("clean_subscription(0, {dead}, NULL)"), None),
    ] {
        let refused = refusal(&scene, &client, "consumer", &format!("SELECT {{schema}}.{sql}")).await;
        assert_eq!(refused.map(|(_, check)| check).as_deref(), check, "{sql}");
    }
    for table in [
        "message",
        "topic",
        "subscription",
        "cursor",
        "head",
        "dead_letter",
        "inbox",
        "outbox_entry",
        "bridge_position",
        "relay",
        "dedup",
        "audit",
    ] {
        for (kind, verb) in
            [("producer", "DELETE FROM"), ("consumer", "DELETE FROM"), ("consumer", "TRUNCATE")]
        {
            let refused = refusal(&scene, &client, kind, &format!("{verb} {{schema}}.{table}")).await;
            assert_eq!(refused.map(|(code, _)| code).as_deref(), Some("42501"), "{kind}: {verb} {table}");
        }
    }
    // They may run the jobs themselves.
    let consumer = scene.open_as(Some("consumer")).await.unwrap();
    consumer.advance_heads().await.unwrap();
    consumer.clean_subscriptions(SUBSCRIPTION_RETENTION).await.unwrap();
    let retention = crate::store::EntryRetention { inbox: INBOX_RETENTION, outbox: OUTBOX_RETENTION };
    consumer.clean_entries(&retention).await.unwrap();
    consumer.detect_dead().await.unwrap();
    scene.drop().await;
}

#[tokio::test]
async fn plain_sql_publishes_as_documented_for_a_producer() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let client = scene.client().await;
    for sql in [
        "SELECT {schema}.publish('orders', '{\"n\":1}')",
        "SELECT {schema}.publish('orders', '{\"n\":1}', key => 'o-1', headers => '{\"a\":\"b\"}', dedup_key => 'd')",
        "SELECT {schema}.publish('orders', '1', deliver_at => now() + interval '1 hour')",
        "SELECT {schema}.publish_bytes('orders', '\\x00', type => 't', content_type => 'application/octet-stream')",
    ] {
        assert_eq!(refusal(&scene, &client, "producer", sql).await, None, "{sql}");
    }
    let published =
        "SELECT (SELECT count(*) FROM {schema}.message), (SELECT count(*) FROM {schema}.schedule)";
    assert_eq!(numbers(&scene, &client, published).await, [3, 1]);
    scene.drop().await;
}

#[tokio::test]
async fn a_schema_of_another_role_is_refused_with_its_owner() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, "CREATE ROLE {name}_mallory; CREATE SCHEMA {schema} AUTHORIZATION {name}_mallory")
        .await;
    let mallory = scene.sql("{name}_mallory");
    for refused in [migrated(&scene).await.unwrap_err(), scene.open_as(None).await.unwrap_err()] {
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        let text = refused.to_string();
        let names = [scene.namespace.as_str(), &mallory, "ALTER SCHEMA"];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
    let objects = "SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass AND refobjid = '{schema}'::regnamespace";
    assert_eq!(numbers(&scene, &client, objects).await, [0]);

    // After a change of owner, the rights in the schema decide.
    run(
        &scene,
        &client,
        "ALTER SCHEMA {schema} OWNER TO CURRENT_USER; GRANT CREATE ON SCHEMA {schema} TO {name}_mallory",
    )
    .await;
    let refused = migrated(&scene).await.unwrap_err();
    assert!(
        refused.to_string().contains(&mallory) && refused.to_string().contains("REVOKE CREATE"),
        "{refused}"
    );
    run(&scene, &client, "REVOKE CREATE ON SCHEMA {schema} FROM {name}_mallory").await;
    // Without tables and functions, but not empty.
    run(&scene, &client, "CREATE DOMAIN {schema}.hidden AS text").await;
    let refused = migrated(&scene).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAStore, "{refused}");
    run(&scene, &client, "DROP DOMAIN {schema}.hidden").await;
    migrated(&scene).await.unwrap();

    // A schema in use with an object of another role in it.
    run(&scene, &client, "CREATE FUNCTION {schema}.check_name(text, name) RETURNS void LANGUAGE sql AS ''")
        .await;
    run(&scene, &client, "ALTER FUNCTION {schema}.check_name(text, name) OWNER TO {name}_mallory").await;
    let refused = migrated(&scene).await.unwrap_err();
    assert!(
        refused.to_string().contains("check_name") && refused.to_string().contains(&mallory),
        "{refused}"
    );
    let findings = scene.open().await.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.check == "foreign_rights"), "{findings:?}");
    scene.open().await.drop_namespace().await.unwrap();
    run(&scene, &client, "DROP OWNED BY {name}_mallory; DROP ROLE {name}_mallory").await;
}

#[tokio::test]
async fn a_role_of_the_name_that_was_there_before_is_neither_granted_nor_dropped() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    run(&scene, &client, "CREATE ROLE {name}_reader").await;
    let refused = migrated(&scene).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(&scene.sql("{name}_reader")) && text.contains("COMMENT ON ROLE"), "{text}");
    let there = "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = '{name}'),
                        (SELECT count(*) FROM pg_roles WHERE rolname LIKE '{name}\\_%')";
    assert_eq!(numbers(&scene, &client, there).await, [0, 1], "only the role that existed before");

    // Once an operator marks the role, it is granted; a role that is not marked stays when the namespace is dropped.
    run(&scene, &client, "COMMENT ON ROLE {name}_reader IS 'headwater: role of namespace {name}'").await;
    migrated(&scene).await.unwrap();
    scene.open_as(Some("reader")).await.unwrap().topics().await.unwrap();
    run(&scene, &client, "COMMENT ON ROLE {name}_reader IS 'of another program'").await;
    scene.open().await.drop_namespace().await.unwrap();
    assert_eq!(numbers(&scene, &client, there).await, [0, 1], "only the role of another program");
    run(&scene, &client, "DROP ROLE {name}_reader").await;
}

/// The result of `pg_restore` without the roles: no grants, and functions that PUBLIC may call.
#[tokio::test]
async fn a_restored_schema_without_its_roles_is_closed() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    let client = scene.client().await;
    run(
        &scene,
        &client,
        "DROP OWNED BY {name}_producer, {name}_consumer, {name}_reader, {name}_operator;
         DROP ROLE {name}_producer, {name}_consumer, {name}_reader, {name}_operator;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO PUBLIC;
         CREATE ROLE {name}_stranger; CREATE ROLE {name}_auditor",
    )
    .await;
    let publish = "SELECT {schema}.publish('orders', '1')";
    let denied =
        |refused: Option<(String, String)>| refused.map(|(code, _)| code).as_deref() == Some("42501");
    assert!(denied(refusal(&scene, &client, "stranger", publish).await), "the schema itself is closed");
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.check == "public_rights"), "{findings:?}");
    // Granting a role first revokes the functions from PUBLIC, then opens the schema to the role.
    run(&scene, &client, "SELECT {schema}.grant_role('{name}_auditor', 'reader')").await;
    for sql in [publish, "SELECT {schema}.clean(1, 10, NULL)", "SELECT {schema}.resign('w')"] {
        assert!(denied(refusal(&scene, &client, "auditor", sql).await), "{sql}");
    }
    assert_eq!(store.doctor().await.unwrap(), []);
    // Migrating restores the rights that the dump lost, also if no version is missing.
    run(&scene, &client, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO PUBLIC").await;
    let done = migrated(&scene).await.unwrap();
    assert_eq!((done.from, done.to), (newest(), newest()));
    assert_eq!(store.doctor().await.unwrap(), []);
    scene.open_as(Some("producer")).await.unwrap().publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    run(&scene, &client, "DROP OWNED BY {name}_auditor; DROP ROLE {name}_auditor, {name}_stranger").await;
    scene.drop().await;
}

/// Functions that run with the owner's rights: `docs/operations.md` lists each with the roles that may call it.
#[tokio::test]
async fn functions_with_the_owners_rights_are_those_that_operations_lists() {
    let Some(scene) = Scene::new() else { return };
    scene.open().await;
    let sql = "SELECT p.proname::text, coalesce(array_to_string(p.proconfig, ' '), ''),
            coalesce((SELECT string_agg(replace(a.grantee::regrole::text, '{name}_', ''), ', ' ORDER BY a.grantee::regrole::text)
                      FROM aclexplode(p.proacl) a WHERE a.grantee <> p.proowner), 'owner')
        FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace AND p.prosecdef";
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for row in scene.client().await.query(&scene.sql(sql), &[]).await.unwrap() {
        let (name, settings, callers): (String, &str, String) = (row.get(0), row.get(1), row.get(2));
        assert!(settings.contains("search_path=pg_catalog, pg_temp"), "{name}: {settings}");
        assert_eq!(found.insert(name.clone(), callers), None, "{name} exists twice");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(path).unwrap();
    let listed = text
        .split_once("| function with the owner's rights | who may call it |")
        .expect("the document has the table");
    let mut documented = BTreeMap::new();
    for line in listed.1.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (names, callers) = (cells.next().unwrap(), cells.next().unwrap());
        let names = names.rsplit(": ").next().unwrap();
        for name in names.split(", ") {
            documented.insert(name.trim_matches('`').to_owned(), callers.to_owned());
        }
    }
    assert_eq!(found, documented);
    scene.drop().await;
}

#[tokio::test]
async fn a_refusal_names_the_role_that_is_missing() {
    let Some(scene) = Scene::new() else { return };
    let subscription = subscribed(&scene.open().await).await;
    let client = scene.client().await;
    run(&scene, &client, "CREATE ROLE {name}_joe; GRANT {name}_consumer TO {name}_joe").await;
    let joe = scene.open_as(Some("joe")).await.unwrap();
    joe.claim(&request(&subscription)).await.unwrap();
    let name = &scene.namespace;
    let member = format!("; you are {name}_joe, a member of {name}_consumer");
    let refused = joe.publish(&orders(), &[NewMessage::new("x")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("; needs role ") && text.contains(&format!("{name}_producer{member}")), "{text}");
    let refused =
        joe.create_topic(&TopicName::new("other").unwrap(), &TopicSettings::default()).await.unwrap_err();
    assert!(refused.to_string().contains("; needs ") && refused.to_string().ends_with(&member), "{refused}");
    // A role without any right in the namespace.
    run(&scene, &client, "REVOKE {name}_consumer FROM {name}_joe").await;
    let refused = scene.open_as(Some("joe")).await.expect_err("refused").to_string();
    assert!(
        refused.contains(&format!("{name}_consumer, ")) && refused.contains("a member of no role"),
        "{refused}"
    );
    run(&scene, &client, "DROP ROLE {name}_joe").await;
    scene.drop().await;
}
