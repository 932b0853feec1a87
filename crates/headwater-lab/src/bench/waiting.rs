//! Latency and idle cost, measured the same way on both databases.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::{TopicName, limits::SAFETY_POLL};

use super::engine::{Engine, receive};
use super::report::{Beside, Floor, Row};
use crate::check::percentile_ms;
use crate::check::{Figure, Unit};
use crate::machine::cpu_time;

/// Percentiles of a latency.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Publishes one message at a time while a consumer waits, and measures from the call of `publish` until the consumer
/// has fetched the message: the durable commit is part of it.
pub(crate) async fn latency(
    publisher: &Engine,
    consumer: &Engine,
    topic: &TopicName,
    group: &str,
    samples_wanted: usize,
) -> Result<Latency> {
    const WARM_UP: usize = 20;
    // Consumes messages left by an earlier measurement.
    let subscription = consumer.group(topic, group).await?;
    consumer.consume_groups(std::slice::from_ref(&subscription), 1_000).await?;
    let mut receiver = consumer.consumer(topic, group).await?;
    let mut samples = Vec::with_capacity(samples_wanted);
    for sample in 0..samples_wanted + WARM_UP {
        let receiving = tokio::spawn(async move {
            let received = receive(&mut receiver, SAFETY_POLL).await;
            (receiver, received)
        });
        // Uneven pauses, so that no timer of either side synchronizes with them; long enough for the consumer to wait again.
        tokio::time::sleep(Duration::from_micros(4_000 + (sample as u64 * 617) % 5_000)).await;
        let called = Instant::now();
        publisher.fill(topic, 1).await?;
        let (again, received) = receiving.await?;
        receiver = again;
        let received = received?.context("a message did not arrive within the safety poll")?;
        if sample >= WARM_UP {
            samples.push(received.saturating_duration_since(called));
        }
    }
    let ms = |share| percentile_ms(&samples, share);
    Ok(Latency { p50_ms: ms(0.5), p99_ms: ms(0.99) })
}

/// Lets four consumers wait for `during` and returns how much of a core that used, in percent. `others` are the
/// processes that count besides this one.
pub(crate) async fn idle_percent(
    engine: &Engine,
    topic: &TopicName,
    during: Duration,
    settle: Duration,
    others: impl AsyncFn() -> Result<Vec<u32>>,
) -> Result<f64> {
    let mut waiting = tokio::task::JoinSet::new();
    for consumer in 0..4 {
        let mut consumer = engine.consumer(topic, &format!("idle-{consumer}")).await?;
        // Aborted when the set is dropped.
        waiting.spawn(async move { while receive(&mut consumer, SAFETY_POLL).await.is_ok() {} });
    }
    tokio::time::sleep(settle).await;
    let others = others().await?;
    let (before, start) = (cpu_time(&others)?, Instant::now());
    tokio::time::sleep(during).await;
    let used = cpu_time(&others)? - before;
    Ok(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

/// The row for an idle cost.
pub(crate) fn idle_row(work: &str, percent: f64, how: &str) -> Row {
    Row {
        work: work.into(),
        headwater: Figure::new(percent, Unit::Percent),
        beside: Beside::Nothing,
        floor: Floor::AtMost(1.0),
        how: how.into(),
        rounds: vec![],
    }
}
