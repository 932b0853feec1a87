//! A topic of another namespace or database as the sink.
//!
//! Each batch is published in one statement per topic, all of it or nothing, with the ids of the messages as dedup keys: a repeat within
//! the topic's dedup window is not stored again. So a call that was cut off is repeated without a duplicate.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use headwater::{Error, ErrorKind, Headwater, NewMessage, OpenOptions, Result, TopicName};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::sink::{Delivery, Record, Sink, SinkError};

/// Messages of one publish.
const PUBLISH_MAX: usize = 5_000;

/// Publishes records to a topic of a Headwater store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
/// use headwater_relay::topic_sink::HeadwaterSink;
/// use headwater_relay::{Sink, testing::record};
///
/// let archive = Headwater::in_memory().await?;
/// let sink = HeadwaterSink::new(&archive, Some("orders.archive"))?;
/// for _ in 0..2 {
///     sink.deliver(&[record(7, Some("customer-1"))]).await.unwrap();
/// }
/// assert_eq!(archive.published("orders.archive").await?.len(), 1, "a repeat is not stored");
/// # archive.close().await }
/// ```
pub struct HeadwaterSink {
    /// The store, which may have a password, and is opened when it is first used; `None` if a handle was given.
    url: Option<String>,
    topic: Option<TopicName>,
    opened: Mutex<Option<Headwater>>,
}

impl fmt::Debug for HeadwaterSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeadwaterSink(topic {:?})", self.topic)
    }
}

impl HeadwaterSink {
    /// A topic of this store; without one each record's own destination.
    pub fn new(headwater: &Headwater, topic: Option<&str>) -> Result<Self> {
        let topic = topic.map(TopicName::new).transpose()?;
        Ok(HeadwaterSink { url: None, topic, opened: Mutex::new(Some(headwater.clone())) })
    }

    /// `headwater+sqlite:PATH` or `headwater+postgres://…`, with `topic` and `namespace` as options: `?topic=orders&namespace=archive`.
    pub fn from_url(url: &str) -> Result<Self> {
        let store = url.strip_prefix("headwater+").unwrap_or_default();
        let (place, options) = store.split_once('?').unwrap_or((store, ""));
        if place.is_empty() {
            let rule = "write headwater+sqlite:PATH or headwater+postgres://HOST/DATABASE";
            return Err(Error::invalid("target", rule));
        }
        if place == "sqlite:" {
            return Err(Error::invalid("target", "it has no path; write headwater+sqlite:PATH"));
        }
        let (mut topic, mut kept) = (None, Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match form_urlencoded::parse(option.as_bytes()).next() {
                Some((name, value)) if name == "topic" => topic = Some(TopicName::new(value.into_owned())?),
                _ => kept.push(option),
            }
        }
        let separator = if kept.is_empty() { "" } else { "?" };
        let store = format!("{place}{separator}{}", kept.join("&"));
        Ok(HeadwaterSink { url: Some(store), topic, opened: Mutex::default() })
    }

    async fn headwater(&self) -> Result<Headwater, SinkError> {
        let mut opened = self.opened.lock().await;
        if let Some(headwater) = &*opened {
            return Ok(headwater.clone());
        }
        let Some(url) = &self.url else {
            return Err(SinkError::Unavailable("the sink was closed".into()));
        };
        // A mistyped path must not become a new store.
        let options = OpenOptions::default().create(false).maintenance(false);
        let headwater = Headwater::open_with(url, options).await.map_err(|error| whole(&error))?;
        Ok(opened.insert(headwater).clone())
    }

    /// Publishes some records of one topic in order.
    async fn publish(
        headwater: &Headwater,
        topic: &str,
        records: &[&Record],
    ) -> Result<Vec<Delivery>, SinkError> {
        let messages: Vec<NewMessage> = records.iter().map(|record| message_of(record)).collect();
        let producer = headwater.producer(topic);
        match producer.send_batch(&messages).await {
            Ok(_) => return Ok(vec![Delivery::Delivered; records.len()]),
            Err(error) if refusal(&error).is_none() => return Err(whole(&error)),
            Err(_) => {}
        }
        // One of them is not accepted: the others are.
        let mut deliveries = Vec::with_capacity(records.len());
        for message in &messages {
            match producer.send_batch(std::slice::from_ref(message)).await {
                Ok(_) => deliveries.push(Delivery::Delivered),
                Err(error) => match refusal(&error) {
                    Some(reason) => deliveries.push(Delivery::Refused { reason }),
                    None => return Err(whole(&error)),
                },
            }
        }
        Ok(deliveries)
    }
}

