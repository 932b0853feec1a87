//! A store that is opened read-only: the file, its directory or the mount cannot be written.
//!
//! A reader of a write-ahead log needs `-shm`. SQLite creates it where it can, and reads an existing one even if it
//! cannot write it. Where neither is possible:
//!
//! - with a log beside the file nothing can be read, because the content of the log would be missing;
//! - without a log everything is in the file, which is opened as `immutable`. SQLite then takes no locks, so a
//!   process that may write could change the file meanwhile. Such a process creates a log first, and removes it only
//!   after it has written to the file: so an answer is valid only if afterwards there is no log and the file has the
//!   same size and time.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rusqlite::{Connection, OpenFlags};

use super::connection::{self, Location, Role};
use super::fault::sqlite_error;
use super::reader::{self, Readers};
use super::trust::{self, Trust};
use super::writer::{Commands, QUEUE_PLACES};
use super::{SqliteStore, migrate, open, patience};
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::SqlitePath;
use crate::store::actor::Actor;
use crate::store::options::OpenOptions;

/// A file that is read as `immutable`.
#[derive(Debug)]
pub(super) struct Still {
    path: PathBuf,
    was: (u64, Option<SystemTime>),
}

impl Still {
    fn of(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let text = format!("cannot open store {}: {error}", path.display());
            Error::with_source(ErrorKind::Unavailable, text, error)
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        Ok(Still { path: path.to_owned(), was: state(&metadata) })
    }

    /// After a read: whether its result is valid.
    pub(super) fn check(&self) -> Result<()> {
        let now = std::fs::metadata(&self.path).ok().map(|metadata| state(&metadata));
        if now == Some(self.was) && !trust::beside(&self.path, "-wal").exists() {
            return Ok(());
        }
        let text = format!("another process writes to the file, open it again: {}", self.path.display());
        Err(Error::new(ErrorKind::Unavailable, text))
    }
}

fn state(metadata: &Metadata) -> (u64, Option<SystemTime>) {
    (metadata.len(), metadata.modified().ok())
}

impl SqliteStore {
    /// Opens a store read-only. Nothing is created, migrated or copied.
    pub(super) fn open_read_only(path: &SqlitePath, options: &OpenOptions) -> Result<SqliteStore> {
        let location = Location::new(path)?;
        let Some(file) = &location.path else {
            return Err(Error::invalid("read_only", "a store in memory has nothing to read"));
        };
        let resolved = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
        let (first, still) = connect(&location, &resolved)?;
        migrate::check_readable(&first, &location.name)?;
        // The files of a read-only store may be missing: none is compared.
        let trust = Trust::of(&first, &Location { path: None, name: location.name.clone() })?;
        let mut connections = vec![first];
        while connections.len() < options.connections_max.clamp(1, reader::READERS_MAX) {
            connections.push(connect(&location, &resolved)?.0);
        }
        let (readers, threads) =
            Readers::start(connections, &trust).map_err(|error| open::no_thread(&location, error))?;
        let commands = Arc::new(Commands::new(QUEUE_PLACES));
        commands.close();
        Ok(SqliteStore {
            location,
            clock: options.clock.clone(),
            auto_create: false,
            actor: Actor::new(&options.actor),
            hub: Arc::default(),
            watched: Arc::default(),
            commands,
            readers: Some(readers),
            trust,
            holes: Arc::default(),
            threads: Mutex::new(threads),
            history: Arc::default(),
            proofs: Arc::default(),
            passes: Mutex::default(),
            read_only: Some(still),
        })
    }

    /// The error for every write.
    pub(super) fn not_written(&self) -> Error {
        let text = format!("the store is opened read-only, nothing was written: {}", self.location.name);
        Error::new(ErrorKind::ReadOnly, text)
    }
}

fn connect(location: &Location, path: &Path) -> Result<(Connection, Option<Still>)> {
    let failed = |error| sqlite_error(&location.name, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    patience::install(&connection).map_err(failed)?;
    let (connection, still) = match connection.query_row("PRAGMA schema_version", [], |_| Ok(())) {
        Ok(()) => (connection, None),
        Err(error) if connection::is_unwritable(&error) => {
            if std::fs::metadata(trust::beside(path, "-wal")).is_ok_and(|log| log.len() > 0) {
                let text = format!(
                    "the write-ahead log cannot be read where `-shm` cannot be created: {}; copy the file and its `-wal` \
                     to a directory that can be written, and open the copy",
                    location.name
                );
                return Err(Error::with_source(ErrorKind::ReadOnly, text, error));
            }
            let still = Still::of(path)?;
            let name = path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let flags = flags | OpenFlags::SQLITE_OPEN_URI;
            let connection = Connection::open_with_flags(format!("file:{name}?immutable=1"), flags);
            (connection.map_err(failed)?, Some(still))
        }
        Err(error) => return Err(failed(error)),
    };
    connection::set_pragmas(&connection, location, Role::Reader)?;
    Ok((connection, still))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_only_while_the_file_lies_still() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        std::fs::write(&path, "one").unwrap();
        let still = Still::of(&path).unwrap();
        still.check().unwrap();
        std::fs::write(trust::beside(&path, "-wal"), "").unwrap();
        let error = still.check().unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.is_retryable(), "a log: {error:?}");
        std::fs::remove_file(trust::beside(&path, "-wal")).unwrap();
        still.check().unwrap();
        std::fs::write(&path, "more").unwrap();
        assert!(still.check().is_err(), "another size");
        std::fs::remove_file(&path).unwrap();
        assert!(still.check().is_err(), "gone");
    }
}
