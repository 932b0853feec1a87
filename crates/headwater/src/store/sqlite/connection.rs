//! Connections: how each kind is opened, its pragmas, and the checks before a file is touched.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::fault::{is_busy, sqlite_error};
use super::{migrate, patience, trust};
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::SqlitePath;
use crate::store::options::OpenOptions;

/// Prepared statements cached per connection: more than the engine has.
const STATEMENTS_MAX: usize = 128;
/// Files up to this size are checked whole before they are opened for writing.
const CHECKED_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The smallest page size of SQLite.
const PAGE_BYTES_MIN: u64 = 512;

/// Where a store's file is, as the engine uses it.
#[derive(Clone, Debug)]
pub(super) struct Location {
    /// The absolute path; `None` in memory.
    pub(super) path: Option<PathBuf>,
    /// The name in error messages.
    pub(super) name: String,
}

impl Location {
    /// Resolves a path once, so that a change of the working directory does not move the store. An absolute path is
    /// also never taken for a `file:` URI by SQLite.
    pub(super) fn new(path: &SqlitePath) -> Result<Self> {
        let SqlitePath::File(path) = path else {
            return Ok(Location { path: None, name: "in memory".into() });
        };
        let absolute = std::path::absolute(path).map_err(|error| {
            Error::with_source(
                ErrorKind::InvalidInput,
                format!("invalid path {}: {error}", path.display()),
                error,
            )
        })?;
        let name = absolute.display().to_string();
        Ok(Location { path: Some(absolute), name })
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The one connection that writes.
    Writer,
    /// Reads only.
    Reader,
    /// Copies the write-ahead log into the file.
    Checkpointer,
}

/// A pragma, the value it is set to, and the value that must be read back.
type Pragma = (&'static str, &'static str, i64);

const COMMON: &[Pragma] = &[
    // Reads through a mapping turn an I/O error into a signal that kills the process.
    ("mmap_size", "0", 0),
    // Keeps savepoint journals and sorts in memory.
    ("temp_store", "2", 2),
    // The checkpoint thread does it instead, outside the writer thread.
    ("wal_autocheckpoint", "0", 0),
];
const WRITER: &[Pragma] = &[
    ("synchronous", "2", 2),
    ("cache_size", "-32768", -32768),
    // A write-ahead log that had to grow is truncated to this size when it restarts.
    ("journal_size_limit", "67108864", 67_108_864),
];
const READER: &[Pragma] = &[("cache_size", "-16384", -16384), ("query_only", "1", 1)];
const CHECKPOINTER: &[Pragma] = &[("synchronous", "2", 2), ("cache_size", "-512", -512)];

/// Opens a connection to a store and sets its pragmas.
pub(super) fn open(location: &Location, role: Role) -> Result<Connection> {
    let failed = |error| sqlite_error(&location.name, error);
    let connection = match &location.path {
        None => Connection::open_in_memory().map_err(failed)?,
        Some(path) => {
            let create =
                if role == Role::Writer { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
            let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
            trust::on_open(&connection).map_err(failed)?;
            connection
        }
    };
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    patience::install(&connection).map_err(failed)?;
    // SQLite silently opens a file that it may not write as read-only.
    if connection.is_readonly("main").map_err(failed)? {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            format!("the file cannot be written: {}", location.name),
        ));
    }
    set_journal_mode(&connection, location)?;
    set_pragmas(&connection, location, role)?;
    Ok(connection)
}

/// Sets the pragmas that a connection of this role needs.
pub(super) fn set_pragmas(connection: &Connection, location: &Location, role: Role) -> Result<()> {
    let own = match role {
        Role::Writer => WRITER,
        Role::Reader => READER,
        Role::Checkpointer => CHECKPOINTER,
    };
    for (name, value, expected) in COMMON.iter().chain(own) {
        set_pragma(connection, location, name, value, *expected)?;
    }
    Ok(())
}

/// Sets a pragma and reads it back. Any other value is an error: every guarantee rests on these settings.
fn set_pragma(
    connection: &Connection,
    location: &Location,
    name: &str,
    value: &str,
    expected: i64,
) -> Result<()> {
    let failed = |error| sqlite_error(&location.name, error);
    // In memory there is no file to map and no log to limit, and SQLite returns no row.
    let moot = location.path.is_none() && matches!(name, "mmap_size" | "journal_size_limit");
    connection.execute_batch(&format!("PRAGMA {name} = {value}")).map_err(failed)?;
    let read: Option<i64> = connection
        .query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
        .map(Some)
        .or_else(|error| if error == rusqlite::Error::QueryReturnedNoRows { Ok(None) } else { Err(error) })
        .map_err(failed)?;
    if read == Some(expected) || moot {
        return Ok(());
    }
    let found = read.map_or_else(|| "nothing".to_owned(), |read| read.to_string());
    Err(mismatch(location, name, value, &found))
}

fn mismatch(location: &Location, name: &str, value: &str, found: &str) -> Error {
    let text = format!("pragma {name} reads back {found} after it was set to {value}: {}", location.name);
    Error::new(ErrorKind::Database, text)
}

/// Puts the file in WAL mode. While other processes open the same new file, SQLite may return "locked" here without
/// calling its busy handler, so this function retries by itself.
fn set_journal_mode(connection: &Connection, location: &Location) -> Result<()> {
    let expected = if location.path.is_some() { "wal" } else { "memory" };
    let deadline = Instant::now() + patience::LOCK_WAIT;
    loop {
        let mode: rusqlite::Result<String> =
            connection.query_row(&format!("PRAGMA journal_mode = {expected}"), [], |row| row.get(0));
        match mode {
            Ok(mode) if mode == expected => return Ok(()),
            Ok(mode) => return Err(mismatch(location, "journal_mode", expected, &mode)),
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) if is_unwritable(&error) && location.path.is_some() => {
                let text = format!(
                    "the store cannot be written, because `-wal` and `-shm` cannot be created beside it: {}: {error}",
                    location.name
                );
                return Err(Error::with_source(ErrorKind::ReadOnly, text, error));
            }
            Err(error) => return Err(sqlite_error(&location.name, error)),
        }
    }
}

