//! The rate of one environment indexer on SQLite, beside the limit and beside a row per cell.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::BatchStorageRead;

use super::bare::{Blobs, Rows};
use super::files::{self, Prepared};
use super::indexing::{IndexJob, Indexed};
use super::{CELLS_PER_TICK, OCCUPANCY, PipelineJob, Setting, WORLD, sqlite_in};
use crate::check::{Floor, Job, Judged, Process, Unit, progress};
use crate::machine::disk_bytes_per_second;

/// Longer than a round takes, even on a disk that is slow.
const ROUND_MAX: Duration = Duration::from_secs(20 * 60);
const TICKS_PER_SECOND: f64 = 14_000.0;
const MEMORY_BYTES_MAX: f64 = 500e6;

pub(super) async fn run(setting: &Setting) -> Result<Vec<Judged>> {
    let (ticks, rounds) = (setting.count(100_000, 40_000), setting.count(3, 2));
    let directory = setting.directory()?;
    let (store, at) = (sqlite_in(&directory), |name: &str| directory.path().join(name));
    let world = files::torus(&WORLD)?;
    let prepared = files::prepare(&store, &at("files"), &world, OCCUPANCY, ticks, setting.seed).await?;
    let (mut measured, mut limits) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        // In turns, so that both have the same disk.
        progress(&format!("bare SQLite, round {round} of {rounds}"));
        let file = at(&format!("bare-{round}.db"));
        limits.push(bare_rate(&prepared, &file).await?);
        remove(&file)?;
        progress(&format!("indexer, round {round} of {rounds}"));
        let index = at(&format!("index-{round}"));
        let index_url = format!("sqlite:{}", index.display());
        let indexed = indexed(&store, &prepared, &at("files"), &index_url, round).await?;
        ensure!(indexed.ticks >= ticks, "{} of {ticks} ticks were indexed", indexed.ticks);
        measured.push(indexed);
        if round < rounds {
            std::fs::remove_dir_all(&index)?;
        }
    }
    let index_url = format!("sqlite:{}", at(&format!("index-{rounds}")).display());
    let differing = differing(&prepared, &index_url).await?;
    let disk = tokio::task::block_in_place(|| disk_bytes_per_second(directory.path()))?;
    progress("a row per cell");
    let naive = naive_rate(&prepared, &at("rows.db"), setting.count(200, 50)).await?;
    Ok(Figures { measured, limits, naive, differing, disk, prepared }.judge())
}

/// Starts an indexer in a process of its own and waits for what it has to say.
async fn indexed(store: &str, prepared: &Prepared, files: &Path, index: &str, round: u64) -> Result<Indexed> {
    let options = IndexOptions::default();
    let opened = files::index_with_metadata(index, &prepared.metadata, &options).await?;
    opened.close().await;
    let job = IndexJob {
        run_id: prepared.run.run_id.clone(),
        files: files.to_owned(),
        index: Some(index.to_owned()),
        group: format!("environment-{round}"),
        buffer_files_max: 16,
    };
    start(store, job)?.result().await
}

/// An indexer in a process of its own.
pub(super) struct Indexer {
    process: Process,
    printed: Arc<Mutex<Option<String>>>,
}

/// Starts one.
pub(super) fn start(store: &str, job: IndexJob) -> Result<Indexer> {
    let printed = Arc::new(Mutex::new(None));
    let line = Arc::clone(&printed);
    let process = Process::start(store, &Job::Pipeline(PipelineJob::Index(job)), move |text| {
        *line.lock().expect("no panic while held") = Some(text.to_owned());
    })?;
    Ok(Indexer { process, printed })
}

impl Indexer {
    /// What it has done, once it has ended by itself.
    pub(super) async fn result(self) -> Result<Indexed> {
        let status = self.process.ended(ROUND_MAX).await?;
        ensure!(status.success(), "an indexer failed: {status}");
        let printed = self.printed.lock().expect("no panic while held").take();
        Ok(serde_json::from_str(&printed.context("an indexer printed nothing")?)?)
    }
}

/// The same blobs in the same transactions, without anything else: ticks per second.
async fn bare_rate(prepared: &Prepared, file: &Path) -> Result<f64> {
    let (mut blobs, mut took) = (Blobs::create(file)?, Duration::ZERO);
    for info in &prepared.batches {
        let batch = prepared.storage.read_batch(info).await?;
        took += tokio::task::block_in_place(|| blobs.insert(&batch.ticks))?;
    }
    Ok(prepared.ticks as f64 / took.as_secs_f64())
}

