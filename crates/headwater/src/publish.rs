//! The producer: combines concurrent sends into one statement, and delays none of them for it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::codec::IntoMessage;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Gate, Inside};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::observe::health::Health;
use crate::observe::metrics::{Registry, TopicMetrics};
use crate::observe::trace;
use crate::store::Store;

pub(crate) mod replies;
mod request;
mod sends;
mod within;

use replies::Replies;
pub use request::Requests;
pub use sends::{Sends, SendsBatch};
pub(crate) use within::wrong_engine;
pub use within::{Publishing, Transaction};

/// Most sends that wait for a batch; beyond it `send` waits: back-pressure.
const QUEUE_SENDS_MAX: usize = 4_096;
/// Most messages of one batch.
const BATCH_MESSAGES_MAX: usize = 1_000;
/// Most payload bytes of one batch, except for a single larger message.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Publishes to one topic. Cheap to clone; clones share one queue.
///
/// A send that finds the producer idle is published at once. Sends that arrive while a batch is in flight form the next
/// batch, in the order in which they were sent: one batch is in flight at a time, so order is kept.
///
/// An invalid topic name is reported by the first send.
#[derive(Clone, Debug)]
pub struct Producer {
    topic: Arc<Result<Log>>,
    queue: mpsc::Sender<Sending>,
    /// Sends are inside until they are answered.
    gate: Arc<Gate>,
    replies: Arc<Replies>,
}

/// One message to publish, and the channel its sender waits on.
#[derive(Debug)]
struct Sending {
    message: NewMessage,
    answer: oneshot::Sender<Result<Published>>,
}

impl Producer {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        topic: &str,
        metrics: &Registry,
        gate: Arc<Gate>,
        replies: Arc<Replies>,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_SENDS_MAX);
        let log = TopicName::new(topic).map(|topic| Log { store, metrics: metrics.topic(&topic), topic });
        if let Ok(log) = &log {
            // Ends when the last clone of the producer is dropped and everything queued has been answered. On a thread
            // without a runtime, such as SQLite's writer, only publishing within a transaction works.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(run(log.clone(), waiting));
            }
        }
        Producer { topic: Arc::new(log), queue, gate, replies }
    }

    /// Publishes one message, or a value that makes one, when awaited; returns once it is durable.
    ///
    /// A value behind a reference is sent as JSON: see [`IntoMessage`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
    /// # let headwater = headwater::Headwater::in_memory().await?;
    /// let orders = headwater.producer("orders");
    /// let published = orders.send(&serde_json::json!({ "id": 7 })).key("customer-1").header("source", "web").await?;
    /// assert_eq!(published.offset.map(|offset| offset.0), Some(1));
    /// # Ok(()) }
    /// ```
    pub fn send(&self, message: impl IntoMessage) -> Sends<'_> {
        Sends::new(Cow::Borrowed(self), message.into_message())
    }

    fn log(&self) -> Result<&Log> {
        (*self.topic).as_ref().map_err(Error::copy)
    }

    /// A send under way: the end of the handle waits for it.
    fn enter(&self, log: &Log) -> Result<Inside> {
        self.gate.enter().ok_or_else(|| log.stopped())
    }

    async fn send_now(&self, message: Result<NewMessage>) -> Result<Published> {
        let log = self.log()?;
        let _inside = self.enter(log)?;
        let message = message.and_then(checked).inspect_err(|error| log.failed(1, error))?;
        let (answer, answered) = oneshot::channel();
        self.queue.send(Sending { message, answer }).await.map_err(|_| log.stopped())?;
        answered.await.map_err(|_| log.stopped())?
    }

    /// Publishes a request and waits for its reply, when awaited: a handler of the topic answers with
    /// [`Context::reply`](crate::Context::reply). See [`Requests`] for an example.
    pub fn request(&self, message: impl IntoMessage) -> Requests<'_> {
        Requests::new(self, message.into_message())
    }

    /// Publishes all of a batch or nothing, in one statement of its own, when awaited.
    pub fn send_batch<'p>(&'p self, messages: &'p [NewMessage]) -> SendsBatch<'p> {
        SendsBatch::new(self, messages)
    }

    async fn send_batch_now(&self, messages: &[NewMessage]) -> Result<Vec<Published>> {
        let log = self.log()?;
        let _inside = self.enter(log)?;
        let published = log.publish(&trace::injected(messages)).await;
        published.inspect_err(|error| log.failed(messages.len(), error))
    }

    /// Whether its task has ended, with the runtime that it ran on.
    fn is_stopped(&self) -> bool {
        self.queue.is_closed()
    }

    /// Rates, times and the last errors of all producers of this topic in this process.
    pub fn health(&self) -> Result<Health> {
        let log = self.log()?;
        let health = log.metrics.health("producer");
        Ok(if log.store.is_closed() { health.stopped("the store is closed") } else { health })
    }
}

