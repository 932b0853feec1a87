//! Transactions of Kafka: records together with a position, by one producer at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;
use rdkafka::topic_partition_list::Offset;

use super::address::Address;
use super::client::{Batch, Client, Sent};
use super::faults::{self, Fault};
use super::position::Position;
use crate::sink::{Record, SinkError};

/// Brokers abort a transaction that is open for longer, so that readers do not wait for a relay that was killed and never started again.
const TRANSACTION_TIMEOUT_MS: u32 = 30_000;
const COMMIT_ATTEMPTS_MAX: u32 = 3;

/// A transaction that did not commit, or may not have.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// Records that are refused for good.
    pub(super) refused: Vec<usize>,
    /// Whether all of them are: a broker refuses a request as a whole.
    pub(super) is_certain: bool,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure { fault, refused: Vec::new(), is_certain: false }
    }
}

/// A producer with a transactional id, which ended all others of that id, and the position that was committed by then.
#[derive(Debug)]
pub(super) struct Transactions {
    client: Client,
    group: Group,
    topic: String,
    name: String,
    timeout: Duration,
    /// Each record has a request of its own.
    is_careful: bool,
}

/// The group whose offset has the position.
struct Group(BaseConsumer);

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Group")
    }
}

impl Transactions {
    /// Ends every other producer with this id, and reads the position; blocks.
    ///
    /// In this order: once `init_transactions` has returned, transactions of all producers before are committed or aborted and none of
    /// them can commit another. So the position that is read afterwards is the last one, and stays so until this producer commits.
    pub(super) fn open(
        address: &Address,
        id: &str,
        topic: &str,
        careful: bool,
    ) -> Result<(Self, Option<String>), Fault> {
        let name = address.topic_name(topic);
        let mut config = address.producer(careful);
        let timeout_ms = address.timeout.as_millis().min(u128::from(TRANSACTION_TIMEOUT_MS));
        config.set("transactional.id", id).set("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS.to_string());
        config.set("message.timeout.ms", timeout_ms.to_string());
        let client = Client::from_config(&config).map_err(|error| faults::of(&error, &None, &name))?;
        let missing =
            client.missing_topics(address, &[topic.to_owned()].into()).map_err(|error| match error {
                SinkError::Misconfigured(text) => Fault::Misconfigured(text),
                SinkError::Unavailable(text) => Fault::Unavailable(text),
            })?;
        if let Some(topic) = missing.first() {
            return Err(Fault::Misconfigured(address.missing_topic(topic)));
        }
        let fault = |error: KafkaError| faults::of(&error, &client.last_error(), &name);
        client.producer.init_transactions(address.timeout).map_err(fault)?;
        let mut config = address.common();
        // `read_committed` also makes the broker wait for offsets of transactions that are being completed.
        config
            .set("group.id", id)
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create().map_err(fault)?;
        let mut asked = TopicPartitionList::new();
        asked.add_partition(topic, 0);
        let answer = consumer.committed_offsets(asked, address.timeout).map_err(fault)?;
        let element = answer
            .find_partition(topic, 0)
            .ok_or_else(|| Fault::Failed(format!("{name}: no position in the answer")))?;
        element.error().map_err(fault)?;
        let text = match element.offset() {
            Offset::Offset(_) => Some(element.metadata().to_owned()),
            _ => None,
        };
        let (timeout, topic) = (address.timeout, topic.to_owned());
        Ok((Transactions { client, group: Group(consumer), topic, name, timeout, is_careful: careful }, text))
    }

    /// Commits records and a position together; blocks. After a failure the outcome may be unknown: open another one, and read the position.
    pub(super) fn commit(&self, records: &[Record], position: &Position) -> Result<(), Failure> {
        let producer = &self.client.producer;
        producer.begin_transaction().map_err(|error| self.fault(&error))?;
        let sent = self.send(records);
        if sent.iter().any(|sent| *sent != Sent::Confirmed) {
            // Its result does not matter: the next producer with this id aborts what is open.
            let _ = producer.abort_transaction(self.timeout);
            return Err(self.failure(&sent));
        }
        let mut offsets = TopicPartitionList::new();
        // The number is only for people: what counts is the text.
        let offset = position.last.map_or(position.cursor, |(offset, _)| offset).max(0);
        offsets
            .add_partition_offset(&self.topic, 0, Offset::Offset(offset))
            .map_err(|error| self.fault(&error))?;
        for mut element in offsets.elements() {
            element.set_metadata(position.encode());
        }
        let group = self.group.0.group_metadata();
        let group = group.ok_or_else(|| Fault::Failed(format!("{}: no group of the position", self.name)))?;
        producer
            .send_offsets_to_transaction(&offsets, &group, self.timeout)
            .map_err(|error| self.fault(&error))?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match producer.commit_transaction(self.timeout) {
                Ok(()) => return Ok(()),
                // The call, not the transaction: librdkafka continues where it was.
                Err(KafkaError::Transaction(error))
                    if error.is_retriable() && attempts < COMMIT_ATTEMPTS_MAX => {}
                Err(error) => return Err(self.fault(&error).into()),
            }
        }
    }

