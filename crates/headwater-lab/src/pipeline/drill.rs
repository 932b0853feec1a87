//! The crash drill: services of a pipeline, each in a process of its own, are killed at random while a run is made. In the end
//! the index is the same, byte by byte, as one that a single process made without a kill.

mod compare;
mod crew;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headwater::{Headwater, OpenOptions};
use headwater_pipeline::contracts::{BatchInfo, RunInfo};
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::RunDirectory;
use headwater_pipeline::runs::{Directory, Runs};
use headwater_pipeline::{Pipeline as Pipelines, RunId};
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::services::{Pipeline, SINGLE};
use super::{Setting, store_url};
use crate::check::{Floor, Judged, Place, Unit, progress, soundness};
use compare::Compared;
use crew::Crew;

/// The topic of announcements.
const BATCH_TOPIC: &str = "batch-topic";
/// A service that is killed twice in this time, or a queue that stands still, delays the next kill by this much at most.
const KILL_WAIT_MAX: Duration = Duration::from_secs(20);
/// From the last kill until the run is finished.
const FINISH_MAX: Duration = Duration::from_secs(300);
/// How long the reference run may take.
const REFERENCE_MAX: Duration = Duration::from_secs(1_800);
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let (ticks, kills) = (setting.count(100_000, 5_000), setting.count(100, 10));
    let pipeline = Pipeline {
        run_id: RunId::generate().to_string(),
        ticks,
        seed: setting.seed,
        side: 30,
        organisms_max: 8,
        batch: 200,
        timeout_ms: 200,
        pending_max: 500,
        ticks_per_second: Some(setting.count(800, 400)),
    };
    let (directory, reference) = (setting.directory()?, setting.directory()?);
    progress("making the same run in one process, without kills");
    let unpaced = Pipeline { ticks_per_second: None, ..pipeline.clone() };
    let untouched = undisturbed(&unpaced, &reference).await?;
    let store = store_url(place, &directory);
    let began = Instant::now();
    let mut drill = Drill::begin(&pipeline, &store, &directory, setting.seed).await?;
    drill.kill_all(kills, ticks).await?;
    drill.finish().await?;
    let took = began.elapsed();
    let mut judged = drill.judge(kills, took);
    let index = drill.index.clone();
    judged.extend(drill.end(ticks).await?);
    let compared = compare::compare(&untouched, &index, ticks).await?;
    index.close().await;
    untouched.close().await;
    judged.extend(judge_index(&compared, ticks));
    Ok(judged)
}

/// The index of the run, made in one process without kills.
async fn undisturbed(pipeline: &Pipeline, directory: &TempDir) -> Result<Index> {
    let store = super::sqlite_in(directory);
    let running = Pipelines::from_config(pipeline.config(&store, directory.path(), &SINGLE)?).start().await?;
    let finished = tokio::time::timeout(REFERENCE_MAX, running.finished()).await?;
    let stopped = running.stop().await;
    finished?;
    stopped?;
    let url = format!("sqlite:{}", directory.path().display());
    Ok(Index::open(&url, &pipeline.run_id, &IndexOptions::default())?)
}

fn judge_index(compared: &Compared, ticks: u64) -> Vec<Judged> {
    let Compared { expected, found, differing, organism_rows, organism_differing, metadata_differs } =
        compared;
    vec![
        Judged::all_of("ticks in the index made without kills", *expected, ticks),
        Judged::all_of("ticks in the index", *found, ticks),
        Judged::none_of("ticks whose bytes differ", *differing),
        Judged::none_of("rows of organisms that differ", *organism_differing)
            .note(format!("of {organism_rows} rows")),
        Judged::none_of("metadata that differ", u64::from(*metadata_differs)),
    ]
}

/// The processes, and what is known of their run.
struct Drill {
    crew: Crew,
    run_id: String,
    store: String,
    runs: Runs,
    directory: Directory,
    index: Index,
    random: StdRng,
    /// Kills that did not wait for progress any longer.
    late: u64,
}

impl Drill {
    async fn begin(pipeline: &Pipeline, store: &str, directory: &TempDir, seed: u64) -> Result<Self> {
        let runs = Runs::open(store).await?;
        let crew = Crew::start(pipeline, store, directory.path())?;
        // Where services have it: beside a file, or in the database.
        let url = match store.strip_prefix("sqlite:") {
            Some(_) => format!("sqlite:{}", directory.path().display()),
            None => store.to_owned(),
        };
        Ok(Drill {
            crew,
            run_id: pipeline.run_id.clone(),
            store: store.to_owned(),
            directory: runs.directory().await?,
            runs,
            index: Index::open(&url, &pipeline.run_id, &IndexOptions::default())?,
            random: StdRng::seed_from_u64(seed),
            late: 0,
        })
    }

