//! Opening: pragmas, files of other applications, versions.

use super::*;

fn read_i64(connection: &Connection, pragma: &str) -> i64 {
    connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn every_connection_reads_its_pragmas_back() {
    let place = Place::new();
    let location = Location::new(&SqlitePath::File(place.path())).unwrap();
    for role in [Role::Writer, Role::Reader, Role::Checkpointer] {
        let connection = connection::open(&location, role).unwrap();
        let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal", "{role:?}");
        assert_eq!(read_i64(&connection, "mmap_size"), 0, "{role:?}");
        assert_eq!(read_i64(&connection, "wal_autocheckpoint"), 0, "{role:?}");
        assert_eq!(read_i64(&connection, "query_only"), i64::from(role == Role::Reader), "{role:?}");
    }
    let connection = connection::open(&location, Role::Writer).unwrap();
    assert_eq!(read_i64(&connection, "synchronous"), 2);
}

#[test]
fn a_library_older_than_the_fix_of_the_log_would_be_noticed() {
    // 3.51.3 is the first release without the bug that could damage a write-ahead log.
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}

async fn refused(path: &Path, kind: ErrorKind, expected: &str) {
    let before = std::fs::read(path).unwrap();
    let error = open_at(path, OpenOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error:?}");
    let text = error.to_string();
    assert!(text.contains(expected) && text.contains(&path.display().to_string()), "{text}");
    assert_eq!(std::fs::read(path).unwrap(), before, "the file is unchanged");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_untouched() {
    let place = Place::new();
    std::fs::write(place.path(), "Dear diary, today I wrote a message.\n".repeat(100)).unwrap();
    refused(&place.path(), ErrorKind::NotAStore, "not an SQLite database").await;
    std::fs::write(place.path(), "x").unwrap();
    refused(&place.path(), ErrorKind::NotAStore, "not an SQLite database").await;
}

#[tokio::test]
async fn a_database_of_another_application_is_refused_untouched_unless_adopted() {
    let place = Place::new();
    let own = place.connect();
    own.execute_batch("CREATE TABLE account (n INTEGER); INSERT INTO account VALUES (7)").unwrap();
    drop(own);
    refused(&place.path(), ErrorKind::NotAStore, "headwater migrate --adopt").await;
    let store = open_at(&place.path(), OpenOptions::default().adopt(true)).await.unwrap();
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    store.drop_namespace().await.unwrap();
    let own = place.connect();
    let kept: i64 = own.query_row("SELECT n FROM account", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, 7, "the application's own tables stay");
    let ours: i64 = own
        .query_row("SELECT count(*) FROM sqlite_master WHERE name LIKE 'headwater%'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(ours, 0);
}

#[tokio::test]
async fn a_database_in_wal_mode_of_another_application_is_refused_untouched() {
    let place = Place::new();
    let own = place.connect();
    own.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE account (n INTEGER)").unwrap();
    // Still open, with everything in its log: the refusal must not copy the log into the file.
    refused(&place.path(), ErrorKind::NotAStore, "account").await;
}

#[tokio::test]
async fn a_damaged_store_is_refused_untouched() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1000)).await.unwrap();
    store.close().await.unwrap();
    let whole = std::fs::read(place.path()).unwrap();
    std::fs::write(place.path(), &whole[..whole.len() / 2]).unwrap();
    refused(&place.path(), ErrorKind::NotAStore, "damaged").await;
    let mut scribbled = whole;
    let middle = scribbled.len() / 2 / 4096 * 4096;
    scribbled[middle..middle + 4096].fill(0xAA);
    std::fs::write(place.path(), &scribbled).unwrap();
    refused(&place.path(), ErrorKind::NotAStore, "damaged").await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_untouched() {
    let place = Place::new();
    place.open().await.close().await.unwrap();
    place.connect().execute("UPDATE headwater_meta SET value = '99' WHERE key = 'schema'", []).unwrap();
    refused(&place.path(), ErrorKind::SchemaTooNew, "version 99").await;
}

#[tokio::test]
async fn a_file_of_a_development_version_is_refused_untouched() {
    let place = Place::new();
    let old = place.connect();
    old.execute_batch(
        "CREATE TABLE headwater_meta (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
         INSERT INTO headwater_meta VALUES ('schema_version', '6'), ('auto_create', '1')",
    )
    .unwrap();
    drop(old);
    let expected = "made by a development version of Headwater before the first release";
    refused(&place.path(), ErrorKind::SchemaOutdated, expected).await;
    for attempt in [
        place.try_open(OpenOptions::default().read_only(true)).await.unwrap_err(),
        version_of(&SqlitePath::File(place.path())).unwrap_err(),
    ] {
        assert!(
            attempt.kind() == ErrorKind::SchemaOutdated && attempt.to_string().contains(expected),
            "{attempt:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_directory_and_a_directory_are_named() {
    let place = Place::new();
    let missing = place.directory.path().join("no/such/x.db");
    let error = open_at(&missing, OpenOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no/such"), "{error}");
    let error = open_at(place.directory.path(), OpenOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAStore);
}

/// The connections close on threads of their own, and the last one removes the log.
#[tokio::test]
async fn connections_that_close_at_the_same_moment_leave_no_log() {
    let place = Place::new();
    for round in 0..100 {
        let store = place.open().await;
        store.publish(&topic("orders"), &messages(1)).await.unwrap();
        store.close().await.unwrap();
        let left = std::fs::read_dir(place.directory.path()).unwrap().count();
        assert_eq!(left, 1, "round {round}");
    }
}

#[tokio::test]
async fn an_empty_file_becomes_a_store_and_closing_leaves_no_log() {
    let place = Place::new();
    std::fs::write(place.path(), "").unwrap();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(store.topics().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.publish(&topic("orders"), &messages(1)).await.unwrap_err().kind(), ErrorKind::Closed);
    store.close().await.unwrap();
    let left: Vec<_> =
        std::fs::read_dir(place.directory.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left, ["store.db"]);
}

#[tokio::test]
async fn dropping_the_namespace_removes_the_files() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(10)).await.unwrap();
    store.drop_namespace().await.unwrap();
    assert_eq!(std::fs::read_dir(place.directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_threads() {
    let place = Place::new();
    let store = place.open().await;
    store.publish(&topic("orders"), &messages(1)).await.unwrap();
    let threads = std::mem::take(&mut *store.threads.lock().unwrap());
    assert!(threads.len() >= 2);
    drop(store);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[tokio::test]
async fn the_sql_defaults_are_the_librarys() {
    let place = Place::new();
    let store = place.open().await;
    place
        .connect()
        .execute("INSERT INTO headwater_publish (topic, payload) VALUES ('by_sql', 'x')", [])
        .unwrap();
    assert_eq!(store.topic(&topic("by_sql")).await.unwrap().settings, TopicSettings::default());
}

#[tokio::test]
async fn many_openers_of_a_new_file_make_one_store() {
    let place = Place::new();
    let openings: Vec<_> = (0..8)
        .map(|_| {
            let path = place.path();
            tokio::spawn(async move { open_at(&path, OpenOptions::default()).await })
        })
        .collect();
    for opening in openings {
        let store = opening.await.unwrap().unwrap();
        store.publish(&topic("orders"), &messages(1)).await.unwrap();
    }
    let store = place.open().await;
    assert_eq!(store.topics().await.unwrap()[0].head.0, 8);
}

#[tokio::test]
async fn a_store_in_memory_does_everything() {
    let store = SqliteStore::open(SqlitePath::Memory, OpenOptions::default()).await.unwrap();
    let subscription = subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(250)).await.unwrap();
    assert_eq!(drain(&store, &subscription).await.len(), 250);
    assert_eq!(store.doctor().await.unwrap(), []);
    assert_eq!(store.topics().await.unwrap().len(), 1);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_store_opened_read_only_is_read_and_refuses_to_write() {
    let place = Place::new();
    let store = place.open().await;
    subscribed(&store, "orders").await;
    store.publish(&topic("orders"), &messages(3)).await.unwrap();
    let options = || OpenOptions::default().read_only(true);
    let reader = open_at(&place.path(), options()).await.unwrap();
    assert_eq!(reader.topics().await.unwrap()[0].head.0, 3, "beside a store that writes");
    assert_eq!(reader.doctor().await.unwrap(), []);
    let error = reader.publish(&topic("orders"), &messages(1)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::ReadOnly && error.to_string().contains("read-only"), "{error:?}");
    assert_eq!(store.topics().await.unwrap()[0].head.0, 3, "nothing was written");
    reader.close().await.unwrap();
    store.close().await.unwrap();
    let missing = open_at(&place.path().with_extension("none"), options()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unavailable, "nothing is created: {missing:?}");
}

#[tokio::test]
async fn a_store_of_another_version_is_not_read_read_only() {
    let place = Place::new();
    place.open().await.close().await.unwrap();
    for (version, kind) in [("0", ErrorKind::SchemaOutdated), ("99", ErrorKind::SchemaTooNew)] {
        let sql = "UPDATE headwater_meta SET value = ?1 WHERE key = 'schema'";
        place.connect().execute(sql, [version]).unwrap();
        let error = place.try_open(OpenOptions::default().read_only(true)).await.unwrap_err();
        let expected = format!("schema version {version} is ");
        assert!(error.kind() == kind && error.to_string().contains(&expected), "{error:?}");
    }
}

#[tokio::test]
async fn a_missing_file_is_created_only_if_allowed() {
    let place = Place::new();
    let options = || OpenOptions::default().create(false);
    let refused = open_at(&place.path(), options()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSuchStore, "{refused}");
    assert!(
        !place.path().exists() && refused.to_string().contains(&place.path().display().to_string()),
        "{refused}"
    );
    std::fs::write(place.path(), "").unwrap();
    assert_eq!(
        open_at(&place.path(), options()).await.unwrap_err().kind(),
        ErrorKind::NoSuchStore,
        "an empty file"
    );
    assert_eq!(std::fs::metadata(place.path()).unwrap().len(), 0);
    open_at(&place.path(), OpenOptions::default()).await.unwrap().close().await.unwrap();
    open_at(&place.path(), options()).await.unwrap().close().await.unwrap();
}
