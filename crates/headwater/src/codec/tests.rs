//! Tests of the codecs: values round-trip, and a payload that does not fit is refused with a reason to act on.

use jiff::Timestamp;
use serde::Deserialize;
use uuid::Uuid;

use super::*;

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Order {
    id: u64,
}

/// The message as a consumer would get it.
pub(crate) fn stored(new: NewMessage) -> Message {
    Message {
        offset: Offset(42),
        message_id: new.message_id.unwrap_or_else(Uuid::now_v7),
        key: new.key,
        message_type: new.message_type,
        payload: new.payload,
        content_type: new.content_type,
        headers: new.headers,
        correlation_id: new.correlation_id,
        created_at: Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn values_come_back_as_they_were_sent() {
    let order = stored((&Order { id: 7 }).into_message().unwrap());
    assert_eq!(order.decode::<Json<Order>>().unwrap().id, 7);
    let text = stored("grün".to_owned().into_message().unwrap());
    assert_eq!(text.decode::<String>().unwrap(), "grün");
    let bytes = stored(Bytes::from_static(&[0, 255]).into_message().unwrap());
    assert_eq!(bytes.content_type, None);
    assert_eq!(bytes.decode::<Bytes>().unwrap(), [0, 255].as_slice());
    assert_eq!(bytes.decode::<Message>().unwrap(), bytes);
}

#[test]
fn message_is_published_as_it_is() {
    let message = NewMessage::new("a").key("k").header("h", "v");
    assert_eq!(message.clone().into_message().unwrap(), message);
}

#[test]
fn json_without_content_type_is_read() {
    assert_eq!(stored(NewMessage::new(r#"{"id":1}"#)).decode::<Json<Order>>().unwrap().id, 1);
    let plain = stored(NewMessage::new(r#"{"id":1}"#).content_type("application/octet-stream"));
    assert_eq!(plain.decode::<Json<Order>>().unwrap().id, 1);
}

#[test]
fn bad_json_is_refused_with_position_and_what_came() {
    let message = stored(NewMessage::new("{\n\"id\": \"x\"}").content_type("application/json"));
    let error = message.decode::<Json<Order>>().unwrap_err();
    assert_eq!(error.expected(), "Json<Order>");
    assert_eq!(error.content_type(), Some("application/json"));
    assert!(error.problem().contains("line 2 column 9"), "{error}");
    assert!(error.to_string().starts_with("payload at offset 42 is not Json<Order>: "), "{error}");
}

#[test]
fn content_type_of_another_codec_is_refused_although_the_bytes_would_fit() {
    let message = stored(NewMessage::new("1").content_type("text/csv"));
    let error = message.decode::<Json<u64>>().unwrap_err().to_string();
    assert!(error.contains("text/csv") && error.contains("take Bytes or Message"), "{error}");
    let message = stored((&"text").into_message().unwrap());
    let error = message.decode::<String>().unwrap_err().to_string();
    assert!(error.contains("take Json<T>"), "{error}");
}

#[test]
fn text_that_is_not_utf8_is_refused_with_position() {
    let error = stored(NewMessage::new(vec![b'a', b'b', 0xff])).decode::<String>().unwrap_err();
    assert!(error.problem().contains("index 2"), "{error}");
}

#[test]
fn unserializable_value_is_invalid_input() {
    let map = std::collections::BTreeMap::from([((1, 2), 3)]);
    let error = Json(map).into_message().unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
}

#[test]
fn type_names_are_short() {
    for (full, short) in [
        ("headwater::codec::Json<shop::orders::Order>", "Json<Order>"),
        ("alloc::vec::Vec<(u8, a::b_c::D)>", "Vec<(u8, D)>"),
        ("u8", "u8"),
    ] {
        assert_eq!(short_type_name(full), short);
    }
}
