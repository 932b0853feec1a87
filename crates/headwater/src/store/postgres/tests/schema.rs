//! Versions of the schema: tables that are migrated, code that is replaced, and programs of two versions at once.

use super::super::migrate::{SCHEMA, Schema, Version, migrate_to};
use super::super::version;
use super::*;

/// The version of a later release of the program.
const LATER: &str = "1000.0.0";
const LATER_TABLES: i32 = 2;

/// The tables of the next version: topics get a column.
const STEPS: &[(i32, &str)] =
    &[(LATER_TABLES, "ALTER TABLE {schema}.topic ADD COLUMN colour text NOT NULL DEFAULT 'blue'")];

/// This program's code, and one function more.
fn code_with(more: &'static str) -> &'static [&'static str] {
    Vec::leak([SCHEMA.code, &[more]].concat())
}

fn later(steps: &'static [(i32, &'static str)], code: &'static [&'static str]) -> Schema {
    Schema { tables: SCHEMA.tables, steps, code, program: LATER }
}

async fn migrated(scene: &Scene, schema: &Schema) -> super::super::Migration {
    migrate_to(schema, &scene.url, &scene.namespace, &OpenOptions::default()).await.unwrap()
}

async fn version_of(scene: &Scene) -> crate::Result<Option<Version>> {
    version(&scene.url, &scene.namespace, &OpenOptions::default()).await
}

/// The functions of a name.
async fn functions(scene: &Scene, name: &str) -> i64 {
    let sql = scene.sql(
        "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace AND p.proname = $1",
    );
    scene.client().await.query_one(&sql, &[&name]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_later_version_keeps_the_data_and_serves_programs_that_run() {
    let Some(scene) = Scene::new() else { return };
    let running = scene.open().await;
    let subscription = subscribed(&running).await;
    running.publish(&orders(), &[NewMessage::new("before")]).await.unwrap();
    assert_eq!(version_of(&scene).await.unwrap(), Some(Version { tables: newest(), is_current: true }));
    let code = code_with(
        "CREATE OR REPLACE FUNCTION {schema}.colours() RETURNS bigint LANGUAGE sql AS $$ SELECT count(colour) FROM {schema}.topic $$;",
    );
    let done = migrated(&scene, &later(STEPS, code)).await;
    assert_eq!((done.from, done.to, done.code_replaced), (1, LATER_TABLES, true));
    assert_eq!(functions(&scene, "colours").await, 1);
    // The second run has nothing to do.
    let again = migrated(&scene, &later(STEPS, code)).await;
    assert_eq!((again.from, again.to, again.code_replaced), (LATER_TABLES, LATER_TABLES, false));
    // The running program continues to work.
    running.publish(&orders(), &[NewMessage::new("after")]).await.unwrap();
    let claimed = running.claim(&request(&subscription)).await.unwrap();
    let lease = &claimed.leases[0];
    let messages = running.fetch(lease.topic_id, lease.range).await.unwrap();
    let payloads: Vec<_> = messages.iter().map(|message| message.payload.to_vec()).collect();
    assert_eq!(payloads, [b"before".to_vec(), b"after".to_vec()]);
    running.settle(&[Settlement::ack_all(lease)]).await.unwrap().remove(0).unwrap();
    running.create_topic(&TopicName::new("later").unwrap(), &TopicSettings::pub_sub()).await.unwrap();
    assert_eq!(running.doctor().await.unwrap(), []);
    // A program of this version can no longer open it.
    let refused = scene.open_as(None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SchemaTooNew, "{refused}");
    assert!(refused.to_string().contains("upgrade the program"), "{refused}");
    let refused = migrate(&scene.url, &scene.namespace, &OpenOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SchemaTooNew, "{refused}");
    running.drop_namespace().await.unwrap();
}

#[tokio::test]
async fn an_older_program_leaves_newer_code_and_is_served_or_refused_by_it() {
    let Some(scene) = Scene::new() else { return };
    let older = scene.open().await;
    subscribed(&older).await;
    let gone = "DROP FUNCTION {schema}.cron_last(text, timestamptz);";
    migrated(&scene, &later(&[], code_with(gone))).await;
    // Neither opening nor migrating restores the older code.
    let opened = scene.open().await;
    let done = migrate(&scene.url, &scene.namespace, &OpenOptions::default()).await.unwrap();
    assert!(!done.code_replaced);
    assert_eq!(version_of(&scene).await.unwrap(), Some(Version { tables: newest(), is_current: true }));
    for store in [&older, &opened] {
        store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
        let refused = store.cron_last("job", jiff::Timestamp::UNIX_EPOCH).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::SchemaOutdated, "{refused}");
        assert!(refused.to_string().contains("upgrade this program"), "{refused}");
    }
    older.drop_namespace().await.unwrap();
}

#[tokio::test]
async fn code_of_another_build_is_replaced_whole() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    // An earlier build had a function that no longer exists, and others with another result or one parameter fewer.
    let earlier = "CREATE FUNCTION {schema}.former() RETURNS integer LANGUAGE sql AS 'SELECT 1';
        DROP FUNCTION {schema}.stamp_age_ms(timestamptz, timestamptz);
        CREATE FUNCTION {schema}.stamp_age_ms(other timestamptz, name timestamptz) RETURNS text LANGUAGE sql AS 'SELECT 1::text';
        CREATE FUNCTION {schema}.publish(nothing text) RETURNS text LANGUAGE sql AS 'SELECT 1::text';";
    let code = code_with(earlier);
    migrated(&scene, &Schema { tables: SCHEMA.tables, steps: &[], code, program: SCHEMA.program }).await;
    let (former, publish) = (functions(&scene, "former").await, functions(&scene, "publish").await);
    assert_eq!((former, publish), (1, 2));
    assert_eq!(version_of(&scene).await.unwrap(), Some(Version { tables: newest(), is_current: false }));
    let refused = scene.open_as(None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SchemaOutdated, "{refused}");
    assert!(refused.to_string().contains("headwater migrate"), "{refused}");
    let done = migrate(&scene.url, &scene.namespace, &OpenOptions::default()).await.unwrap();
    assert_eq!((done.from, done.to, done.code_replaced), (newest(), newest(), true));
    let (former, publish) = (functions(&scene, "former").await, functions(&scene, "publish").await);
    assert_eq!((former, publish), (0, 1), "functions that no file defines are dropped");
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    assert_eq!(scene.open().await.doctor().await.unwrap(), []);
    scene.drop().await;
}

