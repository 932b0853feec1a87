//! Whether what is written here can be relied on: the files are still those that were opened, SQLite has found no
//! damage in them, and no sync of the write-ahead log has failed since the log was last complete.
//!
//! All threads of a store share one [`Trust`]. Three things end it:
//!
//! - **Damage.** SQLite returned "corrupt" or "not a database". What is appended to a damaged file may never be
//!   readable, so nothing is written until the store is opened again. Reads stay possible: `doctor` must be able to
//!   examine the file.
//! - **Another file.** The path no longer leads to the files that are open: they were deleted, renamed or replaced.
//!   What is committed here exists for no process that opens the path. The path is compared before every
//!   acknowledgement of a synced commit, and once a second otherwise, so an acknowledged publish is lost only if the
//!   file is removed between the comparison and the answer.
//! - **A failed sync.** See [`super::wal`]: nothing is acknowledged until the log is complete again.
//!
//! The first two last as long as the handle. A handle that closes in this state leaves the files unchanged: SQLite's
//! own close would copy a doubtful log into the file, and would remove `-wal` and `-shm` *by name*, which may by then
//! belong to a new file.

use std::fmt;
use std::fs::Metadata;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::connection::Location;
use super::fault::is_damage;
use crate::error::{Error, ErrorKind, Result};

/// The maximum age of a comparison where no synced commit is acknowledged.
const COMPARED_FOR: Duration = Duration::from_secs(1);
/// The files of a store, in one directory. The third is SQLite's index of the second.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// Exists beside the file from a failed sync until the log is complete again.
pub(super) const MARKER: &str = "-unsynced";
/// The content of the marker: a sync of the log failed, or a checkpoint failed, whose sync may have been that of the
/// file.
const OF_LOG: &str = "log";
const OF_FILE: &str = "file";

/// The state of a store's files, shared by its threads.
pub(super) struct Trust {
    name: String,
    /// The file that the path leads to, with the others in the same directory; `None` in memory.
    resolved: Option<PathBuf>,
    /// The paths and the files they led to when the store was opened; empty in memory.
    files: Vec<(PathBuf, FileId)>,
    /// Never reset once set.
    failed: Mutex<Option<Failed>>,
    has_failed: AtomicBool,
    unsynced: AtomicBool,
    /// Whether pages that were copied into the file may be missing there.
    file_unsynced: AtomicBool,
    opened_at: Instant,
    /// Since `opened_at`.
    compared_at_ms: AtomicU64,
    closing: Mutex<()>,
}

#[derive(Debug)]
struct Failed {
    error: Error,
    /// Whether a read would return data of a file that is not the one at the path.
    reads: bool,
}

/// Identifies a file independently of its name: device and inode.
type FileId = (u64, u64);

impl Trust {
    /// The files that a connection has open; in memory there are none.
    pub(super) fn of(connection: &Connection, location: &Location) -> Result<Arc<Self>> {
        // SQLite's name of the file: the log is beside the target of a symbolic link.
        let sqlite_path = connection.path().filter(|path| !path.is_empty());
        let mut files = Vec::new();
        let mut resolved = None;
        if let Some(path) = &location.path {
            let of_sqlite = sqlite_path.map_or_else(|| path.clone(), PathBuf::from);
            for suffix in SUFFIXES {
                let file = if suffix.is_empty() { path.clone() } else { beside(&of_sqlite, suffix) };
                let metadata =
                    std::fs::metadata(&file).map_err(|error| gone(&location.name, &file, &error))?;
                files.extend(file_id(&metadata).map(|id| (file, id)));
            }
            resolved = Some(of_sqlite);
        }
        let trust = Trust {
            name: location.name.clone(),
            unsynced: AtomicBool::new(
                sqlite_path.is_some_and(|path| beside(Path::new(path), MARKER).exists()),
            ),
            file_unsynced: AtomicBool::new(false),
            resolved,
            files,
            failed: Mutex::default(),
            has_failed: AtomicBool::new(false),
            opened_at: Instant::now(),
            compared_at_ms: AtomicU64::new(0),
            closing: Mutex::default(),
        };
        if trust.is_unsynced() {
            tracing::warn!(
                location = trust.name,
                "failed sync of another process found, log to be rewritten"
            );
        }
        Ok(Arc::new(trust))
    }

