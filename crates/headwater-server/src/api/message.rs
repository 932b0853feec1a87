//! Messages in JSON: how they are published, and how they are returned.
//!
//! A payload is any JSON value in `payload`, stored as its text without white space, or any bytes in `payload_base64`. It is returned in `payload` if the
//! stored bytes are JSON, else in `payload_base64`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use headwater::consumer::ClaimedMessage;
use headwater::jiff::Timestamp;
use headwater::trace::TraceContext;
use headwater::{Headers, Message, NewMessage, Published};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::problem::Problem;

/// How deep a payload may be nested.
const DEPTH_MAX: usize = 128;

/// A message to publish: exactly one of `payload` and `payload_base64`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"payload": {"id": 7}, "key": "customer-1", "type": "order"}))]
pub(crate) struct MessageBody {
    /// The payload, any JSON value.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload, any bytes.
    #[schema(example = "aGVsbG8=")]
    payload_base64: Option<String>,
    /// Its identity; one is made if it is missing.
    id: Option<Uuid>,
    /// What messages are ordered and routed by.
    #[schema(max_length = 255)]
    key: Option<String>,
    /// The type of the message, for the receiver.
    #[serde(rename = "type")]
    #[schema(max_length = 255)]
    message_type: Option<String>,
    /// The media type of the payload: application/json if it is given in `payload`.
    #[schema(max_length = 255)]
    content_type: Option<String>,
    /// Further data, as strings.
    #[serde(default)]
    headers: Headers,
    /// Links messages of one conversation.
    #[schema(max_length = 255)]
    correlation_id: Option<String>,
    /// A repeat of it within the topic's window is not stored, and returns the first offset.
    #[schema(max_length = 255)]
    dedup_key: Option<String>,
    /// Delivered this much later at the earliest.
    #[schema(minimum = 0, maximum = 31_622_400_000u64)]
    delay_ms: Option<u64>,
    /// Delivered at this time at the earliest.
    deliver_at: Option<Timestamp>,
    /// Skipped if it is not handled within this time.
    #[schema(minimum = 0)]
    expires_in_ms: Option<u64>,
}

/// A field that is there, be it null.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

impl MessageBody {
    /// The message. `dedup_key` is that of the request, for a message without one.
    pub(crate) fn message(
        self,
        dedup_key: Option<String>,
        trace: Option<&TraceContext>,
    ) -> Result<NewMessage, Problem> {
        let (payload, detected) = payload_of(self.payload.as_deref(), self.payload_base64.as_deref())?;
        let mut message = NewMessage::new(payload);
        message.message_id = self.id;
        message.key = self.key;
        message.message_type = self.message_type;
        message.content_type = self.content_type.or(detected);
        message.headers = self.headers;
        message.correlation_id = self.correlation_id;
        message.dedup_key = self.dedup_key.or(dedup_key);
        message.deliver_at = self.deliver_at;
        message.delay = self.delay_ms.map(Duration::from_millis);
        if let Some(expires_in_ms) = self.expires_in_ms {
            message = message.expires_in(Duration::from_millis(expires_in_ms));
        }
        if let Some(trace) = trace {
            message = message.traced(trace);
        }
        message.validate()?;
        Ok(message)
    }
}

/// The bytes of a payload, and its media type if it is known.
pub(crate) fn payload_of(
    json: Option<&RawValue>,
    base64: Option<&str>,
) -> Result<(Bytes, Option<String>), Problem> {
    match (json, base64) {
        (Some(json), None) => Ok((compact(json.get())?.into(), Some("application/json".into()))),
        (None, Some(text)) => match STANDARD.decode(text) {
            Ok(bytes) => Ok((bytes.into(), None)),
            Err(error) => Err(Problem::invalid("payload_base64", format!("not base64: {error}"))),
        },
        (None, None) => Err(Problem::invalid("payload", "missing; send payload or payload_base64")),
        (Some(_), Some(_)) => {
            Err(Problem::invalid("payload", "payload_base64 is there too; send one of the two"))
        }
    }
}

/// JSON text without white space between its tokens. The text is valid JSON.
fn compact(json: &str) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::with_capacity(json.len());
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in json.bytes() {
        if in_string {
            (in_string, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
        } else {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => continue,
                b'"' => in_string = true,
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                _ => {}
            }
            if depth > DEPTH_MAX {
                return Err(Problem::invalid("payload", format!("nested deeper than {DEPTH_MAX}")));
            }
        }
        bytes.push(byte);
    }
    Ok(bytes)
}

/// What became of a published message.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({"offset": 17, "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "duplicate": false}))]
pub(crate) struct PublishedMessage {
    /// Its number in the topic; null while it is scheduled.
    offset: Option<i64>,
    /// Its identity; of a duplicate, that of the first.
    id: Uuid,
    /// Whether a message with its dedup key was there: then nothing was stored.
    duplicate: bool,
}

impl From<Published> for PublishedMessage {
    fn from(published: Published) -> Self {
        let Published { offset, message_id, duplicate } = published;
        PublishedMessage { offset: offset.map(|offset| offset.0), id: message_id, duplicate }
    }
}