/// Checks a file before anything in it may change: a file that is not a store of Headwater is refused and left
/// unchanged, byte for byte.
///
/// The check goes through SQLite, read-only, and never through the file system: closing any descriptor of the file
/// would drop the locks that other connections of this process hold on it.
pub(super) fn inspect(location: &Location, options: &OpenOptions) -> Result<()> {
    let Some(path) = &location.path else { return Ok(()) };
    let bytes = size_of(path)?;
    let missing = || match options.create {
        true => Ok(()),
        false => Err(Error::no_such_store(&format!("store at {}", location.name))),
    };
    let Some(bytes) = bytes else { return missing() };
    check_one_name(path, location)?;
    if bytes == 0 {
        return missing();
    }
    // SQLite treats a file shorter than its smallest page as an empty database and would overwrite it.
    if bytes < PAGE_BYTES_MIN {
        let text = format!("not an SQLite database: {} has {bytes} bytes", location.name);
        return Err(Error::new(ErrorKind::NotAStore, text));
    }
    let failed = |error| sqlite_error(&location.name, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    patience::install(&connection).map_err(failed)?;
    match migrate::check_may_open(&connection, &location.name, options.adopt) {
        Ok(()) => {}
        // Only a connection that may write can roll back what a crash left in a journal; the file is valid.
        Err(error) if needs_recovery(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    let encoding: String = connection.query_row("PRAGMA encoding", [], |row| row.get(0)).map_err(failed)?;
    if encoding != "UTF-8" {
        let text =
            format!("the database stores text as {encoding}, only UTF-8 is supported: {}", location.name);
        return Err(Error::new(ErrorKind::NotAStore, text));
    }
    if bytes <= CHECKED_BYTES_MAX { check_whole(&connection, location) } else { Ok(()) }
}

/// Refuses a file that has, or may have, a second name. SQLite keeps the log beside the name by which the file was
/// opened: two names are two logs over one file, and each overwrites what the other acknowledged.
///
/// A hard link shows in the link count. A single file that is mounted elsewhere
/// (`docker run -v store.db:/data/store.db`) is detected where it is mounted. Seen from its own directory it is not
/// detected, but then the process on the other side is refused. Only the path is checked: the locks that other
/// processes hold on the file would show more, but reading them takes a descriptor of the file, and closing that
/// descriptor drops the locks of this process.
#[cfg(unix)]
fn check_one_name(path: &Path, location: &Location) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let names = std::fs::metadata(path).map_or(1, |metadata| metadata.nlink());
    let why = if names > 1 {
        format!("it has {names} names (hard links); remove the others, or copy the file")
    } else if is_mount_point(path) {
        "the single file is mounted here; mount its directory instead, so that `-wal` and `-shm` come with it"
            .into()
    } else {
        return Ok(());
    };
    let text = format!("a store's file must have one name: {}: {why}", location.name);
    Err(Error::new(ErrorKind::NotAStore, text))
}

#[cfg(not(unix))]
fn check_one_name(_: &Path, _: &Location) -> Result<()> {
    Ok(())
}

/// Whether a file system, or a part of one, is mounted on exactly this path. Kernels before 5.8 do not report it.
#[cfg(target_os = "linux")]
fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| {
        let known = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        known && found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

#[cfg(all(unix, not(target_os = "linux")))]
fn is_mount_point(_: &Path) -> bool {
    false
}

fn needs_recovery(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let sqlite = source.and_then(|source| source.downcast_ref::<std::sync::Arc<rusqlite::Error>>());
    sqlite.is_some_and(|error| is_unwritable(error))
}

/// Whether SQLite could not write, or could not create a file beside the database.
pub(super) fn is_unwritable(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen))
}

fn check_whole(connection: &Connection, location: &Location) -> Result<()> {
    let verdict: Value = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| sqlite_error(&location.name, error))?;
    match verdict {
        Value::Text(verdict) if verdict == "ok" => Ok(()),
        verdict => {
            let text = format!("the database is damaged: {}: {verdict:?}", location.name);
            Err(Error::new(ErrorKind::NotAStore, text))
        }
    }
}

/// The size of the file; `None` if it does not exist yet.
fn size_of(path: &Path) -> Result<Option<u64>> {
    let name = path.display();
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::new(ErrorKind::NotAStore, format!("a directory, not a store file: {name}")))
        }
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let directory = path.parent().unwrap_or(Path::new("/"));
            match std::fs::metadata(directory) {
                Ok(metadata) if metadata.is_dir() => Ok(None),
                Ok(_) => {
                    Err(unreachable_path(path, &format!("{} is not a directory", directory.display()), None))
                }
                Err(error) => {
                    let why = format!("directory {}: {error}", directory.display());
                    Err(unreachable_path(path, &why, Some(error)))
                }
            }
        }
        Err(error) => Err(unreachable_path(path, &error.to_string(), Some(error))),
    }
}

fn unreachable_path(path: &Path, why: &str, source: Option<std::io::Error>) -> Error {
    let text = format!("cannot open store {}: {why}", path.display());
    match source {
        Some(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Error::with_source(ErrorKind::PermissionDenied, text, error)
        }
        Some(error) => Error::with_source(ErrorKind::Unavailable, text, error),
        None => Error::new(ErrorKind::Unavailable, text),
    }
}
