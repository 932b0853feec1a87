//! Apache Kafka: an idempotent producer, acknowledged by all replicas in sync; and exactly once through transactions.
//!
//! # Order per key
//! Records of a key have one partition, and within a call no later record of a partition is delivered once an earlier one failed:
//! - The producer is idempotent: a broker appends a request only after the one before it of the same partition, so requests in flight together
//!   cannot overtake each other, whatever is repeated.
//! - A request that a broker refuses for good ends the producer (`enable.gapless.guarantee`): it sends nothing further.
//! - No record expires on its own: at the deadline of a call everything that is not confirmed is purged at once, and the producer ends.
//!
//! A call ends when every record has its result, and the next call begins after that. A call that was dropped in the middle, or that ended a
//! producer, may have records on their way; the next call sends them again with another producer. Duplicates can then be interleaved, but both series have the
//! order of the batch, so the first occurrences of a key's records do too: what an inbox lets through is in order.
//!
//! A [`Delivery::Refused`] record is out of the series: it is given up, and later records of its key are delivered.

mod address;
mod client;
mod convert;
mod exactly_once;
mod faults;
mod position;
mod session;
mod transactions;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use headwater::Result;
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

pub use convert::{CONTENT_TYPE_HEADER, CORRELATION_ID_HEADER, MESSAGE_ID_HEADER, TYPE_HEADER};
pub use exactly_once::{End, ExactlyOnce, ExactlyOnceError};

use crate::sink::{Delivery, Record, Sink, SinkError};
use address::Address;
use client::{Batch, Client, Sent, in_background};
use faults::Fault;

/// The longest pause before a record is offered to a full queue again.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// A sink that produces to a topic of Kafka.
///
/// `kafka://user:password@host:port,host:port/topic?option=value`; without a topic, each record goes to its destination. With a user, SASL PLAIN
/// is used. Options:
///
/// | option | meaning |
/// |---|---|
/// | `create=1` | creates a missing topic, with `partitions=N` or the broker's default; otherwise a missing topic is an error |
/// | `compression` | `lz4` (default) or `none` |
/// | `linger_ms` | how long the producer waits to fill a request: 5 by default |
/// | `timeout_ms` | after how long without confirmation a call fails: 10,000 by default |
/// | a name with a dot | a property of librdkafka, such as `security.protocol` or `sasl.password` |
///
/// Records have the key, the time of the message as timestamp, the message's headers, and [`MESSAGE_ID_HEADER`], [`TYPE_HEADER`],
/// [`CONTENT_TYPE_HEADER`] and [`CORRELATION_ID_HEADER`]. The partition is that of Java clients for the same key.
///
/// ```
/// use headwater_relay::Sink;
/// use headwater_relay::kafka::KafkaSink;
///
/// let sink = KafkaSink::from_url("kafka://one:9092,two:9092/orders?compression=none")?;
/// assert!(sink.keeps_order());
/// let error = KafkaSink::from_url("kafka://one/orders?acks=0").unwrap_err();
/// assert!(error.to_string().contains("unknown option acks"), "{error}");
/// # Ok::<(), headwater::Error>(())
/// ```
#[derive(Debug)]
pub struct KafkaSink {
    address: Arc<Address>,
    state: Mutex<State>,
}

/// What lasts between two calls.
#[derive(Debug, Default)]
struct State {
    client: Option<Arc<Client>>,
    /// Topics that exist.
    known: HashSet<String>,
    /// A call was begun and not ended: it was dropped, and its records may be on their way.
    is_open: bool,
}

impl KafkaSink {
    /// A sink for a URL; nothing is connected yet.
    pub fn from_url(url: &str) -> Result<Self> {
        Ok(KafkaSink { address: Arc::new(Address::from_url(url)?), state: Mutex::default() })
    }

    /// Begins a call: after one that was dropped, with another producer.
    async fn begin(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().await;
        if std::mem::replace(&mut state.is_open, true) {
            discard(&mut state).await;
        }
        state
    }

    /// Ends a call: a producer that failed is not used again.
    async fn end(&self, mut state: MutexGuard<'_, State>, has_failed: bool) {
        if has_failed || state.client.as_ref().is_some_and(|client| client.is_ended()) {
            discard(&mut state).await;
        }
        state.is_open = false;
    }

