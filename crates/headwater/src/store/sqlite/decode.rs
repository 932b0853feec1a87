//! Reading stored values back. What plain SQL may have put there must not make a row unreadable: text that is not
//! UTF-8 is read with replacement characters, and headers that are not strings as their JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Row, Statement};
use uuid::Uuid;

use crate::error::Result;
use crate::message::Headers;

/// A 16-byte blob.
pub(super) fn uuid(row: &Row<'_>, at: usize) -> rusqlite::Result<Uuid> {
    let bytes = row.get_ref(at)?.as_blob().map_err(|error| unreadable(at, error))?;
    Uuid::from_slice(bytes).map_err(|error| unreadable(at, error))
}

/// A payload's bytes, still SQLite's.
pub(super) fn blob<'r>(row: &'r Row<'_>, at: usize) -> rusqlite::Result<&'r [u8]> {
    Ok(match row.get_ref(at)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes,
        _ => &[],
    })
}

/// Text, or NULL.
pub(super) fn text(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(at)? {
        ValueRef::Text(bytes) => Some(match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => String::from_utf8_lossy(bytes).into_owned(),
        }),
        _ => None,
    })
}

/// Headers as stored, or NULL.
pub(super) fn headers(row: &Row<'_>, at: usize) -> rusqlite::Result<Headers> {
    let ValueRef::Text(bytes) = row.get_ref(at)? else {
        return Ok(Headers::new());
    };
    if let Ok(headers) = serde_json::from_slice(bytes) {
        return Ok(headers);
    }
    let loose: BTreeMap<String, serde_json::Value> = serde_json::from_slice(bytes).unwrap_or_default();
    Ok(loose.into_iter().map(|(name, value)| (name, value.to_string())).collect())
}

/// Milliseconds since 1970.
pub(super) fn timestamp(row: &Row<'_>, at: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_millisecond(row.get(at)?).map_err(|error| unreadable(at, error))
}

/// Milliseconds of time.
pub(super) fn duration(row: &Row<'_>, at: usize) -> rusqlite::Result<Duration> {
    let millis: i64 = row.get(at)?;
    Ok(Duration::from_millis(u64::try_from(millis).unwrap_or_default()))
}

/// Milliseconds since 1970, or NULL.
pub(super) fn optional_timestamp(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Timestamp>> {
    let millis: Option<i64> = row.get(at)?;
    millis.map(Timestamp::from_millisecond).transpose().map_err(|error| unreadable(at, error))
}

/// Milliseconds of time, or NULL.
pub(super) fn optional_duration(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Duration>> {
    let millis: Option<i64> = row.get(at)?;
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or_default())))
}

/// How many.
pub(super) fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or_default())
}

/// Text with a meaning.
pub(super) fn parsed<T>(
    row: &Row<'_>,
    at: usize,
    parse: impl FnOnce(&str) -> Result<T>,
) -> rusqlite::Result<T> {
    let text = row.get_ref(at)?.as_str().map_err(|error| unreadable(at, error))?;
    parse(text).map_err(|error| unreadable(at, error))
}

/// All rows of a statement through one function.
pub(super) fn all<T>(
    statement: &mut Statement<'_>,
    parameters: impl rusqlite::Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    statement.query_map(parameters, read)?.collect()
}

fn unreadable(at: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Blob, Box::new(error))
}
