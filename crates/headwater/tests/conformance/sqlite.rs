//! The SQLite engine: a file in a directory for each case.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use headwater::store::conformance::{ForeignDatabase, Harness};
use headwater::{NewMessage, OpenOptions, Published, Result, TopicName};
use rusqlite::{Connection, TransactionBehavior, params};
use tempfile::TempDir;

headwater::conformance_cases!(crate::sqlite::SqliteHarness::make);

/// One case's directory.
pub(crate) struct SqliteHarness {
    directory: TempDir,
    mounted: Mutex<Option<PathBuf>>,
}

impl SqliteHarness {
    pub(crate) async fn make() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory is made");
        Some(SqliteHarness { directory, mounted: Mutex::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn url_of(&self, name: &str) -> String {
        format!("sqlite:{}", self.path(name).display())
    }

    /// A connection as an application opens it.
    fn connect(path: &Path) -> Connection {
        let connection = Connection::open(path).expect("the file opens");
        connection.busy_timeout(Duration::from_secs(20)).expect("a time-out is set");
        connection
    }

    /// Byte 18 of a database file is the lowest version that may write it; above 2 the file may only be read.
    fn set_write_version(&self, version: u8) {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(self.path("store.db")).expect("the file exists");
        file.write_all_at(&[version], 18).expect("a byte is written");
    }

    /// A store's file, closed, to be damaged.
    async fn store_file(&self, name: &str) -> Vec<u8> {
        let store = self.open_at(&self.url_of(name), OpenOptions::default().auto_create(true)).await;
        let store = store.expect("a store is made");
        let topic = TopicName::new("orders").expect("a valid name");
        let messages = vec![NewMessage::new(vec![7; 5_000]); 20];
        store.publish(&topic, &messages).await.expect("published");
        store.close().await.expect("closes");
        fs::read(self.path(name)).expect("the file exists")
    }

    fn mount(&self, options: &str) -> bool {
        let directory = self.path("small");
        fs::create_dir_all(&directory).expect("a directory is made");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "headwater-test"]).arg(&directory);
        command.output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for SqliteHarness {
    fn drop(&mut self) {
        if let Some(directory) = self.mounted.lock().expect("no panic while held").take() {
            let _ = Command::new("umount").arg("--lazy").arg(directory).output();
        }
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    fn url(&self) -> String {
        self.url_of("store.db")
    }

    fn url_beside(&self, name: &str) -> String {
        format!("{}?namespace={name}", self.url())
    }

    async fn publish_in_transaction(
        &self,
        topic: &TopicName,
        messages: &[NewMessage],
        commit: bool,
    ) -> Result<Vec<Published>> {
        let (path, topic, messages) = (self.path("store.db"), topic.clone(), messages.to_vec());
        let publish = move || {
            let mut connection = Self::connect(&path);
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begun");
            let published = headwater::store::sqlite::publish(&transaction, topic.as_str(), &messages);
            if commit { transaction.commit() } else { transaction.rollback() }.expect("ended");
            published
        };
        tokio::task::spawn_blocking(publish).await.expect("no panic")
    }

    async fn publish_by_sql(
        &self,
        topic: &TopicName,
        payload: &str,
        key: Option<&str>,
        commit: bool,
    ) -> std::result::Result<(), String> {
        let mut connection = Self::connect(&self.path("store.db"));
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begun");
        let sql = "INSERT INTO headwater_publish(topic, key, payload) VALUES (?1, ?2, ?3)";
        let inserted = transaction.execute(sql, params![topic.as_str(), key, payload]);
        if commit { transaction.commit() } else { transaction.rollback() }.expect("ended");
        inserted.map(drop).map_err(|error| error.to_string())
    }

    fn worker(&self) -> Option<Command> {
        Some(crate::worker_command())
    }

    async fn foreign_databases(&self) -> Vec<ForeignDatabase> {
        let good = self.store_file("good.db").await;
        let mut garbled = good.clone();
        garbled[100..4_000].fill(0xA5);
        let mut wrong_magic = good.clone();
        wrong_magic[..16].copy_from_slice(b"SQLite format 9\0");
        let other = Connection::open(self.path("other.db")).expect("the file opens");
        other
            .execute_batch("CREATE TABLE customer (name TEXT); INSERT INTO customer VALUES ('Ada');")
            .expect("another application's table");
        drop(other);
        let files = [
            ("a text file", "notes.txt", b"just some notes, not a database\n".repeat(100).clone()),
            ("a store cut off in its first page", "cut.db", good[..1_000].to_vec()),
            ("a store cut off in the middle", "half.db", good[..good.len() / 2].to_vec()),
            ("a store with a garbled first page", "garbled.db", garbled),
            ("a file with a strange magic", "magic.db", wrong_magic),
        ];
        let mut places =
            vec![ForeignDatabase { what: "another application's database", url: self.url_of("other.db") }];
        for (what, name, bytes) in files {
            fs::write(self.path(name), bytes).expect("a file is written");
            places.push(ForeignDatabase { what, url: self.url_of(name) });
        }
        places
    }

    async fn fingerprint(&self, place: &ForeignDatabase) -> Vec<u8> {
        fs::read(place.url.strip_prefix("sqlite:").expect("a file")).expect("the file exists")
    }

    fn unreachable_url(&self) -> String {
        self.url_of("no/such/directory/store.db")
    }

    async fn make_read_only(&self) -> Option<String> {
        self.set_write_version(9);
        Some(self.url())
    }

    async fn make_writable(&self) {
        self.set_write_version(2);
    }

    async fn cramped_url(&self) -> Option<String> {
        if !self.mount("size=2m") {
            return None;
        }
        *self.mounted.lock().expect("no panic while held") = Some(self.path("small"));
        Some(self.url_of("small/store.db"))
    }

    async fn make_room(&self) {
        assert!(self.mount("remount,size=64m"), "the small file system grows");
    }

    async fn lock(&self) -> Option<Box<dyn Send>> {
        let connection = Self::connect(&self.path("store.db"));
        connection.execute_batch("BEGIN IMMEDIATE").expect("locked");
        Some(Box::new(connection))
    }

    async fn remove_message(&self, offset: i64) {
        let connection = Self::connect(&self.path("store.db"));
        let sql = "DELETE FROM headwater_message WHERE row_key & 8796093022207 = ?1";
        assert_eq!(connection.execute(sql, [offset]).expect("removed"), 1);
        // As retention does it, which counts what it removes.
        connection.execute("UPDATE headwater_topic SET removed = removed + 1", []).expect("counted");
    }

    async fn damage(&self) {
        let connection = Self::connect(&self.path("store.db"));
        connection
            .execute_batch("UPDATE headwater_cursor SET next_offset = 1000")
            .expect("a cursor is moved");
    }

    async fn sql(&self, sqlite: &str, _: &str) -> std::result::Result<u64, String> {
        let changed = Self::connect(&self.path("store.db")).execute(sqlite, []);
        changed.map(|rows| rows as u64).map_err(|error| error.to_string())
    }

    async fn number(&self, sqlite: &str, _: &str) -> i64 {
        let connection = Self::connect(&self.path("store.db"));
        connection.query_row(sqlite, [], |row| row.get(0)).expect("a number")
    }

    async fn copy(&self) {
        let store = Self::connect(&self.path("store.db"));
        store.backup("main", self.path("copy.db"), None).expect("a copy is made");
    }

    async fn restore(&self) {
        let mut store = Self::connect(&self.path("store.db"));
        let progress: Option<fn(rusqlite::backup::Progress)> = None;
        store.restore("main", self.path("copy.db"), progress).expect("the copy is restored");
    }

    async fn cleanup(&self) {}
}
