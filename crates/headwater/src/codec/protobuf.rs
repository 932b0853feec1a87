//! Protobuf payloads, identified by their type URL: the bytes alone do not determine the type.

use std::ops::{Deref, DerefMut};

use super::media::Media;
use super::{Decode, DecodeError, IntoMessage};
use crate::error::Result;
use crate::message::{Message, NewMessage};

/// The prefix of type URLs, as in `google.protobuf.Any`.
const TYPE_URL_HOST: &str = "type.googleapis.com";

/// A protobuf payload. The message's type is the type URL of `T`, and decoding checks it.
///
/// ```
/// use headwater::Protobuf;
/// use headwater::codec::IntoMessage;
///
/// // Generated types have `prost::Name` with `prost_build::Config::enable_type_names`.
/// let message = Protobuf("hello".to_owned()).into_message()?;
/// assert_eq!(message.message_type.as_deref(), Some("type.googleapis.com/google.protobuf.StringValue"));
/// assert_eq!(message.content_type.as_deref(), Some("application/protobuf"));
/// # Ok::<(), headwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protobuf<T>(pub T);

impl<T> Deref for Protobuf<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Protobuf<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: prost::Name> IntoMessage for Protobuf<T> {
    fn into_message(self) -> Result<NewMessage> {
        Ok(NewMessage::new(self.0.encode_to_vec())
            .content_type("application/protobuf")
            .message_type(type_url::<T>()))
    }
}

impl<T: prost::Name + Default> Decode for Protobuf<T> {
    fn decode(message: &Message) -> Result<Self, DecodeError> {
        match Media::of(message) {
            Media::Protobuf | Media::Unsaid => {}
            other => {
                let problem = "not protobuf by its content type";
                return Err(DecodeError::new::<Self>(message, problem).instead(other));
            }
        }
        let expected = type_url::<T>();
        let Some(came) = &message.message_type else {
            let advice = format!("publish it with type {expected}, or take Bytes in the handler");
            return Err(DecodeError::new::<Self>(message, "it has no type to check").advice(advice));
        };
        // As for `Any`: the part before the last slash is where the type is described, not which type it is.
        if came.rsplit('/').next() != Some(T::full_name().as_str()) {
            let problem = format!("another type, {expected} was expected");
            let advice = "filter by type in front of the handler, or give each type its own group";
            return Err(DecodeError::new::<Self>(message, problem).advice(advice));
        }
        // The parser names the field of a generated type; it reports no other position.
        T::decode(message.payload.clone())
            .map(Protobuf)
            .map_err(|error| DecodeError::new::<Self>(message, error))
    }
}

fn type_url<T: prost::Name>() -> String {
    format!("{TYPE_URL_HOST}/{}", T::full_name())
}

#[cfg(test)]
mod tests {
    use super::super::tests::stored;
    use super::*;
    use crate::codec::Json;

    #[test]
    fn value_comes_back_and_its_type_is_checked() {
        let message = stored(Protobuf(42_u64).into_message().unwrap());
        assert_eq!(message.message_type.as_deref(), Some("type.googleapis.com/google.protobuf.UInt64Value"));
        assert_eq!(message.decode::<Protobuf<u64>>().unwrap(), Protobuf(42));

        // The same bytes would parse as an Int64Value: only the type distinguishes them.
        let error = message.decode::<Protobuf<i64>>().unwrap_err();
        assert_eq!(error.message_type(), Some("type.googleapis.com/google.protobuf.UInt64Value"));
        assert!(error.problem().contains("type.googleapis.com/google.protobuf.Int64Value"), "{error}");
    }

    #[test]
    fn host_of_type_url_does_not_matter_but_absence_does() {
        let mut message = stored(Protobuf(true).into_message().unwrap());
        for url in ["example.org/schemas/google.protobuf.BoolValue", "google.protobuf.BoolValue"] {
            message.message_type = Some(url.to_owned());
            assert!(message.decode::<Protobuf<bool>>().unwrap().0, "{url}");
        }
        message.message_type = None;
        let error = message.decode::<Protobuf<bool>>().unwrap_err().to_string();
        assert!(
            error.contains("publish it with type type.googleapis.com/google.protobuf.BoolValue"),
            "{error}"
        );
    }

    #[test]
    fn damaged_bytes_are_refused_with_the_parsers_error() {
        let mut message = stored(Protobuf("text".to_owned()).into_message().unwrap());
        message.payload = message.payload.slice(..3);
        let error = message.decode::<Protobuf<String>>().unwrap_err();
        assert_eq!(error.expected(), "Protobuf<String>");
        assert!(error.problem().contains("buffer underflow"), "{error}");
    }

    #[test]
    fn json_is_not_protobuf_and_the_other_way_round() {
        let json = stored(Json(1_u64).into_message().unwrap());
        let error = json.decode::<Protobuf<u64>>().unwrap_err().to_string();
        assert!(error.contains("application/json") && error.contains("take Json<T>"), "{error}");
        let protobuf = stored(Protobuf(1_u64).into_message().unwrap());
        let error = protobuf.decode::<Json<u64>>().unwrap_err().to_string();
        assert!(error.contains("application/protobuf") && error.contains("take Protobuf<T>"), "{error}");
    }
}
