//! What can end a command inside the engine, and how SQLite's errors are returned to the caller.

use std::path::Path;
use std::sync::Arc;

use rusqlite::ErrorCode;

use super::holder;
use crate::error::{Error, ErrorKind};

/// Why a command did not succeed.
#[derive(Debug)]
pub(super) enum Fault {
    /// A rule of Headwater refuses the command. Code that returns this has written nothing, or runs in a savepoint.
    Refused(Error),
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// The command makes something durable, but this transaction does not wait for the disk: run it again in one that
    /// does.
    NeedsSync,
}

/// What code inside a transaction returns.
pub(super) type Attempt<T> = Result<T, Fault>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Refused(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sqlite(error)
    }
}

impl Fault {
    /// Passes SQLite's error to `see`, if there is one.
    pub(super) fn inspect(&self, see: impl FnOnce(&rusqlite::Error)) {
        if let Fault::Sqlite(error) = self {
            see(error);
        }
    }

    /// The error for the caller; `location` is the file.
    pub(super) fn into_error(self, location: &str) -> Error {
        match self {
            Fault::Refused(error) => error,
            Fault::Sqlite(error) => sqlite_error(location, error),
            Fault::NeedsSync => Error::new(
                ErrorKind::Database,
                format!("a command requested a synced transaction twice: {location}"),
            ),
        }
    }
}

/// SQLite's error as Headwater's, with the file's name in it.
pub(super) fn sqlite_error(location: &str, error: rusqlite::Error) -> Error {
    shared_error(location, &Arc::new(error))
}

/// The same for an error that several commands share: the COMMIT that they all waited for failed.
pub(super) fn shared_error(location: &str, error: &Arc<rusqlite::Error>) -> Error {
    let (kind, what) = classify(error);
    let holder = (kind == ErrorKind::Busy).then(|| holder::of_write_lock(Path::new(location))).flatten();
    let what = match holder {
        Some(holder) => format!("database busy, {holder} holds its write lock"),
        None => what.to_owned(),
    };
    // SQLite names the file itself when it cannot open it.
    let said = error.to_string();
    let said = said.strip_suffix(&format!(": {location}")).unwrap_or(&said);
    Error::with_source(kind, format!("{what}: {location}: {said}"), Arc::clone(error))
}

/// The error of a COMMIT. After a failed fsync it is unknown whether the commit is on the disk.
pub(super) fn commit_error(location: &str, error: &Arc<rusqlite::Error>) -> Error {
    if is_unknown_commit(error) {
        let message =
            format!("the disk failed while committing, it may or may not be stored: {location}: {error}");
        return Error::with_source(ErrorKind::CommitUnknown, message, Arc::clone(error));
    }
    shared_error(location, error)
}

/// Whether a failed COMMIT may still turn out to be stored.
pub(super) fn is_unknown_commit(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::SystemIoFailure))
}

/// Whether another connection holds a lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether SQLite reports that the file is damaged.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn classify(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Busy, "database busy, another connection holds its lock")
        }
        Some(ErrorCode::DiskFull) => (ErrorKind::StorageFull, "no space left for the database"),
        Some(ErrorCode::ReadOnly) => (ErrorKind::ReadOnly, "the database cannot be written"),
        Some(ErrorCode::DatabaseCorrupt) => (ErrorKind::NotAStore, "the database is damaged"),
        Some(ErrorCode::NotADatabase) => (ErrorKind::NotAStore, "not an SQLite database"),
        Some(ErrorCode::CannotOpen) => (ErrorKind::Unavailable, "cannot open the database"),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Unavailable, "the disk failed"),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (ErrorKind::PermissionDenied, "permission denied")
        }
        Some(ErrorCode::TooBig) => (ErrorKind::InvalidInput, "larger than SQLite can store"),
        _ => (ErrorKind::Database, "database error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn sqlite_errors_become_kinds_a_caller_can_act_on() {
        for (code, kind) in [
            (ffi::SQLITE_BUSY, ErrorKind::Busy),
            (ffi::SQLITE_LOCKED, ErrorKind::Busy),
            (ffi::SQLITE_FULL, ErrorKind::StorageFull),
            (ffi::SQLITE_READONLY, ErrorKind::ReadOnly),
            (ffi::SQLITE_CORRUPT, ErrorKind::NotAStore),
            (ffi::SQLITE_NOTADB, ErrorKind::NotAStore),
            (ffi::SQLITE_CANTOPEN, ErrorKind::Unavailable),
            (ffi::SQLITE_IOERR_READ, ErrorKind::Unavailable),
            (ffi::SQLITE_ERROR, ErrorKind::Database),
        ] {
            let error = sqlite_error("/x.db", rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.to_string().contains("/x.db"), "{error}");
            assert!(std::error::Error::source(&error).is_some());
        }
    }

    #[test]
    fn a_commit_whose_fsync_failed_is_unknown() {
        let failed = ffi::Error::new(ffi::SQLITE_IOERR_FSYNC);
        let error = Arc::new(rusqlite::Error::SqliteFailure(failed, None));
        assert_eq!(commit_error("/x.db", &error).kind(), ErrorKind::CommitUnknown);
    }
}
