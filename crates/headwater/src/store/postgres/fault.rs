//! Translates errors of PostgreSQL into Headwater's.

use deadpool_postgres::TimeoutType;

use super::address::Address;
use crate::error::{Error, ErrorKind, is_retryable};

/// Translates a driver error; `doing` names the operation and its object.
pub(super) fn translate(doing: &str, error: tokio_postgres::Error) -> Error {
    let Some(database) = error.as_db_error() else {
        let kind =
            if error.is_closed() || is_io(&error) { ErrorKind::Unavailable } else { ErrorKind::Database };
        let causes = causes_of(&error);
        let message = match kind {
            ErrorKind::Unavailable => format!("database unavailable while {doing}: {causes}"),
            _ => format!("database driver failed while {doing}: {causes}{}", remedy_for(&causes)),
        };
        return Error::with_source(kind, message, error);
    };
    let said = database.message();
    let deleted = is_deleted_sequence(database.code().code(), said);
    let kind = if is_moved_partition(database.code().code(), database.table(), database.constraint()) {
        ErrorKind::Busy
    } else if deleted {
        // Publishing takes an offset; other statements only read the last one, and find no topic when they are repeated.
        let publishes = doing.starts_with("publishing") || doing.starts_with("firing");
        if publishes { ErrorKind::NoSuchTopic } else { ErrorKind::Busy }
    } else if database.code().code() == "XX000" && said == "cannot assign TransactionIds during recovery" {
        // A standby, where a function reads its transaction's id before it writes. The server never localizes this text.
        ErrorKind::ReadOnly
    } else {
        kind_of_code(database.code().code())
    };
    let message = match kind {
        ErrorKind::NoSuchTopic if deleted => {
            format!("no such topic while {doing}: it was deleted at this moment; nothing was written")
        }
        ErrorKind::NoSuchTopic => {
            return Error::no_such_topic(said.strip_prefix("no such topic: ").unwrap_or(said));
        }
        ErrorKind::NoSubscriptions => {
            return Error::no_subscriptions(said.strip_prefix("no subscriptions: ").unwrap_or(said));
        }
        // The functions of the schema raise these texts themselves, with the field and the rule.
        ErrorKind::InvalidInput
        | ErrorKind::PayloadTooLarge
        | ErrorKind::NoSuchSubscription
        | ErrorKind::NoSuchProcess
        | ErrorKind::InvalidTransition
        | ErrorKind::Conflict => said.to_owned(),
        ErrorKind::SchemaOutdated => {
            format!(
                "schema missing or of another version while {doing}: {said}; run `headwater migrate`, or upgrade this program if \
                 a newer one migrated it"
            )
        }
        ErrorKind::StorageFull => format!("storage full while {doing}: {said}; nothing was written"),
        ErrorKind::ReadOnly => format!("database is read-only while {doing}: {said}; nothing was written"),
        ErrorKind::PermissionDenied => format!("permission denied while {doing}: {said}"),
        ErrorKind::Busy => format!("database busy while {doing}: {said}; try again"),
        ErrorKind::Unavailable => format!("database unavailable while {doing}: {said}"),
        _ => format!("database error while {doing}: {said} ({})", database.code().code()),
    };
    Error::with_source(kind, message, error)
}

/// The driver's error with all its causes: it names only the step that failed, and the cause is what a person needs.
pub(super) fn causes_of(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let said = error.to_string();
        // Some causes repeat the text of their own cause.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

/// Undefined schema, table, function.
pub(super) fn is_missing(code: &str) -> bool {
    matches!(code, "3F000" | "42P01" | "42883")
}

/// What to do about an error that the driver raises by itself.
fn remedy_for(causes: &str) -> &'static str {
    match causes {
        text if text.ends_with("password missing") => {
            "; the server requires a password: postgres://USER:PASSWORD@HOST/DATABASE"
        }
        text if text.ends_with("server does not support TLS") => {
            "; enable TLS in the server, or use sslmode=prefer or sslmode=disable"
        }
        _ => "",
    }
}

/// Like [`translate`] for a statement that commits: if the connection broke meanwhile, the outcome is unknown.
pub(super) fn translate_commit(doing: &str, error: tokio_postgres::Error) -> Error {
    let error = translate(doing, error);
    if error.kind() != ErrorKind::Unavailable {
        return error;
    }
    unknown(doing, &error.to_string())
}

/// A commit whose outcome is unknown.
pub(super) fn unknown(doing: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::CommitUnknown,
        format!(
            "outcome unknown while {doing}: {why}; it may have been committed: repeat it only with a dedup key"
        ),
    )
}

