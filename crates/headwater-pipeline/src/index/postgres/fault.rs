//! Errors of PostgreSQL as errors of the pipeline: whether waiting helps, with the schema's name.

use std::error::Error as _;

use deadpool_postgres::PoolError;

use crate::error::{Error, ErrorCode};

/// An error of the driver.
pub(super) fn translate(code: ErrorCode, schema: &str, error: &tokio_postgres::Error) -> Error {
    let said = causes_of(error);
    let text = format!("index {schema}: {said}");
    let passes = match error.as_db_error() {
        // A row without a partition has no constraint's name: the partition was dropped, and the next attempt creates it.
        Some(database) => is_transient(code, database.code().code(), database.constraint().is_some()),
        // Without an answer of the server, the connection is the problem, unless the program used the driver wrongly.
        None => is_lost(error),
    };
    if passes { Error::transient(code, text) } else { Error::permanent(code, text) }
}

/// An error of the pool.
pub(super) fn translate_pool(code: ErrorCode, schema: &str, error: &PoolError) -> Error {
    match error {
        PoolError::Backend(error) => translate(code, schema, error),
        // Not permanent: a batch is not given up because its service ends.
        PoolError::Closed => Error::transient(code, format!("index {schema}: closed")),
        PoolError::Timeout(_) => Error::transient(
            code,
            format!("index {schema}: no connection in time; raise connections_max or try again"),
        ),
        other => Error::transient(code, format!("index {schema}: {other}")),
    }
}

/// No answer within the limit: the outcome is unknown, and repeating changes nothing.
pub(super) fn late(code: ErrorCode, schema: &str) -> Error {
    Error::transient(code, format!("index {schema}: no answer in time"))
}

/// Whether a statement named a schema or table that does not exist.
pub(super) fn is_missing_table(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "3F000" | "42P01"))
}

/// Whether the same call may succeed later.
///
/// A batch that fails for good is given up after a few attempts. So a write fails for good only if its content is at fault, never because
/// of a missing right, table or disk: a person repairs that, and the batch is then written.
fn is_transient(code: ErrorCode, state: &str, has_constraint: bool) -> bool {
    let is_in = |classes: &[&str]| classes.iter().any(|class| state.starts_with(class));
    if code == ErrorCode::WriteFailed {
        // Cardinality, data, integrity constraints, program limits.
        return !is_in(&["21", "22", "23", "54"]) || state == "23514" && !has_constraint;
    }
    // Connection, insufficient resources, operator intervention, serialization and deadlock; a standby, a failed disk, a lock.
    is_in(&["08", "53", "57", "40"]) || matches!(state, "25006" | "58030" | "55P03")
}

fn is_lost(error: &tokio_postgres::Error) -> bool {
    if error.is_closed() {
        return true;
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    let said = error.to_string();
    // The driver does not always keep the cause.
    said.starts_with("error connecting") || said.starts_with("error communicating")
}

/// The driver names only the step that failed; the cause is what a person needs.
fn causes_of(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_helps_where_the_database_is_unreachable_busy_or_full() {
        for code in [ErrorCode::WriteFailed, ErrorCode::ReadFailed, ErrorCode::SchemaSetupFailed] {
            for passes in ["08006", "53100", "53300", "57P01", "57P03", "40001", "40P01", "25006", "57014"] {
                assert!(is_transient(code, passes, false), "{passes}");
            }
            for stays in ["23514", "23505", "22001", "21000", "54000"] {
                assert!(!is_transient(code, stays, true), "{stays}");
            }
        }
    }

    #[test]
    fn a_missing_right_or_table_is_no_fault_of_a_batch() {
        for state in ["28P01", "42501", "42P01", "3F000", "XX001"] {
            assert!(is_transient(ErrorCode::WriteFailed, state, false), "{state}");
            assert!(!is_transient(ErrorCode::SchemaSetupFailed, state, false), "{state}");
        }
        assert!(is_transient(ErrorCode::WriteFailed, "23514", false), "no partition");
    }
}
