//! Rates: a backlog consumed by the runtime beside the same backlog consumed by the bare verbs, in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use headwater::{Handling, Headwater, Message, Messages, Start, TopicName};

use super::Setting;
use crate::bench::engine::Engine;
use crate::check::{Floor, GRACE, Judged, Place, Unit, best, progress};

const BATCH: u32 = 500;
const TOPIC: &str = "rates";

/// Messages handled: the handlers only count them.
type Count = Arc<AtomicU64>;

/// Batch handlers: at least 70 % of the rate of the bare verbs.
pub(super) async fn batch(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let handling = |count: Count| {
        Handling::batch(move |messages: Messages, _| {
            count.fetch_add(messages.len() as u64, Ordering::Relaxed);
            async { Ok(()) }
        })
    };
    let rounds = rounds(place, setting, 8, handling).await?;
    let share = best(&rounds.runtime) / best(&rounds.raw) * 100.0;
    Ok(vec![
        Judged::new("of the bare verbs' rate", share, Unit::Percent, Floor::AtLeast(70.0))
            .note(rounds.note()),
        Judged::new("batch handlers", best(&rounds.runtime), Unit::MessagesPerSecond, Floor::None),
    ])
}

/// Handlers of single messages: a rate of their own.
pub(super) async fn single(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let handling = |count: Count| {
        Handling::one(move |_: Message, _| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        })
    };
    let rounds = rounds(place, setting, 64, handling).await?;
    let floor = if place.is_postgres() { 60_000.0 } else { 100_000.0 };
    let rate = best(&rounds.runtime);
    let share = rate / best(&rounds.raw) * 100.0;
    Ok(vec![
        Judged::new("single handlers", rate, Unit::MessagesPerSecond, Floor::AtLeast(floor))
            .note(rounds.note()),
        Judged::new("of the bare verbs' rate", share, Unit::Percent, Floor::None),
    ])
}

/// Each round's rates, in messages per second.
#[derive(Debug, Default)]
struct Rounds {
    runtime: Vec<f64>,
    /// The better of two and four loops.
    raw: Vec<f64>,
}

impl Rounds {
    fn note(&self) -> String {
        let list =
            |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        format!("rounds: runtime {}; verbs {}", list(&self.runtime), list(&self.raw))
    }
}

async fn rounds(
    place: &Place<'_>,
    setting: &Setting,
    handlers: usize,
    handling: impl Fn(Count) -> Handling,
) -> Result<Rounds> {
    // Large enough that start and end do not matter, even at more than a million per second.
    let (backlog, rounds, during) = match (setting.quick, place.is_postgres()) {
        (true, true) => (1_000_000, 2, Duration::from_secs(3)),
        (true, false) => (2_000_000, 2, Duration::from_secs(3)),
        (false, true) => (4_000_000, 4, Duration::from_secs(6)),
        (false, false) => (8_000_000, 4, Duration::from_secs(6)),
    };
    let engine = Engine::open(&place.url).await?;
    let topic = engine.topic(TOPIC).await?;
    progress("filling a backlog");
    engine.fill(&topic, backlog).await?;
    let headwater = place.open().await?;
    let mut rates = Rounds::default();
    for round in 0..rounds {
        progress(&format!("round {} of {rounds}", round + 1));
        let mut raw = Vec::new();
        for tasks in [2, 4] {
            raw.push(verbs(&engine, &topic, &format!("verbs-{round}-{tasks}"), tasks, during).await?);
        }
        rates.raw.push(best(&raw));
        let group = format!("runtime-{round}");
        rates.runtime.push(runtime(&headwater, &group, handlers, &handling, backlog as u64, during).await?);
    }
    headwater.close().await?;
    engine.store.close().await?;
    Ok(rates)
}

async fn verbs(
    engine: &Engine,
    topic: &TopicName,
    group: &str,
    tasks: usize,
    during: Duration,
) -> Result<f64> {
    let subscription = engine.group(topic, group).await?;
    Ok(engine.consume(&subscription, BATCH, tasks, during).await?.per_second())
}

/// The rate of a consumer, from the first claim until the last ack is in the database.
async fn runtime(
    headwater: &Headwater,
    group: &str,
    handlers: usize,
    handling: &impl Fn(Count) -> Handling,
    backlog: u64,
    during: Duration,
) -> Result<f64> {
    let count = Count::default();
    let handling = handling(Arc::clone(&count));
    let consumer = headwater.consumer(TOPIC, group).start_from(Start::Beginning).handling("only", handling);
    let start = Instant::now();
    let running = consumer.batch(BATCH).concurrency(handlers).run().await?;
    while start.elapsed() < during && count.load(Ordering::Relaxed) < backlog {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Counted before the shutdown: messages that end during it are left out, while its time counts.
    let handled = count.load(Ordering::Relaxed);
    running.shutdown(GRACE).await?;
    Ok(handled as f64 / start.elapsed().as_secs_f64())
}
