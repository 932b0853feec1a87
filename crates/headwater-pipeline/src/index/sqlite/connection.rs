//! Connections to the file: how each kind is opened, its settings, and the check that the file is an index.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::fault::{Attempt, Fault, is_busy};

/// How long a connection waits for the lock of another process.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Prepared statements kept per connection: more than the index has.
const STATEMENTS_MAX: usize = 64;
/// Marks a file as the index of a run: "HWix".
const APPLICATION_ID: i32 = 0x4857_6978;
/// The layout of the tables, and the newest one that this program knows.
const LAYOUT_VERSION: i32 = 1;

/// Three blobs of 5,000 cells fit a page, so that few bytes of it stay unused: what is not filled is written all the same. In a
/// measurement with blobs of 10.7 KB in transactions of 1,000, pages of 16 KiB (which take one) wrote 15,000 ticks/s, of 8 KiB 18,000, of
/// 32 KiB 22,000, of 64 KiB 25,000; the largest ones make small changes in the other tables expensive.
const PAGE_BYTES: u32 = 32_768;
/// A checkpoint after 32 MiB of log: 128 MiB, or a thread for checkpoints, were up to 20 % faster, but the log had 200 MB.
const CHECKPOINT_PAGES: u32 = 1_024;

/// Opens the connection that writes. Only creating tables also creates the file: ticks must not go to an empty one after an operator
/// has removed it.
pub(super) fn open_writer(path: &Path, create: bool) -> Attempt<Connection> {
    let connection = open(path, if create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() })?;
    // Only a new file takes it.
    connection.execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}"))?;
    set_write_ahead_log(&connection)?;
    connection.execute_batch(&format!(
        "PRAGMA synchronous = FULL;
         PRAGMA cache_size = -65536;
         PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
         PRAGMA journal_size_limit = 134217728;"
    ))?;
    Ok(connection)
}

/// Opens a connection that only reads. The log needs shared memory beside the file, so it is opened for writing nevertheless.
pub(super) fn open_reader(path: &Path) -> Attempt<Connection> {
    let connection = open(path, OpenFlags::empty())?;
    connection.execute_batch("PRAGMA query_only = 1; PRAGMA cache_size = -16384;")?;
    Ok(connection)
}

fn open(path: &Path, more: OpenFlags) -> Attempt<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(LOCK_WAIT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Reads through a mapping turn an I/O error into a signal that kills the process.
    connection.execute_batch("PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY;")?;
    check(&connection)?;
    Ok(connection)
}

/// Refuses a file that is no index, or one of a later layout, before anything in it changes.
fn check(connection: &Connection) -> Attempt<()> {
    // All of it is read from one state: another process may create the tables, and the mark with them, at this moment.
    let snapshot = connection.unchecked_transaction()?;
    let number =
        |pragma: &str| snapshot.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i32>(0));
    let (application_id, version) = (number("application_id")?, number("user_version")?);
    let objects: i64 = snapshot.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application_id, version, objects) {
        (APPLICATION_ID, LAYOUT_VERSION, _) | (0, _, 0) => Ok(()),
        (APPLICATION_ID, _, _) => {
            Err(Fault::Refused(format!("layout version {version}, this program knows {LAYOUT_VERSION}")))
        }
        _ => Err(Fault::Refused("the file is another database and not the index of a run".into())),
    }
}

/// Marks the file as an index, in the transaction that creates its first table.
pub(super) fn mark(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT_VERSION};"
    ))
}

/// While other processes open the same new file, SQLite may answer "locked" here without waiting, so this function repeats it.
fn set_write_ahead_log(connection: &Connection) -> Attempt<()> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => return Err(Fault::Refused(format!("journal mode is {mode} instead of wal"))),
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Closes a connection whose path leads to another file by now: SQLite must not remove log files by their names.
pub(super) fn abandon(connection: Connection) {
    // If it cannot be set, closing is all that is left to do.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    drop(connection);
}

/// Identifies a file independently of its name: device and inode.
pub(super) type FileId = (u64, u64);

/// The file that the path leads to now.
#[cfg(unix)]
pub(super) fn file_at(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Other systems do not let an open file be replaced.
#[cfg(not(unix))]
pub(super) fn file_at(_: &Path) -> Option<FileId> {
    Some((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn another_database_is_refused_and_left_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.index.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE account (n INTEGER)").unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = open_writer(&path, true).unwrap_err().into_error(ErrorCode::SchemaSetupFailed, &path);
        assert!(error.to_string().ends_with("another database and not the index of a run"), "{error}");
        assert!(!error.is_transient());
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_later_layout_is_refused_by_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.index.db");
        let connection = open_writer(&path, true).unwrap();
        mark(&connection).unwrap();
        connection.execute_batch("PRAGMA user_version = 7").unwrap();
        drop(connection);
        let error = open_reader(&path).unwrap_err().into_error(ErrorCode::ReadFailed, &path);
        assert!(error.to_string().ends_with("layout version 7, this program knows 1"), "{error}");
    }

    #[test]
    fn commits_wait_for_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let connection = open_writer(&directory.path().join("a.index.db"), true).unwrap();
        let read = |pragma: &str| {
            connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!((read("synchronous"), read("page_size")), (2, i64::from(PAGE_BYTES)));
    }
}