/// Translates an error of the pool when no connection is available.
pub(super) fn translate_pool(to: &Address, error: deadpool_postgres::PoolError) -> Error {
    match error {
        deadpool_postgres::PoolError::Backend(error) => translate(&format!("connecting to {to}"), error),
        deadpool_postgres::PoolError::Timeout(TimeoutType::Create) => Error::new(
            ErrorKind::Unavailable,
            format!("database unavailable while connecting to {to}: no server answered in time"),
        ),
        deadpool_postgres::PoolError::Timeout(_) => Error::new(
            ErrorKind::Unavailable,
            "no connection became free in time; raise connections_max or try again",
        ),
        deadpool_postgres::PoolError::Closed => Error::new(ErrorKind::Closed, "store closed"),
        other => Error::new(ErrorKind::Unavailable, format!("no connection: {other}")),
    }
}

/// Whether another attempt may succeed: the server is unreachable, busy, starting, or a standby that may be promoted.
pub(super) fn may_pass(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(database) => is_retryable(kind_of_code(database.code().code())),
        None => error.is_closed() || is_io(error),
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    // The driver reports a refused or lost connection without always keeping the cause.
    error.to_string().starts_with("error connecting") || error.to_string().starts_with("error communicating")
}

/// Whether a row was routed to a partition of the log, and another partition was attached for its offset while the
/// statement ran: nothing was written, and repeating the statement succeeds. Distinguished from a table's check constraint
/// by the missing constraint name, in any language of the server.
pub(super) fn is_moved_partition(code: &str, table: Option<&str>, constraint: Option<&str>) -> bool {
    code == "23514" && constraint.is_none() && table.is_some_and(|table| table.starts_with("message"))
}

/// Whether a statement needed the sequence of a topic that was deleted after the statement had found the topic: it is at its
/// maximum, or dropped (see `schema/functions/topic_delete.sql`). The server never localizes the second text.
fn is_deleted_sequence(code: &str, said: &str) -> bool {
    code == "2200H" || code == "XX000" && said.starts_with("could not open relation with OID")
}

/// Whether a statement was refused because the clock stepped.
pub(super) fn is_step(error: &Error) -> bool {
    code_is(error, &["HW009"])
}

/// Whether the server answered with one of these SQLSTATEs.
pub(super) fn code_is(error: &Error, codes: &[&str]) -> bool {
    let source = std::error::Error::source(error);
    let driver = source.and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    driver.and_then(tokio_postgres::Error::code).is_some_and(|code| codes.contains(&code.code()))
}

/// The kind behind an SQLSTATE; `HW…` are raised by the functions of the schema.
pub(super) fn kind_of_code(code: &str) -> ErrorKind {
    match code {
        "HW001" => ErrorKind::NoSuchTopic,
        "HW002" => ErrorKind::PayloadTooLarge,
        "HW003" => ErrorKind::InvalidInput,
        "HW005" => ErrorKind::NoSuchSubscription,
        "HW006" => ErrorKind::NoSubscriptions,
        "HW007" => ErrorKind::InvalidTransition,
        "HW008" => ErrorKind::Conflict,
        // disk_full, and io_error, which a file system returns for an exceeded quota or a full disk.
        "53100" | "58030" => ErrorKind::StorageFull,
        "25006" => ErrorKind::ReadOnly,
        "42501" => ErrorKind::PermissionDenied,
        code if is_missing(code) => ErrorKind::SchemaOutdated,
        // serialization failure, deadlock, lock not available, cancelled by a timeout.
        "40001" | "40P01" | "55P03" | "57014" => ErrorKind::Busy,
        // The clock stepped: see clock.rs.
        "HW009" => ErrorKind::Busy,
        "HW010" => ErrorKind::NoSuchProcess,
        // too many connections, out of memory, configured limit.
        "53300" | "53200" | "53400" => ErrorKind::Busy,
        // shutting down, crashed, starting up.
        "57P01" | "57P02" | "57P03" | "57P05" => ErrorKind::Unavailable,
        other if other.starts_with("08") => ErrorKind::Unavailable,
        other if other.starts_with("28") => ErrorKind::PermissionDenied,
        _ => ErrorKind::Database,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failover_answers_is_worth_another_attempt() {
        // Shut down by an administrator, by a crash, not up yet, idle too long; lost and refused connections; a standby.
        for code in ["57P01", "57P02", "57P03", "57P05", "08000", "08001", "08003", "08006", "25006"] {
            assert!(is_retryable(kind_of_code(code)), "{code}");
        }
        for code in ["28P01", "3D000", "42501", "42P01", "HW001"] {
            assert!(!is_retryable(kind_of_code(code)), "{code}");
        }
    }
}
