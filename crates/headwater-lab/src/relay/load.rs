//! A publisher of messages with keys at a steady pace, until it is stopped; and the verdict on what arrived of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use headwater::{Headwater, NewMessage};
use headwater_relay::testing::checker::{self, Found, Published};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::check::Judged;
use crate::check::publish::payload;
use crate::soak::history::now_us;

const KEYS: u64 = 100;
const EVERY: Duration = Duration::from_millis(25);
/// Published in a call, before a check that has all its messages from the start.
const BATCH: u64 = 5_000;

/// A running publisher.
#[derive(Debug)]
pub(super) struct Load {
    stop: watch::Sender<bool>,
    count: Arc<AtomicU64>,
    task: JoinHandle<Result<Vec<Published>>>,
}

impl Load {
    /// Publishes so many messages a second to a topic, at most `messages_max`.
    pub(super) fn start(headwater: &Headwater, topic: &str, per_second: u64, messages_max: u64) -> Self {
        let (stop, stopped) = watch::channel(false);
        let count = Arc::new(AtomicU64::new(0));
        let (headwater, topic, counted) = (headwater.clone(), topic.to_owned(), Arc::clone(&count));
        let batch = (per_second * u64::try_from(EVERY.as_millis()).unwrap_or(u64::MAX) / 1_000).max(1);
        let task = tokio::spawn(async move {
            let mut interval = tokio::time::interval(EVERY);
            let mut published = Vec::new();
            while !*stopped.borrow() && (published.len() as u64) < messages_max {
                interval.tick().await;
                let first = published.len() as u64;
                published.extend(publish(&headwater, &topic, first..first + batch).await?);
                counted.store(published.len() as u64, Ordering::Release);
            }
            Ok(published)
        });
        Load { stop, count, task }
    }

    /// How many are published so far.
    pub(super) fn published(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Ends it and returns what it published, in order.
    pub(super) async fn stop(self) -> Result<Vec<Published>> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

/// Publishes so many messages.
pub(super) async fn fill(headwater: &Headwater, topic: &str, messages: u64) -> Result<Vec<Published>> {
    let mut published = Vec::new();
    for first in (0..messages).step_by(usize::try_from(BATCH)?) {
        published.extend(publish(headwater, topic, first..messages.min(first + BATCH)).await?);
    }
    Ok(published)
}

async fn publish(
    headwater: &Headwater,
    topic: &str,
    numbers: std::ops::Range<u64>,
) -> Result<Vec<Published>> {
    let at_us = now_us();
    let key = |n: u64| format!("key-{}", n % KEYS);
    let messages: Vec<NewMessage> =
        numbers.clone().map(|n| NewMessage::new(payload(n, at_us)).key(key(n))).collect();
    let sent = headwater.producer(topic).send_batch(&messages).await?;
    Ok(sent
        .iter()
        .zip(numbers)
        .map(|(sent, n)| Published { id: sent.message_id.to_string(), key: key(n) })
        .collect())
}

/// How often each id was found.
pub(super) fn occurrences(found: &[Found]) -> HashMap<&str, u64> {
    let mut counts = HashMap::new();
    for record in found {
        *counts.entry(record.id.as_str()).or_default() += 1;
    }
    counts
}

/// Nothing lost, and the first occurrences of each key in order; duplicates are counted and not judged.
pub(super) fn judge_arrivals(what: &str, published: &[Published], found: &[Found]) -> Vec<Judged> {
    let wrong = checker::at_least_once(published, found);
    let (missing, other): (Vec<&String>, Vec<&String>) =
        wrong.iter().partition(|text| text.starts_with("missing"));
    let judged = |what: &str, wrong: &[&String]| {
        let first: Vec<&str> = wrong.iter().take(3).map(|text| text.as_str()).collect();
        Judged::none_of(what, wrong.len() as u64).note(first.join("; "))
    };
    let mut lost = judged(&format!("{what}, messages lost"), &missing);
    if missing.is_empty() {
        let twice = found.len() as u64 - occurrences(found).len() as u64;
        lost = lost.note(format!("of {}; {twice} arrived again", published.len()));
    }
    // A run without messages shows nothing.
    let some = Judged::none_of(&format!("{what}, runs without messages"), u64::from(published.is_empty()));
    vec![lost, judged(&format!("{what}, keys out of order"), &other), some]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_swapped_or_absent_is_violated() {
        let published: Vec<Published> =
            ["1", "2", "3"].map(|id| Published { id: id.into(), key: "a".into() }).to_vec();
        let is_met = |ids: &[&str]| {
            let found: Vec<Found> =
                ids.iter().map(|id| Found { id: (*id).into(), key: "a".into(), partition: 0 }).collect();
            judge_arrivals("x", &published, &found).iter().all(Judged::is_met)
        };
        assert!(is_met(&["1", "2", "3"]) && is_met(&["1", "2", "1", "2", "3"]));
        assert!(!is_met(&["1", "3"]) && !is_met(&["1", "3", "2"]) && !is_met(&["1", "2", "3", "4"]));
        assert!(!judge_arrivals("x", &[], &[]).iter().all(Judged::is_met));
    }
}
