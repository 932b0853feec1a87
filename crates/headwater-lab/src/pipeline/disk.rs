//! The disk that a run takes: what is in the queue, in topics, files and the index, while it runs and afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater_pipeline::pipeline::Operator;
use headwater_pipeline::runs::{RunContents, Runs};
use headwater_pipeline::{Pipeline as Pipelines, RunId};

use super::services::{Pipeline, SINGLE};
use super::{BATCH, Setting, WORLD, store_url};
use crate::check::{Floor, Judged, Place, Unit, eventually, progress};

const QUEUE: &str = "tick-queue";
const PENDING_MAX: u64 = 2_000;
/// Done ticks are removed within this time.
const REMOVED_WITHIN_MS: f64 = 60_000.0;
/// How long they are waited for.
const WAIT_MAX: Duration = Duration::from_secs(180);
/// How often a run is measured.
const EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let ticks = setting.count(100_000, 10_000);
    let directory = setting.directory()?;
    let store = store_url(place, &directory);
    let pipeline = Pipeline {
        run_id: RunId::generate().to_string(),
        ticks,
        seed: setting.seed,
        side: WORLD[0],
        organisms_max: 20,
        batch: BATCH,
        timeout_ms: 1_000,
        pending_max: PENDING_MAX,
        ticks_per_second: None,
    };
    let config = || pipeline.config(&store, directory.path(), &SINGLE);
    progress(&format!("running {ticks} ticks"));
    let began = Instant::now();
    let running = Pipelines::from_config(config()?).start().await?;
    // Uses the run until its queue is empty: a process that uses it maintains it.
    let runs = Runs::open(&store).await?;
    eventually("the run is registered", WAIT_MAX, async || Ok(!runs.list().await?.is_empty())).await?;
    let used = runs.open_run(&runs.get(&pipeline.run_id).await?).await?;
    let operator = Operator::open(config()?).await?;
    let (most, finished) = tokio::join!(peaks(&operator, &pipeline.run_id, &running), running.finished());
    finished?;
    let (took, most) = (began.elapsed(), most?);
    let ended = Instant::now();
    let cells = running.progress().await.cells_indexed;
    running.stop().await?;
    progress("waiting until done ticks are removed");
    let contents = emptied(&operator, &pipeline.run_id, ended).await?;
    let emptied_after = ended.elapsed();
    used.close().await?;
    runs.close().await?;
    operator.close().await?;
    let files = contents.files.total();
    let topics = contents.topics_bytes.context("the size of the run's topics is not known")?;
    let per_tick = |bytes: u64| format!("{:.0} bytes a tick", bytes as f64 / ticks as f64);
    let bytes = |what: &str, bytes: u64| Judged::new(what, bytes as f64, Unit::Bytes, Floor::None);
    Ok(vec![
        Judged::new(
            "until done ticks were removed",
            emptied_after.as_secs_f64() * 1_000.0,
            Unit::Milliseconds,
            Floor::AtMost(REMOVED_WITHIN_MS),
        )
        .note(format!(
            "{ticks} ticks of {} cells on average in {:.0} s",
            cells / ticks,
            took.as_secs_f64()
        )),
        Judged::new(
            "ticks in the queue at most, done ones included",
            most.messages as f64,
            Unit::Count,
            Floor::None,
        ),
        bytes("topics and queues, most while it ran", most.topics_bytes),
        bytes("topics and queues, afterwards", topics).note(freed(place)),
        bytes("files", files.bytes).note(format!("{}, {} files", per_tick(files.bytes), files.files)),
        bytes("index", contents.index_bytes).note(per_tick(contents.index_bytes)),
        bytes("all of it", topics + files.bytes + contents.index_bytes),
    ])
}

/// Waits until no done tick is stored any more, and returns what the run has then.
async fn emptied(operator: &Operator, run_id: &str, ended: Instant) -> Result<RunContents> {
    loop {
        let contents = operator.contents(run_id).await?;
        let left = messages(&contents);
        if left == 0 {
            return Ok(contents);
        }
        ensure!(ended.elapsed() < WAIT_MAX, "{left} done ticks are still there after {WAIT_MAX:?}");
        tokio::time::sleep(EVERY).await;
    }
}

fn freed(place: &Place<'_>) -> &'static str {
    if place.is_postgres() { "freed space is used again" } else { "freed pages are used again or given back" }
}

/// Messages in the queue, done ones included.
fn messages(contents: &RunContents) -> u64 {
    contents.topics.iter().filter(|topic| topic.topic == QUEUE).map(|topic| topic.messages).sum()
}

#[derive(Debug, Default)]
struct Most {
    messages: u64,
    topics_bytes: u64,
}

/// The most that was there while the source worked.
async fn peaks(
    operator: &Operator,
    run_id: &str,
    running: &headwater_pipeline::RunningPipeline,
) -> Result<Most> {
    let mut most = Most::default();
    loop {
        let contents = operator.contents(run_id).await?;
        most.messages = most.messages.max(messages(&contents));
        most.topics_bytes = most.topics_bytes.max(contents.topics_bytes.unwrap_or_default());
        let progress = running.progress().await;
        if progress.ticks_total.is_some_and(|total| progress.ticks_persisted >= total) {
            return Ok(most);
        }
        // A service that failed ends the check through its other half.
        let failed = running.manager().list().iter().any(|status| status.error.is_some());
        if failed {
            return Ok(most);
        }
        tokio::time::sleep(EVERY).await;
    }
}