    /// Kills at random moments, spread evenly over the ticks.
    async fn kill_all(&mut self, kills: u64, ticks: u64) -> Result<()> {
        let portion = ticks / kills;
        for kill in 0..kills {
            let moment = kill * portion + self.random.random_range(0..portion);
            let deadline = Instant::now() + KILL_WAIT_MAX;
            // The process of a service that has just started is killed too, but not before it runs.
            while self.indexed().await? < moment || self.crew.ready().is_empty() {
                self.tend().await?;
                if Instant::now() > deadline && !self.crew.ready().is_empty() {
                    self.late += 1;
                    break;
                }
                tokio::time::sleep(POLL).await;
            }
            tokio::time::sleep(Duration::from_micros(self.random.random_range(0..50_000))).await;
            self.tend().await?;
            let victim =
                self.victim().with_context(|| format!("all services ended before kill {}", kill + 1))?;
            self.crew.kill(victim).await?;
            // Started again unless the run ended at this moment: its source has nothing more to do.
            self.tend().await?;
            if (kill + 1) % 10 == 0 {
                progress(&format!("{} kills, {} ticks indexed", kill + 1, self.indexed().await?));
            }
        }
        Ok(())
    }

    /// Any service that runs; every other time one of those that were killed least, so that a few kills reach all of them.
    fn victim(&mut self) -> Option<usize> {
        let mut ready = self.crew.ready();
        if self.random.random_bool(0.5) {
            let least = ready.iter().map(|at| self.crew.kills_of(*at)).min()?;
            ready.retain(|at| self.crew.kills_of(*at) == least);
        }
        (!ready.is_empty()).then(|| ready[self.random.random_range(0..ready.len())])
    }

    /// Waits until all services have ended by themselves.
    async fn finish(&mut self) -> Result<()> {
        let deadline = Instant::now() + FINISH_MAX;
        while !self.crew.is_done() {
            self.tend().await?;
            let left = self.crew.left();
            ensure!(Instant::now() < deadline, "not finished {FINISH_MAX:?} after the last kill: {left}");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Ticks in the index, as far as the last one shows.
    async fn indexed(&self) -> Result<u64> {
        // A file that is created at this moment may not be readable yet.
        let range = self.index.tick_range().await.unwrap_or_default();
        Ok(range.map_or(0, |(_, last)| last.unsigned_abs() + 1))
    }

    /// Starts what does not run and is not done.
    async fn tend(&mut self) -> Result<()> {
        let run: Option<RunInfo> = self.directory.run(&self.run_id).await?;
        self.crew.tend(run.is_some_and(|run| run.state == "ENDED"))
    }

    fn judge(&self, kills: u64, took: Duration) -> Vec<Judged> {
        vec![
            Judged::all_of("kills", self.crew.kills(), kills).note(self.crew.kills_by_service()),
            Judged::none_of("services that ended with an error", self.crew.failures().len() as u64)
                .note(self.crew.failures().join("; ")),
            Judged::new("time of the run", took.as_secs_f64() * 1_000.0, Unit::Milliseconds, Floor::None)
                .note(format!("{} kills did not wait for progress any longer", self.late)),
        ]
    }

    /// What the topics have left, and what came again.
    async fn end(self, ticks: u64) -> Result<Vec<Judged>> {
        let options = OpenOptions::default().namespace(&self.run_id).create(false).maintenance(false);
        let headwater = Headwater::open_with(&self.store, options).await?;
        headwater.topics().advance_heads().await?;
        let (mut unsettled, mut reassigned, mut left) = (0, 0, Vec::new());
        for topic in headwater.topics().list().await? {
            for group in headwater.store().subscriptions(&topic.topic.name).await? {
                reassigned += group.reassigned;
                let open = group.lag + group.leased + group.waiting + group.dead_letters;
                if open > 0 || group.floor < topic.head {
                    unsettled += open.max(1);
                    left.push(format!("{} of {}: {group:?}", group.group, topic.topic.name));
                }
            }
        }
        let (mut written, mut files) = (0, 0);
        for message in headwater.published(BATCH_TOPIC).await? {
            written += BatchInfo::decode(message.payload)?.tick_count;
            files += 1;
        }
        let sound = soundness(&headwater).await?;
        headwater.close().await?;
        self.runs.close().await?;
        Ok(vec![
            Judged::none_of("messages that are not done, outstanding or dead", unsettled)
                .note(left.join("; ")),
            Judged::new("ticks in files a second time", (written - ticks) as f64, Unit::Count, Floor::None)
                .note(format!("{files} files")),
            Judged::new("leases taken over", reassigned as f64, Unit::Count, Floor::None),
            sound,
        ])
    }
}
