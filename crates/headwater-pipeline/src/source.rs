//! The source as a service: simulates a world and publishes its metadata and its ticks.
//!
//! Why a crash at any point loses nothing and changes nothing:
//!
//! 1. The first checkpoint, at tick 0, is durable before anything is published. From then on a start with another world is refused, and until
//!    the next checkpoint every start publishes the same metadata: the start time is that of the run's id. A later checkpoint is written
//!    after the metadata are durable.
//! 2. A checkpoint at tick n is written only after every captured tick before n is durable in the queue, and it is replaced in one piece.
//!    A restart therefore continues at or before the first tick that is missing.
//! 3. The world continues from a checkpoint bit by bit. What is published again has the same cells, organisms and counters under the same
//!    dedup key `{run}/{tick}`; only its capture time is that of the repetition. Within the queue's window the repeat is dropped, and after
//!    it persistence and index store the same tick once more.
//! 4. A dropped source may finish writing a checkpoint while its successor runs. That checkpoint is older but true: its ticks are durable.
//!
//! Simulation and publication overlap: one group of ticks is published while the next is made. At most three groups are in memory, so a
//! queue that takes no more ticks stops the simulation.

mod checkpoint_file;
mod options;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use checkpoint_file::CheckpointFile;
use jiff::Timestamp;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff::wait_out;
use crate::contracts::{SimulationMetadata, TickData, TidepoolCheckpoint};
use crate::error::Result;
use crate::health::{Counter, Health};
use crate::resource::{TickQueueWriter, TopicWriter};
use crate::run_id::RunId;
use crate::service::{Service, Stop};
use crate::tidepool::Tidepool;

pub use options::SourceOptions;

/// How long a stop waits for what is being published. What is left is published by the next start.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// A group is ended after this time, however few its ticks: readers see a slow world live, and a stop is noticed.
const GROUP_TIME_MAX: Duration = Duration::from_millis(100);
/// What a source may have fallen behind its rate and still catch up.
const ARREARS_MAX: Duration = Duration::from_secs(1);

/// Publishes a world's metadata once and its ticks until they are all published or a stop is requested.
pub struct TidepoolSource {
    run_id: RunId,
    options: SourceOptions,
    metadata: Arc<dyn TopicWriter<SimulationMetadata>>,
    ticks: Arc<dyn TickQueueWriter>,
    file: CheckpointFile,
    health: Arc<Health>,
    is_complete: AtomicBool,
}

/// Ticks that are published together.
#[derive(Default)]
struct Group {
    ticks: Vec<TickData>,
    /// The state after them.
    checkpoint: Option<TidepoolCheckpoint>,
    /// No tick of the run is after them.
    is_last: bool,
}

impl TidepoolSource {
    /// A source of one run. Refuses bad options and a bad run id.
    pub fn new(
        service: &str,
        run_id: &str,
        options: SourceOptions,
        metadata: Arc<dyn TopicWriter<SimulationMetadata>>,
        ticks: Arc<dyn TickQueueWriter>,
    ) -> Result<Self> {
        let run_id = RunId::parse(run_id)?;
        options.validate()?;
        let health = Health::of_service(service);
        health.set_run(run_id.as_str());
        Ok(TidepoolSource {
            file: CheckpointFile::new(&options.checkpoint_directory, run_id.as_str()),
            run_id,
            options,
            metadata,
            ticks,
            health: Arc::new(health),
            is_complete: AtomicBool::new(false),
        })
    }

    /// Whether every tick of the run is published. Never, if their number is not limited.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// The world of the checkpoint, or a new one whose checkpoint is written.
    async fn open(&self) -> Result<Tidepool> {
        let (file, run_id) = (self.file.clone(), self.run_id.clone());
        let config = self.options.tidepool.clone();
        blocking(move || {
            file.remove_interrupted()?;
            if let Some(checkpoint) = file.read()? {
                return Tidepool::restore(config, &checkpoint);
            }
            let tidepool = Tidepool::new(config)?;
            file.write(&tidepool.checkpoint(run_id.as_str()))?;
            Ok(tidepool)
        })
        .await
    }

    /// Opens the world, publishes its metadata, then makes and publishes groups side by side.
    async fn produce(&self, mut stop: Stop) -> Result<()> {
        let opened = wait_out("open checkpoint", &self.health, &mut stop, || self.open()).await?;
        let Some(tidepool) = opened else { return Ok(()) };
        tracing::info!(run = %self.run_id, tick = tidepool.tick(), "source started");
        let interval = self.options.tidepool.sampling_interval.max(1);
        self.health.count(Counter::TicksResumed, tidepool.tick().div_ceil(interval));
        if tidepool.tick() == 0 {
            let metadata = tidepool.metadata(self.run_id.as_str(), self.run_id.started_at().as_millisecond());
            let key = format!("{}/metadata", self.run_id);
            let send = || self.metadata.send(&metadata, &key);
            if wait_out("publish metadata", &self.health, &mut stop, send).await?.is_none() {
                return Ok(());
            }
        }
        // One more is made while this one waits and another is being published.
        let (sender, groups) = mpsc::channel(1);
        let ((), published) =
            tokio::join!(self.make(tidepool, sender, stop.clone()), self.publish(groups, stop));
        published
    }

