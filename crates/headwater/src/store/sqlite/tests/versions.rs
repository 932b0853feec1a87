//! Versions of the schema: tables are migrated, code is replaced, and programs of different versions have one file
//! open.

use rusqlite::types::Value;

use super::*;
use migrate::{SCHEMA, Schema};

/// What a later release may do to the tables: a table that views name is rebuilt, another gets a column, a third is
/// new.
const LATER: &str = "
    CREATE TABLE headwater_moved (
        subscription_id INTEGER NOT NULL,
        lane INTEGER NOT NULL,
        next_offset INTEGER NOT NULL,
        turn INTEGER NOT NULL DEFAULT 0,
        later INTEGER NOT NULL DEFAULT 7,
        PRIMARY KEY (subscription_id, lane)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO headwater_moved (subscription_id, lane, next_offset, turn)
    SELECT subscription_id, lane, next_offset, turn FROM headwater_cursor;
    DROP TABLE headwater_cursor;
    ALTER TABLE headwater_moved RENAME TO headwater_cursor;
    ALTER TABLE headwater_message ADD COLUMN later TEXT;
    CREATE TABLE headwater_later (n INTEGER) STRICT;";
const BROKEN: &str = "CREATE TABLE headwater_later (n INTEGER); SELECT nonsense FROM nowhere";
const LATER_VIEW: &str = "CREATE VIEW headwater_laters AS SELECT later FROM headwater_cursor";

fn with(texts: &'static [&'static str], more: &'static str) -> &'static [&'static str] {
    Box::leak([texts, &[more]].concat().into_boxed_slice())
}

/// A later release with later tables.
fn later() -> Schema {
    let edit = |text: &&'static str| -> &'static str {
        let turn = "turn INTEGER NOT NULL DEFAULT 0,";
        let payload = "correlation_id TEXT,\n    payload BLOB NOT NULL\n) STRICT;";
        match *text {
            text if text.contains(turn) => {
                text.replace(turn, &format!("{turn} later INTEGER NOT NULL DEFAULT 7,")).leak()
            }
            text if text.contains("headwater_message (") => {
                text.replace(payload, &payload.replace("NULL\n)", "NULL,\n later TEXT\n)")).leak()
            }
            text => text,
        }
    };
    let tables: Vec<&'static str> = SCHEMA.tables.iter().map(edit).collect();
    Schema {
        tables: with(tables.leak(), "CREATE TABLE headwater_later (n INTEGER) STRICT;"),
        steps: &[(2, LATER)],
        code: with(SCHEMA.code, LATER_VIEW),
        program: "99.0.0",
    }
}

/// A release of another version with the same tables and one more view.
fn other_code(program: &'static str) -> Schema {
    Schema { code: with(SCHEMA.code, "CREATE VIEW headwater_extra AS SELECT 1 AS one"), program, ..SCHEMA }
}

fn rows(connection: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.column_count();
    decode::all(&mut statement, [], |row| (0..columns).map(|at| row.get(at)).collect()).unwrap()
}

fn meta(connection: &Connection, key: &str) -> String {
    connection.query_row("SELECT value FROM headwater_meta WHERE key = ?1", [key], |row| row.get(0)).unwrap()
}

fn has(connection: &Connection, name: &str) -> bool {
    connection
        .query_row("SELECT count(*) = 1 FROM sqlite_master WHERE name = ?1", [name], |row| row.get(0))
        .unwrap()
}

/// The whole schema, however its tables were created: the text of an altered table differs from that of a new one.
fn shape(connection: &Connection) -> Vec<Vec<Value>> {
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name";
    let mut shape =
        rows(connection, "SELECT type, name, sql FROM sqlite_master WHERE type <> 'table' ORDER BY 1, 2");
    for table in rows(connection, tables) {
        let [Value::Text(name)] = &table[..] else { panic!("{table:?}") };
        shape.extend(rows(connection, &format!("SELECT * FROM pragma_table_xinfo('{name}')")));
        shape.extend(rows(connection, &format!("SELECT * FROM pragma_table_list('{name}')")));
        shape.push(table);
    }
    shape
}

async fn is_too_new<T: std::fmt::Debug>(attempt: impl Future<Output = Result<T>>) {
    let error = attempt.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaTooNew, "{error:?}");
    assert!(
        error.to_string().contains("schema version 2 is newer than this program's 1, upgrade it"),
        "{error}"
    );
}

