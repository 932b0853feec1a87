//! Claim checks: payloads that are too large for a message are stored as files, and the message says where. For every topic: a
//! [`ClaimProducer`] wraps any producer, [`ClaimChecks::handling`] any handler, [`ClaimChecks::decode`] any decoder.
//!
//! The file is durable before the message is published, so a message never names a file that was not there. A crash in between leaves
//! a file without a message, which the [`Sweeper`] removes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater::codec::{Decode, IntoMessage};
use headwater::handler::HandlerFn;
use headwater::uuid::Uuid;
use headwater::{Bury, Context, HandlerResult, Handling, Headers, Message, NewMessage, Protobuf};
use prost::{Message as _, Name};
use xxhash_rust::xxh3::xxh3_64;

use crate::contracts::ClaimCheck;
use crate::error::{Error, ErrorCode, Result};
use crate::storage::FileStorage;
use crate::storage::keys;
use crate::storage::objects::{Listed, Put};

mod producer;
mod sweep;

pub use producer::ClaimProducer;
pub use sweep::{Sweeper, Swept};

/// The type of messages that hold a claim check.
pub const CLAIM_CHECK_TYPE: &str = "type.googleapis.com/headwater.pipeline.v1.ClaimCheck";
/// The header with the key of the file: scheduled messages show their headers alone, and an edited copy keeps it.
pub const HEADER_CLAIM_CHECK: &str = "headwater-claim-check";

/// When a payload becomes a file, and when a file without a message is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimCheckSettings {
    /// Payloads over this become files. The largest payload of a topic by default.
    pub claim_check_bytes: usize,
    /// How old a file without a message must be before it is removed: longer than any publish takes. One hour by default. Producers and
    /// the sweeper must agree on it.
    pub grace: Duration,
}

impl Default for ClaimCheckSettings {
    fn default() -> Self {
        let claim_check_bytes = headwater::limits::PAYLOAD_BYTES_MAX;
        ClaimCheckSettings { claim_check_bytes, grace: Duration::from_secs(3_600) }
    }
}

/// The large payloads of a run's messages. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use headwater::{Headwater, Json};
/// use headwater_pipeline::claim_check::{ClaimCheckSettings, ClaimChecks, ClaimProducer};
/// use headwater_pipeline::storage::FileStorage;
///
/// let headwater = Headwater::in_memory().await?;
/// let settings = ClaimCheckSettings { claim_check_bytes: 100, ..ClaimCheckSettings::default() };
/// let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings)?;
///
/// let producer = ClaimProducer::new(headwater.producer("texts"), checks.clone());
/// producer.send(&"x".repeat(1_000)).await?;
/// assert!(headwater.published("texts").await?[0].payload.len() < 200);
///
/// let print = checks.handling(|Json(text): Json<String>| async move { Ok(println!("{} bytes", text.len())) });
/// let mut consumer = headwater.consumer("texts", "printer").handling("printer", print).stepwise().await?;
/// consumer.drain().await?;
/// assert_eq!(consumer.running().health().totals.acked, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ClaimChecks {
    storage: FileStorage,
    /// The folder of the files. One per run: the sweeper of another namespace must not see them, because it does not see their messages.
    folder: Arc<str>,
    settings: ClaimCheckSettings,
}

/// A payload on its way into storage, and the message that takes its place.
pub(crate) struct Claim {
    key: String,
    message_id: Uuid,
    payload: Bytes,
    message: NewMessage,
}

impl ClaimChecks {
    /// Claim checks for the topics of a run's namespace, with their files in the folder of the run.
    pub fn new(storage: FileStorage, run_id: &str, settings: ClaimCheckSettings) -> Result<Self> {
        keys::check_run(run_id)?;
        if settings.grace.is_zero() {
            return Err(Error::invalid(
                "grace of claim checks is 0: longer than a publish takes is expected",
            ));
        }
        Ok(ClaimChecks { storage, folder: keys::claims(run_id).into(), settings })
    }

    /// Stores the payload of a message if it is too large, and returns the message to publish: for producers that this module does not wrap,
    /// and for publishing within a transaction. It must be committed within the grace time.
    pub async fn store(&self, message: NewMessage) -> Result<NewMessage> {
        match self.claim(message) {
            Ok(claim) => {
                self.put(&claim).await?;
                Ok(claim.message)
            }
            Err(small) => Ok(*small),
        }
    }

