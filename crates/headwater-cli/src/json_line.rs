//! A message as a line of JSON, out and in: what `consume` and `peek` print, `publish --json-lines` takes, to the byte.
//!
//! The payload is in one of two fields. `payload` is text or JSON: with the content type application/json it is the JSON
//! value itself, strings included; without it a string is the text, and any other value is JSON. `payload_hex` is
//! everything else. So each line has one meaning, and a payload comes back as it was, except for white space of JSON: that
//! around the value is dropped, and line breaks between its tokens become spaces.

use anyhow::{Result, bail};
use headwater::{Headers, Message, NewMessage};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const BYTES: &str = "application/octet-stream";

/// A line of output.
#[derive(Serialize)]
struct Printed<'a> {
    offset: i64,
    message_id: Uuid,
    key: Option<&'a str>,
    #[serde(rename = "type")]
    message_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
    content_type: Option<&'a str>,
    headers: &'a Headers,
    correlation_id: Option<&'a str>,
    created_at: Timestamp,
}

/// A line of input. An unknown field is refused: it would be lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default, deserialize_with = "present")]
    payload: Option<Box<RawValue>>,
    payload_hex: Option<String>,
    message_id: Option<Uuid>,
    key: Option<String>,
    #[serde(rename = "type")]
    message_type: Option<String>,
    /// `Some(None)` for null, which is a message without one; it is detected if the field is missing.
    #[serde(default, deserialize_with = "present")]
    content_type: Option<Option<String>>,
    #[serde(default)]
    headers: Headers,
    correlation_id: Option<String>,
    dedup_key: Option<String>,
    deliver_at: Option<Timestamp>,
    /// Of the message that was consumed: the new one gets its own.
    #[serde(rename = "offset")]
    _offset: Option<i64>,
    #[serde(rename = "created_at")]
    _created_at: Option<Timestamp>,
}

/// A field that is there, be it null.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    T::deserialize(field).map(Some)
}

/// The line of a message, without a line break.
pub(crate) fn print(message: &Message) -> serde_json::Result<String> {
    let payload = readable(message.content_type.as_deref(), &message.payload)?;
    let payload_hex = payload.is_none().then(|| hex(&message.payload));
    serde_json::to_string(&Printed {
        offset: message.offset.0,
        message_id: message.message_id,
        key: message.key.as_deref(),
        message_type: message.message_type.as_deref(),
        payload,
        payload_hex,
        content_type: message.content_type.as_deref(),
        headers: &message.headers,
        correlation_id: message.correlation_id.as_deref(),
        created_at: message.created_at,
    })
}

/// The field `payload`, if the payload is text, or JSON by its content type.
fn readable(content_type: Option<&str>, payload: &[u8]) -> serde_json::Result<Option<Box<RawValue>>> {
    let Ok(text) = std::str::from_utf8(payload) else { return Ok(None) };
    if content_type != Some(JSON) {
        return serde_json::value::to_raw_value(text).map(Some);
    }
    // In JSON a line break is only ever between tokens: in a string it is escaped.
    Ok(RawValue::from_string(text.replace(['\n', '\r'], " ")).ok())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = text.as_bytes().chunks(2);
    bytes.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// The message of a line; what the line does not have is taken from `default`.
pub(crate) fn parse(line: &[u8], default: &NewMessage) -> Result<NewMessage> {
    let line: Line = serde_json::from_slice(line).map_err(Misread)?;
    let stated = line.content_type.clone().flatten();
    let (payload, detected) = match (line.payload, line.payload_hex) {
        (Some(payload), None) => bytes_of(&payload, stated.as_deref())?,
        (None, Some(hex)) => match from_hex(&hex) {
            Some(bytes) => (bytes, BYTES),
            None => bail!("payload_hex: write two hexadecimal digits per byte"),
        },
        (Some(_), Some(_)) => bail!("payload and payload_hex: name one of them"),
        (None, None) => bail!("payload is missing: name payload or payload_hex"),
    };
    let default = default.clone();
    let mut headers = default.headers;
    headers.extend(line.headers);
    Ok(NewMessage {
        message_id: line.message_id,
        key: line.key.or(default.key),
        message_type: line.message_type.or(default.message_type),
        payload: payload.into(),
        content_type: line.content_type.unwrap_or(default.content_type.or(Some(detected.into()))),
        headers,
        correlation_id: line.correlation_id.or(default.correlation_id),
        dedup_key: line.dedup_key.or(default.dedup_key),
        deliver_at: line.deliver_at.or(default.deliver_at),
        // A time of the line's own replaces the delay of all.
        delay: if line.deliver_at.is_some() { None } else { default.delay },
    })
}

/// The bytes of the field `payload`, and their content type if none is stated.
fn bytes_of(payload: &RawValue, stated: Option<&str>) -> Result<(Vec<u8>, &'static str)> {
    let json = payload.get();
    if stated != Some(JSON) && json.starts_with('"') {
        let text: String = serde_json::from_str(json).map_err(Misread)?;
        return Ok((text.into_bytes(), TEXT));
    }
    Ok((json.as_bytes().to_vec(), JSON))
}

/// An error of the parser, with a place in the line: the parser counts lines too, and this is always its first.
#[derive(Debug)]
struct Misread(serde_json::Error);

impl std::fmt::Display for Misread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.0.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        write!(f, "{what} (column {})", self.0.column())
    }
}

