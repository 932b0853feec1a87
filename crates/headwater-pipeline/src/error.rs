//! What goes wrong in a pipeline, by code, and whether waiting helps.

use std::fmt;

/// The result of most functions here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error: shown in health, logs and metrics under the name of [`ErrorCode::as_str`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorCode {
    /// Storage or index could not be written.
    WriteFailed,
    /// Storage or index could not be read.
    ReadFailed,
    /// Bytes are not what their type says.
    DecodeFailed,
    /// A message has a type that this program does not know.
    UnknownType,
    /// A file has another length, checksum or format than announced.
    DamagedFile,
    /// The schema of the index could not be created.
    SchemaSetupFailed,
    /// Messages could not be claimed.
    ClaimFailed,
    /// An ack failed.
    AckFailed,
    /// A lease had moved on before the ack.
    LeaseLost,
    /// A message was taken from an owner that did not settle it in time.
    StuckReassigned,
    /// A file could not be announced.
    NotifyFailed,
    /// A binding could not be closed.
    CloseFailed,
    /// A setting or argument is refused.
    InvalidConfiguration,
}

impl ErrorCode {
    /// The name in upper case: `WRITE_FAILED`.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::WriteFailed => "WRITE_FAILED",
            ErrorCode::ReadFailed => "READ_FAILED",
            ErrorCode::DecodeFailed => "DECODE_FAILED",
            ErrorCode::UnknownType => "UNKNOWN_TYPE",
            ErrorCode::DamagedFile => "DAMAGED_FILE",
            ErrorCode::SchemaSetupFailed => "SCHEMA_SETUP_FAILED",
            ErrorCode::ClaimFailed => "CLAIM_FAILED",
            ErrorCode::AckFailed => "ACK_FAILED",
            ErrorCode::LeaseLost => "LEASE_LOST",
            ErrorCode::StuckReassigned => "STUCK_REASSIGNED",
            ErrorCode::NotifyFailed => "NOTIFY_FAILED",
            ErrorCode::CloseFailed => "CLOSE_FAILED",
            ErrorCode::InvalidConfiguration => "INVALID_CONFIGURATION",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with its code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    message: String,
    is_transient: bool,
}

impl Error {
    /// Repeating changes nothing: the input is wrong or damaged.
    pub fn permanent(code: ErrorCode, message: impl fmt::Display) -> Self {
        Error { code, message: message.to_string(), is_transient: false }
    }

    /// Something is unreachable, busy or full: waiting helps.
    pub fn transient(code: ErrorCode, message: impl fmt::Display) -> Self {
        Error { code, message: message.to_string(), is_transient: true }
    }

    /// Refused configuration or argument.
    pub fn invalid(message: impl fmt::Display) -> Self {
        Error::permanent(ErrorCode::InvalidConfiguration, message)
    }

    /// An error of a store, under the code of what was done with it. A full disk is waited out too, and so is a commit with an unknown
    /// result: every publish here has a dedup key, and repeated settlements change nothing.
    pub fn from_store(code: ErrorCode, error: &headwater::Error) -> Self {
        use headwater::ErrorKind::{CommitUnknown, StorageFull};
        let is_transient = error.is_retryable() || matches!(error.kind(), CommitUnknown | StorageFull);
        Error { code, message: error.to_string(), is_transient }
    }

    /// What kind of error it is.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// Whether the same call may succeed later: such errors are waited out and cost no attempt.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }
}