    /// The claim of a message whose payload is too large; or the message itself.
    fn claim(&self, message: NewMessage) -> Result<Claim, Box<NewMessage>> {
        if message.payload.len() <= self.settings.claim_check_bytes {
            return Err(Box::new(message));
        }
        let message_id = message.message_id.unwrap_or_else(Uuid::now_v7);
        let key = format!("{}{message_id}", self.folder);
        let payload = message.payload;
        let check = ClaimCheck {
            storage_key: key.clone(),
            stored_bytes: payload.len() as u64,
            xxh3_64: xxh3_64(&payload),
            type_url: message.message_type.unwrap_or_default(),
            content_type: message.content_type.unwrap_or_default(),
        };
        let check = Protobuf(check).into_message().expect("protobuf is always encoded");
        let message = NewMessage {
            message_id: Some(message_id),
            message_type: check.message_type,
            content_type: check.content_type,
            payload: check.payload,
            ..message
        };
        let message = message.header(HEADER_CLAIM_CHECK, &key);
        Ok(Claim { key, message_id, payload, message })
    }

    /// Writes the file, durable when this returns. A repeat makes it young again.
    async fn put(&self, claim: &Claim) -> Result<()> {
        let objects = self.storage.objects();
        match objects.create(&claim.key, claim.payload.clone()).await? {
            Put::Created => Ok(()),
            Put::Exists(there) if there == claim.payload => {
                objects.replace(&claim.key, claim.payload.clone()).await
            }
            Put::Exists(_) => {
                let id = claim.message_id;
                let text = format!("file {} has the payload of another message with the id {id}", claim.key);
                Err(Error::permanent(ErrorCode::WriteFailed, text))
            }
        }
    }

    /// The message with its payload, type and content type, if it holds a claim check; else the message as it is. A file that is missing or
    /// damaged is an error that names it.
    pub async fn resolve(&self, message: Message) -> Result<Message> {
        if !is_claim_check(message.message_type.as_deref()) {
            return Ok(message);
        }
        let of = format!("payload of message {} at offset {}", message.message_id, message.offset);
        let check = ClaimCheck::decode(message.payload.clone()).map_err(|error| {
            Error::permanent(ErrorCode::DecodeFailed, format!("{of}: claim check cannot be read: {error}"))
        })?;
        let payload = self.payload(&check, &of).await?;
        let said = |text: String| Some(text).filter(|text| !text.is_empty());
        let mut message = Message {
            payload,
            message_type: said(check.type_url),
            content_type: said(check.content_type),
            ..message
        };
        message.headers.remove(HEADER_CLAIM_CHECK);
        Ok(message)
    }

    async fn payload(&self, check: &ClaimCheck, of: &str) -> Result<Bytes> {
        let ClaimCheck { storage_key: key, stored_bytes, xxh3_64: hash, .. } = check;
        let damaged = |how: String| {
            Error::permanent(ErrorCode::DamagedFile, format!("{of}: damaged file {key}: {how}"))
        };
        // The key comes from a message: it must not name other files.
        if !key.starts_with(&*self.folder) {
            let text = format!("{of}: file {key:?} is outside of {}", self.folder);
            return Err(Error::permanent(ErrorCode::ReadFailed, text));
        }
        let Some(object) = self.storage.objects().get(key).await? else {
            let text = format!("{of}: file {key} is not in {}", self.storage.location());
            return Err(Error::permanent(ErrorCode::ReadFailed, text));
        };
        let came = object.stored_bytes();
        if came != *stored_bytes {
            return Err(damaged(format!("length {came}, the message says {stored_bytes}")));
        }
        let payload = object.bytes().await?;
        let came = xxh3_64(&payload);
        if came != *hash {
            return Err(damaged(format!("checksum {came:016x}, the message says {hash:016x}")));
        }
        Ok(payload)
    }

    /// Decodes a message whose payload may be a file.
    pub async fn decode<T: Decode>(&self, message: &Message) -> Result<T> {
        let message = self.resolve(message.clone()).await?;
        message.decode().map_err(|error| Error::permanent(ErrorCode::DecodeFailed, error))
    }

