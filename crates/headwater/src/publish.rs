//! The producer: groups concurrent sends into one statement without making any of them wait for company.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, ErrorKind, Result};
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::store::Store;

/// Sends that may wait to be taken into a batch; beyond it `send` waits: back-pressure.
const QUEUE_SENDS_MAX: usize = 4_096;
/// Most messages of one batch.
const BATCH_MESSAGES_MAX: usize = 1_000;
/// Most payload bytes of one batch, a single larger message apart.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Publishes to one topic. Cheap to clone; clones share one queue.
///
/// A send that finds the producer idle leaves at once. Those that come while a batch is in flight leave together as the
/// next one, in the order in which they were sent: one batch is in flight at a time, so order is kept.
#[derive(Clone, Debug)]
pub struct Producer {
    store: Arc<dyn Store>,
    topic: TopicName,
    queue: mpsc::Sender<Sending>,
}

/// One message on its way, and who waits for it.
#[derive(Debug)]
struct Sending {
    message: NewMessage,
    answer: oneshot::Sender<Result<Published>>,
}

impl Producer {
    pub(crate) fn new(store: Arc<dyn Store>, topic: TopicName) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_SENDS_MAX);
        // Ends when the last clone of the producer is dropped and everything queued has been answered.
        tokio::spawn(run(Arc::clone(&store), topic.clone(), waiting));
        Producer { store, topic, queue }
    }

    /// Publishes one message; returns once it is durable.
    pub async fn send(&self, message: NewMessage) -> Result<Published> {
        // Checked here, so that one bad message fails alone and not with its batch.
        message.validate()?;
        let (answer, answered) = oneshot::channel();
        let stopped =
            || Error::new(ErrorKind::Closed, format!("producer of topic {} has stopped", self.topic));
        self.queue.send(Sending { message, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Publishes all of a batch or nothing, in one statement of its own.
    pub async fn send_batch(&self, messages: &[NewMessage]) -> Result<Vec<Published>> {
        self.store.publish(&self.topic, messages).await
    }
}

async fn run(store: Arc<dyn Store>, topic: TopicName, mut waiting: mpsc::Receiver<Sending>) {
    while let Some(first) = waiting.recv().await {
        let mut bytes = first.message.payload.len();
        let mut batch = vec![first];
        while batch.len() < BATCH_MESSAGES_MAX && bytes < BATCH_BYTES_MAX {
            let Ok(next) = waiting.try_recv() else { break };
            bytes += next.message.payload.len();
            batch.push(next);
        }
        send(&*store, &topic, batch).await;
    }
}

async fn send(store: &dyn Store, topic: &TopicName, batch: Vec<Sending>) {
    let (messages, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|sending| (sending.message, sending.answer)).unzip();
    match store.publish(topic, &messages).await {
        Ok(published) => {
            for (answer, published) in answers.into_iter().zip(published) {
                // Whoever gave up waiting does not want to know.
                let _ = answer.send(Ok(published));
            }
        }
        // Strangers share a batch, but not each other's mistakes: one too large fails alone.
        Err(error) if messages.len() > 1 && error.kind() == ErrorKind::PayloadTooLarge => {
            for (message, answer) in messages.into_iter().zip(answers) {
                let one = store.publish(topic, &[message]).await;
                let _ = answer.send(one.map(|mut published| published.remove(0)));
            }
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(error.copy()));
            }
        }
    }
}