/// A row per cell and a commit per tick: ticks per second.
async fn naive_rate(prepared: &Prepared, file: &Path, ticks: u64) -> Result<f64> {
    let batch = prepared.storage.read_batch(&prepared.batches[0]).await?;
    let some = &batch.ticks[..usize::try_from(ticks)?.min(batch.ticks.len())];
    let mut rows = Rows::create(file)?;
    let took = tokio::task::block_in_place(|| rows.insert(some))?;
    Ok(some.len() as f64 / took.as_secs_f64())
}

/// Ticks of the files that are not in the index with the same bytes.
async fn differing(prepared: &Prepared, index: &str) -> Result<u64> {
    let index = Index::open(index, &prepared.run.run_id, &IndexOptions::default())?;
    let mut differing = 0;
    for info in &prepared.batches {
        let batch = prepared.storage.read_batch(info).await?;
        // One of ten: each is a query of its own.
        for TickData { tick_number, cells, .. } in batch.ticks.iter().step_by(10) {
            let stored = index.stored(*tick_number, None).await?;
            differing += u64::from(stored.is_none_or(|stored| stored.blobs != [cells.clone()]));
        }
    }
    index.close().await;
    Ok(differing)
}

fn remove(file: &Path) -> Result<()> {
    for end in ["", "-wal", "-shm"] {
        let mut path = file.as_os_str().to_owned();
        path.push(end);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

struct Figures {
    measured: Vec<Indexed>,
    limits: Vec<f64>,
    naive: f64,
    differing: u64,
    /// Bytes per second that the disk takes.
    disk: f64,
    prepared: Prepared,
}

impl Indexed {
    /// From the start of the process until its last commit.
    pub(super) fn seconds(&self) -> f64 {
        self.committed_us.saturating_sub(self.began_us) as f64 / 1e6
    }

    pub(super) fn per_second(&self) -> f64 {
        self.ticks as f64 / self.seconds()
    }
}

impl Figures {
    fn judge(&self) -> Vec<Judged> {
        let best = self.measured.iter().max_by(|a, b| a.per_second().total_cmp(&b.per_second()));
        let Some(best) = best else { return vec![] };
        let (rate, limit) = (best.per_second(), self.limits.iter().copied().fold(0.0, f64::max));
        let list =
            |rates: Vec<f64>| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
        let rounds = list(self.measured.iter().map(Indexed::per_second).collect());
        let peak = self.measured.iter().map(|one| one.peak_bytes).max().unwrap_or_default();
        let bytes = self.prepared.cell_bytes / self.prepared.ticks;
        let share = |what: &str, seconds: f64| {
            Judged::new(what, seconds / best.seconds() * 100.0, Unit::Percent, Floor::None)
        };
        let note = format!(
            "{} ticks of {CELLS_PER_TICK} cells, {bytes} bytes each, {:.0} MB/s; rounds: {rounds}; all done after {:.2} s",
            self.prepared.ticks,
            self.prepared.cell_bytes as f64 / 1e6 / best.seconds(),
            best.ended_s
        );
        vec![
            Judged::new("ticks indexed", rate, Unit::PerSecond, Floor::AtLeast(TICKS_PER_SECOND)).note(note),
            Judged::new("cells indexed", rate * CELLS_PER_TICK as f64, Unit::PerSecond, Floor::None),
            Judged::new("memory, most in any round", peak as f64, Unit::Bytes, Floor::AtMost(MEMORY_BYTES_MAX)),
            share("time in SQLite", best.flushed_s).note(format!(
                "{} durable transactions of {:.1} ms; processor time of its thread {:.2} s, of the process {:.2} s",
                best.flushes,
                best.flushed_s * 1e3 / best.flushes.max(1) as f64,
                best.writer_cpu_s,
                best.cpu_s
            )),
            share("time in decoding protobuf", best.decode_s).note("beside SQLite, on other threads"),
            share("time in reading files", best.file_s).note("page cache; beside SQLite"),
            share("time in checksums", best.checksum_s).note("beside SQLite"),
            Judged::none_of("rows that differ from the files", self.differing)
                .note("every tenth tick; cells are spliced as the source compressed them, so zstd takes no time"),
            Judged::new("of bare SQLite's rate", rate / limit * 100.0, Unit::Percent, Floor::None)
                .note(format!(
                    "the same blobs in the same transactions; rounds: {}; the disk takes {:.0} MB/s",
                    list(self.limits.clone()),
                    self.disk / 1e6
                )),
            Judged::new("times a row per cell", rate / self.naive, Unit::Times, Floor::None)
                .note(format!("{:.1} ticks/s with a commit per tick", self.naive)),
        ]
    }
}
