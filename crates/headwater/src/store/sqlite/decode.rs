//! Reading stored values back. Values written by plain SQL must not make a row unreadable: text that is not UTF-8 is
//! read with question marks, headers that are not strings are read as their JSON, and a damaged header affects no
//! other.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Row, Statement};
use serde::de::value::{Error as ValueError, StringDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use uuid::Uuid;

use crate::error::Result;
use crate::message::Headers;

/// A 16-byte blob.
pub(super) fn uuid(row: &Row<'_>, at: usize) -> rusqlite::Result<Uuid> {
    let bytes = row.get_ref(at)?.as_blob().map_err(|error| unreadable(at, error))?;
    Uuid::from_slice(bytes).map_err(|error| unreadable(at, error))
}

/// A payload's bytes, borrowed from SQLite.
pub(super) fn blob<'r>(row: &'r Row<'_>, at: usize) -> rusqlite::Result<&'r [u8]> {
    Ok(match row.get_ref(at)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes,
        _ => &[],
    })
}

/// Text; `None` for NULL.
pub(super) fn text(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(at)? {
        ValueRef::Text(bytes) => Some(readable(bytes).into_owned()),
        _ => None,
    })
}

/// A name. A name that is not UTF-8 stops neither a list nor maintenance; `doctor` finds it.
pub(super) fn name(row: &Row<'_>, at: usize) -> rusqlite::Result<String> {
    Ok(text(row, at)?.unwrap_or_default())
}

/// Text in which bytes that are not UTF-8 are question marks, so it is never longer than what is stored: a key read
/// back passes the same limits.
pub(super) fn readable(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let chunk = |chunk: std::str::Utf8Chunk<'_>| {
        let invalid = if chunk.invalid().is_empty() { "" } else { "?" };
        [chunk.valid(), invalid].concat()
    };
    bytes.utf8_chunks().map(chunk).collect::<String>().into()
}

/// Headers as stored; none for NULL.
pub(super) fn headers(row: &Row<'_>, at: usize) -> rusqlite::Result<Headers> {
    let ValueRef::Text(bytes) = row.get_ref(at)? else {
        return Ok(Headers::new());
    };
    if let Ok(headers) = serde_json::from_slice(bytes) {
        return Ok(headers);
    }
    let repaired = without_lone_surrogates(&readable(bytes));
    let loose: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(&repaired).unwrap_or_else(|error| {
            tracing::warn!(%error, "stored headers not a JSON object, message read without them");
            BTreeMap::new()
        });
    let text = |value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(loose.into_iter().map(|(name, value)| (name, text(value))).collect())
}

/// Replaces escapes of lone surrogates in JSON by the replacement character. SQLite accepts them; a UTF-8 parser
/// refuses the whole text for one.
fn without_lone_surrogates(json: &str) -> String {
    let unit_at = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut repaired, mut at) = (String::with_capacity(json.len()), 0);
    while let Some(next) = json[at..].find('\\') {
        repaired.push_str(&json[at..at + next]);
        at += next;
        let length = match unit_at(at) {
            Some(0xd800..=0xdbff)
                if unit_at(at + 6).is_some_and(|unit| (0xdc00..=0xdfff).contains(&unit)) =>
            {
                12
            }
            Some(0xd800..=0xdfff) => {
                repaired.push_str("\\ufffd");
                at += 6;
                continue;
            }
            Some(_) => 6,
            // A backslash and the character it escapes, of any width.
            None => 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
        repaired.push_str(&json[at..at + length]);
        at += length;
    }
    repaired.push_str(&json[at..]);
    repaired
}

/// Milliseconds since 1970.
pub(super) fn timestamp(row: &Row<'_>, at: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_millisecond(row.get(at)?).map_err(|error| unreadable(at, error))
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

/// A count.
pub(super) fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or_default())
}

/// Text that is parsed into a type.
pub(super) fn parsed<T>(
    row: &Row<'_>,
    at: usize,
    parse: impl FnOnce(&str) -> Result<T>,
) -> rusqlite::Result<T> {
    let text = readable(row.get_ref(at)?.as_bytes().map_err(|error| unreadable(at, error))?);
    parse(&text).map_err(|error| unreadable(at, error))
}

/// A stored word for a variant of an enum.
pub(super) fn word<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text: String = row.get(at)?;
    let word: StringDeserializer<ValueError> = text.into_deserializer();
    T::deserialize(word).map_err(|error| unreadable(at, error))
}

/// JSON.
pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(at)?.as_bytes().map_err(|error| unreadable(at, error))?;
    serde_json::from_slice(text).map_err(|error| unreadable(at, error))
}

/// Reads all rows of a statement with one function.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_characters_are_replaced_and_nothing_else_is_touched() {
        for (json, repaired) in [
            (r#"{"a":"\ud800","b":"x"}"#, r#"{"a":"\ufffd","b":"x"}"#),
            (r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\ud83d\ude00"}"#),
            (r#"{"a":"\ude00\ud83d"}"#, r#"{"a":"\ufffd\ufffd"}"#),
            (r#"{"a":"\\ud800 \n \ü"}"#, r#"{"a":"\\ud800 \n \ü"}"#),
            (r#"{"a":"\ud83d\u0041"}"#, r#"{"a":"\ufffd\u0041"}"#),
            (r"\ud8", r"\ud8"),
            ("\\", "\\"),
        ] {
            assert_eq!(without_lone_surrogates(json), repaired);
        }
    }

    #[test]
    fn text_that_is_not_utf8_grows_no_longer() {
        assert_eq!(readable(&[0xff; 100]), "?".repeat(100));
        assert_eq!(readable(b"a\xffb\xe2\x82"), "a?b?");
        assert_eq!(readable("größe".as_bytes()), "größe");
    }
}