/// A message with the current trace context, which belongs to the caller's task and not to that of the queue. Checked
/// here, so that one bad message fails alone and not with its batch.
fn checked(mut message: NewMessage) -> Result<NewMessage> {
    trace::inject(&mut message);
    message.validate()?;
    Ok(message)
}

/// One topic's log, and the metrics of publishing to it.
#[derive(Clone, Debug)]
struct Log {
    store: Arc<dyn Store>,
    topic: TopicName,
    metrics: Arc<TopicMetrics>,
}

impl Log {
    fn stopped(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("producer of topic {} has stopped", self.topic))
    }

    /// Publishes and counts what was published. A failure is counted by the caller, which knows how many messages it
    /// affects.
    async fn publish(&self, messages: &[NewMessage]) -> Result<Vec<Published>> {
        let start = Instant::now();
        let published = self.store.publish(&self.topic, messages).await;
        self.metrics.publish_seconds.record(start.elapsed());
        if let Ok(published) = &published {
            self.metrics.succeeded(new_among(published));
        }
        published
    }

    /// Counts what was published in a transaction of the program's own, apart from the rest: it may still roll back.
    fn counted_within(
        &self,
        start: Instant,
        messages: usize,
        published: Result<Vec<Published>>,
    ) -> Result<Vec<Published>> {
        self.metrics.publish_seconds.record(start.elapsed());
        match &published {
            Ok(published) => self.metrics.succeeded_in_transaction(new_among(published)),
            Err(error) => self.failed(messages, error),
        }
        published
    }

    fn failed(&self, messages: usize, error: &Error) {
        self.metrics.failed(messages, error);
    }
}

/// How many are no duplicates.
fn new_among(published: &[Published]) -> usize {
    published.iter().filter(|published| !published.duplicate).count()
}

async fn run(log: Log, mut waiting: mpsc::Receiver<Sending>) {
    while let Some(first) = waiting.recv().await {
        // Senders that the last batch answered are ready to run and send again: once they have, this batch has all of them.
        tokio::task::yield_now().await;
        let mut bytes = first.message.payload.len();
        let mut batch = vec![first];
        while batch.len() < BATCH_MESSAGES_MAX && bytes < BATCH_BYTES_MAX {
            let Ok(next) = waiting.try_recv() else { break };
            bytes += next.message.payload.len();
            batch.push(next);
        }
        send(&log, batch).await;
    }
}