    /// Simulates and hands groups over until the run is complete, a stop is requested, or publication has ended.
    async fn make(&self, mut tidepool: Tidepool, groups: mpsc::Sender<Group>, mut stop: Stop) {
        let mut pace = Pace::new(self.options.ticks_per_second, tidepool.tick());
        loop {
            let is_last = self.options.ticks.is_some_and(|ticks| tidepool.tick() >= ticks);
            if is_last || stop.is_requested() {
                // The next start continues here and repeats nothing.
                let checkpoint = Some(tidepool.checkpoint(self.run_id.as_str()));
                // An error means that publication has ended, and returns its reason itself.
                let _ = groups.send(Group { checkpoint, is_last, ..Group::default() }).await;
                return;
            }
            let steps_max = pace.steps_max();
            let (run_id, options) = (self.run_id.clone(), self.options.clone());
            let group;
            (tidepool, group) = blocking(move || {
                let mut tidepool = tidepool;
                let group = make_group(&mut tidepool, run_id.as_str(), &options, steps_max);
                (tidepool, group)
            })
            .await;
            if groups.send(group).await.is_err() {
                return;
            }
            tokio::select! {
                () = pace.wait(tidepool.tick()) => {}
                () = stop.requested() => {}
            }
        }
    }

    /// Publishes groups in their order, each checkpoint after its ticks. Ends early if they cannot be published and a stop is requested.
    async fn publish(&self, mut groups: mpsc::Receiver<Group>, mut stop: Stop) -> Result<()> {
        while let Some(Group { ticks, checkpoint, is_last }) = groups.recv().await {
            if !ticks.is_empty() {
                let send = || self.ticks.send_ticks(&ticks);
                if wait_out("publish ticks", &self.health, &mut stop, send).await?.is_none() {
                    return Ok(());
                }
                self.health.count(Counter::TicksPublished, ticks.len() as u64);
                tracing::debug!(run = %self.run_id, ticks = ticks.len(), "ticks published");
            }
            if is_last {
                self.is_complete.store(true, Ordering::Release);
            }
            if let Some(checkpoint) = checkpoint {
                self.write(checkpoint).await;
            }
        }
        Ok(())
    }

    /// A failure costs nothing but time after a crash: the former checkpoint is still true, and the next one follows.
    async fn write(&self, checkpoint: TidepoolCheckpoint) {
        let (file, tick) = (self.file.clone(), checkpoint.tick);
        match blocking(move || file.write(&checkpoint)).await {
            Ok(()) => self.health.count(Counter::CheckpointsWritten, 1),
            Err(error) => {
                self.health.record_error(&error, format_args!("checkpoint at tick {tick}"));
                self.health.count(Counter::WriteErrors, 1);
                tracing::warn!(run = %self.run_id, tick, %error, "checkpoint write failed");
            }
        }
    }
}

#[async_trait]
impl Service for TidepoolSource {
    async fn run(&self, stop: Stop) -> Result<()> {
        let deadline = pin!(after_stop(stop.clone()));
        let result = tokio::select! {
            result = self.produce(stop) => result,
            // The queue takes no more: this is a crash without damage, and the next start repeats what was not published.
            () = deadline => {
                tracing::info!(run = %self.run_id, "source stopped with ticks unpublished");
                return Ok(());
            }
        };
        if result.is_ok() {
            tracing::info!(run = %self.run_id, complete = self.is_complete(), "source stopped");
        }
        result
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }
}

/// The next ticks of the world, up to any of the limits. A checkpoint ends its group.
fn make_group(tidepool: &mut Tidepool, run_id: &str, options: &SourceOptions, steps_max: u64) -> Group {
    let begun = std::time::Instant::now();
    let mut group = Group::default();
    let mut bytes = 0;
    for _ in 0..steps_max {
        if tidepool.is_sampled() {
            let tick = tidepool.capture(run_id, now_ms());
            bytes += tick.encoded_len();
            group.ticks.push(tick);
        }
        tidepool.step();
        if tidepool.tick().is_multiple_of(options.checkpoint_every) {
            group.checkpoint = Some(tidepool.checkpoint(run_id));
            break;
        }
        if group.ticks.len() >= options.publish_ticks_max
            || bytes >= options.publish_bytes_max
            || options.ticks.is_some_and(|ticks| tidepool.tick() >= ticks)
            || begun.elapsed() >= GROUP_TIME_MAX
        {
            break;
        }
    }
    group
}

/// The limit of ticks per second.
struct Pace {
    rate: Option<f64>,
    from: Instant,
    tick: u64,
}

impl Pace {
    fn new(rate: Option<f64>, tick: u64) -> Self {
        Pace { rate, from: Instant::now(), tick }
    }

    /// Ticks of a tenth of a second, at least one: a slow world is published smoothly.
    fn steps_max(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| (rate * GROUP_TIME_MAX.as_secs_f64()).ceil() as u64)
    }

    /// Returns when the tick is due.
    async fn wait(&mut self, tick: u64) {
        let Some(rate) = self.rate else { return };
        let due = self.from + Duration::from_secs_f64((tick - self.tick) as f64 / rate);
        let now = Instant::now();
        if now > due + ARREARS_MAX {
            // After a long wait for the queue the rate counts from now: no burst that would fill the queue again.
            (self.from, self.tick) = (now, tick);
        }
        sleep_until(due).await;
    }
}

/// Returns when the grace after a stop is over.
async fn after_stop(mut stop: Stop) {
    stop.requested().await;
    sleep(STOP_GRACE).await;
}

/// Runs what computes or waits for a disk, away from the threads of the runtime. If its caller is dropped it is finished and its result is lost.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down and polls nothing any more.
            Err(_) => std::future::pending().await,
        },
    }
}

fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
