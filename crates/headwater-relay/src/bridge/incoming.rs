//! A message of another broker on its way into a topic: what it becomes, or why it cannot.

use headwater::limits::{NAME_BYTES_MAX, PARKED_BY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use headwater::store::ParkedCommand;
use headwater::{Headers, NewMessage};
use jiff::Timestamp;
use uuid::Uuid;

/// The header with the id that the message had, where that is not a UUID.
pub const ID_HEADER: &str = "headwater-message-id";
/// The header with the key of a message, where the broker has no keys.
pub const KEY_HEADER: &str = "headwater-key";
/// The header with the type of a message, where the broker has no types.
pub const TYPE_HEADER: &str = "headwater-type";
/// The header with the media type of the payload, where the broker has none.
pub const CONTENT_TYPE_HEADER: &str = "headwater-content-type";
/// The header with the correlation id, where the broker has none.
pub const CORRELATION_ID_HEADER: &str = "headwater-correlation-id";
/// The header with the time at which the message was created where it comes from, as RFC 3339.
pub const CREATED_AT_HEADER: &str = "headwater-created-at";
/// The header of a message of Kafka without a value: a tombstone. Its payload is empty.
pub const TOMBSTONE_HEADER: &str = "headwater-tombstone";

/// A message that was read from a broker.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    /// Its identity for the inbox; `None` where it has none, or where its position is stored instead.
    pub(crate) id: Option<String>,
    /// Where it was read, for its dead letter.
    pub(crate) origin: String,
    pub(crate) message: NewMessage,
    /// Why it cannot be published.
    pub(crate) poison: Option<String>,
}

impl Incoming {
    pub(crate) fn new(origin: String, message: NewMessage) -> Self {
        Incoming { id: None, origin, message, poison: None }
    }

    /// Adds a reason not to publish it.
    pub(crate) fn poison(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        match &mut self.poison {
            Some(known) => {
                known.push_str("; ");
                known.push_str(&reason);
            }
            None => self.poison = Some(reason),
        }
    }

    /// Adds a header that has a text, or the reason why it has none.
    pub(crate) fn header(&mut self, name: &str, value: Result<String, &str>) {
        match value {
            Ok(value) => drop(self.message.headers.insert(name.to_owned(), value)),
            Err(what) => self.poison(format!("header {name} is {what}, and headers of a topic are text")),
        }
    }

    /// Notes when it was created where it comes from.
    pub(crate) fn created_at(&mut self, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.message.headers.entry(CREATED_AT_HEADER.to_owned()).or_insert_with(|| at.to_string());
        }
    }

    /// The id that the message had becomes its id here if it is a UUID, and a header otherwise.
    pub(crate) fn identified(&mut self, id: Option<&str>) {
        let Some(id) = id.filter(|id| !id.is_empty()) else { return };
        match Uuid::try_parse(id) {
            Ok(uuid) => self.message.message_id = Some(uuid),
            Err(_) => drop(self.message.headers.insert(ID_HEADER.to_owned(), id.to_owned())),
        }
    }

    /// Moves what other brokers carry as headers to its own field.
    pub(crate) fn fields_from_headers(&mut self) {
        let message = &mut self.message;
        for (name, field) in [
            (KEY_HEADER, &mut message.key),
            (TYPE_HEADER, &mut message.message_type),
            (CONTENT_TYPE_HEADER, &mut message.content_type),
            (CORRELATION_ID_HEADER, &mut message.correlation_id),
        ] {
            if field.is_none() {
                *field = message.headers.remove(name);
            }
        }
        for field in [
            &mut message.key,
            &mut message.message_type,
            &mut message.content_type,
            &mut message.correlation_id,
        ] {
            field.take_if(|value| value.is_empty());
        }
    }

    /// Checks it against the rules for messages, but for the payload limit of its topic.
    pub(crate) fn checked(mut self) -> Self {
        if let Err(error) = self.message.validate() {
            self.poison(error.to_string());
        }
        self
    }

    /// Its size, for the limit of a batch.
    pub(crate) fn bytes(&self) -> usize {
        let headers: usize = self.message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.message.payload.len() + headers
    }

    /// The dead letter of a message that cannot be published. Nothing of it can be refused: what does not fit is cut and named.
    pub(crate) fn parked(&self, bridge: &str, topic: &str) -> ParkedCommand {
        let message = &self.message;
        let mut reason = self.poison.clone().unwrap_or_else(|| "refused".to_owned());
        let bytes = message.payload.len();
        if bytes > PAYLOAD_BYTES_MAX {
            reason = format!("{reason}; only the first {PAYLOAD_BYTES_MAX} of {bytes} bytes are kept");
        }
        let command_id = text_of_id(self.id.as_deref().unwrap_or(&self.origin), NAME_BYTES_MAX);
        let name =
            message.message_type.clone().filter(|name| is_name(name)).unwrap_or_else(|| "message".to_owned());
        let by = text_of_id(&format!("bridge {bridge}"), PARKED_BY_BYTES_MAX);
        let payload = message.payload.slice(..bytes.min(PAYLOAD_BYTES_MAX));
        let mut command = ParkedCommand::new(command_id, name, payload, by)
            .failed_status("REJECTED")
            .error("BridgeRefused", format!("{}: {reason}", self.origin))
            .attempts(1)
            .topic(topic);
        if let Some(key) = message.key.as_ref().filter(|key| is_name(key)) {
            command = command.business_key(key);
        }
        for (name, value) in sound_headers(&message.headers) {
            command = command.header(name, value);
        }
        command
    }
}

