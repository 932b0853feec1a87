//! Reads the partitions of a topic of Kafka, from positions that the database has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::{Error, Headwater, NewMessage, Result};
use jiff::Timestamp;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::{Instant, timeout, timeout_at};

use super::incoming::{ID_HEADER, Incoming, TOMBSTONE_HEADER, utf8};
use super::source::{Batch, IDLE, LINGER, Position, Source, is_latest};
use super::{Bridge, BridgeError};
use crate::broker_url::{BrokerUrl, host_and_port};
use crate::sink::SinkError;

/// The longest wait for an answer of the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often new partitions are searched for.
const PARTITIONS_EVERY: Duration = Duration::from_secs(30);
/// What a bridge decides itself: its positions are in the database, and it never skips by itself.
const DECIDED: [&str; 7] = [
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "metadata.broker.list",
    "allow.auto.create.topics",
];

/// How keys, which are bytes in Kafka, become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Text,
    Hex,
    None,
}

/// A topic of a cluster.
pub(super) struct FromKafka {
    pub(super) place: String,
    pub(super) topic: String,
    config: ClientConfig,
    keys: Keys,
    from_latest: bool,
}

impl FromKafka {
    pub(super) fn from_url(url: &str) -> Result<Self> {
        let mut url = BrokerUrl::parse(url, &["kafka"], 9092)?;
        let rule =
            || Error::invalid("url", "a bridge from Kafka reads a topic; name it as kafka://host:port/topic");
        let topic = url.path.take().ok_or_else(rule)?;
        let from_latest = is_latest(url.take("start").as_deref())?;
        let keys = match url.take("key").as_deref() {
            None | Some("text") => Keys::Text,
            Some("hex") => Keys::Hex,
            Some("none") => Keys::None,
            Some(other) => {
                let rule = format!("key={other}: must be text, the default, hex or none");
                return Err(Error::invalid("url", rule));
            }
        };
        let hosts: Vec<String> = url.hosts.iter().map(host_and_port).collect();
        let mut config = ClientConfig::new();
        config.set("client.id", "headwater-bridge").set("isolation.level", "read_committed");
        // What is fetched in advance is bounded.
        config.set("queued.max.messages.kbytes", "32768").set("queued.min.messages", "2000");
        config.set("fetch.wait.max.ms", "100").set("reconnect.backoff.max.ms", "2000");
        if let Some(user) = url.user.take() {
            config.set("security.protocol", "sasl_plaintext").set("sasl.mechanisms", "PLAIN");
            config.set("sasl.username", user).set("sasl.password", url.password.take().unwrap_or_default());
        }
        for (name, value) in url.take_rest() {
            if DECIDED.contains(&name.as_str()) {
                return Err(Error::invalid("url", format!("{name} is decided by the bridge; remove it")));
            }
            config.set(name, value);
        }
        config.set("bootstrap.servers", hosts.join(",")).set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false").set("auto.offset.reset", "error");
        // The value of a property may be a password.
        config.create_native_config().map_err(|error| match error {
            KafkaError::ClientConfig(_, rule, name, _) => Error::invalid("url", format!("{name}: {rule}")),
            _ => Error::invalid("url", "not accepted by librdkafka"),
        })?;
        config.set_log_level(RDKafkaLogLevel::Critical);
        Ok(FromKafka { place: url.place(), topic, config, keys, from_latest })
    }

    pub(super) async fn open(&self, bridge: &Bridge) -> Result<FromTopic, BridgeError> {
        let mut config = self.config.clone();
        // Required by the library, and used for nothing: partitions are assigned by hand and no offset is committed.
        if config.get("group.id").is_none() {
            config.set("group.id", format!("headwater-bridge-{}", bridge.name));
        }
        let consumer: KafkaResult<StreamConsumer> = config.create();
        let unusable = |error| SinkError::Misconfigured(format!("{}: {error}; change the URL", self.place));
        let mut reader = FromTopic {
            place: self.place.clone(),
            topic: self.topic.clone(),
            bridge: bridge.name.clone(),
            headwater: bridge.headwater.clone(),
            keys: self.keys,
            from_latest: self.from_latest,
            consumer: Arc::new(consumer.map_err(unusable)?),
            known: HashMap::new(),
            checked_at: Instant::now(),
        };
        reader.assign().await?;
        Ok(reader)
    }
}

/// A connection that reads all partitions of a topic.
pub(super) struct FromTopic {
    place: String,
    topic: String,
    bridge: String,
    headwater: Headwater,
    keys: Keys,
    from_latest: bool,
    consumer: Arc<StreamConsumer>,
    /// The position of each partition.
    known: HashMap<i32, Known>,
    /// When partitions were searched for.
    checked_at: Instant,
}

#[derive(Clone, Debug)]
struct Known {
    /// The name of the partition in the database.
    source: Arc<str>,
    /// What the database has; `None` if nothing was read yet.
    stored: Option<i64>,
    /// What is read next.
    next: i64,
}

