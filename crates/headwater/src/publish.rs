//! The producer: combines concurrent sends into one statement, and delays none of them for it.

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use crate::codec::IntoMessage;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::observe::health::Health;
use crate::observe::metrics::{Registry, TopicMetrics};
use crate::observe::trace;
use crate::store::Store;

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
}

/// One message to publish, and the channel its sender waits on.
#[derive(Debug)]
struct Sending {
    message: NewMessage,
    answer: oneshot::Sender<Result<Published>>,
}

impl Producer {
    pub(crate) fn new(store: Arc<dyn Store>, topic: &str, metrics: &Registry) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_SENDS_MAX);
        let log = TopicName::new(topic).map(|topic| Log { store, metrics: metrics.topic(&topic), topic });
        if let Ok(log) = &log {
            // Ends when the last clone of the producer is dropped and everything queued has been answered.
            tokio::spawn(run(log.clone(), waiting));
        }
        Producer { topic: Arc::new(log), queue }
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
        Sends { producer: self, message: message.into_message() }
    }

    fn log(&self) -> Result<&Log> {
        (*self.topic).as_ref().map_err(Error::copy)
    }

    async fn send_now(&self, message: Result<NewMessage>) -> Result<Published> {
        let log = self.log()?;
        let mut message = message?;
        // Here and not in the queue's task: the trace context belongs to the caller's task.
        trace::inject(&mut message);
        // Checked here, so that one bad message fails alone and not with its batch.
        message.validate()?;
        let (answer, answered) = oneshot::channel();
        let stopped =
            || Error::new(ErrorKind::Closed, format!("producer of topic {} has stopped", log.topic));
        self.queue.send(Sending { message, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Publishes all of a batch or nothing, in one statement of its own.
    pub async fn send_batch(&self, messages: &[NewMessage]) -> Result<Vec<Published>> {
        let log = self.log()?;
        let published = log.publish(&traced(messages)).await;
        published.inspect_err(|error| log.failed(messages.len(), error))
    }

    /// Rates, times and the last errors of all producers of this topic in this process.
    pub fn health(&self) -> Result<Health> {
        Ok(self.log()?.metrics.health("producer"))
    }
}

/// A message to be sent: set further fields, then await it.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Sends<'p> {
    producer: &'p Producer,
    message: Result<NewMessage>,
}

impl Sends<'_> {
    fn with(mut self, change: impl FnOnce(NewMessage) -> NewMessage) -> Self {
        self.message = self.message.map(change);
        self
    }

    /// Sets the key: messages of one key go to one member, and in order where the topic is ordered.
    pub fn key(self, key: impl std::fmt::Display) -> Self {
        self.with(|message| message.key(format!("{key}")))
    }

    /// Sets the type.
    pub fn message_type(self, message_type: impl Into<String>) -> Self {
        self.with(|message| message.message_type(message_type))
    }

    /// Adds a header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|message| message.header(name, value))
    }

    /// Links messages of one conversation.
    pub fn correlation_id(self, id: impl Into<String>) -> Self {
        self.with(|message| message.correlation_id(id))
    }

    /// Deduplicates: a repeat of the same key within the topic's window is not stored.
    pub fn dedup_key(self, key: impl Into<String>) -> Self {
        self.with(|message| message.dedup_key(key))
    }

    /// Schedules the message: it is not delivered before this time.
    pub fn deliver_at(self, at: jiff::Timestamp) -> Self {
        self.with(|message| message.deliver_at(at))
    }
}

impl<'p> IntoFuture for Sends<'p> {
    type Output = Result<Published>;
    type IntoFuture = BoxFuture<'p, Result<Published>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.producer.send_now(self.message))
    }
}

/// The batch with the current trace context; copied only if there is one.
fn traced(messages: &[NewMessage]) -> Cow<'_, [NewMessage]> {
    let Some(context) = trace::current() else { return Cow::Borrowed(messages) };
    let mut messages = messages.to_vec();
    messages.iter_mut().for_each(|message| context.inject(message));
    Cow::Owned(messages)
}

/// One topic's log, and the metrics of publishing to it.
#[derive(Clone, Debug)]
struct Log {
    store: Arc<dyn Store>,
    topic: TopicName,
    metrics: Arc<TopicMetrics>,
}

impl Log {
    /// Publishes and counts what was published. A failure is counted by the caller, which knows how many messages it
    /// affects.
    async fn publish(&self, messages: &[NewMessage]) -> Result<Vec<Published>> {
        let start = Instant::now();
        let published = self.store.publish(&self.topic, messages).await;
        self.metrics.publish_seconds.record(start.elapsed());
        if let Ok(published) = &published {
            self.metrics.succeeded(published.iter().filter(|published| !published.duplicate).count());
        }
        published
    }

    fn failed(&self, messages: usize, error: &Error) {
        self.metrics.failed(messages, error);
    }
}

async fn run(log: Log, mut waiting: mpsc::Receiver<Sending>) {
    while let Some(first) = waiting.recv().await {
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