    fn client(&self, state: &mut State, careful: bool) -> std::result::Result<Arc<Client>, SinkError> {
        if let Some(client) = &state.client {
            return Ok(Arc::clone(client));
        }
        let client = Client::new(&self.address, careful)
            .map_err(|error| SinkError::Misconfigured(error.to_string()))?;
        let client = Arc::new(client);
        state.client = Some(Arc::clone(&client));
        Ok(client)
    }

    /// The missing ones of these topics, after an attempt to create them if that is asked for.
    async fn missing(
        &self,
        state: &mut State,
        topics: BTreeSet<String>,
    ) -> std::result::Result<BTreeSet<String>, SinkError> {
        let unknown: BTreeSet<String> =
            topics.into_iter().filter(|topic| !state.known.contains(topic)).collect();
        if unknown.is_empty() {
            return Ok(unknown);
        }
        let (client, address) = (self.client(state, false)?, Arc::clone(&self.address));
        let asked = unknown.clone();
        let missing = in_background(move || client.missing_topics(&address, &asked)).await?;
        state.known.extend(unknown.difference(&missing).cloned());
        Ok(missing)
    }

    async fn deliver_all(
        &self,
        state: &mut State,
        records: &[Record],
    ) -> std::result::Result<Vec<Delivery>, SinkError> {
        let topic_of =
            |record: &Record| self.address.topic.clone().unwrap_or_else(|| record.destination.clone());
        let missing = self.missing(state, records.iter().map(topic_of).collect()).await?;
        if let Some(topic) = self.address.topic.as_ref().filter(|topic| missing.contains(*topic)) {
            return Err(SinkError::Misconfigured(self.address.missing_topic(topic)));
        }
        let mut deliveries: Vec<Option<Delivery>> = Vec::with_capacity(records.len());
        for record in records {
            let topic = topic_of(record);
            let reason = || self.address.missing_topic(&topic);
            deliveries.push(
                missing.contains(&topic).then(|| Delivery::Failed { reason: reason(), retry_after: None }),
            );
        }
        let mut faults = self.send(state, records, &mut deliveries, false).await?;
        if faults.iter().any(|fault| matches!(fault, Fault::Refused(_))) {
            // A broker refuses a request as a whole: which record it was shows only if each is sent alone.
            discard(state).await;
            deliveries
                .iter_mut()
                .filter(|one| matches!(one, Some(Delivery::Failed { .. } | Delivery::Unconfirmed { .. })))
                .for_each(|one| *one = None);
            faults = self.send(state, records, &mut deliveries, true).await?;
        }
        self.judge(state, &faults, deliveries)
    }

    async fn check_all(&self, state: &mut State) -> std::result::Result<(), SinkError> {
        state.known.clear();
        let Some(topic) = &self.address.topic else {
            let (client, address) = (self.client(state, false)?, Arc::clone(&self.address));
            return in_background(move || client.topics(&address)).await.map(drop);
        };
        match self.missing(state, BTreeSet::from([topic.clone()])).await?.first() {
            Some(topic) => Err(SinkError::Misconfigured(self.address.missing_topic(topic))),
            None => Ok(()),
        }
    }

    /// The results of a call: an error if nothing was delivered, and the reason concerns the sink as a whole.
    fn judge(
        &self,
        state: &mut State,
        faults: &[Fault],
        deliveries: Vec<Option<Delivery>>,
    ) -> std::result::Result<Vec<Delivery>, SinkError> {
        if faults.iter().any(|fault| matches!(fault, Fault::Misconfigured(_))) {
            // It may be a topic that was removed.
            state.known.clear();
        }
        let mut deliveries: Vec<Delivery> =
            deliveries.into_iter().map(|one| one.expect("each record was sent")).collect();
        let is_outage = faults.iter().any(|fault| matches!(fault, Fault::Unavailable(_)));
        if !is_outage {
            // What stopped the call concerns single records.
            deliveries.iter_mut().for_each(fail_unconfirmed);
        }
        let is_decided =
            |one: &Delivery| !matches!(one, Delivery::Failed { .. } | Delivery::Unconfirmed { .. });
        if deliveries.iter().any(is_decided) {
            return Ok(deliveries);
        }
        let fixed = self.address.topic.is_some();
        for fault in faults {
            match fault {
                Fault::Misconfigured(text) if fixed => return Err(SinkError::Misconfigured(text.clone())),
                Fault::Unavailable(text) => return Err(SinkError::Unavailable(text.clone())),
                _ => {}
            }
        }
        Ok(deliveries)
    }

