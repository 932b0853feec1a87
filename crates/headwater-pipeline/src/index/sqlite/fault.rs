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
        let (passes, said) = match self {
            Fault::Sqlite(error) => (is_transient(code, &error), error.to_string()),
            Fault::Refused(rule) => (code == ErrorCode::WriteFailed, rule),
            Fault::Replaced => (true, "the file was removed or replaced".to_owned()),
        };
        let text = format!("index {}: {said}", path.display());
        if passes { Error::transient(code, text) } else { Error::permanent(code, text) }
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

/// Whether the same call may succeed later.
///
/// A batch that fails for good is given up after a few attempts. So a write fails for good only if its content is at fault, never because
/// the file is damaged, missing or not writable: a person repairs that, and the batch is then written.
fn is_transient(code: ErrorCode, error: &rusqlite::Error) -> bool {
    let known = error.sqlite_error_code();
    if code == ErrorCode::WriteFailed {
        let content =
            [Code::ConstraintViolation, Code::TooBig, Code::TypeMismatch, Code::ParameterOutOfRange];
        return !known.is_some_and(|known| content.contains(&known));
    }
    let passes = matches!(
        known,
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

    fn error_of(code: ErrorCode, result: i32) -> Error {
        let failure = rusqlite::Error::SqliteFailure(ffi::Error::new(result), None);
        Fault::Sqlite(failure).into_error(code, Path::new("a.index.db"))
    }

    #[test]
    fn waiting_helps_where_the_database_is_unreachable_busy_or_full() {
        for code in [ErrorCode::WriteFailed, ErrorCode::ReadFailed, ErrorCode::SchemaSetupFailed] {
            for passes in [
                ffi::SQLITE_BUSY,
                ffi::SQLITE_LOCKED,
                ffi::SQLITE_FULL,
                ffi::SQLITE_CANTOPEN,
                ffi::SQLITE_IOERR_FSYNC,
                ffi::SQLITE_READONLY,
            ] {
                assert!(error_of(code, passes).is_transient(), "{passes}");
            }
            for stays in [ffi::SQLITE_CONSTRAINT_CHECK, ffi::SQLITE_TOOBIG] {
                let error = error_of(code, stays);
                assert!(!error.is_transient(), "{stays}");
                assert_eq!(error.code(), code);
                assert!(error.to_string().starts_with("index a.index.db: "), "{error}");
            }
        }
    }

    #[test]
    fn a_damaged_file_is_no_fault_of_a_batch() {
        for damage in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB] {
            assert!(error_of(ErrorCode::WriteFailed, damage).is_transient());
            assert!(!error_of(ErrorCode::SchemaSetupFailed, damage).is_transient());
            assert!(!error_of(ErrorCode::ReadFailed, damage).is_transient());
        }
    }
}