/// A program with other defaults replaces the code.
#[tokio::test]
async fn the_default_settings_of_topics_are_part_of_the_code() {
    let place = Place::new();
    place.open().await;
    let code = SCHEMA.code();
    assert!(code.concat().contains(&serde_json::to_string(&TopicSettings::default()).unwrap()));
    assert_eq!(meta(&place.connect(), "schema_code"), crate::store::schema::hash(&code));
}

#[tokio::test]
async fn later_tables_keep_the_data_and_refuse_the_writes_of_an_older_program_that_runs() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(3)).await.unwrap();
    let lease = store.claim(&request(&subscription, 2)).await.unwrap().leases.remove(0);
    let mut own = place.connect();
    let kept = "SELECT * FROM headwater_subscriptions JOIN headwater_messages USING (topic)";
    let before = rows(&own, kept);
    later().install(&mut own, "x", false).unwrap();
    assert_eq!((meta(&own, "schema"), meta(&own, "schema_program")), ("2".into(), "99.0.0".into()));
    assert_eq!(rows(&own, kept), before);
    assert_eq!(rows(&own, "SELECT later FROM headwater_laters"), [[Value::Integer(7)], [Value::Integer(7)]]);

    is_too_new(store.publish(&topic("orders"), &messages(1))).await;
    is_too_new(store.claim(&request(&subscription, 1))).await;
    is_too_new(store.settle(&[Settlement::ack_all(&lease)])).await;
    is_too_new(async { publish(&own.unchecked_transaction().unwrap(), "orders", &messages(1)) }).await;
    is_too_new(place.try_open(OpenOptions::default())).await;
    is_too_new(place.try_open(OpenOptions::default().read_only(true))).await;
    assert_eq!(rows(&own, kept), before, "nothing was written");
    own.execute("INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'x')", []).unwrap();
    assert_eq!(
        store.topics().await.unwrap()[0].head.0,
        4,
        "reads are served, and plain SQL uses the later program's trigger"
    );
}

#[test]
fn migrated_tables_are_those_of_a_new_file() {
    let (mut migrated, mut new) =
        (Connection::open_in_memory().unwrap(), Connection::open_in_memory().unwrap());
    migrate::migrate(&mut migrated, "x", false).unwrap();
    let first = shape(&migrated);
    later().install(&mut migrated, "x", false).unwrap();
    later().install(&mut new, "x", false).unwrap();
    assert_eq!(shape(&migrated), shape(&new));
    assert_ne!(shape(&migrated), first);
}

#[tokio::test]
async fn an_older_program_works_with_newer_code_and_leaves_it() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    other_code("99.0.0").install(&mut place.connect(), "x", false).unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    assert_eq!(drain(&store, &subscription).await, ["message 0"], "it was opened before");
    let again = place.open().await;
    again.publish(&topic("orders"), &messages(1)).await.unwrap();
    let own = place.connect();
    own.execute("INSERT INTO headwater_publish (topic, payload) VALUES ('orders', 'sql')", []).unwrap();
    assert_eq!(drain(&again, &subscription).await, ["message 0", "sql"]);
    assert!(has(&own, "headwater_extra"));
    assert_eq!(meta(&own, "schema_program"), "99.0.0");
}

