//! The properties of an AMQP message: what a record is besides its payload.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::KEY_HEADER;
use crate::sink::Record;

/// The message survives a restart of the broker, in a queue that does.
const PERSISTENT: u8 = 2;

/// The properties of a record, or why AMQP has none like them.
pub(super) fn properties(record: &Record) -> Result<BasicProperties, String> {
    let mut table = FieldTable::default();
    let mut insert = |name: &str, value: &str| -> Result<(), String> {
        let name =
            ShortString::try_new(name).map_err(|error| format!("header name does not fit AMQP: {error}"))?;
        table.insert(name, AMQPValue::LongString(LongString::from(value)));
        Ok(())
    };
    for (name, value) in &record.headers {
        insert(name, value)?;
    }
    if let Some(key) = &record.key {
        insert(KEY_HEADER, key)?;
    }
    let short = |field: &str, value: &str| {
        ShortString::try_new(value).map_err(|error| format!("{field} does not fit AMQP: {error}"))
    };
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("message id", &record.message_id)?)
        .with_timestamp(u64::try_from(record.created_at.as_second()).unwrap_or(0))
        .with_headers(table);
    if let Some(message_type) = &record.message_type {
        properties = properties.with_type(short("type", message_type)?);
    }
    if let Some(content_type) = &record.content_type {
        properties = properties.with_content_type(short("content type", content_type)?);
    }
    if let Some(id) = &record.correlation_id {
        properties = properties.with_correlation_id(short("correlation id", id)?);
    }
    Ok(properties)
}

/// At most how many bytes the properties of a record take in their frame.
pub(super) fn header_bytes(record: &Record) -> usize {
    // The frame around them, class, weight, size, flags, timestamp, delivery mode and the length of the table; then each short string with a byte of
    // length, and each header with its type and length.
    const FIXED: usize = 64;
    let key = record.key.as_ref().map_or(0, |key| KEY_HEADER.len() + key.len() + 6);
    let short = |value: &Option<String>| value.as_ref().map_or(0, |value| value.len() + 1);
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    FIXED
        + key
        + headers
        + record.message_id.len()
        + short(&record.message_type)
        + short(&record.content_type)
        + short(&record.correlation_id)
}
