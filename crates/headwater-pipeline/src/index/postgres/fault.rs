//! Errors of PostgreSQL as errors of the pipeline: whether waiting helps, with the schema's name.

use std::error::Error as _;

use deadpool_postgres::PoolError;

use crate::error::{Error, ErrorCode};

/// An error of the driver.
pub(super) fn translate(code: ErrorCode, schema: &str, error: &tokio_postgres::Error) -> Error {
    let said = causes_of(error);
    let text = format!("index {schema}: {said}");
    let passes = match error.as_db_error() {
        Some(database) => {
            let refused = database.code().code();
            let has_no_partition = refused == "23514" && database.constraint().is_none();
            // A partition that was dropped is created again by the next attempt.
            is_transient(refused)
                || has_no_partition
                || code != ErrorCode::SchemaSetupFailed && is_right(refused)
        }
        // Without an answer of the server, the connection is the problem, unless the program used the driver wrongly.
        None => is_lost(error),
    };
    if passes { Error::transient(code, text) } else { Error::permanent(code, text) }
}

/// An error of the pool.
pub(super) fn translate_pool(code: ErrorCode, schema: &str, error: &PoolError) -> Error {
    match error {
        PoolError::Backend(error) => translate(code, schema, error),
        PoolError::Closed => Error::permanent(code, format!("index {schema}: closed")),
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

/// Unreachable, busy or full. A violated constraint or a mistake in a statement does not pass.
fn is_transient(code: &str) -> bool {
    match code {
        // A standby or a server in recovery; a failed disk; cancelled by a timeout or an operator; lock not available.
        "25006" | "58030" | "57014" | "55P03" => true,
        // Connection, insufficient resources, operator intervention, serialization and deadlock.
        code => ["08", "53", "57", "40"].iter().any(|class| code.starts_with(class)),
    }
}

/// A wrong password or a missing right. A person must act, and no tick must be given up meanwhile; a service that cannot even create its
/// schema reports it at once.
fn is_right(code: &str) -> bool {
    code == "42501" || code.starts_with("28")
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
        for passes in ["08006", "53100", "53300", "57P01", "57P03", "40001", "40P01", "25006", "57014"] {
            assert!(is_transient(passes), "{passes}");
        }
        for stays in ["23514", "23505", "22001", "42P01", "42501", "21000", "XX001"] {
            assert!(!is_transient(stays), "{stays}");
        }
        assert!(is_right("28P01") && is_right("42501") && !is_right("42P01"));
    }
}
