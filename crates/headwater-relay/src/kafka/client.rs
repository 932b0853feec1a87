//! A producer, and the results of what it was given.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::Notify;

use super::address::Address;
use super::{convert, faults};
use crate::sink::{Record, SinkError};

/// Runs calls of librdkafka that block.
pub(super) async fn in_background<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// What became of a record that was given to the producer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sent {
    Confirmed,
    /// Larger than the client sends: found before it is sent, so it is certain which one it is.
    TooLarge,
    Failed(RDKafkaErrorCode),
}

/// The results of records that were sent together.
#[derive(Debug)]
pub(super) struct Batch {
    results: Mutex<Vec<Option<Sent>>>,
    left: AtomicUsize,
    done: Notify,
}

impl Batch {
    pub(super) fn new(records: usize) -> Arc<Self> {
        let results = Mutex::new(vec![None; records]);
        Arc::new(Batch { results, left: AtomicUsize::new(records), done: Notify::new() })
    }

    /// The first result of a record counts.
    pub(super) fn set(&self, slot: usize, sent: Sent) {
        let mut results = self.results.lock().expect("no panic while held");
        if results[slot].is_none() {
            results[slot] = Some(sent);
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.done.notify_one();
            }
        }
    }

    /// Waits for all results.
    pub(super) async fn all(&self) {
        while self.left.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
    }

    /// The same in a thread, for at most this long.
    pub(super) fn wait(&self, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        while self.left.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Records without a result are not confirmed.
    pub(super) fn fail_the_rest(&self) {
        let count = self.results.lock().expect("no panic while held").len();
        (0..count).for_each(|slot| self.set(slot, Sent::Failed(RDKafkaErrorCode::PurgeInflight)));
    }

    pub(super) fn results(&self) -> Vec<Sent> {
        // Copied: reports of records that were given up may follow.
        let results = self.results.lock().expect("no panic while held");
        results.iter().map(|sent| sent.expect("all have a result")).collect()
    }
}

/// A record's place in its batch.
#[derive(Debug)]
pub(super) struct Slot {
    batch: Arc<Batch>,
    at: usize,
}

/// Takes the reports of librdkafka.
#[derive(Debug, Default)]
pub(super) struct Reports {
    last_error: Mutex<Option<KafkaError>>,
}

impl Reports {
    pub(super) fn last_error(&self) -> Option<KafkaError> {
        self.last_error.lock().expect("no panic while held").clone()
    }
}

impl ClientContext for Reports {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(facility, text, "librdkafka log");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka client error");
        let mut last = self.last_error.lock().expect("no panic while held");
        let is_general = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        // It follows a specific one, and says less.
        if last.is_none() || !is_general {
            *last = Some(error);
        }
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Slot>;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: Box<Slot>) {
        let sent = match result {
            Ok(_) => {
                *self.last_error.lock().expect("no panic while held") = None;
                Sent::Confirmed
            }
            Err((error, _)) => Sent::Failed(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        slot.batch.set(slot.at, sent);
    }
}

/// A producer.
pub(super) struct Client {
    pub(super) producer: ThreadedProducer<Reports>,
    ended: AtomicBool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(address: &Address, careful: bool) -> KafkaResult<Self> {
        let mut config = address.producer(careful);
        // See the argument of the module: no record ends alone.
        config.set("enable.gapless.guarantee", "true").set("message.timeout.ms", "0");
        Self::from_config(&config)
    }

    pub(super) fn from_config(config: &rdkafka::ClientConfig) -> KafkaResult<Self> {
        let producer = ThreadedProducer::from_config_and_context(config, Reports::default())?;
        Ok(Client { producer, ended: AtomicBool::new(false) })
    }

    /// Gives a record to the producer; its result comes to the batch.
    pub(super) fn offer(
        &self,
        topic: &str,
        record: &Record,
        batch: &Arc<Batch>,
        at: usize,
    ) -> Result<(), Sent> {
        let slot = Box::new(Slot { batch: Arc::clone(batch), at });
        let payload: &[u8] = &record.payload;
        let mut made = BaseRecord::<str, [u8], Box<Slot>>::with_opaque_to(topic, slot)
            .payload(payload)
            .headers(convert::headers(record))
            .timestamp(record.created_at.as_millisecond());
        if let Some(key) = &record.key {
            made = made.key(key);
        }
        self.producer.send(made).map_err(|(error, _)| match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::MessageSizeTooLarge) => Sent::TooLarge,
            code => Sent::Failed(code.unwrap_or(RDKafkaErrorCode::Fail)),
        })
    }

    /// Whether it sends nothing any more.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.producer.client().fatal_error().is_some()
    }

    /// Purges what was not confirmed; blocks for a moment.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.producer.purge(PurgeConfig::default().queue().inflight());
    }

    pub(super) fn last_error(&self) -> Option<KafkaError> {
        self.producer.context().last_error()
    }

    /// The names of all topics that may be seen. Asking for all never creates one, as asking for one by name can; blocks.
    pub(super) fn topics(&self, address: &Address) -> Result<BTreeSet<String>, SinkError> {
        let metadata = self.producer.client().fetch_metadata(None, address.timeout);
        let metadata =
            metadata.map_err(|error| faults::of(&error, &self.last_error(), address.place()).sink_error())?;
        Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
    }

    /// Those of these topics that do not exist, after creating them if the address says so; blocks.
    pub(super) fn missing_topics(
        &self,
        address: &Address,
        asked: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, SinkError> {
        let missing: BTreeSet<String> = asked.difference(&self.topics(address)?).cloned().collect();
        if missing.is_empty() || !address.creates {
            return Ok(missing);
        }
        create_topics(address, &missing)?;
        Ok(BTreeSet::new())
    }
}

fn create_topics(address: &Address, topics: &BTreeSet<String>) -> Result<(), SinkError> {
    let misconfigured = |error: &KafkaError| faults::of(error, &None, address.place()).sink_error();
    let admin: AdminClient<DefaultClientContext> =
        address.common().create().map_err(|error| misconfigured(&error))?;
    let partitions = address.partitions.unwrap_or(-1);
    let new: Vec<NewTopic<'_>> =
        topics.iter().map(|topic| NewTopic::new(topic, partitions, TopicReplication::Fixed(-1))).collect();
    let options =
        AdminOptions::new().operation_timeout(Some(address.timeout)).request_timeout(Some(address.timeout));
    let runtime = tokio::runtime::Handle::current();
    let results =
        runtime.block_on(admin.create_topics(&new, &options)).map_err(|error| misconfigured(&error))?;
    for result in results {
        match result {
            Ok(topic) => tracing::info!(topic, "kafka topic created"),
            // Another process was faster.
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => {
                let text = format!("{} cannot be created: {code}", address.topic_name(&topic));
                return Err(SinkError::Misconfigured(text));
            }
        }
    }
    // Brokers learn of it a moment later.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}