#[tokio::test]
async fn code_of_an_older_program_is_replaced_once_and_an_applications_own_stays() {
    let place = Place::new();
    let mut own = place.connect();
    own.execute_batch("CREATE TABLE account (n INTEGER)").unwrap();
    other_code("0.0.1").install(&mut own, "x", true).unwrap();
    own.execute_batch(
        "CREATE TRIGGER mine AFTER INSERT ON headwater_message BEGIN INSERT INTO account VALUES (NEW.row_key); END;
         CREATE VIEW heads AS SELECT head FROM headwater_topics",
    )
    .unwrap();
    let openings: Vec<_> = (0..8)
        .map(|_| {
            let path = place.path();
            tokio::spawn(async move { open_at(&path, OpenOptions::default()).await.unwrap() })
        })
        .collect();
    for opening in openings {
        opening.await.unwrap().publish(&topic("orders"), &messages(1)).await.unwrap();
    }
    assert!(!has(&own, "headwater_extra"));
    assert_eq!(meta(&own, "schema_program"), env!("CARGO_PKG_VERSION"));
    assert_eq!(
        rows(&own, "SELECT count(*), max(head) FROM account, heads"),
        [[Value::Integer(8), Value::Integer(8)]]
    );
    let changes = "PRAGMA schema_version";
    let before = rows(&own, changes);
    place.open().await.close().await.unwrap();
    assert_eq!(rows(&own, changes), before, "what is current is not created again");
}

/// A read may name a column that the views of an older program lack, and nothing that is opened read-only replaces them.
#[tokio::test]
async fn views_of_an_older_program_are_not_read_read_only() {
    let place = Place::new();
    let read = || place.try_open(OpenOptions::default().read_only(true));
    other_code("0.0.0").install(&mut place.connect(), "x", false).unwrap();
    let refused = read().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SchemaOutdated, "{refused}");
    let says = "the store has the views of another build (0.0.0), open it once for writing";
    assert!(refused.to_string().contains(says), "{refused}");
    assert!(has(&place.connect(), "headwater_extra"), "nothing was changed");
    place.open().await.close().await.unwrap();
    read().await.unwrap().close().await.unwrap();
    other_code("99.0.0").install(&mut place.connect(), "x", false).unwrap();
    read().await.unwrap().close().await.unwrap();
    assert!(has(&place.connect(), "headwater_extra"), "those of a newer program stay");
}

/// Version 1 with other tables than this program's: a build that was never released made it.
#[tokio::test]
async fn tables_of_another_build_are_refused_and_left() {
    let place = Place::new();
    let mut own = place.connect();
    let other = Schema {
        tables: with(SCHEMA.tables, "CREATE TABLE headwater_former (n INTEGER)"),
        program: "0.0.1",
        ..SCHEMA
    };
    other.install(&mut own, "x", false).unwrap();
    let before = shape(&own);
    for change in ["", "DELETE FROM headwater_meta WHERE key = 'schema_tables'"] {
        own.execute_batch(change).unwrap();
        for options in [OpenOptions::default(), OpenOptions::default().read_only(true)] {
            let refused = place.try_open(options).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::SchemaOutdated, "{refused}");
            assert!(refused.to_string().contains("before the first release"), "{refused}");
        }
    }
    assert_eq!(shape(&own), before);
}

#[tokio::test]
async fn a_migration_that_fails_leaves_everything_as_it_was() {
    let place = Place::new();
    let store = place.open().await;
    let subscription = subscribed(&store, "orders").await;
    let mut own = place.connect();
    let before = shape(&own);
    for schema in [
        Schema { steps: &[(2, BROKEN)], ..SCHEMA },
        Schema { steps: &[(2, LATER)], code: with(SCHEMA.code, BROKEN), ..SCHEMA },
        Schema { code: with(SCHEMA.code, BROKEN), ..SCHEMA },
    ] {
        schema.install(&mut own, "x", false).unwrap_err();
        assert_eq!(shape(&own), before);
        store.publish(&topic("orders"), &messages(1)).await.unwrap();
    }
    assert_eq!(drain(&store, &subscription).await.len(), 3);
    let mut new = Connection::open_in_memory().unwrap();
    Schema { tables: with(SCHEMA.tables, BROKEN), ..SCHEMA }.install(&mut new, "x", false).unwrap_err();
    assert_eq!(shape(&new), Vec::<Vec<Value>>::new());
    migrate::migrate(&mut new, "x", false).unwrap();
}
