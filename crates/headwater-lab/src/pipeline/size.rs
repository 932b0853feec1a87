//! The space of a tick in the index, beside a row per cell.

use anyhow::Result;
use headwater_pipeline::cells::Compression;
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::EnvironmentWrite;
use headwater_pipeline::tidepool::Synthetic;

use super::bare::Rows;
use super::files;
use super::{BATCH, Setting, WORLD};
use crate::check::{Floor, Judged, Unit};

const OCCUPANCY: f64 = 0.1;
const BYTES_PER_TICK_MAX: f64 = 2_048.0;
const RUN: &str = "run_size";
/// Rows per cell are the same for every tick: some are enough.
const NAIVE_TICKS: usize = 200;

pub(super) async fn run(setting: &Setting) -> Result<Vec<Judged>> {
    let ticks = setting.count(20_000, 5_000);
    let directory = setting.directory()?;
    let world = files::torus(&WORLD)?;
    let url = format!("sqlite:{}", directory.path().display());
    let index = files::index_with_metadata(
        &url,
        &files::metadata(RUN, &world, setting.seed),
        &IndexOptions::default(),
    )
    .await?;
    EnvironmentWrite::create_schema(&*index, &world).await?;
    let mut source = Synthetic::new(&world, OCCUPANCY, setting.seed, Compression::default())?;
    let (mut blob_bytes, mut cells, mut first) = (0, 0, Vec::new());
    for _ in 0..ticks / BATCH {
        let made: Vec<TickData> =
            tokio::task::block_in_place(|| (0..BATCH).map(|_| source.next_tick(RUN)).collect());
        blob_bytes += made.iter().map(|tick| tick.cells.len() as u64).sum::<u64>();
        cells += made.iter().map(|tick| tick.cell_count).sum::<u64>();
        index.write_ticks(&made).await?;
        if first.is_empty() {
            first = made;
        }
    }
    // With its end the log is in the file.
    index.close().await;
    let index = Index::open(&url, RUN, &IndexOptions::default())?;
    let stored = index.bytes_stored().await? as f64 / ticks as f64;
    let file = directory.path().join("rows.db");
    let some = &first[..NAIVE_TICKS];
    tokio::task::block_in_place(|| -> Result<()> {
        let mut rows = Rows::create(&file)?;
        rows.insert(some)?;
        rows.close()
    })?;
    let rows = std::fs::metadata(&file)?.len() as f64 / some.len() as f64;
    let blob = blob_bytes as f64 / ticks as f64;
    Ok(vec![
        Judged::new("bytes of a tick in the index", stored, Unit::Bytes, Floor::AtMost(BYTES_PER_TICK_MAX))
            .note(format!(
                "{} cells, 10 % of the world; {blob:.0} bytes in the blob, the rest is the file's pages",
                cells / ticks
            )),
        Judged::new("bytes of a million ticks", stored * 1e6, Unit::Bytes, Floor::None)
            .note(format!("{:.2} GB", stored / 1e3)),
        Judged::new("the same with a row per cell", rows * 1e6, Unit::Bytes, Floor::None)
            .note(format!("{:.1} GB, {rows:.0} bytes a tick", rows / 1e3)),
        Judged::new("a row per cell, times the index", rows / stored, Unit::Times, Floor::None),
    ])
}
