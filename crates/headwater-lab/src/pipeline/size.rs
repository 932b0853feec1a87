//! The space of a tick in the index, beside a row per cell.

use std::path::Path;

use anyhow::{Result, ensure};
use headwater_pipeline::cells::Compression;
use headwater_pipeline::contracts::TickData;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::EnvironmentWrite;
use headwater_pipeline::tidepool::{Config, Synthetic, Tidepool};

use super::bare::Rows;
use super::files;
use super::{Setting, WORLD};
use crate::check::{Floor, Judged, Unit};

const OCCUPANCY: f64 = 0.1;
const BYTES_PER_TICK_MAX: f64 = 2_048.0;
/// A world has so many cells from some tick on: about a tenth of them.
const CELLS: std::ops::RangeInclusive<u64> = 900..=1_100;
/// Ticks that it may take until then, and ticks that must be left.
const STEPS_MAX: u64 = 10_000;
const TICKS_MIN: usize = 200;
const TICKS_MAX: usize = 1_000;
const RUN: &str = "run_size";
/// Rows per cell are about the same for every tick: some are enough.
const NAIVE_TICKS: usize = 200;

pub(super) async fn run(setting: &Setting) -> Result<Vec<Judged>> {
    let directory = setting.directory()?;
    let lived = tokio::task::block_in_place(simulated)?;
    let made = tokio::task::block_in_place(|| generated(setting.seed))?;
    let at = |name: &str| directory.path().join(name);
    let stored = stored(&at("simulated"), &lived).await?;
    let random = self::stored(&at("generated"), &made).await?;
    let some = &lived[lived.len().saturating_sub(NAIVE_TICKS)..];
    let rows = tokio::task::block_in_place(|| rows(&at("rows.db"), some))?;
    let mean = |ticks: &[TickData], of: fn(&TickData) -> u64| {
        ticks.iter().map(of).sum::<u64>() as f64 / ticks.len() as f64
    };
    let blob = |ticks: &[TickData]| mean(ticks, |tick| tick.cells.len() as u64);
    let cells = mean(&lived, |tick| tick.cell_count);
    Ok(vec![
        Judged::new("bytes of a tick in the index", stored, Unit::Bytes, Floor::AtMost(BYTES_PER_TICK_MAX))
            .note(format!(
                "{} ticks of Tidepool with {cells:.0} cells, {:.1} % of the world; {:.0} bytes in the blob",
                lived.len(),
                cells / (WORLD[0] * WORLD[1]) as f64 * 100.0,
                blob(&lived)
            )),
        Judged::new("the same of generated ticks", random, Unit::Bytes, Floor::None)
            .note(format!("1,000 cells; {:.0} bytes in the blob", blob(&made))),
        Judged::new("bytes of a million ticks", stored * 1e6, Unit::Bytes, Floor::None)
            .note(format!("{:.2} GB", stored / 1e3)),
        Judged::new("the same with a row per cell", rows * 1e6, Unit::Bytes, Floor::None)
            .note(format!("{:.1} GB, {rows:.0} bytes a tick", rows / 1e3)),
        Judged::new("a row per cell, times the index", rows / stored, Unit::Times, Floor::None),
    ])
}

/// Ticks of a world while about a tenth of it is occupied.
fn simulated() -> Result<Vec<TickData>> {
    // Little food, so that it grows slowly. Always the same world: others may die out before they have so many cells.
    let config = Config {
        seed: 7,
        dimensions: WORLD.to_vec(),
        organisms: 15,
        organisms_max: 20,
        food_at_start: 0.06,
        food_rate: 0.000_02,
        ..Config::default()
    };
    let mut world = Tidepool::new(config)?;
    let mut ticks = Vec::new();
    while world.tick() < STEPS_MAX && ticks.len() < TICKS_MAX {
        let tick = world.capture(RUN, 0);
        if tick.cell_count > *CELLS.end() {
            break;
        }
        if CELLS.contains(&tick.cell_count) {
            ticks.push(tick);
        }
        world.step();
    }
    ensure!(ticks.len() >= TICKS_MIN, "the world had {CELLS:?} cells for {} ticks only", ticks.len());
    Ok(ticks)
}

/// Ticks as the other checks use them, of a world of which a tenth is occupied.
fn generated(seed: u64) -> Result<Vec<TickData>> {
    let mut source = Synthetic::new(&files::torus(&WORLD)?, OCCUPANCY, seed, Compression::default())?;
    Ok((0..TICKS_MAX).map(|_| source.next_tick(RUN)).collect())
}

/// The bytes of a tick in an index of these.
async fn stored(directory: &Path, ticks: &[TickData]) -> Result<f64> {
    let (world, options) = (files::torus(&WORLD)?, IndexOptions::default());
    let url = format!("sqlite:{}", directory.display());
    let index = files::index_with_metadata(&url, &files::metadata(RUN, &world, 0), &options).await?;
    EnvironmentWrite::create_schema(&*index, &world).await?;
    index.write_ticks(ticks).await?;
    // With its end the log is in the file.
    index.close().await;
    Ok(Index::open(&url, RUN, &options)?.bytes_stored().await? as f64 / ticks.len() as f64)
}

/// The bytes of a tick with a row per cell.
fn rows(file: &Path, ticks: &[TickData]) -> Result<f64> {
    let mut rows = Rows::create(file)?;
    rows.insert(ticks)?;
    rows.close()?;
    Ok(std::fs::metadata(file)?.len() as f64 / ticks.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulated_world_has_a_tenth_of_its_cells_occupied() {
        let ticks = simulated().unwrap();
        assert!(ticks.iter().all(|tick| CELLS.contains(&tick.cell_count)));
    }
}