    /// Sends records and waits for their results.
    fn send(&self, records: &[Record]) -> Vec<Sent> {
        let batch = Batch::new(records.len());
        let deadline = Instant::now() + self.timeout;
        for (at, record) in records.iter().enumerate() {
            loop {
                match self.client.offer(&self.topic, record, &batch, at) {
                    Err(Sent::Failed(RDKafkaErrorCode::QueueFull)) if Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Err(sent) => break batch.set(at, sent),
                    Ok(()) => break,
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if self.client.producer.flush(left.max(Duration::from_millis(1))).is_ok() {
            // Reports are taken by another thread: the last ones may be a moment behind.
            batch.wait(Duration::from_secs(1));
        }
        batch.fail_the_rest();
        batch.results()
    }

    /// What kept the records of a transaction from being sent.
    fn failure(&self, sent: &[Sent]) -> Failure {
        if let Some(fault) = self.fenced() {
            return fault.into();
        }
        let classify = |code: RDKafkaErrorCode| faults::classify(code, &self.client.last_error(), &self.name);
        let faults: Vec<(usize, Fault)> = sent
            .iter()
            .enumerate()
            .filter_map(|(at, sent)| match sent {
                Sent::Confirmed => None,
                Sent::TooLarge => Some((at, classify(RDKafkaErrorCode::MessageSizeTooLarge))),
                Sent::Failed(code) => Some((at, classify(*code))),
            })
            .collect();
        let is_certain = self.is_careful || sent.contains(&Sent::TooLarge);
        let is_it = |at: usize| self.is_careful || !is_certain || sent[at] == Sent::TooLarge;
        let is_refused = |(at, fault): &&(usize, Fault)| matches!(fault, Fault::Refused(_)) && is_it(*at);
        let refused: Vec<&(usize, Fault)> = faults.iter().filter(is_refused).collect();
        let fault =
            refused.first().map(|(_, fault)| fault).or_else(|| faults.first().map(|(_, fault)| fault));
        let fault = fault.cloned().unwrap_or_else(|| Fault::Failed(self.name.clone()));
        Failure { fault, refused: refused.into_iter().map(|(at, _)| *at).collect(), is_certain }
    }

    fn fault(&self, error: &KafkaError) -> Fault {
        let of_call = || faults::of(error, &self.client.last_error(), &self.name);
        self.fenced().unwrap_or_else(of_call)
    }

    /// Records and calls of a producer that was fenced fail in many ways; the producer itself has the reason.
    fn fenced(&self) -> Option<Fault> {
        let (code, _) = self.client.producer.client().fatal_error()?;
        Some(faults::classify(code, &None, &self.name)).filter(|fault| matches!(fault, Fault::Fenced(_)))
    }
}

/// Drops a session where it may block.
pub(super) async fn close(transactions: Arc<Transactions>) {
    super::in_background(move || drop(transactions)).await;
}