/// What the cluster has.
struct Found {
    cluster: String,
    /// Each partition with its first offset, and the one after its last.
    partitions: Vec<(i32, i64, i64)>,
}

impl FromTopic {
    /// Assigns all partitions, each from its stored position.
    async fn assign(&mut self) -> Result<(), BridgeError> {
        let (consumer, topic, place) = (Arc::clone(&self.consumer), self.topic.clone(), self.place.clone());
        let found = tokio::task::spawn_blocking(move || find(&consumer, &topic, &place));
        let found = found.await.map_err(|_| SinkError::Unavailable("interrupted".to_owned()))??;
        let positions = self.headwater.bridge_positions();
        let stored = positions.of(&self.bridge).await?;
        let mut list = TopicPartitionList::new();
        self.known.clear();
        for (partition, low, high) in found.partitions {
            let source: Arc<str> = format!("{}/{}/{partition}", found.cluster, self.topic).into();
            let mut stored = stored.get(&*source).copied();
            if stored.is_none() && self.from_latest {
                // Stored at once: what comes after this moment is read, whenever the first message is.
                positions.advance(&self.bridge, &source, None, high).await?;
                stored = positions.of(&self.bridge).await?.get(&*source).copied();
            }
            let next = self.start_of(partition, stored, low, high)?;
            let assigned = list.add_partition_offset(&self.topic, partition, Offset::Offset(next));
            assigned.map_err(|error| trouble(&self.place, &self.topic, &error))?;
            self.known.insert(partition, Known { source, stored, next });
        }
        self.consumer.assign(&list).map_err(|error| trouble(&self.place, &self.topic, &error))?;
        self.checked_at = Instant::now();
        Ok(())
    }

    /// Where a partition is read from.
    fn start_of(&self, partition: i32, stored: Option<i64>, low: i64, high: i64) -> Result<i64, SinkError> {
        let (place, topic) = (&self.place, &self.topic);
        match stored {
            None => Ok(low),
            Some(next) if next > high => Err(SinkError::Misconfigured(format!(
                "{place}: partition {partition} of {topic} ends at {high}, and {next} was read next: the topic was created anew, or restored; \
                 give the bridge another name to read it from its beginning"
            ))),
            Some(next) if next < low => {
                let missing = low - next;
                tracing::error!(
                    bridge = self.bridge,
                    topic,
                    partition,
                    missing,
                    "messages removed by Kafka before they were read"
                );
                Ok(low)
            }
            Some(next) => Ok(next),
        }
    }

    async fn assign_new_partitions(&mut self) -> Result<(), BridgeError> {
        self.checked_at = Instant::now();
        let (consumer, topic, place) = (Arc::clone(&self.consumer), self.topic.clone(), self.place.clone());
        let counted = tokio::task::spawn_blocking(move || partitions(&consumer, &topic, &place)).await;
        let now = counted.map_err(|_| SinkError::Unavailable("interrupted".to_owned()))??;
        if now.len() != self.known.len() {
            tracing::info!(
                bridge = self.bridge,
                topic = self.topic,
                partitions = now.len(),
                "partitions assigned"
            );
            self.assign().await?;
        }
        Ok(())
    }

    fn read(known: &mut HashMap<i32, Known>, keys: Keys, batch: &mut Batch, message: &BorrowedMessage<'_>) {
        let Some(known) = known.get_mut(&message.partition()) else { return };
        // Of before an assignment.
        if message.offset() < known.next {
            return;
        }
        let to = message.offset() + 1;
        batch.positions.push(Position { source: Arc::clone(&known.source), from: known.stored, to });
        (known.stored, known.next) = (Some(to), to);
        batch.push(incoming(keys, message));
    }
}

#[async_trait]
impl Source for FromTopic {
    async fn next(&mut self, messages_max: usize) -> Result<Batch, BridgeError> {
        if self.checked_at.elapsed() > PARTITIONS_EVERY {
            self.assign_new_partitions().await?;
        }
        let mut batch = Batch::default();
        let failed = |error: &KafkaError| trouble(&self.place, &self.topic, error);
        let consumer = Arc::clone(&self.consumer);
        let Ok(first) = timeout(IDLE, consumer.recv()).await else { return Ok(batch) };
        let first = first.map_err(|error| failed(&error))?;
        Self::read(&mut self.known, self.keys, &mut batch, &first);
        let linger = Instant::now() + LINGER;
        while !batch.is_full(messages_max) {
            let Ok(next) = timeout_at(linger, consumer.recv()).await else { break };
            let next = next.map_err(|error| failed(&error))?;
            Self::read(&mut self.known, self.keys, &mut batch, &next);
        }
        Ok(batch)
    }

    async fn done(&mut self, _batch: &Batch) -> Result<(), SinkError> {
        // The commit of the database was it.
        Ok(())
    }