async fn send(log: &Log, batch: Vec<Sending>) {
    let (messages, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|sending| (sending.message, sending.answer)).unzip();
    match log.publish(&messages).await {
        Ok(published) => {
            for (answer, published) in answers.into_iter().zip(published) {
                // A sender that stopped waiting has dropped its receiver: nothing to report to.
                let _ = answer.send(Ok(published));
            }
        }
        // Independent senders share a batch: a message that is too large fails alone, the others are published.
        Err(error) if messages.len() > 1 && error.kind() == ErrorKind::PayloadTooLarge => {
            for (message, answer) in messages.into_iter().zip(answers) {
                let one = log.publish(&[message]).await.inspect_err(|error| log.failed(1, error));
                let _ = answer.send(one.map(|mut published| published.remove(0)));
            }
        }
        Err(error) => {
            log.failed(messages.len(), &error);
            for answer in answers {
                let _ = answer.send(Err(error.copy()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::health::HealthState;
    use crate::{Headwater, Json, OpenOptions};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[tokio::test]
    async fn what_is_published_in_a_trace_carries_it_and_nothing_else_does() {
        let headwater = Headwater::open("sqlite::memory:").await.unwrap();
        let producer = headwater.producer("orders");
        let batch = [NewMessage::new("b"), NewMessage::new("c").header("traceparent", "its own")];
        trace::within(PARENT.parse().unwrap(), async {
            producer.send(Json(1)).await.unwrap();
            producer.send_batch(&batch).await.unwrap();
        })
        .await;
        producer.send(NewMessage::new("d")).await.unwrap();
        producer.send_batch(&[NewMessage::new("e")]).await.unwrap();

        let mut consumer = headwater.consumer("orders", "all").open().await.unwrap();
        let messages = consumer.next(Duration::ZERO).await.unwrap().unwrap();
        let parents: Vec<_> = messages.messages().iter().map(|m| m.headers.get("traceparent")).collect();
        let (parent, own) = (PARENT.to_owned(), "its own".to_owned());
        assert_eq!(parents, [Some(&parent), Some(&parent), Some(&own), None, None]);
    }

    #[tokio::test]
    async fn a_message_refused_before_it_is_queued_is_counted_too() {
        let headwater = Headwater::open("sqlite::memory:").await.unwrap();
        let producer = headwater.producer("orders");
        let bad = producer.send(NewMessage::new("x").key("k".repeat(10_000))).await.unwrap_err();
        assert_eq!(bad.kind(), ErrorKind::InvalidInput);
        let health = producer.health().unwrap();
        assert_eq!((health.state, health.totals.publish_errors), (HealthState::Failing, 1));
        assert_eq!(health.last_errors[0].code, "InvalidInput");
    }

    // With one worker: the first sender that was answered wakes the batch before the others have run.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn senders_that_were_answered_share_the_next_batch() {
        const ROUNDS: u64 = 20;
        let headwater = Headwater::open("sqlite::memory:").await.unwrap();
        let producer = headwater.producer("orders");
        let mut senders = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let producer = producer.clone();
            senders.spawn(async move {
                for round in 0..ROUNDS {
                    producer.send(&round).await.unwrap();
                }
            });
        }
        senders.join_all().await;
        let publishes = producer.health().unwrap().times.publish.unwrap().count;
        assert!(publishes <= 2 * ROUNDS, "{publishes} publishes for {ROUNDS} rounds");
    }

    #[tokio::test]
    async fn health_counts_what_was_published_and_what_failed() {
        let options = OpenOptions::default().auto_create(false);
        let headwater = Headwater::open_with("sqlite::memory:", options).await.unwrap();
        let producer = headwater.producer("orders");
        assert_eq!(producer.send(&1).await.unwrap_err().kind(), ErrorKind::NoSuchTopic);
        let health = producer.health().unwrap();
        assert_eq!((health.state, health.totals.publish_errors), (HealthState::Failing, 1));
        assert_eq!(health.last_errors[0].code, "NoSuchTopic");

        headwater.topic("orders").create().await.unwrap();
        producer.send(NewMessage::new("a").dedup_key("1")).await.unwrap();
        assert!(producer.send(NewMessage::new("a").dedup_key("1")).await.unwrap().duplicate);
        // Another producer of the same topic: figures are per topic.
        let other = headwater.producer("orders");
        other.send_batch(&[NewMessage::new("b"), NewMessage::new("c")]).await.unwrap();
        let health = producer.health().unwrap();
        assert_eq!((health.state, health.totals.published), (HealthState::Running, 3));
        assert_eq!(health.times.publish.unwrap().count, 4);
        assert!(health.to_string().starts_with("producer of topic orders: running\n"), "{health}");
    }
}