/// A stored message.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "offset": 17, "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59", "key": "customer-1", "type": "order", "payload": {"id": 7},
    "content_type": "application/json", "headers": {}, "correlation_id": null, "published_at": "2026-03-02T09:00:00Z"
}))]
pub(crate) struct StoredMessage<'a> {
    offset: i64,
    id: Uuid,
    key: Option<&'a str>,
    #[serde(rename = "type")]
    message_type: Option<&'a str>,
    /// The payload, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<std::borrow::Cow<'a, RawValue>>,
    /// The payload, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    content_type: Option<&'a str>,
    headers: &'a Headers,
    correlation_id: Option<&'a str>,
    published_at: Timestamp,
}

impl<'a> From<&'a Message> for StoredMessage<'a> {
    fn from(message: &'a Message) -> Self {
        let payload = json_of(&message.payload);
        let payload_base64 = payload.is_none().then(|| STANDARD.encode(&message.payload));
        StoredMessage {
            offset: message.offset.0,
            id: message.message_id,
            key: message.key.as_deref(),
            message_type: message.message_type.as_deref(),
            payload,
            payload_base64,
            content_type: message.content_type.as_deref(),
            headers: &message.headers,
            correlation_id: message.correlation_id.as_deref(),
            published_at: message.created_at,
        }
    }
}

/// A payload as JSON on one line, if it is JSON.
pub(super) fn json_of(payload: &[u8]) -> Option<std::borrow::Cow<'_, RawValue>> {
    let text = std::str::from_utf8(payload).ok()?;
    let json: &RawValue = serde_json::from_str(text).ok()?;
    if !text.contains(['\n', '\r']) {
        return Some(std::borrow::Cow::Borrowed(json));
    }
    // In JSON a line break is only ever between tokens: in a string it is escaped.
    let on_one_line = json.get().replace(['\n', '\r'], " ");
    RawValue::from_string(on_one_line).ok().map(std::borrow::Cow::Owned)
}

/// A message that was handed out.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "receipt": "AdJxQ6", "attempt": 1, "lease_until": "2026-03-02T09:00:30Z", "offset": 17, "id": "0199d8a0-5a3c-7c4e-9b0a-2f6d1c3b4a59",
    "key": "customer-1", "type": "order", "payload": {"id": 7}, "content_type": "application/json", "headers": {}, "correlation_id": null,
    "published_at": "2026-03-02T09:00:00Z"
}))]
pub(crate) struct DeliveredMessage<'a> {
    /// Settles the message, or extends its lease.
    receipt: String,
    /// How often it was handed out, from 1.
    attempt: u32,
    /// When its lease ends.
    lease_until: Timestamp,
    #[serde(flatten)]
    message: StoredMessage<'a>,
}

impl<'a> From<&'a ClaimedMessage> for DeliveredMessage<'a> {
    fn from(claimed: &'a ClaimedMessage) -> Self {
        DeliveredMessage {
            receipt: claimed.ticket.to_string(),
            attempt: claimed.ticket.attempt(),
            lease_until: claimed.lease_until,
            message: StoredMessage::from(&claimed.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<NewMessage, Problem> {
        crate::api::body::parse::<MessageBody>(body.as_bytes())?.message(None, None)
    }

    #[test]
    fn a_json_payload_is_stored_without_white_space_and_otherwise_as_it_is() {
        for (body, stored) in [
            (r#"{"payload": {"a" : [1, 2.50, "x y \" \\" ] } }"#, r#"{"a":[1,2.50,"x y \" \\"]}"#),
            (r#"{"payload": null}"#, "null"),
            (r#"{"payload": "a\nb"}"#, r#""a\nb""#),
            (r#"{"payload": 12345678901234567890123}"#, "12345678901234567890123"),
        ] {
            assert_eq!(read(body).expect("a message").payload, stored, "{body}");
        }
        assert_eq!(read(r#"{"payload_base64":"AP8="}"#).expect("a message").payload, [0u8, 255][..]);
    }

    #[test]
    fn a_body_needs_exactly_one_payload_and_no_unknown_field() {
        for (body, field) in [
            ("{}", "payload"),
            (r#"{"payload":1,"payload_base64":"AA=="}"#, "payload"),
            (r#"{"payload_base64":"?"}"#, "payload_base64"),
            (r#"{"payload":1,"priority":3}"#, "priority"),
            (r#"{"payload":1,"delay_ms":-1}"#, "delay_ms"),
            (r#"{"payload":1,"delay_ms":1,"deliver_at":"2030-01-01T00:00:00Z"}"#, "delay"),
            (r#"{"payload":1,"key":""}"#, "key"),
        ] {
            let problem = read(body).expect_err("refused");
            assert_eq!(
                (problem.field(), problem.status().as_u16()),
                (Some(field), 400),
                "{body}: {}",
                problem.detail()
            );
        }
    }

    #[test]
    fn a_payload_is_nested_to_a_limit() {
        let nested = |depth: usize| format!(r#"{{"payload":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(DEPTH_MAX)).is_ok());
        assert!(read(&nested(DEPTH_MAX + 1)).is_err());
        assert!(read(&nested(200_000)).is_err());
    }

    #[test]
    fn a_payload_that_is_json_is_returned_on_one_line() {
        let json = |payload: &[u8]| json_of(payload).map(|json| json.get().to_owned());
        assert_eq!(json(b"{\"a\":\n1}").as_deref(), Some("{\"a\": 1}"));
        assert_eq!(json(b" 7 ").as_deref(), Some("7"));
        assert_eq!(json(b"hello"), None);
        assert_eq!(json(&[0xff]), None);
        assert_eq!(json(b""), None);
    }
}
