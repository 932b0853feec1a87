//! Rates: a backlog relayed to each broker beside the same records published by the bare client, in turns.
//!
//! Both are durable: Kafka with acks of all replicas in sync, RabbitMQ with persistent messages and confirms on a durable queue, NATS with a
//! JetStream stream in files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use headwater::uuid::Uuid;
use headwater::{Headwater, NewMessage};
use headwater_relay::{Delivery, Record, Relay, RelaySettings, Source};

use super::Setting;
use super::bare::Bare;
use super::brokers::{Kind, Live};
use super::observed::{Observed, Observer};
use crate::bench::PAYLOAD_BYTES;
use crate::check::{Floor, GRACE, Judged, Place, Unit, best, progress};

const TOPIC: &str = "rate";
const KEYS: u64 = 10_000;
/// A round that takes longer has no rate.
const ROUND_MAX: Duration = Duration::from_secs(300);

/// Counts what was confirmed.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Observer for Count {
    fn ends(&self, _records: &[Record], deliveries: &[Delivery]) {
        let delivered = deliveries.iter().filter(|one| **one == Delivery::Delivered).count();
        self.0.fetch_add(delivered as u64, Ordering::Relaxed);
    }
}

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let messages = setting.count(200_000, 50_000);
    let headwater = place.open().await?;
    headwater.topic(TOPIC).pub_sub().create().await?;
    progress("filling a backlog");
    let payload = Bytes::from("x".repeat(PAYLOAD_BYTES));
    for first in (0..messages).step_by(5_000) {
        let batch: Vec<NewMessage> = (first..messages.min(first + 5_000))
            .map(|n| NewMessage::new(payload.clone()).key(key(n)))
            .collect();
        headwater.producer(TOPIC).send_batch(&batch).await?;
    }
    let records = (0..messages).map(|n| (Uuid::now_v7().to_string(), key(n))).collect();
    let bare = Bare { payload, records };
    let mut judged = Vec::new();
    for kind in Kind::ALL {
        let live = Live::start(kind, &setting.work).await?;
        let rounds = rounds(&headwater, &live, &bare, setting.count(3, 2)).await?;
        judged.extend(rounds.judge(kind));
    }
    headwater.close().await?;
    Ok(judged)
}

fn key(n: u64) -> String {
    format!("key-{}", n % KEYS)
}

/// Each round's rates, in messages per second.
#[derive(Debug, Default)]
struct Rounds {
    relay: Vec<f64>,
    bare: Vec<f64>,
}

impl Rounds {
    fn judge(&self, kind: Kind) -> Vec<Judged> {
        let floor = if kind == Kind::RabbitMq { 70.0 } else { 60.0 };
        let (relay, bare) = (best(&self.relay), best(&self.bare));
        let list =
            |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        let note = format!("rounds: relay {}; client {}", list(&self.relay), list(&self.bare));
        let name = kind.name();
        let rate = |what: &str, rate| {
            Judged::new(&format!("{name}, {what}"), rate, Unit::MessagesPerSecond, Floor::None)
        };
        vec![
            Judged::new(
                &format!("{name}, of the bare client's rate"),
                relay / bare * 100.0,
                Unit::Percent,
                Floor::AtLeast(floor),
            )
            .note(note),
            rate("relay", relay),
            rate("bare client", bare),
        ]
    }
}

async fn rounds(headwater: &Headwater, live: &Live, bare: &Bare, rounds: u64) -> Result<Rounds> {
    let mut rates = Rounds::default();
    // A broker is slow at first: that round counts for neither.
    published(live, "warm-up", bare).await?;
    for round in 1..=rounds {
        progress(&format!("{}, round {round} of {rounds}", live.kind().name()));
        // Neither side is always the first one.
        for is_relay in [round % 2 == 0, round % 2 == 1] {
            if is_relay {
                let destination = format!("relay-{round}");
                rates.relay.push(relayed(headwater, live, &destination, bare.records.len() as u64).await?);
            } else {
                rates.bare.push(published(live, &format!("bare-{round}"), bare).await?);
            }
        }
    }
    Ok(rates)
}

/// The rate of the bare client: from its start until the last record is confirmed.
async fn published(live: &Live, destination: &str, bare: &Bare) -> Result<f64> {
    live.create(destination).await?;
    let start = Instant::now();
    tokio::time::timeout(ROUND_MAX, bare.publish(live, destination)).await??;
    Ok(bare.records.len() as f64 / start.elapsed().as_secs_f64())
}

/// The rate of a relay: from its start until the last record is confirmed.
async fn relayed(headwater: &Headwater, live: &Live, destination: &str, messages: u64) -> Result<f64> {
    live.create(destination).await?;
    let sink = Arc::new(Observed::new(&live.target(destination), Count::default())?);
    let settings = RelaySettings {
        group: Some(format!("{}-{destination}", live.kind().name())),
        ..RelaySettings::default()
    };
    let relay = Relay::new(headwater, Source::Topic(TOPIC.into()), sink.clone()).settings(settings);
    let start = Instant::now();
    let running = relay.run().await?;
    while sink.observer.0.load(Ordering::Relaxed) < messages {
        ensure!(start.elapsed() < ROUND_MAX, "not relayed in {ROUND_MAX:?}: {:?}", running.health());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    running.shutdown(GRACE).await?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rounds_are_compared_and_each_broker_has_its_floor() {
        let is_met = |relay: &[f64], kind| {
            let rounds = Rounds { relay: relay.to_vec(), bare: vec![90.0, 100.0] };
            rounds.judge(kind).iter().all(Judged::is_met)
        };
        assert!(is_met(&[10.0, 60.0], Kind::Kafka) && !is_met(&[59.0, 10.0], Kind::Nats));
        assert!(is_met(&[70.0], Kind::RabbitMq) && !is_met(&[69.0], Kind::RabbitMq));
        assert!(!is_met(&[], Kind::Kafka));
    }
}