impl std::error::Error for Misread {}

#[cfg(test)]
mod tests {
    use headwater::Offset;

    use super::*;

    fn message(payload: &[u8], content_type: Option<&str>) -> Message {
        Message {
            offset: Offset(7),
            message_id: Uuid::from_u128(9),
            key: Some("k".into()),
            message_type: Some("paid".into()),
            payload: payload.to_vec().into(),
            content_type: content_type.map(str::to_owned),
            headers: Headers::from([("h".into(), "v".into())]),
            correlation_id: Some("c".into()),
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_is_printed_is_read_again() {
        let payloads: [&[u8]; 11] = [
            b"{\"b\":1,\"a\": 1.50,\"a\":123456789012345678901234567890}",
            b"\"a string\"",
            b"\"123\"",
            b"123",
            b"null",
            b"text",
            "l\u{ed}ne\nbreak\r\t\u{0}".as_bytes(),
            b"",
            b"\xff\x00\x10",
            b"{not json",
            b"\"",
        ];
        for content_type in [None, Some(JSON), Some(TEXT), Some(BYTES), Some("application/x+json")] {
            for payload in payloads {
                let sent = message(payload, content_type);
                let line = print(&sent).unwrap();
                assert!(!line.contains('\n'), "{line}");
                let got = parse(line.as_bytes(), &NewMessage::new("").content_type("x/y").key("d")).unwrap();
                assert_eq!(got.payload, sent.payload, "{line}");
                assert_eq!(got.content_type, sent.content_type, "{line}");
                assert_eq!((got.message_id, got.key), (Some(sent.message_id), sent.key), "{line}");
                assert_eq!((got.headers, got.correlation_id), (sent.headers, sent.correlation_id));
                assert_eq!((got.message_type, got.deliver_at), (sent.message_type, None));
            }
        }
        let broken = print(&message(b" {\n  \"a\": \"\\n\"\n}", Some(JSON))).unwrap();
        assert_eq!(parse(broken.as_bytes(), &NewMessage::default()).unwrap().payload, "{   \"a\": \"\\n\" }");
    }

    #[test]
    fn a_line_of_ones_own_has_its_content_type_detected() {
        let parse = |line: &str| parse(line.as_bytes(), &NewMessage::default()).unwrap();
        for (line, payload, content_type) in [
            ("{\"payload\":\"text\"}", "text", TEXT),
            ("{\"payload\":{\"a\":1}}", "{\"a\":1}", JSON),
            ("{\"payload\":\"1\",\"content_type\":\"application/json\"}", "\"1\"", JSON),
            ("{\"payload_hex\":\"4142\"}", "AB", BYTES),
        ] {
            let got = parse(line);
            assert_eq!(
                (got.payload, got.content_type.as_deref()),
                (payload.into(), Some(content_type)),
                "{line}"
            );
        }
    }

    #[test]
    fn a_delay_of_all_is_that_of_lines_without_a_time() {
        let delay = std::time::Duration::from_secs(60);
        let default = NewMessage::new("").delay(delay);
        let got = parse(b"{\"payload\":1}", &default).unwrap();
        assert_eq!((got.delay, got.deliver_at), (Some(delay), None));
        let got = parse(b"{\"payload\":1,\"deliver_at\":\"1970-01-01T00:00:00Z\"}", &default).unwrap();
        assert_eq!((got.delay, got.deliver_at), (None, Some(Timestamp::UNIX_EPOCH)));
    }

    #[test]
    fn a_bad_line_is_refused_with_the_field_and_the_place() {
        for (line, expected) in [
            ("{\"payload\":1,\"oops\":2}", "unknown field `oops`, expected one of `payload`, `payload_hex`"),
            ("{\"payload\":1,\"oops\":2}", "(column 19)"),
            ("{\"payload\":", "EOF while parsing a value (column 11)"),
            ("{\"key\":\"k\"}", "payload is missing"),
            ("{\"payload\":1,\"payload_hex\":\"00\"}", "name one of them"),
            ("{\"payload_hex\":\"0\"}", "two hexadecimal digits"),
            ("{\"payload_hex\":\"0g\"}", "two hexadecimal digits"),
        ] {
            let refused = parse(line.as_bytes(), &NewMessage::default()).unwrap_err().to_string();
            assert!(refused.contains(expected), "{line}: {refused}");
            assert!(!refused.contains("at line"), "{refused}");
        }
    }
}