/// A program with other defaults replaces the code.
#[tokio::test]
async fn the_default_settings_of_topics_are_part_of_the_code() {
    let Some(scene) = Scene::new() else { return };
    scene.open().await;
    let (code, all) = (SCHEMA.code(), SCHEMA.code().concat());
    for settings in [TopicSettings::default(), TopicSettings::pub_sub()] {
        assert!(all.contains(&serde_json::to_string(&settings).unwrap()));
    }
    let stored = "SELECT code FROM {schema}.schema_version";
    let stored = scene.client().await.query_one(&scene.sql(stored), &[]).await.unwrap();
    assert_eq!(stored.get::<_, String>(0), crate::store::schema::hash(&code));
    scene.drop().await;
}

#[tokio::test]
async fn a_failing_migration_leaves_everything_as_it_was() {
    let Some(scene) = Scene::new() else { return };
    let store = scene.open().await;
    subscribed(&store).await;
    let broken = later(STEPS, code_with("SELECT nonsense FROM nowhere;"));
    let refused = migrate_to(&broken, &scene.url, &scene.namespace, &OpenOptions::default()).await;
    refused.unwrap_err();
    assert_eq!(version_of(&scene).await.unwrap(), Some(Version { tables: newest(), is_current: true }));
    let missing = "SELECT colour FROM {schema}.topic";
    scene.client().await.batch_execute(&scene.sql(missing)).await.unwrap_err();
    store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap();
    scene.drop().await;
}