    /// A handler that gets payloads from files too. Its context has the message as it is in the log. A file that cannot be read fails the
    /// attempt; a payload of another type becomes a dead letter at once, as it does without files.
    ///
    /// A filter in front of it sees the type [`CLAIM_CHECK_TYPE`] where the payload is in a file.
    pub fn handling<Arguments, H>(&self, handler: H) -> Handling
    where
        Arguments: 'static,
        H: HandlerFn<Arguments, HandlerResult>,
    {
        let (checks, handler) = (self.clone(), Arc::new(handler));
        Handling::one(move |message: Message, context: Context| {
            let (checks, handler) = (checks.clone(), Arc::clone(&handler));
            async move {
                let message = checks.resolve(message).await?;
                let payload = H::Payload::decode(&message).map_err(|error| Bury(error.to_string()))?;
                handler.start(payload, context).await
            }
        })
    }

    /// Whether a payload of the run is in a file.
    pub(crate) async fn has_files(&self) -> Result<bool> {
        self.storage.objects().has_any(&self.folder).await
    }

    async fn files(&self) -> Result<Vec<Listed>> {
        self.storage.objects().list(&self.folder).await
    }

    async fn delete(&self, keys: Vec<String>) -> Result<()> {
        self.storage.objects().delete(keys).await
    }
}

/// Whether a type is that of a claim check. As for any protobuf type, what is before the last slash does not matter.
fn is_claim_check(message_type: Option<&str>) -> bool {
    message_type.is_some_and(|url| url.rsplit('/').next() == Some(ClaimCheck::full_name().as_str()))
}

/// The file that a message names; `None` if it holds no claim check.
fn key_of(message_type: Option<&str>, headers: &Headers, payload: &Bytes) -> Option<String> {
    if !is_claim_check(message_type) {
        return None;
    }
    // The payload decides. A message that is damaged may still say it in its headers: then the file is kept.
    match ClaimCheck::decode(payload.clone()) {
        Ok(check) => Some(check.storage_key),
        Err(_) => headers.get(HEADER_CLAIM_CHECK).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_that_of_the_contract_and_its_host_does_not_matter() {
        let message = Protobuf(ClaimCheck::default()).into_message().unwrap();
        assert_eq!(message.message_type.as_deref(), Some(CLAIM_CHECK_TYPE));
        assert!(is_claim_check(Some(CLAIM_CHECK_TYPE)));
        assert!(is_claim_check(Some("headwater.pipeline.v1.ClaimCheck")));
        assert!(!is_claim_check(Some("type.googleapis.com/headwater.pipeline.v1.BatchInfo")));
        assert!(!is_claim_check(None));
    }

    #[tokio::test]
    async fn only_large_payloads_become_files_and_everything_else_of_the_message_stays() {
        let settings = ClaimCheckSettings { claim_check_bytes: 10, ..ClaimCheckSettings::default() };
        let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).unwrap();
        let small = NewMessage::new(vec![7; 10]).key("k");
        assert_eq!(checks.store(small.clone()).await.unwrap(), small);
        assert_eq!(checks.files().await.unwrap(), []);

        let large = NewMessage::new(vec![7; 11]).key("k").header("a", "b").dedup_key("d").message_type("t");
        let stored = checks.store(large.clone()).await.unwrap();
        let id = stored.message_id.expect("an id");
        let key = format!("run_1/claims/{id}");
        assert_eq!((stored.key, stored.dedup_key), (large.key, large.dedup_key));
        assert_eq!(stored.headers["a"], "b");
        assert_eq!(stored.headers[HEADER_CLAIM_CHECK], key);
        assert_eq!(checks.files().await.unwrap()[0].key, key);
    }

    #[tokio::test]
    async fn a_repeat_of_a_message_keeps_its_file_and_another_payload_of_its_id_is_refused() {
        let settings = ClaimCheckSettings { claim_check_bytes: 0, ..ClaimCheckSettings::default() };
        let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).unwrap();
        let message = NewMessage::new("first").message_id(Uuid::now_v7());
        let once = checks.store(message.clone()).await.unwrap();
        assert_eq!(checks.store(message.clone()).await.unwrap(), once);
        let error = checks.store(NewMessage { payload: "other".into(), ..message }).await.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains("another message"), "{error}");
        assert_eq!(checks.files().await.unwrap().len(), 1);
    }

    #[test]
    fn unsound_settings_are_refused() {
        let settings = ClaimCheckSettings { grace: Duration::ZERO, ..ClaimCheckSettings::default() };
        assert!(ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).is_err());
        let settings = ClaimCheckSettings::default();
        assert!(ClaimChecks::new(FileStorage::in_memory(), "../x", settings).is_err());
    }
}
