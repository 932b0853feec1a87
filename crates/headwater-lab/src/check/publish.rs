//! A publisher that keeps a pace: messages are numbered and carry the time of the call that published them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use headwater::{Headwater, NewMessage, TopicName};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bench::PAYLOAD_BYTES;
use crate::soak::history::now_us;

/// The rate and the total.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    pub(crate) topic: String,
    pub(crate) per_second: u64,
    pub(crate) batch: u64,
    /// Batches under way at once at most.
    pub(crate) tasks: u64,
    pub(crate) messages: u64,
}

/// Publishes all messages, and prints after each batch how many are published.
pub(crate) async fn publish(headwater: &Headwater, pace: &Pace) -> Result<()> {
    let topic = TopicName::new(&pace.topic)?;
    let (next, published) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..pace.tasks {
        let (store, topic, pace) = (Arc::clone(headwater.store()), topic.clone(), pace.clone());
        let (next, published) = (Arc::clone(&next), Arc::clone(&published));
        tasks.spawn(async move {
            loop {
                let first = next.fetch_add(pace.batch, Ordering::Relaxed);
                if first >= pace.messages {
                    return anyhow::Ok(());
                }
                // A late task continues at once, so that the average pace is kept.
                tokio::time::sleep_until(start + due_after(first, pace.per_second)).await;
                let last = pace.messages.min(first + pace.batch);
                let at_us = now_us();
                let batch: Vec<NewMessage> =
                    (first..last).map(|n| NewMessage::new(payload(n, at_us))).collect();
                store.publish(&topic, &batch).await?;
                println!("{}", published.fetch_add(last - first, Ordering::Relaxed) + last - first);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

fn due_after(messages: u64, per_second: u64) -> Duration {
    Duration::from_micros(messages * 1_000_000 / per_second.max(1))
}

/// Number and time, filled up to the payload of every measurement.
pub(crate) fn payload(n: u64, at_us: u64) -> String {
    format!("{:<PAYLOAD_BYTES$}", format!("{n} {at_us}"))
}

/// Number and time of a payload.
pub(crate) fn parse(payload: &[u8]) -> Result<(u64, u64)> {
    let text = std::str::from_utf8(payload)?;
    let (n, at_us) = text.trim_end().split_once(' ').context("a payload came back changed")?;
    Ok((n.parse()?, at_us.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_carries_number_and_time() {
        let payload = payload(17, 1_700_000_000_000_000);
        assert_eq!(payload.len(), PAYLOAD_BYTES);
        assert_eq!(parse(payload.as_bytes()).unwrap(), (17, 1_700_000_000_000_000));
        assert!(parse(b"17").is_err());
    }

    #[test]
    fn a_batch_is_due_when_those_before_it_have_had_their_time() {
        assert_eq!(due_after(0, 30_000), Duration::ZERO);
        assert_eq!(due_after(45_000, 30_000), Duration::from_millis(1_500));
    }
}
