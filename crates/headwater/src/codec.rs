//! Typed payloads: the meaning of a message's bytes, declared by its content type and type, and checked before parsing.
//!
//! A payload that parses by accident is worse than one that does not: a message that names another codec, or another
//! protobuf type, is refused although its bytes might parse.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::message::{Message, NewMessage, Offset};

mod media;
#[cfg(feature = "protobuf")]
mod protobuf;

use media::Media;
#[cfg(feature = "protobuf")]
pub use protobuf::Protobuf;

/// A payload type that a handler can take: decoded from a message.
///
/// ```
/// use headwater::Message;
/// use headwater::codec::{Decode, DecodeError};
///
/// struct Line(Vec<String>);
///
/// impl Decode for Line {
///     fn decode(message: &Message) -> Result<Self, DecodeError> {
///         let text = String::decode(message)?;
///         if text.is_empty() {
///             return Err(DecodeError::new::<Self>(message, "the line is empty"));
///         }
///         Ok(Line(text.split(',').map(str::to_owned).collect()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot take `{Self}`: it does not say how a payload is decoded",
    label = "not a payload type",
    note = "wrap it: take `Json<{Self}>` for JSON, or `Protobuf<{Self}>` for a type of prost, which needs `prost::Name`: call \
            `prost_build::Config::enable_type_names`, or implement it",
    note = "`String`, `Bytes` and `Message` are taken as they are; or implement `headwater::codec::Decode`"
)]
pub trait Decode: Sized {
    /// Decodes the payload; the error names the expected type and what the message has.
    fn decode(message: &Message) -> Result<Self, DecodeError>;
}

/// What can be published: a message, or a value with a codec.
///
/// A reference to any serializable value is JSON, also `&str` and `&[u8]`. For raw bytes pass [`Bytes`], for raw text a
/// [`String`], to set other fields of the message a [`NewMessage`].
///
/// ```
/// use headwater::Json;
/// use headwater::codec::IntoMessage;
///
/// #[derive(serde::Serialize)]
/// struct Order { id: u64 }
///
/// let message = (&Order { id: 7 }).into_message()?.key("customer-1");
/// assert_eq!(message.payload, r#"{"id":7}"#);
/// assert_eq!(message.content_type.as_deref(), Some("application/json"));
/// assert_eq!(Json(Order { id: 7 }).into_message()?.payload, message.payload);
/// # Ok::<(), headwater::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent: it does not say how it is encoded",
    label = "not a message",
    note = "pass a reference to send it as JSON, `send(&value)` or `Json(value)`; or `Protobuf(value)` for a type of prost, which needs \
            `prost::Name`: call `prost_build::Config::enable_type_names`, or implement it",
    note = "`String`, `Bytes` and `NewMessage` are sent as they are; or implement `headwater::codec::IntoMessage`"
)]
pub trait IntoMessage {
    /// Converts it into a message.
    fn into_message(self) -> Result<NewMessage>;
}

impl Message {
    /// The payload as a type, if the message's content type and bytes allow it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// use headwater::{Headwater, Json};
    /// use headwater::codec::IntoMessage;
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Order { id: u64 }
    ///
    /// let headwater = Headwater::open("sqlite::memory:").await?;
    /// headwater.producer("orders").send(Json(Order { id: 7 }).into_message()?).await?;
    /// let mut consumer = headwater.consumer("orders", "email").open().await?;
    /// let batch = consumer.next(Duration::from_secs(1)).await?.expect("one message waits");
    /// let Json(order) = batch.messages()[0].decode::<Json<Order>>()?;
    /// assert_eq!(order.id, 7);
    /// # Ok(()) }
    /// ```
    pub fn decode<T: Decode>(&self) -> Result<T, DecodeError> {
        T::decode(self)
    }
}

/// A JSON payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Json<T>(pub T);

impl<T> Deref for Json<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Json<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: DeserializeOwned> Decode for Json<T> {
    fn decode(message: &Message) -> Result<Self, DecodeError> {
        match Media::of(message) {
            Media::Json | Media::Unsaid => {}
            other => {
                return Err(DecodeError::new::<Self>(message, "not JSON by its content type").instead(other));
            }
        }
        // The parser's error ends with the line and column.
        serde_json::from_slice(&message.payload)
            .map(Json)
            .map_err(|error| DecodeError::new::<Self>(message, error))
    }
}