/// Version 1 with other tables than this program's: a build that was never released made it.
#[tokio::test]
async fn tables_of_another_build_are_refused_and_left() {
    let Some(scene) = Scene::new() else { return };
    let tables = Vec::leak([SCHEMA.tables, &["CREATE TABLE {schema}.former (n integer)"]].concat());
    migrated(&scene, &Schema { tables, steps: &[], code: SCHEMA.code, program: "0.0.1" }).await;
    let client = scene.client().await;
    for change in ["", "ALTER TABLE {schema}.schema_version DROP COLUMN definition"] {
        client.batch_execute(&scene.sql(change)).await.unwrap();
        let migrated = migrate(&scene.url, &scene.namespace, &OpenOptions::default()).await.map(drop);
        let opened = scene.open_as(None).await.map(drop);
        for refused in [migrated, opened, version_of(&scene).await.map(drop)] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::SchemaOutdated, "{refused}");
            assert!(refused.to_string().contains("before the first release"), "{refused}");
        }
    }
    client
        .batch_execute(&scene.sql("SELECT n FROM {schema}.former; DROP SCHEMA {schema} CASCADE"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_schema_of_before_the_first_release_is_refused() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    let before = "CREATE SCHEMA {schema}; CREATE SEQUENCE {schema}.lease_token;
        CREATE TABLE {schema}.migration (version integer PRIMARY KEY, name text NOT NULL);
        INSERT INTO {schema}.migration VALUES (20, 'upkeep_roles')";
    client.batch_execute(&scene.sql(before)).await.unwrap();
    let migrated = migrate(&scene.url, &scene.namespace, &OpenOptions::default()).await.map(drop);
    let opened = scene.open_as(None).await.map(drop);
    for refused in [migrated, opened, version_of(&scene).await.map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::SchemaOutdated, "{refused}");
        assert!(refused.to_string().contains("before the first release"), "{refused}");
    }
    client.batch_execute(&scene.sql("DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

/// Bodies are not checked when they are created, because of their order; once all exist, each refers only to existing objects.
#[tokio::test]
async fn every_function_body_is_valid() {
    let Some(scene) = Scene::new() else { return };
    scene.open().await;
    let mut client = scene.client().await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SET LOCAL check_function_bodies = on").await.unwrap();
    for sql in SCHEMA.code() {
        transaction.batch_execute(&scene.sql(&sql)).await.unwrap();
    }
    transaction.rollback().await.unwrap();
    scene.drop().await;
}

#[tokio::test]
async fn a_missing_namespace_is_created_only_if_allowed() {
    let Some(scene) = Scene::new() else { return };
    let client = scene.client().await;
    let there = "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = '{name}')
        + (SELECT count(*) FROM pg_roles WHERE rolname LIKE '{name}\\_%')";
    for options in [OpenOptions::default().create(false), OpenOptions::default().read_only(true)] {
        let opened = PostgresStore::open(&scene.url, scene.namespace.clone(), options).await;
        let refused = opened.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::NoSuchStore, "{refused}");
        let text = refused.to_string();
        let named = format!("no headwater schema {} in database ", scene.namespace);
        assert!(text.starts_with(&named) && text.contains(" at "), "{text}");
        let row = client.query_one(&scene.sql(there), &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0, "neither a schema nor a role");
    }
    scene.open().await;
    let options = OpenOptions::default().create(false);
    PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.expect("it exists now");
    scene.drop().await;
}

#[tokio::test]
async fn a_store_opened_read_only_is_read_and_not_written() {
    let Some(scene) = Scene::new() else { return };
    subscribed(&scene.open().await).await;
    let options = OpenOptions::default().read_only(true);
    let store = PostgresStore::open(&scene.url, scene.namespace.clone(), options).await.unwrap();
    assert_eq!(store.topics().await.unwrap().len(), 1);
    assert_eq!(store.doctor().await.unwrap(), []);
    let refused = store.publish(&orders(), &[NewMessage::new("x")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    scene.drop().await;
}
