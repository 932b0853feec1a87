//! The shop of the demo: publishes orders at a steady rate until it is stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::{Headwater, NewMessage, Offset, Producer};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::TOPIC;

/// How often a batch is published.
const BATCH_EVERY: Duration = Duration::from_millis(50);

/// Orders being published.
pub(super) struct Publishing {
    producer: Producer,
    stop: watch::Sender<bool>,
    task: JoinHandle<headwater::Result<u64>>,
    /// How many were published in addition to the steady rate.
    extra: AtomicU64,
    began: Instant,
}

/// What was published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    pub(super) messages: u64,
    pub(super) took: Duration,
}

impl Publishing {
    pub(super) fn start(headwater: &Headwater, per_second: u32) -> Self {
        let producer = headwater.producer(TOPIC);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(publish(producer.clone(), per_second, stopped));
        Publishing { producer, stop, task, extra: AtomicU64::new(0), began: Instant::now() }
    }

    /// One order among the others that one group cannot handle.
    pub(super) async fn poison(&self) -> Result<Offset> {
        let order = json!({ "order": "p-1", "customer": "c-13", "amount": "twelve" });
        let published = self.producer.send(&order).key("c-13").await?;
        self.extra.fetch_add(1, Ordering::Relaxed);
        published.offset.context("it is not delayed, so it has an offset")
    }

    /// Many orders at once, numbered beyond the others.
    pub(super) async fn burst(&self, orders: u32) -> Result<()> {
        let orders: Vec<NewMessage> =
            (0..orders).map(|number| order(1_000_000 + u64::from(number))).collect();
        self.producer.send_batch(&orders).await?;
        self.extra.fetch_add(orders.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Stops; returns the totals.
    pub(super) async fn stop(self) -> Result<Published> {
        self.stop.send_replace(true);
        let messages = self.task.await?? + self.extra.load(Ordering::Relaxed);
        Ok(Published { messages, took: self.began.elapsed() })
    }
}

async fn publish(
    producer: Producer,
    per_second: u32,
    stopped: watch::Receiver<bool>,
) -> headwater::Result<u64> {
    let batch = u64::from(per_second) * u64::try_from(BATCH_EVERY.as_millis()).unwrap_or(1) / 1_000;
    let mut interval = tokio::time::interval(BATCH_EVERY);
    // Missed ticks are not made up for: a burst would exceed the configured rate.
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0;
    while !*stopped.borrow() && stopped.has_changed().is_ok() {
        interval.tick().await;
        let orders: Vec<NewMessage> = (count + 1..=count + batch).map(order).collect();
        producer.send_batch(&orders).await?;
        count += batch;
    }
    Ok(count)
}

fn order(number: u64) -> NewMessage {
    let customer = format!("c-{}", number % 97);
    let order = json!({ "order": number, "customer": customer, "amount": 100 + number * 7 % 9_900 });
    NewMessage::new(order.to_string()).key(customer).content_type("application/json")
}