    async fn close(self: Box<Self>) {
        // Ending a consumer waits for its threads.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

fn partitions(consumer: &StreamConsumer, topic: &str, place: &str) -> Result<Vec<i32>, SinkError> {
    let metadata = consumer.fetch_metadata(Some(topic), ANSWER_TIMEOUT);
    let metadata = metadata.map_err(|error| trouble(place, topic, &error))?;
    let missing = || {
        SinkError::Misconfigured(format!(
            "{place} has no topic {topic}, or this user may not see it; create it, or name another in the URL"
        ))
    };
    let found = metadata.topics().iter().find(|found| found.name() == topic).ok_or_else(missing)?;
    match found.error().map(RDKafkaErrorCode::from) {
        None => {}
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            return Err(missing());
        }
        Some(code) => return Err(trouble(place, topic, &KafkaError::MetadataFetch(code))),
    }
    if found.partitions().is_empty() {
        return Err(missing());
    }
    let mut partitions: Vec<i32> =
        found.partitions().iter().map(rdkafka::metadata::MetadataPartition::id).collect();
    partitions.sort_unstable();
    Ok(partitions)
}

fn find(consumer: &StreamConsumer, topic: &str, place: &str) -> Result<Found, SinkError> {
    let partitions = partitions(consumer, topic, place)?;
    let unknown = || SinkError::Unavailable(format!("{place} does not say which cluster it is"));
    let cluster = consumer.client().fetch_cluster_id(ANSWER_TIMEOUT).ok_or_else(unknown)?;
    let ends = partitions.into_iter().map(|partition| {
        let ends = consumer.fetch_watermarks(topic, partition, ANSWER_TIMEOUT);
        ends.map(|(low, high)| (partition, low, high)).map_err(|error| trouble(place, topic, &error))
    });
    Ok(Found { cluster, partitions: ends.collect::<Result<_, _>>()? })
}

/// What an error of Kafka means for a bridge.
fn trouble(place: &str, topic: &str, error: &KafkaError) -> SinkError {
    use RDKafkaErrorCode as Code;
    let to_do = match error.rdkafka_error_code() {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
            "create it, or name another in the URL"
        }
        Some(Code::Authentication | Code::SaslAuthenticationFailed | Code::UnsupportedSASLMechanism) => {
            "check user and password in the URL"
        }
        Some(
            Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::GroupAuthorizationFailed,
        ) => "grant the user the right to read it",
        _ => return SinkError::Unavailable(format!("{place}: topic {topic}: {error}")),
    };
    SinkError::Misconfigured(format!("{place} refuses topic {topic}: {error}; {to_do}"))
}

fn incoming(keys: Keys, message: &BorrowedMessage<'_>) -> Incoming {
    let origin =
        format!("topic {}, partition {}, offset {}", message.topic(), message.partition(), message.offset());
    let payload = message.payload();
    let mut incoming = Incoming::new(origin, NewMessage::new(payload.unwrap_or_default().to_vec()));
    match (keys, message.key().filter(|key| !key.is_empty())) {
        (Keys::Text, Some(key)) => match utf8(key) {
            Ok(key) => incoming.message.key = Some(key),
            Err(what) => {
                incoming.poison(format!("its key is {what}; with key=hex in the URL such keys become text"));
            }
        },
        (Keys::Hex, Some(key)) => {
            incoming.message.key = Some(key.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        (Keys::None, _) | (_, None) => {}
    }
    let mut id = None;
    for header in message.headers().iter().flat_map(|headers| headers.iter()) {
        let value = header.value.map_or(Err("null"), utf8);
        match (header.key, value) {
            (ID_HEADER, Ok(value)) => id = Some(value),
            (name, value) => incoming.header(name, value),
        }
    }
    incoming.identified(id.as_deref());
    if payload.is_none() {
        incoming.header(TOMBSTONE_HEADER, Ok("true".to_owned()));
    }
    let at = message.timestamp().to_millis().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    incoming.created_at(at);
    incoming.fields_from_headers();
    incoming.checked()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_topic_and_properties() {
        let from =
            FromKafka::from_url("kafka://u:secret@a:1,b/orders?start=latest&key=hex&fetch.min.bytes=7")
                .unwrap();
        assert_eq!((from.place.as_str(), from.topic.as_str()), ("kafka://a:1,b:9092", "orders"));
        assert_eq!((from.keys, from.from_latest), (Keys::Hex, true));
        assert_eq!(from.config.get("fetch.min.bytes"), Some("7"));
        assert_eq!(from.config.get("bootstrap.servers"), Some("a:1,b:9092"));
        for (url, says) in [
            ("kafka://h", "name it as kafka://"),
            ("kafka://h/t?start=7", "start=7"),
            ("kafka://h/t?key=avro", "key=avro"),
            ("kafka://h/t?enable.auto.commit=true", "decided by the bridge"),
            ("kafka://h/t?no.such=secret", "no.such"),
        ] {
            let error = FromKafka::from_url(url).err().expect("refused");
            assert_eq!(error.kind(), headwater::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(says) && !error.to_string().contains("secret"), "{error}");
        }
    }
}