    /// Fails if the store has failed permanently, or if the path leads to other files by now.
    pub(super) fn check(&self) -> Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            self.compared_at_ms.store(self.age_ms(), Ordering::Relaxed);
            for (path, opened) in &self.files {
                let why = match std::fs::metadata(path) {
                    Ok(found) if file_id(&found).is_none_or(|found| found == *opened) => continue,
                    Ok(_) => "another file is at this path".to_owned(),
                    Err(error) if is_gone(&error) => error.to_string(),
                    // Whether it is the same file is unknown; the next comparison may show it.
                    Err(_) => continue,
                };
                self.fail(replaced(&self.name, path, &why), true);
                break;
            }
        }
        self.refusal(|_| true)
    }

    /// Like [`Trust::check`], but compares at most once a second.
    pub(super) fn check_lately(&self) -> Result<()> {
        let age_ms = self.age_ms().saturating_sub(self.compared_at_ms.load(Ordering::Relaxed));
        if u128::from(age_ms) >= COMPARED_FOR.as_millis() { self.check() } else { self.refusal(|_| true) }
    }

    /// Before a read: a damaged file may be read, a file that is no longer at its path may not.
    pub(super) fn check_for_read(&self) -> Result<()> {
        match self.check_lately() {
            Ok(()) => Ok(()),
            Err(_) => self.refusal(|failed| failed.reads),
        }
    }

    fn refusal(&self, refuses: impl Fn(&Failed) -> bool) -> Result<()> {
        if !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failed = self.failed.lock().expect("no panic while held");
        failed.as_ref().filter(|failed| refuses(failed)).map_or(Ok(()), |failed| Err(failed.error.copy()))
    }

    /// Records an error that SQLite returned to any connection of this store.
    pub(super) fn note(&self, error: &rusqlite::Error) {
        if is_damage(error) {
            let text = format!(
                "the database is damaged, nothing more is written to it: {}: {error}; stop all processes, see `headwater \
                 doctor`, and restore a backup or recover the file with `sqlite3 file .recover`",
                self.name
            );
            self.fail(Error::new(ErrorKind::NotAStore, text), false);
        }
    }

    /// Fails the store permanently; the first reason stays.
    pub(super) fn fail(&self, error: Error, reads: bool) {
        let mut failed = self.failed.lock().expect("no panic while held");
        if failed.is_none() {
            tracing::error!(location = self.name, %error, "store failed, nothing more is acknowledged");
            *failed = Some(Failed { error, reads });
            self.has_failed.store(true, Ordering::Release);
        }
    }

    /// Records that a sync failed. The marker informs processes that open the file before the log is complete again:
    /// the kernel reports the failure only to descriptors that were open at the time.
    pub(super) fn sync_failed(&self, error: &dyn fmt::Display) {
        if self.files.is_empty() {
            return;
        }
        if !self.unsynced.swap(true, Ordering::AcqRel) {
            tracing::error!(location = self.name, %error, "sync failed, nothing acknowledged until the log is repaired");
        }
        // Written each time: another process may have removed it after its own rewrite.
        if let Err(error) = self.mark() {
            tracing::warn!(location = self.name, %error, "marker of a failed sync not written");
        }
    }

    /// Records that a checkpoint failed. Its sync of the file may have lost pages of earlier checkpoints, which
    /// SQLite counts as copied.
    pub(super) fn checkpoint_failed(&self, error: &rusqlite::Error) {
        self.file_unsynced.store(true, Ordering::Release);
        self.sync_failed(error);
    }

    /// Whether pages that count as copied may be missing in the file. The marker is read again: the failure may be
    /// that of another process.
    pub(super) fn is_file_unsynced(&self) -> bool {
        if let Some(path) = self.marker()
            && std::fs::read_to_string(path).is_ok_and(|content| content == OF_FILE)
        {
            self.file_unsynced.store(true, Ordering::Release);
        }
        self.file_unsynced.load(Ordering::Acquire)
    }

    /// Writes the marker. A failed sync of the log does not overwrite the marker of a failed checkpoint.
    fn mark(&self) -> std::io::Result<()> {
        let Some(path) = self.marker() else { return Ok(()) };
        if self.file_unsynced.load(Ordering::Acquire) {
            return std::fs::write(path, OF_FILE);
        }
        match std::fs::File::create_new(path) {
            Ok(mut marker) => marker.write_all(OF_LOG.as_bytes()),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a sync has failed since the log was last complete.
    pub(super) fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Acquire)
    }

    /// Records that the log on the disk is complete, and that no page counts as copied that may be missing in the
    /// file.
    pub(super) fn synced(&self) {
        self.file_unsynced.store(false, Ordering::Release);
        self.unsynced.store(false, Ordering::Release);
        if let Some(path) = self.marker()
            && let Err(error) = std::fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(location = self.name, %error, "marker of a failed sync not removed");
        }
        tracing::warn!(location = self.name, "log rewritten and synced after a failed sync");
    }

    /// The write-ahead log; `None` in memory.
    pub(super) fn log(&self) -> Option<&Path> {
        self.files.get(1).map(|(path, _)| path.as_path())
    }

    /// The file that the path leads to: every process that has it open finds the same files beside it, whichever
    /// symbolic link it used. `None` in memory.
    pub(super) fn resolved(&self) -> Option<&Path> {
        self.resolved.as_deref()
    }

    fn marker(&self) -> Option<PathBuf> {
        self.log()?;
        self.resolved().map(|path| beside(path, MARKER))
    }

    /// Whether the log may be copied into the file: not while frames of it may be missing on the disk. A power cut
    /// would then leave a file with pages that are newer than the log that is replayed over them.
    pub(super) fn may_checkpoint(&self) -> bool {
        !self.is_unsynced() && self.check_lately().is_ok()
    }

    /// Closes a connection. If the files are not trusted, SQLite neither copies the log nor removes files by name.
    ///
    /// One at a time: the last connection removes the log, and of two that close at the same moment each finds the other one open.
    pub(super) fn close(&self, connection: Connection) {
        let _one = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let doubtful = self.is_unsynced() || self.check().is_err();
        if let Err(error) = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, doubtful) {
            tracing::warn!(location = self.name, %error, "checkpoint on close not disabled");
        }
        if let Err((_, error)) = connection.close() {
            tracing::warn!(location = self.name, %error, "closing a connection failed");
        }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("name", &self.name)
            .field("unsynced", &self.unsynced)
            .finish_non_exhaustive()
    }
}

/// Disables the checkpoint on close for a connection to a file with the marker, also if opening the store fails
/// before it has a [`Trust`]; [`Trust::close`] decides again.
pub(super) fn on_open(connection: &Connection) -> rusqlite::Result<()> {
    let marked = connection.path().is_some_and(|path| beside(Path::new(path), MARKER).exists());
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, marked).map(drop)
}

/// A file beside the store's file, with this suffix.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(suffix);
    name.into()
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

fn gone(name: &str, file: &Path, error: &std::io::Error) -> Error {
    let text = format!("a file of the store is gone while it is opened: {name}: {}: {error}", file.display());
    Error::new(ErrorKind::Unavailable, text)
}

fn replaced(name: &str, path: &Path, why: &str) -> Error {
    let text = format!(
        "the store's file was deleted, moved or replaced while open: {name}: {}: {why}; this process has another \
         file open than others find there: put the file back or restore a backup, and open the store again",
        path.display()
    );
    Error::new(ErrorKind::NotAStore, text)
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere there is none")]
fn file_id(metadata: &Metadata) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

/// On other systems an open file cannot be removed, or its identity is unknown.
#[cfg(not(unix))]
fn file_id(_: &Metadata) -> Option<FileId> {
    None
}