/// Why a message is never accepted; `None` for errors that are not about the message.
fn refusal(error: &Error) -> Option<String> {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PayloadTooLarge).then(|| error.to_string())
}

/// An error of the store as a whole.
fn whole(error: &Error) -> SinkError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::NoSuchTopic
        | ErrorKind::NoSubscriptions
        | ErrorKind::PermissionDenied
        | ErrorKind::NoSuchStore
        | ErrorKind::NotAStore
        | ErrorKind::SchemaOutdated
        | ErrorKind::SchemaTooNew
        | ErrorKind::InvalidInput
        | ErrorKind::Conflict => SinkError::Misconfigured(text),
        // Also an unknown outcome: the call is repeated, and what was stored is recognized.
        _ => SinkError::Unavailable(text),
    }
}

fn message_of(record: &Record) -> NewMessage {
    let (message_id, dedup_key) = match record.message_id.parse::<Uuid>() {
        Ok(id) => (id, id.to_string()),
        Err(_) => {
            // Entries of two outboxes may have the same number: the rest of the record tells them apart.
            let id = id_of(record);
            (id, id.to_string())
        }
    };
    NewMessage {
        key: record.key.clone(),
        message_type: record.message_type.clone(),
        content_type: record.content_type.clone(),
        headers: record.headers.clone(),
        correlation_id: record.correlation_id.clone(),
        ..NewMessage::new(record.payload.clone()).message_id(message_id).dedup_key(dedup_key)
    }
}

/// An id that is the same for each delivery of a record.
fn id_of(record: &Record) -> Uuid {
    let mut hash = Sha256::new();
    let (id, created_at) = (&record.message_id, record.created_at.as_microsecond().to_string());
    let key = record.key.as_deref().unwrap_or_default();
    for part in
        [id.as_bytes(), created_at.as_bytes(), record.destination.as_bytes(), key.as_bytes(), &record.payload]
    {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    uuid::Builder::from_custom_bytes(digest[..16].try_into().expect("16 of 32 bytes")).into_uuid()
}

#[async_trait]
impl Sink for HeadwaterSink {
    fn kind(&self) -> &'static str {
        "headwater"
    }

    /// One statement stores all records of a topic in their order, and none fails by itself.
    fn keeps_order(&self) -> bool {
        true
    }

    async fn deliver(&self, records: &[Record]) -> Result<Vec<Delivery>, SinkError> {
        let headwater = self.headwater().await?;
        let mut by_topic: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, record) in records.iter().enumerate() {
            let topic = self.topic.as_ref().map_or(record.destination.as_str(), TopicName::as_str);
            by_topic.entry(topic).or_default().push(at);
        }
        let mut deliveries = vec![Delivery::Delivered; records.len()];
        for (topic, all) in by_topic {
            for part in all.chunks(PUBLISH_MAX) {
                let chosen: Vec<&Record> = part.iter().map(|at| &records[*at]).collect();
                let published = Self::publish(&headwater, topic, &chosen).await?;
                for (at, delivery) in part.iter().zip(published) {
                    deliveries[*at] = delivery;
                }
            }
        }
        Ok(deliveries)
    }

    async fn check(&self) -> Result<(), SinkError> {
        let headwater = self.headwater().await?;
        match headwater.topics().list().await {
            Ok(_) => Ok(()),
            Err(error) => Err(whole(&error)),
        }
    }

    async fn close(&self) {
        let opened = self.opened.lock().await.take();
        if let (Some(headwater), Some(_)) = (opened, &self.url)
            && let Err(error) = headwater.close().await
        {
            tracing::debug!(%error, "store of a sink not closed");
        }
    }
}