    /// Sends the records that have no result yet; one at a time if `careful`. Returns what went wrong.
    async fn send(
        &self,
        state: &mut State,
        records: &[Record],
        deliveries: &mut [Option<Delivery>],
        careful: bool,
    ) -> std::result::Result<Vec<Fault>, SinkError> {
        let open: Vec<usize> = (0..records.len()).filter(|at| deliveries[*at].is_none()).collect();
        let mut faults = Vec::new();
        let step = if careful { 1 } else { open.len().max(1) };
        for part in open.chunks(step) {
            let client = self.client(state, careful)?;
            let results = if is_stopped(&faults) {
                vec![Sent::Failed(RDKafkaErrorCode::Fatal); part.len()]
            } else {
                self.send_part(&client, records, part).await
            };
            for (at, sent) in part.iter().zip(results) {
                let code = match sent {
                    Sent::Confirmed => {
                        deliveries[*at] = Some(Delivery::Delivered);
                        continue;
                    }
                    Sent::TooLarge => RDKafkaErrorCode::MessageSizeTooLarge,
                    Sent::Failed(code) => code,
                };
                let fault = faults::classify(code, &client.last_error(), &self.address.name(&records[*at]));
                let is_certain = careful || sent == Sent::TooLarge;
                deliveries[*at] =
                    (is_certain || !matches!(fault, Fault::Refused(_))).then(|| fault.delivery());
                if sent != Sent::TooLarge {
                    faults.push(fault);
                }
            }
            if client.is_ended() {
                discard(state).await;
            }
        }
        Ok(faults)
    }

    /// Sends these records and waits for their results, at most until the deadline.
    async fn send_part(&self, client: &Arc<Client>, records: &[Record], part: &[usize]) -> Vec<Sent> {
        let deadline = Instant::now() + self.address.timeout;
        let batch = Batch::new(part.len());
        let mut stopped = None;
        for (slot, at) in part.iter().enumerate() {
            let record = &records[*at];
            let topic = self.address.topic.as_ref().unwrap_or(&record.destination);
            loop {
                let offered = match stopped {
                    Some(sent) => Err(sent),
                    None => client.offer(topic, record, &batch, slot),
                };
                match offered {
                    Ok(()) => break,
                    Err(Sent::Failed(RDKafkaErrorCode::QueueFull)) if Instant::now() < deadline => {
                        tokio::time::sleep(QUEUE_PAUSE).await;
                    }
                    Err(sent) => {
                        // A record that is too large is given up. After any other error no later record may be sent.
                        if sent != Sent::TooLarge {
                            stopped = Some(Sent::Failed(RDKafkaErrorCode::Fatal));
                        }
                        batch.set(slot, sent);
                        break;
                    }
                }
            }
        }
        if tokio::time::timeout_at(deadline, batch.all()).await.is_err() {
            let client = Arc::clone(client);
            in_background(move || client.end()).await;
            batch.fail_the_rest();
        }
        batch.results()
    }
}

/// Whether a record failed that may be sent again: later ones are not sent then.
fn is_stopped(faults: &[Fault]) -> bool {
    faults.iter().any(|fault| !matches!(fault, Fault::Refused(_)))
}

fn fail_unconfirmed(delivery: &mut Delivery) {
    if let Delivery::Unconfirmed { reason } = delivery {
        *delivery = Delivery::Failed { reason: std::mem::take(reason), retry_after: None };
    }
}

/// Drops a producer where it may block.
async fn discard(state: &mut State) {
    if let Some(client) = state.client.take() {
        in_background(move || {
            client.end();
            drop(client);
        })
        .await;
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn keeps_order(&self) -> bool {
        true
    }

    async fn deliver(&self, records: &[Record]) -> std::result::Result<Vec<Delivery>, SinkError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let mut state = self.begin().await;
        let result = self.deliver_all(&mut state, records).await;
        self.end(state, result.is_err()).await;
        result
    }

    async fn check(&self) -> std::result::Result<(), SinkError> {
        let mut state = self.begin().await;
        let result = self.check_all(&mut state).await;
        self.end(state, result.is_err()).await;
        result
    }

    async fn close(&self) {
        discard(&mut *self.state.lock().await).await;
    }
}
