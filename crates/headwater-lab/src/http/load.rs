//! The load of the rates, the same for the server and for brokers: connections that share the messages to publish, or to receive.
//!
//! Also how messages are published over HTTP. Each has a payload of 100 bytes, here a JSON string, and is durable when it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::serve::Served;
use crate::bench::PAYLOAD_BYTES;
use crate::check::http::Client;

/// What takes longer has no rate.
const WORK_MAX: Duration = Duration::from_secs(300);

/// How much is published, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// A multiple of `batch`.
    pub(super) messages: u64,
    /// Messages that are published together, and confirmed before the next ones of the same connection.
    pub(super) batch: u64,
    pub(super) connections: usize,
}

/// A connection that publishes.
pub(super) trait Publish: Send + 'static {
    /// Publishes so many messages and returns once all of them are confirmed.
    fn publish(&mut self, messages: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Messages per second of publishers that share the work, until the last one is confirmed.
pub(super) async fn publish_rate<P: Publish>(publishers: Vec<P>, work: Work) -> Result<f64> {
    let begun = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for mut publisher in publishers {
        let begun = Arc::clone(&begun);
        tasks.spawn(async move {
            while begun.fetch_add(work.batch, Ordering::Relaxed) < work.messages {
                publisher.publish(work.batch).await?;
            }
            anyhow::Ok(())
        });
    }
    all(tasks).await?;
    Ok(work.messages as f64 / start.elapsed().as_secs_f64())
}

/// A connection that receives.
pub(super) trait Receive: Send + 'static {
    /// Waits for messages; how many there were, and are acked if they are to be. Dropped only when all messages are there.
    fn receive(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

/// Messages per second of receivers that share them, from their creation until the last message is received, and the receivers.
pub(super) async fn receive_rate<R: Receive>(
    receivers: Vec<R>,
    messages: u64,
    start: Instant,
) -> Result<(f64, Vec<R>)> {
    let received = Arc::new(AtomicU64::new(0));
    let (is_done, done) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for mut receiver in receivers {
        let (received, is_done, mut done) = (Arc::clone(&received), is_done.clone(), done.clone());
        tasks.spawn(async move {
            loop {
                let count = tokio::select! {
                    count = receiver.receive() => count?,
                    _ = done.wait_for(|done| *done) => return anyhow::Ok(receiver),
                };
                if received.fetch_add(count, Ordering::Relaxed) + count >= messages {
                    is_done.send_replace(true);
                }
            }
        });
    }
    let receivers = all(tasks).await.with_context(|| {
        let received = received.load(Ordering::Relaxed);
        format!("{received} of {messages} messages were received")
    })?;
    Ok((messages as f64 / start.elapsed().as_secs_f64(), receivers))
}

/// The results of tasks, in any order. The first failure ends the others.
async fn all<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let ended = async {
        let mut results = Vec::with_capacity(tasks.len());
        while let Some(ended) = tasks.join_next().await {
            results.push(ended??);
        }
        Ok(results)
    };
    tokio::time::timeout(WORK_MAX, ended).await.with_context(|| format!("not done within {WORK_MAX:?}"))?
}

/// A connection that publishes over HTTP.
pub(super) struct HttpPublisher {
    client: Client,
    path: String,
    body: Bytes,
}

impl Publish for HttpPublisher {
    /// As many as its body has.
    async fn publish(&mut self, _messages: u64) -> Result<()> {
        self.client.post(&self.path, self.body.clone()).await.map(drop)
    }
}

/// Connections for a piece of work, before it begins.
pub(super) async fn publishers(served: &Served, topic: &str, work: Work) -> Result<Vec<HttpPublisher>> {
    let (path, body) = request(topic, work.batch);
    let mut publishers = Vec::with_capacity(work.connections);
    for _ in 0..work.connections {
        let client = served.client().await?;
        publishers.push(HttpPublisher { client, path: path.clone(), body: body.clone() });
    }
    Ok(publishers)
}

/// The path and the body of a request that publishes so many messages: one alone, or several as a batch.
pub(super) fn request(topic: &str, messages: u64) -> (String, Bytes) {
    // With its quotes a JSON string is as long as the payload of every measurement.
    let message = format!("{{\"payload\":\"{}\"}}", "x".repeat(PAYLOAD_BYTES - 2));
    if messages == 1 {
        return (format!("/v1/topics/{topic}/messages"), message.into());
    }
    let list = vec![message.as_str(); usize::try_from(messages).expect("a batch fits into memory")].join(",");
    (format!("/v1/topics/{topic}/batches"), format!("{{\"messages\":[{list}]}}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counting(Arc<AtomicU64>);

    impl Publish for Counting {
        async fn publish(&mut self, messages: u64) -> Result<()> {
            self.0.fetch_add(messages, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(())
        }
    }

    impl Receive for Counting {
        async fn receive(&mut self) -> Result<u64> {
            tokio::task::yield_now().await;
            match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Ok(1),
                Err(_) => std::future::pending().await,
            }
        }
    }

    #[tokio::test]
    async fn connections_share_the_messages_and_end_with_the_last_one() {
        let count = Arc::new(AtomicU64::new(0));
        let connections = || (0..7).map(|_| Counting(Arc::clone(&count))).collect::<Vec<_>>();
        let work = Work { messages: 1_000, batch: 10, connections: 7 };
        assert!(publish_rate(connections(), work).await.unwrap() > 0.0);
        assert_eq!(count.load(Ordering::Relaxed), 1_000);
        let (rate, receivers) = receive_rate(connections(), 1_000, Instant::now()).await.unwrap();
        assert!(rate > 0.0 && receivers.len() == 7);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_request_has_its_messages_with_payloads_of_the_usual_length() {
        let (path, one) = request("a", 1);
        assert_eq!(path, "/v1/topics/a/messages");
        let one: serde_json::Value = serde_json::from_slice(&one).unwrap();
        assert_eq!(one["payload"].to_string().len(), PAYLOAD_BYTES);
        let (path, batch) = request("a", 100);
        assert_eq!(path, "/v1/topics/a/batches");
        let batch: serde_json::Value = serde_json::from_slice(&batch).unwrap();
        assert_eq!(batch["messages"].as_array().unwrap().len(), 100);
    }
}