impl<T: Serialize> IntoMessage for Json<T> {
    fn into_message(self) -> Result<NewMessage> {
        NewMessage::json(&self.0)
    }
}

impl<T: Serialize + ?Sized> IntoMessage for &T {
    fn into_message(self) -> Result<NewMessage> {
        NewMessage::json(self)
    }
}

/// The raw bytes, whatever the content type.
impl Decode for Bytes {
    fn decode(message: &Message) -> Result<Self, DecodeError> {
        Ok(message.payload.clone())
    }
}

impl IntoMessage for Bytes {
    fn into_message(self) -> Result<NewMessage> {
        Ok(NewMessage::new(self))
    }
}

/// Raw text. JSON and protobuf are refused: their text is not the value.
impl Decode for String {
    fn decode(message: &Message) -> Result<Self, DecodeError> {
        match Media::of(message) {
            Media::Other | Media::Unsaid => {}
            other => {
                let problem = "not plain text by its content type";
                return Err(DecodeError::new::<Self>(message, problem).instead(other));
            }
        }
        match std::str::from_utf8(&message.payload) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(DecodeError::new::<Self>(message, format!("not UTF-8: {error}"))),
        }
    }
}

impl IntoMessage for String {
    fn into_message(self) -> Result<NewMessage> {
        Ok(NewMessage::new(self).content_type("text/plain; charset=utf-8"))
    }
}

/// The whole message, with its headers and id.
impl Decode for Message {
    fn decode(message: &Message) -> Result<Self, DecodeError> {
        Ok(message.clone())
    }
}

impl IntoMessage for NewMessage {
    fn into_message(self) -> Result<NewMessage> {
        Ok(self)
    }
}

/// A payload that is not of the type the handler takes. A retry cannot help: such a message becomes a dead letter at
/// once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError(Box<Refused>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    offset: Offset,
    expected: String,
    content_type: Option<String>,
    message_type: Option<String>,
    problem: String,
    advice: Option<String>,
}

impl DecodeError {
    /// The message could not be decoded as `T`, for this reason.
    pub fn new<T>(message: &Message, problem: impl fmt::Display) -> Self {
        DecodeError(Box::new(Refused {
            offset: message.offset,
            expected: short_type_name(std::any::type_name::<T>()),
            content_type: message.content_type.clone(),
            message_type: message.message_type.clone(),
            problem: problem.to_string(),
            advice: None,
        }))
    }

    /// Adds advice on what to do about it.
    #[must_use]
    pub fn advice(mut self, advice: impl fmt::Display) -> Self {
        self.0.advice = Some(advice.to_string());
        self
    }

    /// Adds advice on which type decodes the message's content type.
    fn instead(self, media: Media) -> Self {
        let take = match media {
            Media::Json => "take Json<T> in the handler",
            Media::Protobuf => "take Protobuf<T> in the handler",
            Media::Other | Media::Unsaid => "take Bytes or Message in the handler",
        };
        self.advice(format_args!("{take}, or fix the content type in the publisher"))
    }

    /// The type that the handler takes.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }

    /// The content type of the message.
    pub fn content_type(&self) -> Option<&str> {
        self.0.content_type.as_deref()
    }

    /// The message type of the message.
    pub fn message_type(&self) -> Option<&str> {
        self.0.message_type.as_deref()
    }

    /// What is wrong; for a parser's error, its text with the position.
    pub fn problem(&self) -> &str {
        &self.0.problem
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { offset, expected, content_type, message_type, problem, advice } = &*self.0;
        let said = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        let (content_type, message_type) = (said(content_type), said(message_type));
        write!(
            f,
            "payload at offset {offset} is not {expected}: {problem} (content type {content_type}, type {message_type})"
        )?;
        match advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A type's name without paths: `Json<Order>`, as written in the handler.
fn short_type_name(full: &str) -> String {
    let mut short = String::with_capacity(full.len());
    let mut part = 0;
    for (at, found) in full.char_indices() {
        if found.is_alphanumeric() || found == '_' {
            continue;
        }
        if found == ':' {
            part = at + 1;
            continue;
        }
        short.push_str(&full[part..at]);
        short.push(found);
        part = at + found.len_utf8();
    }
    short.push_str(&full[part..]);
    short
}

#[cfg(test)]
pub(crate) mod tests;