/// Headers that follow the rules for messages, as many as are allowed.
fn sound_headers(headers: &Headers) -> impl Iterator<Item = (&String, &String)> {
    use headwater::limits::{HEADER_VALUE_BYTES_MAX, HEADERS_MAX};
    let is_sound = |(name, value): &(&String, &String)| {
        is_name(name) && value.len() <= HEADER_VALUE_BYTES_MAX && !value.contains('\0')
    };
    headers.iter().filter(is_sound).take(HEADERS_MAX)
}

/// Whether a text follows the rule for names.
fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

/// A text cut to a limit, without NUL.
pub(crate) fn text_of_id(text: &str, bytes_max: usize) -> String {
    let mut text = text.replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(bytes_max));
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Bytes as text, or what they are instead.
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
pub(crate) fn utf8(bytes: &[u8]) -> Result<String, &'static str> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_or_a_header() {
        let uuid = Uuid::now_v7();
        let mut incoming = Incoming::new("o".into(), NewMessage::new("p"));
        incoming.identified(Some(&uuid.to_string()));
        assert_eq!((incoming.message.message_id, incoming.message.headers.len()), (Some(uuid), 0));
        let mut incoming = Incoming::new("o".into(), NewMessage::new("p"));
        incoming.identified(Some("order-7"));
        assert_eq!(
            (incoming.message.message_id, incoming.message.headers[ID_HEADER].as_str()),
            (None, "order-7")
        );
    }

    #[test]
    fn fields_come_from_headers_where_the_broker_has_none() {
        let mut incoming = Incoming::new("o".into(), NewMessage::new("p").key("own"));
        for (name, value) in
            [(KEY_HEADER, "other"), (TYPE_HEADER, "T"), (CONTENT_TYPE_HEADER, ""), ("a", "b")]
        {
            incoming.header(name, Ok(value.to_owned()));
        }
        incoming.fields_from_headers();
        let message = incoming.checked().message;
        assert_eq!((message.key.as_deref(), message.message_type.as_deref()), (Some("own"), Some("T")));
        assert_eq!((message.content_type, message.headers["a"].as_str()), (None, "b"));
    }

    #[test]
    fn a_refused_message_is_always_parkable() {
        let message = NewMessage::new("p")
            .key("k\n")
            .message_type("")
            .header("ok", "v")
            .header("x\0", "v")
            .header("big", "v".repeat(20_000));
        let mut incoming = Incoming::new("o\0".repeat(300), message);
        incoming.header("n", Err("a number"));
        let incoming = incoming.checked();
        let reason = incoming.poison.clone().unwrap();
        assert!(reason.contains("header n is a number") && reason.contains("invalid key"), "{reason}");
        let _ = incoming.parked(&"b".repeat(300), "t");
        assert_eq!(text_of_id("äää", 5), "ää");
    }
}
