//! Errors of SQLite as errors of the pipeline: whether waiting helps, with the file's name.

use std::path::Path;

use rusqlite::ErrorCode as Code;

use crate::error::{Error, ErrorCode};

/// Why a command did not succeed.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// The file is not what it should be.
    Refused(String),
    /// The path leads to another file than the one that is open.
    Replaced,
}

/// What code on a connection returns.
pub(super) type Attempt<T> = Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sqlite(error)
    }
}

impl Fault {
    /// The error for the caller.
    pub(super) fn into_error(self, code: ErrorCode, path: &Path) -> Error {
        let path = path.display();
        match self {
            Fault::Sqlite(error) if is_transient(&error) => {
                Error::transient(code, format!("index {path}: {error}"))
            }
            Fault::Sqlite(error) => Error::permanent(code, format!("index {path}: {error}")),
            Fault::Refused(rule) => Error::permanent(code, format!("index {path}: {rule}")),
            Fault::Replaced => {
                Error::transient(code, format!("index {path}: the file was removed or replaced"))
            }
        }
    }

    /// Whether a statement named a table that does not exist. SQLite has no code of its own for it.
    pub(super) fn is_missing_table(&self) -> bool {
        match self {
            Fault::Sqlite(rusqlite::Error::SqliteFailure(_, Some(said))) => said.starts_with("no such table"),
            Fault::Sqlite(rusqlite::Error::SqlInputError { msg, .. }) => msg.starts_with("no such table"),
            _ => false,
        }
    }
}

/// Whether another connection holds a lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(Code::DatabaseBusy | Code::DatabaseLocked))
}

/// Unreachable, busy or full. A violated constraint, a damaged file or a mistake in a statement does not pass.
fn is_transient(error: &rusqlite::Error) -> bool {
    let passes = matches!(
        error.sqlite_error_code(),
        Some(
            Code::DiskFull
                | Code::CannotOpen
                | Code::SystemIoFailure
                | Code::ReadOnly
                | Code::OutOfMemory
                | Code::FileLockingProtocolFailed
                | Code::SchemaChanged
                | Code::OperationInterrupted
        )
    );
    passes || is_busy(error)
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn error_of(result: i32) -> Error {
        let failure = rusqlite::Error::SqliteFailure(ffi::Error::new(result), None);
        Fault::Sqlite(failure).into_error(ErrorCode::WriteFailed, Path::new("a.index.db"))
    }

    #[test]
    fn waiting_helps_where_the_database_is_unreachable_busy_or_full() {
        for passes in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_FULL,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_READONLY,
        ] {
            assert!(error_of(passes).is_transient(), "{passes}");
        }
        for stays in
            [ffi::SQLITE_CONSTRAINT_CHECK, ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_TOOBIG]
        {
            let error = error_of(stays);
            assert!(!error.is_transient(), "{stays}");
            assert_eq!(error.code(), ErrorCode::WriteFailed);
            assert!(error.to_string().starts_with("index a.index.db: "), "{error}");
        }
    }
}
