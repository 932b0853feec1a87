//! A record of the relay as a record of Kafka.

use bytes::Bytes;
use headwater::Message;
use rdkafka::message::{Header, OwnedHeaders};

use crate::sink::Record;

/// The header with the message id, which the receiver's inbox removes duplicates by.
pub const MESSAGE_ID_HEADER: &str = "headwater-message-id";
/// The header with the type of a message.
pub const TYPE_HEADER: &str = "headwater-type";
/// The header with the media type of the payload.
pub const CONTENT_TYPE_HEADER: &str = "headwater-content-type";
/// The header with the correlation id.
pub const CORRELATION_ID_HEADER: &str = "headwater-correlation-id";

const OWN_HEADERS: [&str; 4] = [MESSAGE_ID_HEADER, TYPE_HEADER, CONTENT_TYPE_HEADER, CORRELATION_ID_HEADER];

/// The headers of a record: the message's own, and those of this relay. A header of the message with one of these names is left out.
pub(super) fn headers(record: &Record) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len() + OWN_HEADERS.len());
    for (name, value) in &record.headers {
        if !OWN_HEADERS.contains(&name.as_str()) {
            headers = headers.insert(Header { key: name, value: Some(value.as_str()) });
        }
    }
    let own = [
        (MESSAGE_ID_HEADER, Some(&record.message_id)),
        (TYPE_HEADER, record.message_type.as_ref()),
        (CONTENT_TYPE_HEADER, record.content_type.as_ref()),
        (CORRELATION_ID_HEADER, record.correlation_id.as_ref()),
    ];
    for (key, value) in own {
        if let Some(value) = value {
            headers = headers.insert(Header { key, value: Some(value.as_str()) });
        }
    }
    headers
}

/// The record of a message.
pub(super) fn record_of(message: &Message, destination: &str) -> Record {
    Record {
        message_id: message.message_id.to_string(),
        destination: destination.to_owned(),
        key: message.key.clone(),
        message_type: message.message_type.clone(),
        content_type: message.content_type.clone(),
        correlation_id: message.correlation_id.clone(),
        headers: message.headers.clone(),
        payload: Bytes::clone(&message.payload),
        created_at: message.created_at,
    }
}
